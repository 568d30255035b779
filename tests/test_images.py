"""Images built on the spot: the tiny one whole, of the demo's only what costs nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from bootseer_dev.material.images import (
    Recipe,
    Say,
    TinyImage,
    cached_image,
    ch_run,
    demo_image,
    digest,
    write_image,
)

from bootseer.errors import Unavailable

pytestmark = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="needs squashfs-tools")

PLAIN_UID = 12345

# /dev/fuse is root's alone on some machines. Here a node that is everyone's covers it, in a mount
# namespace of this command's own.
AS_PLAIN_USER = f"""
set -e
mount -t tmpfs tmpfs "$1"
mknod -m 666 "$1/fuse" c 10 229
mount --bind "$1/fuse" /dev/fuse
shift
exec setpriv --reuid={PLAIN_UID} --regid={PLAIN_UID} --clear-groups env -i USER=plain \
    PATH=/usr/bin:/bin "$@"
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="bootseer-images-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def run_as_plain_user(folder: Path, image: Path, *command: str) -> str:
    device, mount_dir = folder / "device", folder / "mnt"
    device.mkdir(exist_ok=True)
    mount_dir.mkdir(exist_ok=True)
    enter = ["unshare", "--mount", "sh", "-c", AS_PLAIN_USER, "sh", str(device)]
    done = subprocess.run(
        [*enter, *ch_run(image, mount_dir, *command)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.root
@pytest.mark.fuse
def test_tiny_image_starts_as_a_plain_user(open_folder: Path) -> None:
    recipe = TinyImage()
    image = cached_image(recipe, open_folder)
    assert run_as_plain_user(open_folder, image, *recipe.command) == recipe.output


@pytest.mark.root
@pytest.mark.fuse
def test_every_byte_reads_back_under_ch_run(open_folder: Path) -> None:
    recipe = TinyImage(files=12, file_bytes=300_001)
    image = cached_image(recipe, open_folder)
    for path in recipe.hot + recipe.cold:
        (open_folder / path.rpartition("/")[2]).write_bytes(recipe.content(path))
    sums = subprocess.run(
        ["sha256sum", *sorted(p.name for p in open_folder.glob("00*"))],
        cwd=open_folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    inside = run_as_plain_user(open_folder, image, "sh", "-c", "cd /data && sha256sum *")
    assert inside == sums
    environment = run_as_plain_user(open_folder, image, "busybox", "env")
    assert "PYTHONDONTWRITEBYTECODE=1\n" in environment


def test_hot_and_cold_content_is_found_in_the_image_file(tmp_path: Path) -> None:
    recipe = TinyImage(files=16)
    data = cached_image(recipe, tmp_path).read_bytes()
    assert len(recipe.hot) == 2
    assert len(recipe.hot + recipe.cold) == 16
    assert all(recipe.content(path) in data for path in recipe.hot + recipe.cold)


def test_equal_recipes_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_image(TinyImage(files=8), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_seed_replaces_the_image_under_its_name(tmp_path: Path) -> None:
    image = tmp_path / "image.sqsh"
    write_image(TinyImage(files=8), image)
    with image.open("rb") as opened:
        old = opened.read()
        write_image(TinyImage(seed=1, files=8), image)
        assert opened.seek(0) == 0
        assert opened.read() == old
    assert image.read_bytes() != old
    assert TinyImage().output != TinyImage(seed=1).output


def test_digest_follows_the_recipe() -> None:
    stack = demo_image()
    recipes: list[Recipe] = [
        TinyImage(),
        TinyImage(seed=1),
        TinyImage(files=241),
        TinyImage(hot_every=7),
        stack,
        demo_image(torch=True),
        replace(stack, script=stack.script + "\n"),
        replace(stack, requirements=("numpy",)),
    ]
    assert len({digest(recipe) for recipe in recipes}) == len(recipes)
    assert digest(TinyImage()) == digest(TinyImage(seed=0))


def test_equal_recipe_is_built_once(tmp_path: Path) -> None:
    lines: list[str] = []
    first = cached_image(TinyImage(files=8), tmp_path, lines.append)
    assert re.search(r"packing: [\d.]+ m?s", "\n".join(lines))
    lines.clear()
    assert cached_image(TinyImage(files=8), tmp_path, lines.append) == first
    assert lines == []


@dataclass(frozen=True)
class Interrupted(TinyImage):
    def fill(self, root: Path, say: Say) -> None:
        super().fill(root, say)
        raise KeyboardInterrupt


BUILD = """
import sys
from pathlib import Path
from bootseer_dev.material.images import TinyImage, cached_image

cached_image(TinyImage(files=8), Path(sys.argv[1]))
"""


def start_build(folder: Path, mksquashfs: str) -> subprocess.Popen[bytes]:
    """Start a builder of its own, with a shell script in mksquashfs' place."""
    programs = folder.parent / "bin"
    programs.mkdir(exist_ok=True)
    script = programs / "mksquashfs"
    script.write_text(f"#!/bin/sh\n{mksquashfs}\n")
    script.chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    command = [sys.executable, "-P", "-c", BUILD, str(folder)]
    return subprocess.Popen(command, env={**os.environ, "PATH": path}, stderr=subprocess.PIPE)


def test_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        cached_image(Interrupted(files=8), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_what_a_killed_build_left_goes_with_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    with start_build(folder, "kill -9 $PPID") as builder:
        pass
    assert builder.returncode == -9
    assert len(list(folder.glob(".building-*"))) == 1
    image = cached_image(TinyImage(files=8), folder)
    assert {path.name for path in folder.iterdir()} == {".lock", image.name}


def test_builders_at_once_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    once = f'echo built >>{log}; exec {shutil.which("mksquashfs")} "$@"'
    builders = [start_build(tmp_path / "images", once) for _ in range(3)]
    for builder in builders:
        _, words = builder.communicate(timeout=60)
        assert (builder.returncode, words) == (0, b"")
    assert log.read_text() == "built\n"


def test_failing_program_ends_in_its_last_words(tmp_path: Path) -> None:
    with start_build(tmp_path / "images", "echo FATAL: no space >&2; exit 1") as builder:
        _, words = builder.communicate(timeout=60)
    assert b"Unavailable: mksquashfs failed with exit status 1:\nFATAL: no space\n" in words


def test_missing_program_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *args, **options: None)
    with pytest.raises(Unavailable, match="install the package busybox-static"):
        cached_image(TinyImage(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
