/* Tell whether this program has more rights than the user who runs it: `gain SECRET [DEVICE]`.
 *
 * Prints GAINED and how, if it can read what only root can, or open a device. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    int file;

    while (status && fgets(line, sizeof(line), status))
        if (!strncmp(line, "CapEff", 6) || !strncmp(line, "Uid", 3))
            printf("%s", line);
    if (setgid(0) || setuid(0))
        printf("no root\n");
    for (int i = 1; i < count; i++) {
        file = open(arguments[i], O_RDONLY | O_NONBLOCK);
        if (file >= 0 && read(file, line, 16) >= 0)
            printf("GAINED %s\n", arguments[i]);
    }
    printf("uid %d\n", (int)geteuid());
    return 0;
}
