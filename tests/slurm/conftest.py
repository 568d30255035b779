import os
import shutil

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import CONFIG, PLUGIN, Lab


@pytest.fixture(scope="session")
def cluster_lab(tmp_path_factory, request):
    images = tmp_path_factory.mktemp("images")
    images.chmod(0o755)
    spec = ClusterSpec(
        name=f"jobs-{os.getpid()}", nodes=2, systemd=request.config.getoption("systemd")
    )
    with Cluster.up(spec) as cluster:
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
