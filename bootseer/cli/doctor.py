"""bootseer doctor: is this machine ready, and what must be mended?"""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from bootseer import config as settings
from bootseer.agent.node.spawn import leave
from bootseer.cli.terminal.console import print_json
from bootseer.errors import BootseerError, ConfigError

if TYPE_CHECKING:
    from bootseer.doctor.check import CheckResult, Finding
    from bootseer.doctor.machine import Machine


@click.command(
    epilog="\b\nExamples:\n"
    "  bootseer doctor                    on a login node, as a user\n"
    "  sudo bootseer doctor --verbose     on a compute node\n"
    "  sudo bootseer doctor --fix\n"
    "  bootseer doctor --json --strict    for monitoring"
)
@click.option(
    "--role",
    type=click.Choice(["submit", "compute"]),
    help="What this machine is for. Default: a compute node, if it has a slurmd or a NodeName.",
)
@click.option(
    "--user",
    metavar="NAME",
    help="As root: try stores with this user's rights. Default: who called sudo.",
)
@click.option("--fix", is_flag=True, help="Mend what can be mended safely, and say what was done.")
@click.option("--strict", is_flag=True, help="End with exit code 1 for warnings, too.")
@click.option("-v", "--verbose", is_flag=True, help="List all checks, and what they saw.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def doctor(
    role: str | None, user: str | None, fix: bool, strict: bool, verbose: bool, as_json: bool
) -> None:
    """Check that this machine is ready for BootSeer.

    Each finding says what is wrong, why that matters, and the command or line of configuration
    that mends it. What only root can see is said to be unchecked. `bootseer config show` prints
    the settings.

    The exit code is 1 if there is an error, otherwise 0.
    """
    from bootseer.doctor.runner import run_checks

    machine = _machine(user, role)
    results = run_checks(machine)
    fixed: list[str] = []
    if fix:
        fixed = [_apply(f) for result in results for f in result.findings if f.fix is not None]
        if fixed:
            machine = _machine(user, role)
            results = run_checks(machine)
    if as_json:
        print_json(_document(machine, results, fixed))
    else:
        _show(machine, results, fixed, verbose=verbose)
    errors, warnings = _count(results)
    # Not a return: the thread of a check that hangs is left behind.
    leave(1 if errors or (strict and warnings) else 0)


def _machine(user: str | None, role: str | None) -> Machine:
    from bootseer.doctor.check import Role
    from bootseer.doctor.machine import Machine
    from bootseer.doctor.slurm import find_role

    problem = ""
    try:
        config = settings.load()
    except ConfigError as error:
        problem = str(error)
        config = settings.Config({})
    machine = Machine(config, _user(user), config_error=problem)
    machine.role = Role(role) if role else find_role(machine)
    return machine


def _user(name: str | None) -> settings.User:
    """Return the user whose rights are tried: the named one, who called sudo, or the caller."""
    from bootseer.cli.terminal.runner import caller

    if os.geteuid() != 0:
        if name and name != caller().name:
            raise ConfigError(f"only root can try stores as {name}: run this as root")
        return caller()
    try:
        entry = pwd.getpwnam(name or os.environ.get("SUDO_USER") or "root")
    except KeyError as error:
        raise ConfigError(f"there is no user {name or os.environ.get('SUDO_USER')}") from error
    return settings.User(entry.pw_name, entry.pw_uid, entry.pw_dir)


def _apply(finding: Finding) -> str:
    assert finding.fix is not None
    try:
        return finding.fix()
    except PermissionError as error:
        return f"not mended: {finding.what}: {error.strerror}, run this as root"
    except (OSError, BootseerError) as error:
        return f"not mended: {finding.what}: {error}"


def _count(results: Sequence[CheckResult]) -> tuple[int, int]:
    """Return the numbers of errors and of warnings."""
    from bootseer.doctor.check import Severity

    found = [finding.severity for result in results for finding in result.findings]
    return found.count(Severity.ERROR), found.count(Severity.WARNING)


def _show(
    machine: Machine, results: Sequence[CheckResult], fixed: Sequence[str], *, verbose: bool
) -> None:
    from bootseer.cli.terminal.runner import print_line

    for line in fixed:
        print_line(f"fix: {line}")
    if verbose:
        for result in results:
            print_line(f"{result.status.value:<9}  {result.check.name}: {result.check.purpose}")
            for note in filter(None, (*result.notes, result.unchecked)):
                print_line(f"           {note}")
    for result in results:
        for finding in result.findings:
            print_line(f"{finding.severity.value}: {finding.what}  [{result.check.name}]")
            print_line(f"  why:  {finding.why}")
            print_line(f"  mend: {finding.mend}")
    print_line(_summary(machine, results))


def _summary(machine: Machine, results: Sequence[CheckResult]) -> str:
    errors, warnings = _count(results)
    kind = {"submit": "submit host", "compute": "compute node"}[machine.role.value]
    found = "nothing is wrong"
    if errors or warnings:
        found = f"errors: {errors}, warnings: {warnings}"
    unchecked = sum(bool(result.unchecked) for result in results)
    text = f"{kind}: {found}; checks made: {len(results) - unchecked}"
    if unchecked:
        text += f", unchecked: {unchecked} (--verbose says why)"
    return text


def _document(
    machine: Machine, results: Sequence[CheckResult], fixed: Sequence[str]
) -> dict[str, object]:
    """Return the result as docs/formats/doctor.md describes it."""
    errors, warnings = _count(results)
    return {
        "version": 1,
        "role": machine.role.value,
        "user": machine.user.name,
        "is_root": machine.is_root,
        "errors": errors,
        "warnings": warnings,
        "fixed": list(fixed),
        "checks": [
            {
                "name": result.check.name,
                "purpose": result.check.purpose,
                "status": result.status.value,
                "took_s": round(result.took_s, 3),
                "notes": list(result.notes),
                "unchecked": result.unchecked,
                "findings": [
                    {
                        "severity": finding.severity.value,
                        "what": finding.what,
                        "why": finding.why,
                        "mend": finding.mend,
                        "can_fix": finding.fix is not None,
                    }
                    for finding in result.findings
                ],
            }
            for result in results
        ],
    }
