"""Give up root's rights for those of a job's user, for good."""

from __future__ import annotations

import enum
import os
import resource
from collections.abc import Collection
from contextlib import suppress

from bootseer._io import ffi, lib

MAX_DATA_BYTES = 4 << 30
"""Traces of 16 MB take 250 MB each to merge; stacks of 256 threads count with 2 GB."""

_MAX_OPEN_FILES = 16_384
"""A job may have thousands of files of its checkpoint open at once."""

_LIMITS = {
    resource.RLIMIT_DATA: MAX_DATA_BYTES,
    resource.RLIMIT_NOFILE: _MAX_OPEN_FILES,
    resource.RLIMIT_CORE: 0,
}
_STANDARD = (0, 1, 2)


class Confinement(enum.IntFlag):
    """What a confined process may do beyond working on memory, files and what it has open.

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
"""Variables by which stores would take this process for somebody else than its user."""


def drop_privileges(user: str, uid: int, gid: int, keep_lock: bool) -> None:
    """Take on the user's rights for good, before anything is read from anywhere.

    What the environment says of another identity is forgotten.

    Args:
        user: name, for the groups.
        uid, gid: of the user.
        keep_lock: keep the right to lock memory, and no other.

    Raises:
        OSError: it could not be done; the process must end.
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
    """Become the user in a process of the agent's, with a few descriptors and system calls left.

    Memory is bounded: what the process holds is charged to nobody's job, and depends on what lies
    in the user's store. The number of threads and the length of files are not bounded here.
    RLIMIT_NPROC counts all of the user's threads on the node, so it would fail beside a large job;
    and the files are the user's, whose quotas hold.

    Call it after imports, while there is one thread, and before anything of the user's is read.

    Args:
        user, uid, gid: as for `drop_privileges`.
        agent: process id of the agent, which has started this process.
        keep: descriptors that stay open, beside standard input, output and error. Other objects
            that have closed ones must not be closed afterwards: the number may be in use again.
        profile: what it may do. The right to lock memory stays with `Confinement.PIN` only.
        expendable: when memory runs out, it is the first to go; otherwise as likely as any.
        outlives: it does not die with the agent, whatever it waits for.

    Raises:
        OSError: it could not be done, or the agent has died; the process must end.
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
        die_with(agent)  # taking on other rights ends that
    confine_system_calls(profile)


def limit_to_brokers() -> None:
    """Give up what a job's broker does not use of root's capabilities, for good.

    Raises:
        OSError: it could not be done; the process must end.
    """
    _check(lib.bs_limit_to_brokers())


def adopt_orphans(yes: bool) -> None:
    """Become the parent of descendants whose parents end, or cease to.

    Raises:
        OSError: it could not be done.
    """
    _check(lib.bs_adopt_orphans(yes))


def die_with(parent: int) -> None:
    """Have this process killed when the thread ends that has started it.

    Args:
        parent: process id of the parent, whose first thread that was.

    Raises:
        OSError: the parent has died; this process must end.
    """
    _check(lib.bs_die_with(parent))


def confine_system_calls(profile: Confinement) -> None:
    """Limit the system calls of this process for good; `confine` does it already.

    With `Confinement.NETWORK` or `Confinement.FORK` in force, another call can take rights away,
    and none can add any.

    Raises:
        OSError: it could not be done; the process must end.
    """
    _check(lib.bs_confine_system_calls(profile))


def limit_changes(*folders: str) -> None:
    """Refuse this process's changes outside some folders for good, where the kernel can (5.13).

    Call it while there is one thread; what is open already stays as it is.

    Raises:
        OSError: it could not be done.
    """
    paths = [ffi.new("char[]", os.fsencode(folder)) for folder in folders]
    _check(lib.bs_limit_changes(ffi.new("char *[]", paths), len(paths)))


def _close_others(keep: Collection[int]) -> None:
    kept = {*_STANDARD, *keep}
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in kept:
            with suppress(OSError):  # the listing's own has gone
                os.close(fd)


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
