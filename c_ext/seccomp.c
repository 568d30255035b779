/* Permanently limit the system calls of a process that handles a user's data, with a seccomp
 * filter.
 *
 * The table lists the allowed calls. Dangerous calls fail with EPERM, and all others with ENOSYS,
 * so that libraries fall back. The filter compares the lower 32 bits of arguments: all of these are
 * an int, or flags that the kernel truncates to 32 bits.
 */
#include "io.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "the numbers of system calls are known for x86_64 and aarch64"
#endif

/* From here on every architecture has the same numbers; headers may be older than the kernel. */
enum {
    CALL_PIDFD_SEND_SIGNAL = 424,
    CALL_IO_URING_SETUP = 425,
    CALL_IO_URING_ENTER = 426,
    CALL_IO_URING_REGISTER = 427,
    CALL_OPEN_TREE = 428,
    CALL_MOVE_MOUNT = 429,
    CALL_FSOPEN = 430,
    CALL_FSCONFIG = 431,
    CALL_FSMOUNT = 432,
    CALL_FSPICK = 433,
    CALL_CLOSE_RANGE = 436,
    CALL_OPENAT2 = 437,
    CALL_PIDFD_GETFD = 438,
    CALL_FACCESSAT2 = 439,
    CALL_PROCESS_MADVISE = 440,
    CALL_EPOLL_PWAIT2 = 441,
    CALL_MOUNT_SETATTR = 442,
    CALL_LANDLOCK_CREATE_RULESET = 444,
    CALL_LANDLOCK_ADD_RULE = 445,
    CALL_LANDLOCK_RESTRICT_SELF = 446,
    CALL_PROCESS_MRELEASE = 448,
    CALL_FUTEX_WAITV = 449,
    CALL_CACHESTAT = 451,
    CALL_FCHMODAT2 = 452,
    CALL_FUTEX_WAKE = 454,
    CALL_FUTEX_WAIT = 455,
    CALL_FUTEX_REQUEUE = 456,
    CALL_MSEAL = 462,
    CALL_OPEN_TREE_ATTR = 467
};

enum {
    X32 = 0x40000000,                /* this bit of a number means the x32 ABI */
    NO_LISTENER = 1,                 /* SECCOMP_FILTER_FLAG_TSYNC and no other flag */
    NAME_MEMORY = 0x53564d41,        /* PR_SET_VMA */
    NEW_NAMESPACES = (int)0x7e020000 /* all CLONE_NEW* that clone(2) takes */
};

/* A name to a line would be 250 lines. */
/* clang-format off */

