"""The job scripts of slurm-conf-examples/jobs on two nodes, with runtimes or stand-ins for them."""

import re

import pytest
from bootseer_dev.material.images import FIRST_STEP

from bootseer.slurm.plugin.files import share

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]

SCRIPTS = [*sorted(path.stem for path in (share("slurm-conf-examples") / "jobs").iterdir())]
UNPACKED = "pyxis, unpacked"
"""As without Pyxis' use_squashfuse=1."""


@pytest.mark.parametrize("name", [*SCRIPTS, UNPACKED])
def test_a_script_is_warm_at_its_second_run(lab, user, runtimes, name):
    script = (share("slurm-conf-examples") / f"jobs/{name.partition(',')[0]}.sh").read_text()
    [image] = set(re.findall(r"bootseer://(\S+)", script))
    user(f"bootseer image import train.sqsh --name {image}")
    pyxis = lab.cluster.shared / "pyxis"
    (pyxis / "containers").write_text(f"train.py bootseer://{image}\n")
    if name == UNPACKED:
        (pyxis / "unpack").touch()
    for kind in ("cold", "warm"):
        lab.drop_caches()
        job = lab.sbatch(script, "-N2", "-J", "train")
        assert lab.cluster.wait_for_job(job) == "COMPLETED"
        lab.assert_clean()
        assert (lab.cluster.shared / f"{job}.out").read_text().count(FIRST_STEP) == 2
        assert lab.report(job)["kind"] == kind
