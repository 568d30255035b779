"""Give up root's rights for those of a job's user, for good."""

from __future__ import annotations

import os
import resource

from bootseer._io import ffi, lib

MAX_DATA_BYTES = 4 << 30
"""Traces of 16 MB take 250 MB each to merge; stacks of 256 threads count with 2 GB."""

IDENTITY = (
    *("HOME", "HADOOP_USER_NAME", "HADOOP_PROXY_USER", "HADOOP_TOKEN_FILE_LOCATION"),
    *("KRB5CCNAME", "KRB5_CLIENT_KTNAME", "KRB5_CONFIG"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET", "AZURE_CLIENT_ID"),
)
"""Variables by which stores would take this process for somebody else than its user."""


def become(user: str, uid: int, gid: int, keep_lock: bool) -> None:
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
    keep_lock: bool = False,
    expendable: bool = True,
    outlives: bool = False,
) -> None:
    """Become the user in a process of the agent's, whose memory is bounded.

    What it holds is charged to nobody's job, and depends on what lies in the user's store.

    Args:
        user, uid, gid, keep_lock: as for `become`.
        agent: process id of the agent, which has started this process.
        expendable: when memory runs out, it is the first to go; otherwise as likely as any.
        outlives: it does not die with the agent, whatever it waits for.

    Raises:
        OSError: it could not be done, or the agent has died; the process must end.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    data_bytes = MAX_DATA_BYTES if hard == resource.RLIM_INFINITY else min(hard, MAX_DATA_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000" if expendable else "0")
    os.chdir("/")
    become(user, uid, gid, keep_lock)
    if not outlives:
        _check(lib.bs_die_with(agent))  # taking on other rights ends that


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
