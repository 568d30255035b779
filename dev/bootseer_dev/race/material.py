"""What the race's job needs: an image, a package index, an environment and a checkpoint."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from bootseer.units import format_size
from bootseer_dev.cluster import Cluster
from bootseer_dev.cluster.spec import HEAD
from bootseer_dev.jobs import site
from bootseer_dev.material.images import (
    Say,
    cached_image,
    ch_run,
    squash,
)
from bootseer_dev.material.wheels import download_wheels, write_index, write_wheel
from bootseer_dev.race import program
from bootseer_dev.race.spec import SMALL_PACKAGE, RaceSpec
from bootseer_dev.race.storage import ADDRESS, INDEX_PORT

USER = "alice"
IMAGE = "race:v1"
INDEX = f"http://{ADDRESS}:{INDEX_PORT}/simple"
PLAIN, STRIPED = f"/user/{USER}/plain", f"/user/{USER}/run42"
TOOLS = "/shared/tools"
_SMALL_FILES = 240
_SMALL_FILE_BYTES = 256 * 1024
"""Of data, beside as many modules, half of which a job imports."""


@dataclass(frozen=True, slots=True)
class Material:
    """The folders of a race on a cluster that is up.

    Attributes:
        cluster: of it.
        spec: how much there is.
    """

    cluster: Cluster
    spec: RaceSpec

    @property
    def share(self) -> Path:
        """What the file server serves: image.sqsh, env.sqsh, wheels; its path on the host."""
        return self.cluster.state_dir / "share"

    @property
    def local(self) -> Path:
        """Copies of everything, which all nodes see without a network."""
        return self.cluster.state_dir / "local"

    @property
    def pip(self) -> str:
        """The command that installs the environment, without a target."""
        return f"{TOOLS}/bin/pip install -q --no-cache-dir {' '.join(self.spec.packages)}"

    def put_files(self, say: Say) -> None:
        """Put image and wheels where they are served, and the image where it is local."""
        image = cached_image(self.spec.recipe, self.spec.build_dir / "images", say)
        wheels = self.spec.build_dir / (
            "race-wheels-small" if self.spec.is_small else "race-wheels"
        )
        make_wheels(wheels, self.spec, say)
        self.share.mkdir()
        self.local.mkdir(mode=0o1777)
        self.local.chmod(0o1777)
        shutil.copytree(wheels, self.share / "wheels", copy_function=_link)
        for folder in (self.share, self.local):
            _link(str(image), str(folder / "image.sqsh"))

    def put_environment(self, say: Say) -> None:
        """Install the environment once, and pack what it came to for who mounts it by hand."""
        tools = self.cluster.shared / "tools"
        subprocess.run(["/usr/bin/python3", "-m", "venv", str(tools)], check=True)
        target = "/local/race/env"
        env = {"PIP_INDEX_URL": INDEX, "PIP_TRUSTED_HOST": ADDRESS}
        command = (
            f"mkdir -p {target} && {self.pip} --target {target} && cp -a {target} {self.local}"
        )
        self._run(["sh", "-ec", command], node="n1", env=env)
        made = self.local / "env"
        options = ("-comp", "zstd", "-Xcompression-level", "3", "-no-fragments", "-no-xattrs")
        packed = squash(made, self.share / "env.sqsh", *options)
        packed.chmod(0o644)
        files = [path for path in made.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        say(
            f"environment: {format_size(size)} in {len(files)} files, "
            f"{format_size(packed.stat().st_size)} as a squashfs"
        )

    def put_checkpoint(self, containers: Path, url: str, say: Say) -> None:
        """Write a shard for each node, and put them into HDFS: as they are, and striped."""
        programs = self.cluster.shared / "race"
        programs.mkdir()
        is_small = self.spec.is_small
        train = program.TRAIN_NUMPY if is_small else program.TRAIN_TORCH
        (programs / "train.py").write_text(train)
        (programs / "shards.py").write_text(
            program.SHARDS_NUMPY if is_small else program.SHARDS_TORCH
        )
        folder = self.local / "shards"
        command = ["python3", "/media/shards.py", "/mnt", str(self.spec.nodes)]
        start = ch_run(self.local / "image.sqsh", containers, *command, str(self.spec.layers))
        binds = ["-b", f"{programs}:/media", "-b", f"{folder}:/mnt"]
        at = start.index("-m")
        self._run(
            ["sh", "-ec", f"mkdir {folder}; {shlex.join([*start[:at], *binds, *start[at:]])}"],
            node="n1",
        )
        for options, target in ((["--plain"], PLAIN), ([], STRIPED)):
            argv = [site.bootseer(), "ckpt", "import", *options, str(folder), url + target]
            say(f"checkpoint: {self._run(argv).strip()}")
        for shard in folder.iterdir():
            shard.rename(self.local / shard.name)
        folder.rmdir()

    def put_image(self, say: Say) -> None:
        """Put the image into BootSeer's store, from a file that the head alone has.

        BootSeer serves an image from the file that it was imported from, if a node has that.
        """
        path = "/local/image.sqsh"
        _link(str(self.local / "image.sqsh"), f"{self.cluster.state_dir}/machines/{HEAD}{path}")
        say(self._run([site.bootseer(), "image", "import", path, "--name", IMAGE]).strip())

    def _run(
        self, argv: list[str], node: str | None = None, env: dict[str, str] | None = None
    ) -> str:
        return self.cluster.run(argv, user=USER, node=node, env=env, timeout_s=1800).stdout


def make_wheels(folder: Path, spec: RaceSpec, say: Say) -> None:
    """Fill a folder with the environment's wheels and an index of them, once."""
    if (folder / "simple").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if spec.is_small:
        write_wheel(folder, Requirement(f"{SMALL_PACKAGE}==1"), small_package())
    else:
        say(f"fetching {', '.join(spec.packages)} and what they need")
        for_image = ("--python-version", spec.recipe.python)
        download_wheels(folder, *for_image, *spec.packages)
    write_index(folder)


def small_package() -> dict[str, bytes]:
    """Return the files of a made-up package: modules, and data that half of them read."""
    made = random.Random(1)
    lines = [f"from race_package import m{n:03d}" for n in range(0, _SMALL_FILES, 2)]
    files = {"race_package/__init__.py": "\n".join(lines).encode()}
    for number in range(_SMALL_FILES):
        name = f"race_package/m{number:03d}"
        code = "with open(__file__[:-3] + '.bin', 'rb') as file:\n    size = len(file.read())\n"
        files[f"{name}.py"] = code.encode()
        files[f"{name}.bin"] = made.randbytes(_SMALL_FILE_BYTES)
    return files


def _link(source: str, target: str) -> None:
    """Give a file a second name, or copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
