/* I/O priority of the calling thread; the C library has no wrapper for it. */
#include "io.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#define IOPRIO_WHO_PROCESS 1
#define IOPRIO_CLASS_IDLE 3
#define IOPRIO_CLASS_SHIFT 13

int bs_io_idle(void)
{
    if (syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_CLASS_IDLE << IOPRIO_CLASS_SHIFT) !=
        0)
        return -errno;
    return 0;
}