/* Always allowed. */
static const int allowed[] = {
    /* Files and folders. */
    SYS_read, SYS_pread64, SYS_readv, SYS_preadv, SYS_preadv2, SYS_write, SYS_pwrite64,
    SYS_writev, SYS_pwritev, SYS_pwritev2, SYS_close, SYS_openat, CALL_OPENAT2, SYS_newfstatat,
    SYS_name_to_handle_at, SYS_fstat, SYS_statx, SYS_lseek, SYS_getdents64, SYS_faccessat,
    CALL_FACCESSAT2, SYS_readlinkat, SYS_statfs, SYS_fstatfs, SYS_fcntl, SYS_flock, SYS_dup, SYS_dup3,
    CALL_CLOSE_RANGE, SYS_copy_file_range, SYS_sendfile, SYS_splice, SYS_tee, SYS_fadvise64,
    SYS_readahead, SYS_truncate, SYS_ftruncate, SYS_fallocate, SYS_fsync, SYS_fdatasync,
    SYS_sync_file_range, SYS_sync, SYS_syncfs, SYS_mkdirat, SYS_unlinkat, SYS_renameat,
    SYS_renameat2, SYS_linkat, SYS_symlinkat, SYS_fchmod, SYS_fchmodat, CALL_FCHMODAT2,
    SYS_fchown, SYS_fchownat, SYS_utimensat, SYS_umask, SYS_getcwd, SYS_chdir, SYS_fchdir,
    SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr,
    SYS_listxattr, SYS_llistxattr, SYS_flistxattr, SYS_removexattr, SYS_lremovexattr,
    SYS_fremovexattr, SYS_pipe2, SYS_memfd_create, CALL_CACHESTAT,
    /* Memory. PROT_EXEC too: modules are loaded late, and libffi makes closures. */
    SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_brk, SYS_msync,
    SYS_mincore, SYS_munlock, CALL_MSEAL,
    /* Threads. */
    SYS_futex, CALL_FUTEX_WAITV, CALL_FUTEX_WAKE, CALL_FUTEX_WAIT, CALL_FUTEX_REQUEUE,
    SYS_set_robust_list, SYS_rseq, SYS_set_tid_address, SYS_gettid, SYS_membarrier, SYS_exit,
    SYS_exit_group, SYS_sched_yield, SYS_sched_getaffinity, SYS_sched_setaffinity, SYS_getcpu,
    SYS_sched_getparam, SYS_sched_getscheduler, SYS_sched_get_priority_max,
    SYS_sched_get_priority_min, SYS_getpriority, SYS_setpriority, SYS_ioprio_get,
    SYS_ioprio_set,
    /* Time. */
    SYS_clock_gettime, SYS_clock_getres, SYS_clock_nanosleep, SYS_nanosleep, SYS_gettimeofday,
    SYS_times, SYS_getitimer, SYS_setitimer, SYS_timer_create, SYS_timer_settime,
    SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete, SYS_timerfd_create,
    SYS_timerfd_settime, SYS_timerfd_gettime,
    /* Signals, but for those to others. */
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending,
    SYS_rt_sigtimedwait, SYS_rt_sigsuspend, SYS_sigaltstack, SYS_signalfd4, SYS_restart_syscall,
    /* Polling. */
    SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, CALL_EPOLL_PWAIT2, SYS_ppoll,
    SYS_pselect6, SYS_eventfd2,
    /* The identity of this process, and its view of the machine. */
    SYS_getpid, SYS_getppid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid,
    SYS_getresgid, SYS_getgroups, SYS_getpgid, SYS_getsid, SYS_capget, SYS_getrusage,
    SYS_getrlimit, SYS_setrlimit, SYS_uname, SYS_sysinfo, SYS_getrandom,
    /* Children: there are none, but libraries look. */
    SYS_wait4, SYS_waitid,
    /* Sockets that are open. */
    SYS_connect, SYS_bind, SYS_getsockname, SYS_getpeername, SYS_getsockopt, SYS_setsockopt,
    SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_sendmmsg, SYS_recvmmsg,
    SYS_shutdown,
#ifdef __x86_64__
    /* Missing on newer architectures. */
    SYS_open, SYS_creat, SYS_stat, SYS_lstat, SYS_access, SYS_readlink, SYS_getdents, SYS_mkdir,
    SYS_rmdir, SYS_unlink, SYS_rename, SYS_link, SYS_symlink, SYS_chmod, SYS_chown, SYS_lchown,
    SYS_utime, SYS_utimes, SYS_futimesat, SYS_dup2, SYS_pipe, SYS_poll, SYS_select,
    SYS_epoll_create, SYS_epoll_wait, SYS_eventfd, SYS_signalfd, SYS_alarm, SYS_pause, SYS_time,
    SYS_getpgrp, SYS_arch_prctl,
#endif
};

/* Allowed if a store is reached over the network: Kerberos tickets may be in the keyring. */
static const int keyring[] = {SYS_keyctl, SYS_add_key, SYS_request_key};

/* Allowed if memory is locked. */
static const int locking[] = {SYS_mlock, SYS_mlock2};

/* Allowed if another program is run. */
static const int running[] = {SYS_execve, SYS_execveat};

/* Allowed for servers of a socket: accept connections, and limit the folders that may change. */
static const int serving[] = {
    SYS_accept4, CALL_LANDLOCK_CREATE_RULESET, CALL_LANDLOCK_ADD_RULE, CALL_LANDLOCK_RESTRICT_SELF
};

/* Allowed for servers that others reach over the network. */
static const int listening[] = {SYS_listen};

/* Allowed if processes are started; also to end them. */
static const int forking[] = {
    SYS_kill,
#ifdef __x86_64__
    SYS_fork, SYS_vfork,
#endif
};

/* Refused with EPERM: libraries must not fall back silently. */
static const int dangerous[] = {
    /* Other programs and processes. */
    SYS_execve, SYS_execveat, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev,
    CALL_PIDFD_GETFD, CALL_PIDFD_SEND_SIGNAL, CALL_PROCESS_MADVISE, CALL_PROCESS_MRELEASE,
    SYS_kcmp, SYS_tkill, SYS_seccomp,
    /* Mounts and namespaces. */
    SYS_mount, SYS_umount2, CALL_OPEN_TREE, CALL_OPEN_TREE_ATTR, CALL_MOVE_MOUNT, CALL_FSOPEN,
    CALL_FSCONFIG, CALL_FSMOUNT, CALL_FSPICK, CALL_MOUNT_SETATTR, SYS_pivot_root, SYS_chroot,
    SYS_setns, SYS_unshare, SYS_open_by_handle_at,
    /* Identity. */
    SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid,
    SYS_setfsuid, SYS_setfsgid, SYS_setgroups, SYS_capset, SYS_personality, SYS_keyctl,
    SYS_add_key, SYS_request_key,
    /* Large attack surfaces of the kernel. */
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, CALL_IO_URING_SETUP, CALL_IO_URING_ENTER,
    CALL_IO_URING_REGISTER, SYS_fanotify_init,
    /* The machine's administration. */
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_reboot,
    SYS_swapon, SYS_swapoff, SYS_acct, SYS_sethostname, SYS_setdomainname, SYS_settimeofday,
    SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime, SYS_syslog, SYS_quotactl, SYS_vhangup,
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
#ifdef __x86_64__
    SYS_fork, SYS_vfork, SYS_iopl, SYS_ioperm, SYS_modify_ldt,
#endif
};

