/* Stands in for bootseer-advice.so: does what the key says, without Python. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int bootseer_advise(int count, const char *const names[], const char *const values[]);

int bootseer_advise(int count, const char *const names[], const char *const values[])
{
    const char *key = values[0];

    if (!strcmp(key, "hang"))
        for (;;)
            pause();
    if (!strcmp(key, "stubborn")) {
        signal(SIGTERM, SIG_IGN);
        for (;;)
            pause();
    }
    if (!strcmp(key, "slow"))
        usleep(300 * 1000);
    if (!strcmp(key, "abort"))
        abort();
    if (!strcmp(key, "crash"))
        *(volatile int *)16 = 1;
    if (!strcmp(key, "exit"))
        exit(3);
    if (!strcmp(key, "flood"))
        for (;;)
            puts("flood");
    if (!strcmp(key, "never"))
        return 0;
    for (int i = 0; i < count; i++)
        printf("%s is %s\n", names[i], values[i]);
    fflush(stdout);
    return 1;
}
