"""Which tests run which lines, and how long each takes: written by one run of them all.

pytest has it as a plugin, which tells coverage, here and in all processes that a test starts,
which test is running, and writes what tests took and which failed.
"""

import json
import os
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData

TEST = "BOOTSEER_MUTATE_TEST"
"""Variable of the environment, for coverage in other processes: the test that is running, or the
file with tests while a fixture starts or ends, for that may be the whole file's."""
REPORT = "BOOTSEER_MUTATE_REPORT"
"""Variable of the environment: the file for what tests took and which failed."""
_seconds: dict[str, float] = {}
_setup_seconds: dict[str, float] = {}
_failed: list[str] = []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Have the lines that run from now on counted as this test's."""
    os.environ[TEST] = _file_of(item.nodeid)
    if coverage := Coverage.current():
        coverage.switch_context(item.nodeid)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Have what the test itself starts counted as its own."""
    os.environ[TEST] = item.nodeid
    try:
        return (yield)
    finally:
        os.environ[TEST] = _file_of(item.nodeid)


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what a test takes; what comes before may be for all that are in its file."""
    if report.when == "setup":
        file = _file_of(report.nodeid)
        _setup_seconds[file] = max(_setup_seconds.get(file, 0.0), report.duration)
    else:
        _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        _failed.append(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the report."""
    found = {"seconds": _seconds, "setup_seconds": _setup_seconds, "failed": _failed}
    text = json.dumps(found)
    Path(os.environ[REPORT]).write_text(text)


class TestChoice:
    """Chooses the tests that could notice a change."""

    def __init__(self, lines: Path, report: Path) -> None:
        """Read what a run of all tests has left.

        Args:
            lines: coverage's data.
            report: what this plugin wrote.
        """
        measured = json.loads(report.read_text())
        self._seconds: dict[str, float] = measured["seconds"]
        self._setup_seconds: dict[str, float] = measured["setup_seconds"]
        data = CoverageData(str(lines))
        data.read()
        tests_of: dict[str, set[str]] = {}
        for test in self._seconds:
            tests_of.setdefault(_file_of(test), set()).add(test)
        self._files = {}
        for path in data.measured_files():
            name = path[path.rindex("/bootseer/") + 1 :]
            self._files[name] = {
                line: set().union(*(tests_of.get(context, {context}) for context in contexts))
                for line, contexts in data.contexts_by_lineno(path).items()
            }

    def leave_out(self, test: str) -> None:
        """Choose a test no more: it fails whatever is changed."""
        self._seconds.pop(test, None)

    def tests(self, path: str, lines: Iterable[int], most_s: float) -> list[str]:
        """List the tests that run any of these lines, or else any of the file: quickest first.

        Args:
            path: of the file, from the root of the checkout.
            lines: that have changed.
            most_s: that they may take together.
        """
        by_line = self._files.get(path, {})
        found = set().union(*(by_line.get(line, ()) for line in lines))
        if not found & self._seconds.keys():
            found = set().union(*by_line.values())
        chosen: list[str] = []
        for test in sorted(found & self._seconds.keys(), key=lambda test: self.seconds([test])):
            if chosen and self.seconds([*chosen, test]) > most_s:
                break
            chosen.append(test)
        return chosen

    def seconds(self, tests: Iterable[str]) -> float:
        """Say how long these take, with what is made once for each file."""
        tests = list(tests)
        files = set(map(_file_of, tests))
        made = sum(self._setup_seconds.get(file, 0.0) for file in files)
        return made + sum(self._seconds[test] for test in tests)
