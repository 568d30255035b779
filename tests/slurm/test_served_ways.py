"""How an image comes from a store far away: by block, all of it at once, or from its file."""

import hashlib
import json

import pytest
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import CONFIG

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]

NAME = "train:v1"
SERVED = ("--bootseer=far", f"--bootseer-image=bootseer://{NAME}")
CACHE = "/var/cache/bootseer/images"
STORE = "/mnt/far"
LATENCY_S = 0.08
WHOLE = "sha256sum < $BOOTSEER_IMAGE"
LITTLE = "head -c 4096 $BOOTSEER_IMAGE | wc -c"


class Far:
    """An image in a store that answers late, and the file that it was added from."""

    def __init__(self, lab):
        self.lab = lab
        self.source = lab.cluster.shared / "far.sqsh"
        self.source.write_bytes((lab.images / "tiny.sqsh").read_bytes())
        self.source.chmod(0o644)
        self.size_bytes = self.source.stat().st_size
        self.sum = hashlib.sha256(self.source.read_bytes()).hexdigest()
        self.folder = lab.cluster.shared / "far"
        lab.cluster.run(["mkdir", "-p", "/shared/far"])
        self.settings(store="/shared/far")
        add = [site.bootseer(), "image", "import", "/shared/far.sqsh", "--name", NAME, "--quiet"]
        lab.cluster.run(add)
        lab.cluster.run(["chmod", "-R", "a+rX", "/shared/far"])
        lab.cluster.mount_share(self.folder, at=STORE, latency_s=LATENCY_S)
        self.settings()

    def settings(self, image="", store=STORE):
        path = self.lab.cluster.etc_bootseer / "bootseer.toml"
        lines = f'[image]\nstore_url = "file://{store}"\nfill_mib_per_s = 0\n{image}'
        path.write_text(CONFIG.replace("[image]\n", lines))

    def start(self, *options, command=WHOLE):
        """Run one job on nodes that have nothing of the image."""
        for node in self.lab.cluster.node_names:
            self.lab.cluster.run(["rm", "-rf", CACHE], node=node)
        self.lab.drop_caches()
        job = self.lab.srun(*SERVED, *options, command=command)
        if command == WHOLE:
            assert job.stdout.split() == [self.sum, "-"] * 2
        return job

    def choice(self, job):
        return self.lab.stages(job)["image.choice"]["detail"]


@pytest.fixture
def far(lab):
    far = Far(lab)
    yield far
    lab.cluster.unmount_share(STORE)
    lab.cluster.run(["rm", "-rf", "/shared/far", "/shared/far.sqsh"])
    (lab.cluster.etc_bootseer / "bootseer.toml").write_text(CONFIG)


def test_all_of_it_is_copied_where_each_read_would_wait(lab, far):
    far.settings('ways = ["copy"]\n')
    # The job touches one block; who asked to wait begins when all of it is there.
    job = far.start("--bootseer-wait=30", command=LITTLE)
    assert job.stdout.split() == ["4096"] * 2
    assert far.choice(job).startswith("copy: some "), far.choice(job)
    stages = lab.stages(job)
    assert stages["image.copy"]["bytes"] > 0.9 * far.size_bytes
    assert stages["image.serve"]["bytes"] == far.size_bytes
    assert stages["image.copy"]["end_s"] <= stages["prolog"]["end_s"]
    assert lab.fallbacks(job) == set()
    planned = json.loads(next(lab.store().glob("plans/*.json")).read_text())["images"][0]
    assert planned["store"]["latency_us"] > LATENCY_S * 1e6
    assert planned["touched_bytes"] < far.size_bytes / 4, "what is copied is not touched"


def test_its_file_is_read_where_that_answers_sooner(lab, far):
    far.settings('ways = ["file"]\n')  # so small an image is copied as soon on a busy machine
    job = far.start()
    assert far.choice(job).startswith("file: some "), far.choice(job)
    assert "reads of its file" in lab.stages(job)["image.serve"]["detail"]
    assert lab.fallbacks(job) == set()
    # A block has changed: it comes from the store, and so does all that is read after it.
    content = bytearray(far.source.read_bytes())
    content[-far.size_bytes // 10] ^= 1
    far.source.write_bytes(content)
    job = far.start()
    assert lab.fallbacks(job) in ({"image.file"}, set())  # unless that is the block it looked at
    far.source.write_bytes(content[:-1])
    job = far.start(command=LITTLE)
    assert not far.choice(job).startswith("file: "), "another file by now"
    assert lab.fallbacks(job) == set()


def test_what_is_allowed_is_the_administrators_word(lab, far):
    far.settings("ways = []\n")
    job = far.start(command=LITTLE)
    assert far.choice(job).startswith("served: some ")
    assert lab.stages(job)["image.serve"]["bytes"] < far.size_bytes / 2
    assert "image.copy" not in lab.stages(job)
