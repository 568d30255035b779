import os
import shutil
from pathlib import Path

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import CONFIG, PLUGIN, Lab


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
    source = Path(__file__).with_name("pyxis_option.c")
    plugin = lab.cluster.state_dir / "pyxis.so"
    lab.cluster.run(["gcc", "-shared", "-fPIC", "-o", str(plugin), str(source)])
    line = lab.cluster.etc_slurm / "plugstack.conf.d/pyxis.conf"
    line.write_text(f"optional {plugin}\n")
    yield
    line.unlink()
