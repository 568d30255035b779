import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import CONFIG, PLUGIN, SHARE, Lab
from bootseer_dev.material.images import FIRST_STEP, PythonImage, write_image

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def cluster_lab(tmp_path_factory, slurm_release, under_systemd):
    images = tmp_path_factory.mktemp("images")
    images.chmod(0o755)
    name = f"jobs-{os.getpid()}"
    spec = ClusterSpec(name=name, nodes=2, slurm=slurm_release, systemd=under_systemd)
    with Cluster.up(spec, print) as cluster:
        site.install(cluster, arguments=PLUGIN, config=CONFIG)
        lab = Lab(cluster, images)
        lab.put_image()
        lab.mount_share()
        yield lab
    shutil.rmtree(images)


@pytest.fixture
def lab(cluster_lab):
    """The cluster with nothing known of any job; afterwards it must be healthy and clean."""
    cluster_lab.forget()
    cluster_lab.put_image()
    yield cluster_lab
    cluster_lab.assert_healthy()
    cluster_lab.assert_clean()


@pytest.fixture
def pyxis_option(lab):
    """Slurm's commands that take --container-image, as with Pyxis' plugin."""
    source = HERE / "pyxis_option.c"
    plugin = lab.cluster.state_dir / "pyxis.so"
    lab.cluster.run(["gcc", "-shared", "-fPIC", "-o", str(plugin), str(source)])
    line = lab.cluster.etc_slurm / "plugstack.conf.d/pyxis.conf"
    line.write_text(f"optional {plugin}\n")
    yield
    line.unlink()


@pytest.fixture
def runtimes(lab, pyxis_option):
    """Container runtimes on the nodes: stand-ins for those that the nodes do not have."""
    cluster, pyxis = lab.cluster, lab.cluster.shared / "pyxis"
    pyxis.mkdir(exist_ok=True)
    (pyxis / "as_pyxis.py").write_bytes((HERE / "as_pyxis.py").read_bytes())
    (pyxis / "bootseer-importer").unlink(missing_ok=True)
    (pyxis / "bootseer-importer").symlink_to(site.libexec(cluster) / "bootseer-importer")
    put = []
    for name in ("apptainer", "enroot", "python"):
        if cluster.run(["which", name], node="n1", check=False).returncode:
            (cluster.shared / name).write_bytes((HERE / "runtimes" / name).read_bytes())
            put.append(f"/usr/local/bin/{name}")
            cluster.run(["install", "-m755", f"/shared/{name}", put[-1]])
    yield
    cluster.run(["rm", "-f", *put])
    shutil.rmtree(pyxis)


@pytest.fixture
def user(lab):
    """Run a command of alice's in her home, with what the documentation takes to be there."""
    cluster, home = lab.cluster, lab.cluster.state_dir / "home/alice"
    write_image(PythonImage(), lab.images / "train.sqsh")
    image = (lab.images / "train.sqsh").read_bytes()
    for node in cluster.node_names:
        cluster.run(["ln", "-sfn", SHARE, "/images"], node=node)
    cluster.run(["ln", "-sfn", "/home/alice", "/images"])  # jobs are submitted without the share
    for name in ("train.sif", "prepare.sqsh"):
        (lab.images / name).write_bytes(image)
    for name in ("train.sqsh", "train.sif", "prepare.sqsh"):
        (home / name).write_bytes(image)
    write_wheel(cluster.shared / "wheels")
    files = {"train.py": f"print({FIRST_STEP!r})\n", "requirements.txt": "demo==1.0\n"}
    for name, text in files.items():
        (home / name).write_text(text)
    (home / "run42").mkdir(exist_ok=True)
    (home / "run42/step_1000").write_bytes(b"weights" * 1000)
    cluster.run(["chown", "-R", "alice:", "/home/alice"])
    cluster.run(["install", "-d", "-o", "alice", "/shared/alice"])
    cluster.run(["install", "-d", "/shared/ml"])
    cluster.run(["groupadd", "--force", "ml"], node="n1")
    path = f"PATH={Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/shared/wheels"}

    def run(code: str) -> subprocess.CompletedProcess[str]:
        argv = ["env", path, "bash", "-euc", code]
        return cluster.run(argv, user="alice", env=variables, timeout_s=120)

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
