"""A user namespace, in which an ordinary user may make machines: the user is root there, alone."""

from __future__ import annotations

import os
from pathlib import Path

from bootseer_dev.cluster.namespaces import syscalls

# Settings that forbid user namespaces, each with what it may not be and what to set instead.
_SETTINGS = (
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("user.max_user_namespaces", "0", "15000"),
)


def enter() -> None:
    """Move the calling process, which has one thread, into a user namespace, as its only user.

    Raises:
        OSError: the kernel refused; `advice` says what to do.
    """
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    # Who may not set groups may map their own; the ones they have stay with them.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def advice() -> str:
    """Say what an administrator can set so that users may make namespaces on this machine."""
    for name, forbidden, wanted in _SETTINGS:
        try:
            value = Path("/proc/sys", *name.split(".")).read_text().strip()
        except OSError:  # a kernel without this setting
            continue
        if value == forbidden:
            return f"user namespaces are forbidden here: set sysctl {name}={wanted}, or be root"
    return (
        "user namespaces with overlays need Linux 5.11, and no container or chroot around them "
        "that forbids it; or be root"
    )
