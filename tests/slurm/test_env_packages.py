"""Real packages, by real pip and uv, are from a snapshot what they were when installed."""

import re
import shlex
import subprocess
import sys
from typing import NamedTuple

import pytest
from bootseer_dev.jobs import site

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.faults]
TARGET = "/local/env"
PACKAGES = ("numpy", "regex", "pytest", "hypothesis")
TOOLS = "/shared/tools"
# Those of numpy._core take ten minutes; its extension modules are loaded by these too.
NUMPY = (
    "import numpy, sys; parts = 'lib linalg random fft ma polynomial'.split(); "
    "more = ['-p', 'no:cacheprovider', '-rfE']; "
    "sys.exit(not numpy.test('fast', extra_argv=more, tests=[f'numpy.{p}' for p in parts]))"
)
REGEX = "import regex.tests.test_regex as t, unittest; unittest.main(module=t, argv=['regex'])"
TREE = (
    "import sys; from bootseer.env.client.scan import scan, tree_digest; tree = scan(sys.argv[1]);"
    "print('tree', tree_digest({p: n._replace(uid=0, gid=0) for p, n in tree.items()}))"
)


@pytest.fixture(scope="module")
def tools(cluster_lab):
    """A Python with pip and uv for the jobs, and wheels, for their nodes have no network."""
    shared = cluster_lab.cluster.shared
    python = shared / "tools/bin/python"
    subprocess.run([sys.executable, "-m", "venv", shared / "tools"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "uv"], check=True)
    wheels = ["download", "-q", "-d", shared / "wheels", *PACKAGES]
    subprocess.run([python, "-m", "pip", *wheels], check=True)
    return f"{TOOLS}/bin"


def install(tools, how):
    wheels = f"--no-index --find-links /shared/wheels --target {TARGET} {' '.join(PACKAGES)}"
    if how == "pip":
        return f"{tools}/pip install -q --no-cache-dir {wheels}"
    uv = f"{tools}/uv pip install -q --no-cache --compile-bytecode --python {tools}/python"
    return f"{uv} {wheels}"


@pytest.fixture(params=["pip", "uv"])
def start(lab, tools, request):
    """Run something with the packages installed, captured or restored; returns what it says."""

    def start(command, *options):
        lab.cluster.run(["rm", "-rf", TARGET], node="n1")
        made = shlex.join(["sh", "-c", install(tools, request.param)])
        run = f"{site.bootseer()} env run --target {TARGET} {shlex.join(options)} -- {made}"
        script = f"{run} || exit 9; cd /; export PYTHONPATH={TARGET}; {command}"
        job = lab.srun("-N1", "--bootseer=packages", command=script, check=False, timeout_s=1200)
        assert job.exit_code != 9, job
        restored = "without running the command" in job.stderr
        assert restored == ("--wait" not in options)
        return job

    yield start
    lab.cluster.run(["rm", "-rf", TARGET], node="n1")


class Summary(NamedTuple):
    exit_code: int
    ran: int
    counts: dict[str, int]
    failed: list[str]


def summary(job):
    """What a suite says at its end."""
    text = job.stdout + job.stderr
    [last] = re.findall(r"^=*.*\b(?:passed|failed)\b.* in [\d.]+s.*$", text, re.MULTILINE) or [""]
    counts = {
        name: int(count) for count, name in re.findall(r"(\d+) ([a-z]+)", last.split(" in ")[0])
    }
    ran = re.findall(r"^Ran (\d+) tests", text, re.MULTILINE)
    failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR", "FAIL:"))]
    return Summary(
        job.exit_code, counts.get("passed", 0) + sum(map(int, ran)), counts, sorted(failed)
    )


def test_imports_compile_nothing_and_scripts_work(start, tools):
    ours = site.bootseer().removesuffix("bootseer") + "python"
    tree = f"env -u PYTHONPATH {ours} -IEc {shlex.quote(TREE)} {TARGET}"
    use = f"{tools}/python -c 'import numpy, regex, hypothesis, pytest' && {TARGET}/bin/f2py -v"
    use += f" && {TARGET}/bin/numpy-config --version && {TARGET}/bin/pytest --version"
    first = start(f"{tree} && {use} && {tree}", "--wait")
    said = first.stdout.splitlines()
    assert said[0] == said[-1] and said[0].startswith("tree ") and len(said) == 5
    for mode in ("mount", "unpack"):
        assert start(f"{tree} && {use} && {tree}", f"--mode={mode}").stdout == first.stdout


@pytest.mark.timeout(2700)  # as long as its jobs may take
@pytest.mark.parametrize(
    ("start", "suite"),
    [("pip", NUMPY), ("uv", REGEX)],
    ids=["numpy by pip", "regex by uv"],
    indirect=["start"],
)
def test_their_own_suites_give_the_same_result(start, tools, suite):
    command = f"{tools}/python -c {shlex.quote(suite)} 2>&1 | tail -40"
    original = summary(start(command, "--wait", "--force"))
    assert original.ran >= 100
    assert summary(start(command)) == original
