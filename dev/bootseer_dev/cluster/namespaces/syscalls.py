"""The system calls behind a cluster that Python 3.10's standard library does not offer."""

from __future__ import annotations

import ctypes
import os

CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SHARED = 0x100000
MNT_DETACH = 2

_SYS_CLONE = 220 if os.uname().machine == "aarch64" else 56

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
]


def unshare(flags: int) -> None:
    """Give the calling process namespaces of its own (``CLONE_NEW…``).

    Raises:
        OSError: the kernel refused, mostly for want of root.
    """
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def clone(flags: int) -> int:
    """Fork with namespaces (``CLONE_NEW…``) for the child, which ought to execute a program soon.

    Args:
        flags: with the signal that its end sends to its parent.

    Returns:
        The child's id, 0 in the child.

    Raises:
        OSError: the kernel refused.
    """
    pid: int = _libc.syscall(ctypes.c_long(_SYS_CLONE), ctypes.c_ulong(flags), 0, 0, 0, 0)
    _check(min(pid, 0), "clone")
    return pid


def setns(descriptor: int, kind: int) -> None:
    """Move the calling thread into the namespace that the descriptor is of (``CLONE_NEW…``).

    Raises:
        OSError: the kernel refused.
    """
    _check(_libc.setns(descriptor, ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a file system of this kind, or bind, or change propagation, as mount(2) does.

    Raises:
        OSError: the kernel refused; its text names the target.
    """
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), flags, os.fsencode(data)
    )
    _check(result, target)


def bind(source: str, target: str) -> None:
    """Show `source`, with what is mounted below it, at `target` too."""
    mount(source, target, flags=MS_BIND | MS_REC)


def detach(target: str) -> None:
    """Unmount at once, even while in use (``MNT_DETACH``)."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)), target)


def _check(result: int, subject: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), subject)