/* Allowed options of prctl(2), mostly for reading. Others fail like unknown options. */
static const int process_options[] = {
    PR_SET_NAME,        PR_SET_NO_NEW_PRIVS, PR_GET_NAME,       PR_GET_DUMPABLE,
    PR_GET_PDEATHSIG,   PR_GET_NO_NEW_PRIVS, PR_GET_SECCOMP,    PR_GET_SECUREBITS,
    PR_CAPBSET_READ,    PR_SET_TIMERSLACK,   PR_GET_TIMERSLACK, PR_GET_KEEPCAPS,
    PR_SET_THP_DISABLE, PR_GET_THP_DISABLE,  NAME_MEMORY,
};

/* Refused options: these would expose the process to its user, or let it outlive its parent. */
static const int closed_options[] = {
    PR_SET_DUMPABLE, PR_SET_PTRACER,    PR_SET_PDEATHSIG, PR_SET_MM,       PR_SET_SECUREBITS,
    PR_CAPBSET_DROP, PR_CAP_AMBIENT
};

/* clang-format on */

/* A filter under construction; its instructions need less than half of this. */
struct program {
    struct sock_filter steps[1024];
    unsigned short count;
};

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define ANSWER(error) (SECCOMP_RET_ERRNO | (error))

static void step(struct program *self, int code, unsigned value, int when, int unless)
{
    self->steps[self->count++] = (struct sock_filter){(unsigned short)code, (unsigned char)when,
                                                      (unsigned char)unless, value};
}

static void load(struct program *self, size_t offset)
{
    step(self, BPF_LD | BPF_W | BPF_ABS, (unsigned)offset, 0, 0);
}

static void load_argument(struct program *self, int number)
{
    load(self, offsetof(struct seccomp_data, args) + (size_t)number * sizeof(uint64_t));
}

static void answer(struct program *self, unsigned how)
{
    step(self, BPF_RET | BPF_K, how, 0, 0);
}

/* Answer at once if the loaded value is this one, or has one of these bits (BPF_JSET). */
static void answer_if(struct program *self, int test, unsigned value, unsigned how)
{
    step(self, BPF_JMP | test | BPF_K, value, 0, 1);
    answer(self, how);
}

static void answer_each(struct program *self, const int *values, size_t count, unsigned how)
{
    for (size_t i = 0; i < count; i++)
        answer_if(self, BPF_JEQ, (unsigned)values[i], how);
}

/* Begin the instructions for one system call; `end` must follow, and every path must answer. */
static unsigned short begin(struct program *self, int call)
{
    step(self, BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 0);
    return self->count;
}

static void end(struct program *self, unsigned short start)
{
    self->steps[start - 1].jf = (unsigned char)(self->count - start);
}

static void limit_signals(struct program *self, int call)
{
    unsigned short start = begin(self, call);

    load_argument(self, 0);
    answer_if(self, BPF_JEQ, (unsigned)getpid(), SECCOMP_RET_ALLOW);
    answer(self, ANSWER(EPERM));
    end(self, start);
}

static void limit_clone(struct program *self, unsigned flags)
{
    unsigned short start = begin(self, SYS_clone);

    load_argument(self, 0);
    answer_if(self, BPF_JSET, NEW_NAMESPACES, ANSWER(EPERM));
    if (!(flags & BS_FORK)) {
        answer_if(self, BPF_JSET, CLONE_THREAD, SECCOMP_RET_ALLOW);
        answer(self, ANSWER(EPERM));
    }
    answer(self, SECCOMP_RET_ALLOW);
    end(self, start);
}

static void limit_sockets(struct program *self, unsigned flags)
{
    unsigned short start = begin(self, SYS_socketpair);

    load_argument(self, 0);
    answer_if(self, BPF_JEQ, AF_UNIX, SECCOMP_RET_ALLOW);
    answer(self, ANSWER(EPERM));
    end(self, start);
    start = begin(self, SYS_socket);
    load_argument(self, 0);
    if (!(flags & BS_EXEC))
        answer_if(self, BPF_JEQ, AF_UNIX, SECCOMP_RET_ALLOW);
    if (flags & BS_NETWORK) {
        answer_if(self, BPF_JEQ, AF_INET, SECCOMP_RET_ALLOW);
        answer_if(self, BPF_JEQ, AF_INET6, SECCOMP_RET_ALLOW);
        step(self, BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 1, 0);
        answer(self, ANSWER(EPERM));
        load_argument(self, 2);
        answer_if(self, BPF_JEQ, 0, SECCOMP_RET_ALLOW); /* NETLINK_ROUTE: which addresses it has */
    }
    answer(self, ANSWER(EPERM));
    end(self, start);
}

