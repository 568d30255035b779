"""A check, and what it finds."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from bootseer.doctor.machine import Machine


class Role(enum.Enum):
    """What a machine is for."""

    SUBMIT = "submit"
    COMPUTE = "compute"


class Severity(enum.Enum):
    """How bad a finding is: an error keeps BootSeer from working, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


Fix: TypeAlias = Callable[[], str]
"""Mends something, and returns what it did."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong.

    Attributes:
        what: what is wrong, with the object's name.
        why: why that matters.
        mend: the exact command or line of configuration that mends it.
        severity: how bad it is.
        fix: mends it; None if it is for the administrator to decide. It may run again where
            nothing is wrong any more.
    """

    what: str
    why: str
    mend: str
    severity: Severity = Severity.ERROR
    fix: Fix | None = field(default=None, compare=False)


def warning(what: str, why: str, mend: str, fix: Fix | None = None) -> Finding:
    """Return a finding that does not keep BootSeer from working."""
    return Finding(what, why, mend, Severity.WARNING, fix)


class Unchecked(Exception):
    """A check could not look; its text says why, such as that only root can."""


Found: TypeAlias = Iterable[Finding | str]
"""What a check yields: findings, and notes on what it saw."""

BOTH = frozenset(Role)
COMPUTE = frozenset([Role.COMPUTE])


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        name: subject and object, such as ``plugin.release``.
        purpose: what it makes sure of, a clause.
        look: yields what it found; raises `Unchecked` if it cannot look.
        roles: the machines that it is for.
        needs_root: whether only root can look.
    """

    name: str
    purpose: str
    look: Callable[[Machine], Found]
    roles: frozenset[Role] = BOTH
    needs_root: bool = False


class Status(enum.Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check has found.

    Attributes:
        check: the check.
        findings: what is wrong.
        notes: what it saw, for `--verbose`.
        unchecked: why it could not look; "" if it could.
        took_s: seconds that it took.
    """

    check: Check
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    unchecked: str = ""
    took_s: float = 0.0

    @property
    def status(self) -> Status:
        severities = {finding.severity for finding in self.findings}
        if Severity.ERROR in severities:
            return Status.ERROR
        if Severity.WARNING in severities:
            return Status.WARNING
        return Status.UNCHECKED if self.unchecked else Status.OK
