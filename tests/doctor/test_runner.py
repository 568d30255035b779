"""How checks are run: at the same time, within limits, and whatever they do."""

import threading

import pytest

from bootseer.doctor.check import BOTH, COMPUTE, Check, Role, Severity, Status, Unchecked, warning
from bootseer.doctor.runner import CHECKS, run_checks


def check(look, name="a.b", **more):
    return Check(name, "it is so", look, **more)


def run(site, *checks, limit_s=5.0, **more):
    return run_checks(site.machine(**more), checks, limit_s=limit_s)


def test_a_check_that_finds_nothing(site):
    (result,) = run(site, check(lambda _: ["seen"]))
    assert (result.status, result.notes, result.findings) == (Status.OK, ("seen",), ())


def test_a_check_that_crashes_is_a_finding(site):
    def crash(machine):
        yield warning("w", "y", "m")
        raise ZeroDivisionError("oh")

    (result,) = run(site, check(crash))
    assert [found.severity for found in result.findings] == [Severity.WARNING, Severity.ERROR]
    assert "the check a.b failed: ZeroDivisionError: oh" in result.findings[1].what
    assert result.status is Status.ERROR


def test_a_check_that_hangs_is_a_finding_and_others_are_not_kept(site):
    end = threading.Event()
    hanging = [check(lambda _: [str(end.wait(60))], f"a.{n}") for n in range(3)]
    results = run(site, *hanging, check(lambda _: ["x"], "a.last"), limit_s=0.1)
    end.set()
    assert [result.status for result in results] == [Status.ERROR] * 3 + [Status.OK]
    assert "a.1 did not end within 0.1 s" in results[1].findings[0].what


def test_checks_run_at_the_same_time(site):
    meeting = threading.Barrier(3)
    results = run(site, *[check(lambda _: [str(meeting.wait(30))], f"a.{n}") for n in range(3)])
    assert [result.status for result in results] == [Status.OK] * 3


def test_what_only_root_can_see_is_unchecked(site):
    def closed(machine):
        raise PermissionError(13, "Permission denied", "/x")

    def cannot(machine):
        raise Unchecked("why")

    checks = [
        check(lambda _: [], "a.root", needs_root=True),
        check(closed, "a.closed"),
        check(cannot, "a.cannot"),
    ]
    as_user = run(site, *checks, is_root=False)
    assert [result.status for result in as_user] == [Status.UNCHECKED] * 3
    assert "only root can see it" in as_user[0].unchecked
    assert "/x is closed to you" in as_user[1].unchecked
    as_root = run(site, *checks)
    assert [result.status for result in as_root] == [Status.OK, Status.ERROR, Status.UNCHECKED]


@pytest.mark.parametrize("role", Role)
def test_each_role_has_its_checks(site, role):
    checks = [check(lambda _: [], "a.both"), check(lambda _: [], "a.compute", roles=COMPUTE)]
    names = [result.check.name for result in run(site, *checks, role=role)]
    assert names == (["a.both", "a.compute"] if role is Role.COMPUTE else ["a.both"])


def test_there_are_enough_checks_with_names_of_their_own():
    assert len({found.name for found in CHECKS}) == len(CHECKS) >= 40
    assert sum(found.roles == BOTH for found in CHECKS) >= 20


def test_what_is_made_once_is_made_once_by_all_threads(site):
    machine, made = site.machine(), []
    threads = [
        threading.Thread(target=machine.once, args=("x", lambda: made.append(1))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
