"""Drop root's rights permanently for those of a job's user."""

from __future__ import annotations

import enum
import os
import resource
from collections.abc import Collection
from contextlib import suppress

from bootseer._io import ffi, lib

MAX_DATA_BYTES = 4 << 30
"""Limit of a worker's address space: a 16 MB trace takes 250 MB to merge, 256 stacks take 2 GB."""

_MAX_OPEN_FILES = 16_384
"""A job may have thousands of checkpoint files open."""

_LIMITS = {
    resource.RLIMIT_DATA: MAX_DATA_BYTES,
    resource.RLIMIT_NOFILE: _MAX_OPEN_FILES,
    resource.RLIMIT_CORE: 0,
}
_STANDARD = (0, 1, 2)


class Confinement(enum.IntFlag):
    """What a confined process may do besides using memory, files and open descriptors.

    PLAIN allows threads, and Unix sockets, which name services use. In every profile, mounts,
    namespaces, other identities and access to other processes are refused.
    """

    PLAIN = 0
    NETWORK = lib.BS_NETWORK
    """IP sockets, and the kernel's keyring, where Kerberos tickets may be."""
    PIN = lib.BS_PIN
    """Locking memory."""
    EXEC = lib.BS_EXEC
    """Running another program, bound by the same; no sockets can be made then."""
    FORK = lib.BS_FORK
    """Starting processes, and ending them."""
    SERVE = lib.BS_SERVE
    """Accepting connections; and `limit_changes`."""


IDENTITY = (
    *("HOME", "HADOOP_USER_NAME", "HADOOP_PROXY_USER", "HADOOP_TOKEN_FILE_LOCATION"),
    *("KRB5CCNAME", "KRB5_CLIENT_KTNAME", "KRB5_CONFIG"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET", "AZURE_CLIENT_ID"),
)
"""Environment variables with which stores would identify this process as another user."""


def drop_privileges(user: str, uid: int, gid: int, keep_lock: bool) -> None:
    """Take on the user's rights permanently; call it before any input is read.

    Environment variables that name another identity are removed.

    Args:
        user: the user's name, for the groups.
        uid, gid: the user's ids.
        keep_lock: keep the capability to lock memory, and no other.

    Raises:
        OSError: a system call failed; the process must exit.
    """
    for name in IDENTITY:
        os.environ.pop(name, None)
    groups = os.getgrouplist(user, gid)
    _check(lib.bs_become(uid, gid, ffi.new("uint32_t[]", groups), len(groups), keep_lock))
    os.umask(0o077)


def confine(
    user: str,
    uid: int,
    gid: int,
    agent: int,
    *,
    keep: Collection[int],
    profile: Confinement = Confinement.PLAIN,
    expendable: bool = True,
    outlives: bool = False,
) -> None:
    """Become the user, with few descriptors and system calls left, in an agent's process.

    Memory is limited, because it is charged to no job and depends on the content of the user's
    store. Threads and file sizes are not limited. RLIMIT_NPROC counts all of the user's threads
    on the node, so it would fail beside a large job; the user's quotas limit files.

    Call it after imports, while there is one thread, and before any of the user's data are read.

    Args:
        user, uid, gid: as for `drop_privileges`.
        agent: process id of the agent, the parent of this process.
        keep: descriptors that stay open, besides standard input, output and error. Objects that own
            other descriptors must not be closed afterwards: the number may be in use again.
        profile: what the process may do. Only `Confinement.PIN` keeps the capability to lock
            memory.
        expendable: the OOM killer takes this process first.
        outlives: the process is not killed when the agent dies.

    Raises:
        OSError: a system call failed, or the agent has died; the process must exit.
    """
    _close_others(keep)
    for kind, most in _LIMITS.items():
        _, hard = resource.getrlimit(kind)
        bound = most if hard == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(kind, (bound, bound))
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000" if expendable else "0")
    os.chdir("/")
    drop_privileges(user, uid, gid, Confinement.PIN in profile)
    if not outlives:
        die_with(agent)  # changing the user id resets that
    confine_system_calls(profile)


def limit_to_brokers() -> None:
    """Drop the capabilities that a job's broker does not use, permanently.

    Raises:
        OSError: a system call failed; the process must exit.
    """
    _check(lib.bs_limit_to_brokers())


def adopt_orphans(yes: bool) -> None:
    """Become the parent of orphaned descendants, or stop that.

    Raises:
        OSError: a system call failed.
    """
    _check(lib.bs_adopt_orphans(yes))


def die_with(parent: int) -> None:
    """Have this process killed when the thread that started it ends.

    Args:
        parent: process id of the parent; its first thread started this process.

    Raises:
        OSError: the parent has died; this process must exit.
    """
    _check(lib.bs_die_with(parent))


def confine_system_calls(profile: Confinement) -> None:
    """Limit the system calls of this process permanently; `confine` does it already.

    Under `Confinement.NETWORK` or `Confinement.FORK`, another call can tighten the limits, but none
    can loosen them.

    Raises:
        OSError: a system call failed; the process must exit.
    """
    _check(lib.bs_confine_system_calls(profile))


def limit_changes(*folders: str) -> None:
    """Refuse this process's changes outside some folders permanently (Linux 5.13 or later).

    Call it while there is one thread. Open descriptors are not affected.

    Raises:
        OSError: a system call failed.
    """
    paths = [ffi.new("char[]", os.fsencode(folder)) for folder in folders]
    _check(lib.bs_limit_changes(ffi.new("char *[]", paths), len(paths)))


def _close_others(keep: Collection[int]) -> None:
    kept = {*_STANDARD, *keep}
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in kept:
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(fd)


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
