"""The commands of the documentation, run as the pages have them on a local cluster."""

import re
import shlex
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.documentation.code_blocks import AS_ROOT, IN_A_JOB, CodeBlock, code_blocks
from bootseer_dev.jobs.lab import SHARE
from bootseer_dev.material.images import TinyImage, write_image

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HERE = {
    # What a page has: what the cluster has instead.
    "hdfs://nn/user/alice": "file:///shared/alice",
    "/proj/": "/shared/",
}
TRAINED = "first step done"
IMAGE = "train:v2"
_VARIABLES = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/shared/wheels"}


@dataclass(frozen=True)
class PythonImage(TinyImage):
    """The tiny image with a `python` that, whatever it is given, makes the tiny start.

    It stays for as long as it takes to identify the image, on a busy machine too: of a job that has
    ended by then, nothing is recorded.
    """

    def fill(self, root, say):
        super().fill(root, say)
        (root / "bin/python").write_text("#!/bin/sh\n/start && sleep 4\n")
        (root / "bin/python").chmod(0o755)


def pages_that_are_run() -> list[Path]:
    return [page for page in PAGES if any(b.is_run for b in code_blocks(page.read_text()))]


@pytest.fixture
def user(lab):
    """Run a command of alice's in her home, with what the pages take to be there."""
    cluster, home = lab.cluster, lab.cluster.state_dir / "home/alice"
    write_image(PythonImage(), lab.images / "train.sqsh")
    for node in cluster.node_names:
        cluster.run(["ln", "-sfn", SHARE, "/images"], node=node)
    cluster.run(["ln", "-sfn", "/home/alice", "/images"])  # jobs are submitted without the share
    write_wheel(cluster.shared / "wheels")
    files = {"train.py": f"print({TRAINED!r})\n", "requirements.txt": "demo==1.0\n"}
    for name, text in files.items():
        (home / name).write_text(text)
    (home / "train.sqsh").write_bytes((lab.images / "train.sqsh").read_bytes())
    (home / "run42").mkdir(exist_ok=True)
    (home / "run42/step_1000").write_bytes(b"weights" * 1000)
    cluster.run(["chown", "-R", "alice:", "/home/alice"])
    cluster.run(["install", "-d", "-o", "alice", "/shared/alice"])
    path = f"PATH={Path(sys.executable).parent}:/usr/bin:/bin"

    def run(code: str) -> subprocess.CompletedProcess[str]:
        argv = ["env", path, "bash", "-euc", code]
        return cluster.run(argv, user="alice", env=_VARIABLES, timeout_s=120)

    return run


def write_wheel(folder: Path) -> None:
    """Write a wheel of the distribution `demo`, which has one module."""
    folder.mkdir(exist_ok=True)
    info = "demo-1.0.dist-info"
    with zipfile.ZipFile(folder / "demo-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("demo.py", "ANSWER = 42\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def as_here(lab, code: str) -> str:
    for there, here in HERE.items():
        code = code.replace(there, here)
    return re.sub(r"\breport 1234\b", f"report {lab.newest_job()}", code)


def run_block(lab, user, block: CodeBlock) -> str:
    """Run a block as its mark says; returns what it has printed."""
    code = as_here(lab, block.code)
    if block.mark == AS_ROOT:
        argv = ["bash", "-euc", f"PATH={Path(sys.executable).parent}:$PATH\n{code}"]
        return lab.cluster.run(argv, node="n1").stdout
    if code.startswith("#SBATCH"):
        command = "" if "srun" in code else "srun -N2 true\n"
        job = lab.sbatch(f"#!/bin/sh\n{code}\n{command}", "-N2", "-J", "train")
        assert lab.cluster.wait_for_job(job) == "COMPLETED"
        return (lab.cluster.shared / f"{job}.out").read_text()
    before = lab.newest_job()
    if block.mark == IN_A_JOB:
        program = "python" if code.startswith("import ") else "bash"
        code = f"srun -N2 -J train --bootseer {program} -c {shlex.quote(code)}"
    done = user(code)
    after = lab.newest_job()
    if after != before:
        assert lab.cluster.wait_for_job(after) == "COMPLETED"
        wait_until(lambda: not lab.agent("n1", after), f"the end of the agent of job {after}")
    return done.stdout + done.stderr


@pytest.mark.parametrize("page", pages_that_are_run(), ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_of_a_page(lab, user, page):
    blocks = [block for block in code_blocks(page.read_text()) if block.is_run]
    imports = any(block.code.startswith("bootseer image import") for block in blocks)
    if not imports and any(IMAGE in block.code for block in blocks):
        user(f"bootseer image import train.sqsh --name {IMAGE}")
    for block in blocks:
        printed = run_block(lab, user, block)
        if "train.py" in block.code:
            nodes = 2 if "-N2" in block.code or block.code.startswith("#SBATCH") else 1
            assert printed.count(TRAINED) == nodes, block
        if block.code.startswith("bootseer image import"):
            assert user("bootseer image ls --json").stdout.strip() == "[]"  # the last removes it
            user(f"bootseer image import train.sqsh --name {IMAGE}")


def test_the_quick_start_says_what_srun_says(lab, user):
    page = (ROOT / "docs/README.md").read_text()
    start, first, second, *_ = code_blocks(page)
    lab.drop_caches()
    assert first.code in run_block(lab, user, start)
    assert lab.fallbacks(lab.newest_job()) == set()
    warm = run_block(lab, user, start)
    said = next(line for line in warm.splitlines() if line.startswith("bootseer: key"))
    assert re.sub(r"[0-9.]+ [kMG]B", "N", said) == re.sub(r"[0-9.]+ [kMG]B", "N", second.code)
