"""The commands of the documentation, run as the pages have them on a local cluster."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.documentation.code_blocks import AS_ROOT, IN_A_JOB, CodeBlock, code_blocks
from bootseer_dev.material.images import FIRST_STEP

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HERE = {
    # What a page has: what the cluster has instead.
    "hdfs://nn/user/alice": "file:///shared/alice",
    "/proj/": "/shared/",
}
IMAGE = "train:v2"


def pages_that_are_run() -> list[Path]:
    return [page for page in PAGES if any(b.is_run for b in code_blocks(page.read_text()))]


def as_here(lab, code: str) -> str:
    for there, here in HERE.items():
        code = code.replace(there, here)
    return re.sub(r"\breport 1234\b", f"report {lab.newest_job()}", code)


def run_block(lab, user, block: CodeBlock) -> str:
    """Run a block as its mark says; returns what it has printed."""
    code = as_here(lab, block.code)
    programs = re.findall(r"--container-image=(\S+) python (\S+)", code)
    if programs:
        containers = "".join(f"{program} {image}\n" for image, program in programs)
        (lab.cluster.shared / "pyxis/containers").write_text(containers)
        # The stand-in for Pyxis is the `python` there.
        code = code.replace("srun ", "PATH=/usr/local/bin:$PATH srun ")
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


def put_events(lab, user, code: str) -> None:
    """Put a file of events in the home, by the name that a page has for one."""
    user("srun -J train --bootseer true")
    lab.assert_clean()
    [events, *_] = lab.store().rglob("n1-*.json.gz")
    [name] = re.findall(r"n1-\d+\.json\.gz", code)
    (lab.cluster.state_dir / "home/alice" / name).write_bytes(events.read_bytes())


@pytest.mark.parametrize("page", pages_that_are_run(), ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_of_a_page(lab, user, runtimes, page):
    blocks = [block for block in code_blocks(page.read_text()) if block.is_run]
    imports = any(block.code.startswith("bootseer image import") for block in blocks)
    if not imports and any(IMAGE in block.code for block in blocks):
        user(f"bootseer image import train.sqsh --name {IMAGE}")
    for block in blocks:
        if ".json.gz" in block.code:
            put_events(lab, user, block.code)
        printed = run_block(lab, user, block)
        if "train.py" in block.code:
            nodes = 2 if "-N2" in block.code or block.code.startswith("#SBATCH") else 1
            starts = len(re.findall(r"python \w+\.py", block.code))
            assert printed.count(FIRST_STEP) == nodes * starts, block
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
