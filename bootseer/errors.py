"""Every error BootSeer raises on purpose, with the exit code its commands end with.

A message says what happened, to which object, and what to do about it.
"""

from __future__ import annotations


class BootseerError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1

    def again(self) -> BootseerError:
        """Return the same error for another who is told of it, with a traceback of its own."""
        return type(self)(str(self))


class ConfigError(BootseerError):
    """A configuration file or an option's value is not acceptable as it is."""

    exit_code = 2


class NotFound(BootseerError):
    """The named object does not exist."""

    exit_code = 3


class UnknownImage(NotFound):
    """The store has no image of this name."""


class Corrupt(BootseerError):
    """The object exists and its content is not what its checks promise."""

    exit_code = 4


class UnknownVersion(Corrupt):
    """The object is of a version that this one does not understand; it may be whole, and stays."""


class Conflict(BootseerError):
    """The object exists already, or another writer was first."""

    exit_code = 5


class Denied(BootseerError):
    """The caller may not do this to the object."""

    exit_code = 6


class Transient(BootseerError):
    """The operation failed for a passing cause; the same call may succeed later."""

    exit_code = 7


class Unavailable(BootseerError):
    """What the operation needs is not there (a store, a daemon, a kernel feature, disk space)."""

    exit_code = 8


class NoSpace(Unavailable):
    """No space is left to write."""


class OverQuota(NoSpace):
    """The user's share of the space, or of the names, is used up."""


class Closed(BootseerError):
    """The object was closed by this program and cannot be used any more."""

    exit_code = 9
