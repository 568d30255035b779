"""Run all checks of a machine, at the same time and each within a limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout  # the builtin from Python 3.11 on
from functools import partial

from bootseer.doctor import (
    folders,
    fuse,
    leftovers,
    plugin,
    runtimes,
    slurm,
    stores,
    system,
)
from bootseer.doctor.check import Check, CheckResult, Finding, Unchecked
from bootseer.doctor.machine import Machine

LIMIT_S = 5.0
"""Longest that a check may take."""

CHECKS: tuple[Check, ...] = (
    *plugin.CHECKS,
    *slurm.CHECKS,
    *fuse.CHECKS,
    *folders.CHECKS,
    *stores.CHECKS,
    *runtimes.CHECKS,
    *system.CHECKS,
    *leftovers.CHECKS,
)
"""All checks, in the order in which they are shown."""


def run_checks(
    machine: Machine, checks: Sequence[Check] = CHECKS, *, limit_s: float = LIMIT_S
) -> list[CheckResult]:
    """Run the checks that a machine's role has, and return their results in the same order.

    A check that fails or takes too long is a finding itself. Its thread is left behind, so the
    program must end with `bootseer.agent.node.spawn.leave`.

    Args:
        machine: what to check, with its role.
        checks: the checks.
        limit_s: longest that one may take, in seconds.
    """
    chosen = [check for check in checks if machine.role in check.roles]
    began = time.monotonic()
    running = [(check, _start(partial(_run, check, machine))) for check in chosen]
    results = []
    for check, future in running:
        left_s = max(0.0, began + limit_s - time.monotonic())
        try:
            results.append(future.result(left_s))
        except FutureTimeout:
            results.append(CheckResult(check, (_hangs(check, limit_s),), took_s=limit_s))
    return results


def _start(work: Callable[[], CheckResult]) -> Future[CheckResult]:
    future: Future[CheckResult] = Future()
    # Not a pool: its threads would keep the program from ending while one hangs.
    threading.Thread(target=lambda: future.set_result(work()), daemon=True).start()
    return future


def _run(check: Check, machine: Machine) -> CheckResult:
    if check.needs_root and not machine.is_root:
        return CheckResult(check, unchecked="only root can see it: run `sudo bootseer doctor`")
    findings: list[Finding] = []
    notes: list[str] = []
    unchecked = ""
    began = time.monotonic()
    try:
        for found in check.look(machine):
            if isinstance(found, Finding):
                findings.append(found)
            else:
                notes.append(found)
    except Unchecked as why:
        unchecked = str(why)
    except PermissionError as error:
        if machine.is_root:
            findings.append(_fails(check, error))
        else:
            unchecked = f"{error.filename} is closed to you: run `sudo bootseer doctor`"
    except Exception as error:  # noqa: BLE001 - a check that fails is a finding
        findings.append(_fails(check, error))
    took_s = time.monotonic() - began
    return CheckResult(check, tuple(findings), tuple(notes), unchecked, took_s)


def _fails(check: Check, error: Exception) -> Finding:
    return Finding(
        f"the check {check.name} failed: {type(error).__name__}: {error}",
        f"it is not known whether {check.purpose}",
        "look at what the message names; if nothing is wrong there, report it as an error of "
        "BootSeer's",
    )


def _hangs(check: Check, limit_s: float) -> Finding:
    return Finding(
        f"the check {check.name} did not end within {limit_s:g} s",
        f"it is not known whether {check.purpose}; what it waits for may hold up jobs too",
        "look for a file system or a service that does not answer: `findmnt`, `dmesg | tail`",
    )
