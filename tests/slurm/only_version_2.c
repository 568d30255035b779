// Shows a process only its control group of version 2, as on a host that has no other: preloaded,
// it stands in for such a host, on which alone Slurm uses version 2.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int real_open(const char *path, int flags, mode_t mode)
{
    int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    return next(path, flags, mode);
}

static int filtered(const char *path)
{
    char text[8192];
    int from = real_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (from < 0)
        return from;
    ssize_t size = read(from, text, sizeof text - 1);
    close(from);
    text[size > 0 ? size : 0] = '\0';
    const char *line = strncmp(text, "0::", 3) ? strstr(text, "\n0::") : text - 1;
    int to = memfd_create("cgroup", MFD_CLOEXEC);
    if (line && write(to, line + 1, strlen(line + 1)) < 0)
        return -1;
    lseek(to, 0, SEEK_SET);
    return to;
}

int open(const char *path, int flags, ...)
{
    char name[32], rest;
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    if (sscanf(path, "/proc/%31[^/]/cgroup%c", name, &rest) == 1 && strstr(path, "/cgroup"))
        return filtered(path);
    return real_open(path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));
