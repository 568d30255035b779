"""Change the code in small ways, and see that a test notices: run.py [--count N] [--seed S].

Each change is made in the installed package, one after another, and the tests that run the changed
lines are run until one fails that passes without the change: quickest first, no more than three
minutes of them. First all tests are run once, to know which those are: what is known stays in
build/mutate, to be removed after larger changes.

Prints a line for each change that nobody noticed, and writes build/mutate.json. Ends with 1 if more
than one in twenty stayed unnoticed.
"""

import argparse
import difflib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import chosen_tests
from chosen_tests import TestChoice
from mutants import Mutant, draw

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = ROOT / "build" / "mutate"
LINES = FOLDER / "lines"
ALL_TESTS = FOLDER / "tests.json"
PACKAGES = [f"bootseer/{name}" for name in ("cache", "checkpoint", "core", "env", "image", "store")]
PYTEST = ["pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "chosen_tests"]
AT_ONCE = ["-n", "2", "--dist", "loadfile"]
TESTS_S = 180.0
TEST_S = 120
GRACE_S = 60.0
MOST_SURVIVORS = 0.05
CONFIG = f"""
[run]
parallel = true
patch = _exit
sigterm = true
context = ${{{chosen_tests.TEST}-}}
data_file = {FOLDER}/parts/lines
disable_warnings = no-data-collected, module-not-measured, module-not-imported
source =
  %s
"""


def installed() -> Path:
    """Return the folder that the package is installed in, which is not the checkout."""
    spec = importlib.util.find_spec("bootseer")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parents[1]
    assert folder != ROOT, "run it with the virtual environment's Python, from another folder"
    return folder


def environment(report: Path) -> dict[str, str]:
    """Return the environment that pytest is run in."""
    program = Path(sys.executable).parent
    return os.environ | {
        chosen_tests.REPORT: str(report),
        "PYTHONPATH": str(HERE),
        "PATH": f"{program}:{os.environ['PATH']}",
    }


def measure() -> None:
    """Run all tests once, and note what each runs."""
    print("running all tests once to know which run what: takes 20 minutes", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    parts = FOLDER / "parts"
    parts.mkdir(parents=True)
    parts.chmod(0o1777)  # tests have processes of other users
    config = FOLDER / "coveragerc"
    config.write_text(CONFIG % "\n  ".join(str(installed() / package) for package in PACKAGES))
    python = [sys.executable, "-P", "-m"]
    # Each Python reads it as it starts, and the name of the test with it.
    env = environment(FOLDER / "running.json") | {"COVERAGE_PROCESS_START": str(config)}
    with open(FOLDER / "log", "ab") as log:
        ran = [*python, *PYTEST, *AT_ONCE]
        subprocess.run(ran, check=False, cwd=ROOT, env=env, stdout=log, stderr=log)
        options = ["-q", f"--rcfile={config}", f"--data-file={LINES}"]
        joined = [*python, "coverage", "combine", *options, parts]
        subprocess.run(joined, check=True, cwd=ROOT, stdout=log, stderr=log)
    (FOLDER / "running.json").rename(ALL_TESTS)


@contextmanager
def changed(mutant: Mutant) -> Iterator[None]:
    """Have the change in the installed package."""
    path = installed() / mutant.path
    source = (ROOT / mutant.path).read_text()
    try:
        write(path, mutant.code(source))
        yield
    finally:
        write(path, source)


def write(path: Path, text: str) -> None:
    """Write a file of the package, and let nobody take what was compiled of it before."""
    path.write_text(text)
    for old in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        old.unlink()


def failure(tests: list[str], seconds: float) -> str | None:
    """Run tests until one fails or hangs; returns that one, or None, or "" for all that hang."""
    (FOLDER / "chosen").write_text("\n".join(tests))
    report = FOLDER / "chosen.json"
    report.unlink(missing_ok=True)
    argv = [sys.executable, "-P", "-m", *PYTEST, "-x", f"--timeout={TEST_S}"]
    argv.append(f"@{FOLDER / 'chosen'}")
    with open(FOLDER / "log", "ab") as log:
        child = subprocess.Popen(
            argv, cwd=ROOT, env=environment(report), stdout=log, stderr=log, start_new_session=True
        )
        try:
            child.wait(2 * seconds + GRACE_S)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)  # it clears away what it has mounted
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            return ""
    if child.returncode == 0:
        return None
    failed = json.loads(report.read_text())["failed"] if report.exists() else []
    return failed[0] if failed else ""


def noticed_by(mutant: Mutant, choice: TestChoice) -> tuple[str | None, int]:
    """Return the test that fails with a change and passes without, and how many were run."""
    # What runs at import may be noticed by whoever uses the module.
    lines = range(mutant.first_line, mutant.last_line + 1) if mutant.is_in_function else ()
    while tests := choice.tests(mutant.path, lines, TESTS_S):
        with changed(mutant):
            failed = failure(tests, choice.seconds(tests))
        if not failed or failure([failed], choice.seconds([failed])) is None:
            return failed, len(tests)
        choice.leave_out(failed)
    return None, 0


def difference(mutant: Mutant) -> str:
    """Show a change as a diff."""
    source = (ROOT / mutant.path).read_text()
    pair = (text.splitlines() for text in (source, mutant.code(source)))
    lines = list(difflib.unified_diff(*pair, n=0, lineterm=""))[3:]
    return "\n".join(f"    {line}" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=200, help="of changes")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the draw")
    parser.add_argument("--again", action="store_true", help="what nobody noticed the last time")
    asked = parser.parse_args()
    written = ROOT / "build" / "mutate.json"
    if not ALL_TESTS.exists():
        measure()
    choice = TestChoice(LINES, ALL_TESTS)
    if asked.again:
        drawn = [Mutant(**entry) for entry in json.loads(written.read_text())["survivors"]]
    else:
        drawn = draw(ROOT, PACKAGES, asked.count, asked.seed)
        print(f"seed {asked.seed}", flush=True)
    survivors, noticed = [], []
    for number, mutant in enumerate(drawn, 1):
        failed, count = noticed_by(mutant, choice)
        if failed is not None:
            noticed.append(asdict(mutant) | {"test": failed or "hangs"})
            continue
        survivors.append(mutant)
        print(f"{number}: {mutant.path}:{mutant.first_line} {mutant.operator}, {count} tests")
        print(difference(mutant), flush=True)
    print(f"{len(survivors)} of {len(drawn)} changes were not noticed")
    if not asked.again:
        found = {"seed": asked.seed, "survivors": list(map(asdict, survivors)), "noticed": noticed}
        written.write_text(json.dumps(found, indent=1))
    return len(survivors) > MOST_SURVIVORS * len(drawn)


if __name__ == "__main__":
    sys.exit(main())
