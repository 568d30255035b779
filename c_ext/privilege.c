/* Permanently become the job's user, keeping at most the right to lock memory.
 *
 * RLIMIT_MEMLOCK is a few MB for most users, and raising it needs CAP_SYS_RESOURCE, which slurmd
 * lacks inside containers; CAP_IPC_LOCK alone lets a process lock memory and nothing else. The
 * process is made undumpable: its user can neither trace it nor open its descriptors. The filter of
 * seccomp.c keeps it undumpable.
 */
#include "io.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Locked: being root gives no capabilities, none become ambient, and changing user IDs drops them
 * as usual. SECBIT_KEEP_CAPS, which keeps them once, is not locked yet. */
#define BITS                                                                                       \
    (SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP_LOCKED |                        \
     SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED)

typedef struct __user_cap_data_struct capabilities[_LINUX_CAPABILITY_U32S_3];

static int read_capabilities(capabilities data)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};

    return syscall(SYS_capget, &header, data) != 0 ? -errno : 0;
}

/* The capabilities of this process that it may keep. */
static uint32_t kept(uint32_t permitted, int keep, int word)
{
    return keep && word == 0 ? permitted & 1U << CAP_IPC_LOCK : 0;
}

/* Reduce this process's capabilities to CAP_IPC_LOCK, if it has that, or to none. */
static int keep_memory_lock(int keep)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    capabilities data;
    int error = read_capabilities(data);

    if (error < 0)
        return error;
    for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
        data[i].permitted = kept(data[i].permitted, keep, i);
        data[i].effective = data[i].permitted;
        data[i].inheritable = 0;
    }
    return syscall(SYS_capset, &header, data) != 0 ? -errno : 0;
}

/* Clear the sets from which a later exec or change of user could regain capabilities. */
static int close_sources(void)
{
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0)
        return -errno;
    for (unsigned long i = 0; prctl(PR_CAPBSET_READ, i) >= 0; i++)
        if (prctl(PR_CAPBSET_DROP, i, 0, 0, 0) != 0)
            return -errno;
    return prctl(PR_SET_SECUREBITS, BITS) != 0 ? -errno : 0;
}

static int has_user(uint32_t uid, uint32_t gid)
{
    uid_t users[3];
    gid_t groups[3];

    if (getresuid(users, users + 1, users + 2) != 0 ||
        getresgid(groups, groups + 1, groups + 2) != 0)
        return 0;
    for (int i = 0; i < 3; i++)
        if (users[i] != uid || groups[i] != gid)
            return 0;
    return 1;
}

static int has_capabilities_left(int keep)
{
    capabilities data;

    if (read_capabilities(data) < 0)
        return 1;
    for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
        if (data[i].inheritable != 0 || data[i].effective != data[i].permitted ||
            data[i].permitted != kept(data[i].permitted, keep, i))
            return 1;
    for (unsigned long i = 0; prctl(PR_CAPBSET_READ, i) >= 0; i++)
        if (prctl(PR_CAPBSET_READ, i) != 0 ||
            prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, i, 0, 0) != 0)
            return 1;
    return 0;
}

/* Verify that no rights of root are left. */
static int check(uint32_t uid, uint32_t gid, size_t count, int keep)
{
    if (!has_user(uid, gid) || getgroups(0, NULL) != (int)count || has_capabilities_left(keep) ||
        prctl(PR_GET_SECUREBITS) != BITS || prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1 ||
        prctl(PR_GET_DUMPABLE) == 1)
        return -EPERM;
    return 0;
}

int bs_become(uint32_t uid, uint32_t gid, const uint32_t *groups, size_t count, int keep_lock)
{
    if (setgroups(count, groups) != 0)
        return -errno;
    int error = close_sources();
    if (error < 0)
        return error;
    if (prctl(PR_SET_KEEPCAPS, keep_lock ? 1 : 0) != 0)
        return -errno;
    if (setresgid(gid, gid, gid) != 0 || setresuid(uid, uid, uid) != 0)
        return -errno;
    error = keep_memory_lock(keep_lock);
    if (error < 0)
        return error;
    /* Each change of rights above may have made the process dumpable, so this comes last. */
    if (prctl(PR_SET_KEEPCAPS, 0) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_DUMPABLE, 0) != 0)
        return -errno;
    return check(uid, gid, count, keep_lock);
}

int bs_die_with(int parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return -errno;
    return getppid() == parent ? 0 : -ESRCH;
}

/* The capabilities that a broker uses: for mounts and namespaces, other users' files and processes,
 * and becoming those users. */
static const int BROKERS[] = {
    CAP_CHOWN,     CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER,       CAP_KILL,
    CAP_SETUID,    CAP_SETGID,       CAP_SETPCAP,         CAP_IPC_LOCK,     CAP_SYS_CHROOT,
    CAP_SYS_ADMIN, CAP_SYS_NICE,     CAP_SYS_PTRACE,      CAP_SYS_RESOURCE,
};

int bs_limit_to_brokers(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    uint64_t kept = 0;
    capabilities data;
    int error = read_capabilities(data);

    if (error < 0)
        return error;
    for (size_t i = 0; i < sizeof BROKERS / sizeof *BROKERS; i++)
        kept |= UINT64_C(1) << BROKERS[i];
    for (unsigned long i = 0; i < 64 && prctl(PR_CAPBSET_READ, i) >= 0; i++)
        if (!(kept >> i & 1) && prctl(PR_CAPBSET_DROP, i, 0, 0, 0) != 0)
            return -errno;
    for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
        data[i].permitted &= (uint32_t)(kept >> 32 * i);
        data[i].effective = data[i].permitted;
        data[i].inheritable = 0;
    }
    return syscall(SYS_capset, &header, data) != 0 ? -errno : 0;
}

int bs_adopt_orphans(int yes)
{
    return prctl(PR_SET_CHILD_SUBREAPER, yes ? 1UL : 0UL, 0, 0, 0) != 0 ? -errno : 0;
}