static void limit_process_options(struct program *self, unsigned flags)
{
    unsigned short start = begin(self, SYS_prctl);

    load_argument(self, 0);
    answer_each(self, process_options, COUNT(process_options), SECCOMP_RET_ALLOW);
    if (flags & BS_FORK)
        answer_if(self, BPF_JEQ, PR_SET_PDEATHSIG, SECCOMP_RET_ALLOW);
    answer_each(self, closed_options, COUNT(closed_options), ANSWER(EPERM));
    answer(self, ANSWER(EINVAL));
    end(self, start);
}

/* A further filter can only remove more. */
static void limit_filters(struct program *self)
{
    unsigned short start = begin(self, SYS_seccomp);

    load_argument(self, 0);
    step(self, BPF_JMP | BPF_JEQ | BPF_K, SECCOMP_SET_MODE_FILTER, 1, 0);
    answer(self, ANSWER(EPERM));
    load_argument(self, 1);
    answer_if(self, BPF_JEQ, NO_LISTENER, SECCOMP_RET_ALLOW);
    answer(self, ANSWER(EPERM));
    end(self, start);
}

static void limit_devices(struct program *self)
{
    unsigned short start = begin(self, SYS_ioctl);

    load_argument(self, 1);
    answer_if(self, BPF_JEQ, TIOCSTI, ANSWER(EPERM));
    answer_if(self, BPF_JEQ, TIOCLINUX, ANSWER(EPERM));
    answer(self, SECCOMP_RET_ALLOW);
    end(self, start);
}

/* A process may change its own limits, downwards. */
static void limit_limits(struct program *self)
{
    unsigned short start = begin(self, SYS_prlimit64);

    load_argument(self, 0);
    answer_if(self, BPF_JEQ, 0, SECCOMP_RET_ALLOW);
    answer_if(self, BPF_JEQ, (unsigned)getpid(), SECCOMP_RET_ALLOW);
    answer(self, ANSWER(EPERM));
    end(self, start);
}

static void write_program(struct program *self, unsigned flags)
{
    load(self, offsetof(struct seccomp_data, arch));
    step(self, BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    answer(self, SECCOMP_RET_KILL_PROCESS);
    load(self, offsetof(struct seccomp_data, nr));
#ifdef __x86_64__
    answer_if(self, BPF_JSET, X32, ANSWER(ENOSYS));
#endif
    answer_each(self, allowed, COUNT(allowed), SECCOMP_RET_ALLOW);
    if (flags & BS_NETWORK)
        answer_each(self, keyring, COUNT(keyring), SECCOMP_RET_ALLOW);
    if (flags & BS_PIN)
        answer_each(self, locking, COUNT(locking), SECCOMP_RET_ALLOW);
    if (flags & BS_EXEC)
        answer_each(self, running, COUNT(running), SECCOMP_RET_ALLOW);
    if (flags & BS_FORK)
        answer_each(self, forking, COUNT(forking), SECCOMP_RET_ALLOW);
    if (flags & BS_SERVE && flags & BS_NETWORK)
        answer_each(self, listening, COUNT(listening), SECCOMP_RET_ALLOW);
    if (flags & BS_SERVE)
        answer_each(self, serving, COUNT(serving), SECCOMP_RET_ALLOW);
    if (flags & (BS_NETWORK | BS_FORK))
        limit_filters(self);
    limit_clone(self, flags);
    limit_signals(self, SYS_kill);
    limit_signals(self, SYS_tgkill);
    limit_signals(self, SYS_rt_sigqueueinfo);
    limit_signals(self, SYS_rt_tgsigqueueinfo);
    limit_sockets(self, flags);
    limit_process_options(self, flags);
    limit_devices(self);
    limit_limits(self);
    answer_each(self, dangerous, COUNT(dangerous), ANSWER(EPERM));
    answer(self, ANSWER(ENOSYS));
}

int bs_confine_system_calls(unsigned flags)
{
    struct program program = {.count = 0};
    struct sock_fprog filter = {.filter = program.steps};

    write_program(&program, flags);
    filter.len = program.count;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -errno;
    long left_out =
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter);
    if (left_out < 0)
        return -errno;
    return left_out > 0 ? -EBUSY : 0; /* a thread that has another filter */
}
