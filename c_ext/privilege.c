/* Become the job's user for good, keeping at most the right to lock memory.
 *
 * RLIMIT_MEMLOCK is a few MB for most users, and raising it needs CAP_SYS_RESOURCE, which slurmd
 * lacks inside containers; CAP_IPC_LOCK alone lets a process lock memory and nothing else. The
 * process is made undumpable and does not exec afterwards: the user whose rights it has can
 * neither trace it nor open its descriptors.
 */
#include "io.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Reduce this process's capabilities to CAP_IPC_LOCK, where it has that, or to none. */
static int keep_memory_lock(int keep)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    if (syscall(SYS_capget, &header, data) != 0)
        return -errno;
    for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
        data[i].permitted &= keep && i == 0 ? 1U << CAP_IPC_LOCK : 0;
        data[i].effective = data[i].permitted;
        data[i].inheritable = 0;
    }
    return syscall(SYS_capset, &header, data) != 0 ? -errno : 0;
}

int bs_become(uint32_t uid, uint32_t gid, const uint32_t *groups, size_t count, int keep_lock)
{
    if (setgroups(count, groups) != 0)
        return -errno;
    if (prctl(PR_SET_KEEPCAPS, keep_lock ? 1 : 0) != 0)
        return -errno;
    if (setresgid(gid, gid, gid) != 0 || setresuid(uid, uid, uid) != 0)
        return -errno;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_DUMPABLE, 0) != 0)
        return -errno;
    return keep_memory_lock(keep_lock);
}

int bs_die_with(int parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return -errno;
    return getppid() == parent ? 0 : -ESRCH;
}
