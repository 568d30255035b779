"""Container images built on the spot: a Debian one for the demo, a tiny one for tests.

An image is a squashfs file that Charliecloud runs as a plain user::

    ch-run --set-env -m MOUNT_DIR IMAGE.sqsh -- COMMAND

`cached_image` builds a recipe once per folder, `write_image` builds it at a path of the caller's
choice and so also replaces an image under its name. Equal content gives equal bytes: times are
fixed and .pyc files carry hashes instead of times.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bootseer.errors import Unavailable
from bootseer.units import KIB, format_duration, format_size

Say = Callable[[str], None]
"""Where progress goes, a line at a time."""

# Raise when fill() changes what equal recipes give.
_LAYOUT = 1

# Level 3 packs 5.6 GB in 16 s on two cores. A hot file shares no block with a cold one (no
# fragments), and no builder's umask or user shows.
_SQUASHFS = (
    *("-comp", "zstd", "-Xcompression-level", "3", "-no-fragments", "-no-xattrs"),
    *("-all-root", "-action", "chmod(a+rX)@true", "-mkfs-time", "0", "-all-time", "0"),
    *("-noappend", "-no-progress", "-quiet"),
)

# ch-run --set-env reads this file of the image: one thread, so that a start's time is the
# reading's, and nothing from or to the user's home.
_ENVIRONMENT = """\
OPENBLAS_NUM_THREADS=1
OMP_NUM_THREADS=1
PYTHONDONTWRITEBYTECODE=1
PYTHONNOUSERSITE=1
"""

FIRST_STEP = "first step done"
"""What a start prints when it has come so far."""

_PACKAGE_OF = {
    "apt-get": "apt",
    "busybox": "busybox-static",
    "chroot": "coreutils",
    "mksquashfs": "squashfs-tools",
    "setpriv": "util-linux",
}

_STACK_START = """\
import cv2
import numba
import numpy as np
import pandas
import polars
import pyarrow.parquet
import scipy.optimize
import sklearn.ensemble
import statsmodels.api
import sympy
import xgboost

rng = np.random.default_rng(0)
x, y = rng.normal(size=(256, 16)), rng.integers(0, 2, 256)
weights = np.zeros(16)
weights -= x.T @ (1 / (1 + np.exp(-x @ weights)) - y) / len(y)
guess = 1 / (1 + np.exp(-x @ weights))
loss = -np.mean(np.log(np.where(y, guess, 1 - guess)))
print(f"first step done, loss {loss:.4f}", flush=True)
"""

_TORCH_START = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(16, 1)
loss = model(torch.ones(256, 16)).square().mean()
loss.backward()
print(f"first step done, loss {loss.item():.4f}", flush=True)
"""


class Recipe(Protocol):
    """What an image is made of; its repr() says all of it, equal ones give the same image."""

    @property
    def name(self) -> str:
        """The image's name, without digest and suffix."""

    @property
    def command(self) -> tuple[str, ...]:
        """The command in the image that is one start-up."""

    def fill(self, root: Path, say: Say) -> None:
        """Put the image's files into the empty folder ``root``."""


@dataclass(frozen=True, slots=True)
class TinyImage:
    """Busybox and data files, 23 MB, built in less than a second; a start reads a known few.

    The data is incompressible and stored as it is: `content` can be found in the image file.

    Attributes:
        seed: another seed gives other data under the same names.
        files: number of data files.
        file_bytes: length of each.
        hot_every: the start reads every so many-th file.
    """

    seed: int = 0
    files: int = 240
    file_bytes: int = 96 * KIB
    hot_every: int = 8

    @property
    def name(self) -> str:
        """The image's name, without digest and suffix."""
        return "tiny"

    @property
    def command(self) -> tuple[str, ...]:
        """The command in the image that is one start-up."""
        return ("/start",)

    @property
    def hot(self) -> tuple[str, ...]:
        """The data files that a start reads, in its order."""
        return tuple(self._path(index) for index in range(0, self.files, self.hot_every))

    @property
    def cold(self) -> tuple[str, ...]:
        """The data files that a start leaves alone."""
        names = (self._path(index) for index in range(self.files))
        return tuple(name for name in names if name not in self.hot)

    @property
    def output(self) -> str:
        """What a start prints when it read the right bytes."""
        digest = hashlib.sha256()
        for path in self.hot:
            digest.update(self.content(path))
        return f"first step done, data {digest.hexdigest()}\n"

    def content(self, path: str) -> bytes:
        """Return what the data file at ``path`` of the image holds."""
        return random.Random(f"{self.seed} {path}").randbytes(self.file_bytes)

    def fill(self, root: Path, say: Say) -> None:
        """Put the image's files into the empty folder ``root``."""
        busybox = _static_busybox()
        for folder in ("bin", "data", "etc", "mnt", "usr", "dev", "proc", "sys", "tmp"):
            (root / folder).mkdir()
        for covered in ("etc/passwd", "etc/group"):  # ch-run mounts its own there
            (root / covered).touch()
        shutil.copy(busybox, root / "bin/busybox")
        for applet in ("sh", "cat", "cut", "ls", "sha256sum", "sleep"):
            (root / "bin" / applet).symlink_to("busybox")
        for path in (*self.hot, *self.cold):
            (root / path.lstrip("/")).write_bytes(self.content(path))
        start = root / "start"
        start.write_text(
            "#!/bin/sh\nset -e\n"
            f"digest=$(cat {' '.join(self.hot)} | sha256sum | cut -d ' ' -f 1)\n"
            'echo "first step done, data $digest"\n'
        )
        start.chmod(0o755)
        _write_environment(root)

    @staticmethod
    def _path(index: int) -> str:
        return f"/data/{index:04}"


@dataclass(frozen=True, slots=True)
class PythonImage(TinyImage):
    """The tiny image with a `python` that, whatever it is given, makes the tiny start.

    It stays for as long as it takes to identify the image, on a busy machine too: of a job that has
    ended by then, nothing is recorded.
    """

    def fill(self, root: Path, say: Say) -> None:
        """Put the image's files into the empty folder ``root``."""
        TinyImage.fill(self, root, say)
        (root / "bin/python").write_text("#!/bin/sh\n/start && sleep 4\n")
        (root / "bin/python").chmod(0o755)


@dataclass(frozen=True, slots=True)
class DebianImage:
    """A Debian system with Python packages and a script that imports them. Built by root only.

    Attributes:
        name: the image's name, without digest and suffix.
        requirements: what pip installs into the image.
        script: the training script, /opt/train/start.py in the image.
        suite: Debian's release.
        python: its version of Python.
        packages: Debian packages beside the essential ones.
    """

    name: str
    requirements: tuple[str, ...]
    script: str
    suite: str = "bookworm"
    python: str = "3.11"
    packages: tuple[str, ...] = ("python3", "python3-pip", "python3-venv")

    @property
    def command(self) -> tuple[str, ...]:
        """The command in the image that is one start-up."""
        return ("python3", "/opt/train/start.py")

    def fill(self, root: Path, say: Say) -> None:
        """Put the image's files into the empty folder ``root``."""
        if os.geteuid() != 0:
            raise Unavailable(f"cannot build the {self.name} image: debootstrap runs as root only")
        packages = root.parent / "packages"
        what = f"Debian {self.suite}, and with pip {len(self.requirements)} packages"
        with _step(say, f"{self.name} image: installing {what}"), ThreadPoolExecutor(2) as pool:
            # Together: one waits for the network while the other unpacks.
            debian = pool.submit(self._install_debian, root)
            pool.submit(self._install_packages, packages).result()
            debian.result()
        library = f"usr/local/lib/python{self.python}/dist-packages"
        shutil.rmtree(root / library)
        packages.rename(root / library)
        with _step(say, f"{self.name} image: compiling Python's modules"):
            # Checks no times: the image's are all alike.
            by_hash = ("--invalidation-mode", "unchecked-hash")
            trees = (f"/usr/lib/python{self.python}", "/usr/lib/python3", f"/{library}")
            compileall = ("python3", "-m", "compileall", "-q", "-f", "-j", "0", *by_hash, *trees)
            # Status 1: a file that is no Python of this version, as many packages carry.
            _run("chroot", str(root), *compileall, ok=(0, 1))
        for folder in ("dev", "var/cache/apt", "var/cache/debconf", "var/lib/apt/lists", "var/log"):
            # In dev are device nodes, which unprivileged runtimes refuse.
            shutil.rmtree(root / folder)
            (root / folder).mkdir()
        script = root / "opt/train/start.py"
        script.parent.mkdir()
        script.write_text(self.script)
        _write_environment(root)

    def _install_debian(self, root: Path) -> None:
        # It dies with this process, and leaves neither mount nor process of its own.
        _run(
            *("setpriv", "--pdeathsig", "KILL"),
            *("unshare", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"),
            *(_program("debootstrap"), "--variant=minbase"),
            *(f"--include={','.join(self.packages)}", self.suite, str(root), *_debian_mirror()),
        )

    def _install_packages(self, target: Path) -> None:
        # The host's pip, for the image's Python: the host knows its package index.
        _run(
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"),
            *("--no-cache-dir", "--no-warn-script-location", "--disable-pip-version-check"),
            *("--only-binary=:all:", "--python-version", self.python),
            *("--target", str(target), *self.requirements),
        )


def demo_image(*, torch: bool = False) -> DebianImage:
    """Return the demo's recipe: a scientific stack, or with ``torch`` PyTorch's CUDA build.

    A start of the first reads some 150 MB of about 1 GB. Of xgboost most is NCCL, which no start
    touches, like the rest of what images carry just in case.
    """
    if torch:
        return DebianImage("torch", ("numpy", "torch"), _TORCH_START)
    stack = (
        *("matplotlib", "numba", "numpy", "opencv-python-headless", "pandas", "polars", "pyarrow"),
        *("scikit-learn", "scipy", "statsmodels", "sympy", "xgboost"),
    )
    return DebianImage("demo", stack, _STACK_START)


def ch_run(image: Path, mount_dir: Path, *command: str) -> list[str]:
    """Return the command line that runs ``command`` in ``image`` with Charliecloud.

    It mounts in a namespace of its own: any user, any existing ``mount_dir``, any number at a time,
    nothing left behind. It needs USER in the environment and a /dev/fuse its user can open.
    """
    return ["ch-run", "--set-env", "-m", str(mount_dir), str(image), "--", *command]


def digest(recipe: Recipe) -> str:
    """Return what names the images of this recipe."""
    return hashlib.sha256(f"{_LAYOUT} {_SQUASHFS} {recipe!r}".encode()).hexdigest()


def cached_image(recipe: Recipe, folder: Path, say: Say = lambda line: None) -> Path:
    """Return the path of the recipe's image in ``folder``, built if it is not there yet.

    Concurrency: one process builds in a folder at a time, the others wait for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{recipe.name}-{digest(recipe)[:12]}.sqsh"
    if path.exists():
        return path
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            # Whoever holds the lock is the only builder: these are of killed ones.
            for left_over in folder.glob(".building-*"):
                shutil.rmtree(left_over)
            write_image(recipe, path, say)
    return path


def write_image(recipe: Recipe, path: Path, say: Say = lambda line: None) -> None:
    """Build the recipe's image at ``path``, replacing what is there.

    Durability: the name ``path`` has the old image or the whole new one, also after a crash.

    Raises:
        Unavailable: a program is missing or failed; the message names the package to install.
    """
    with tempfile.TemporaryDirectory(prefix=".building-", dir=path.parent) as work:
        root, image = Path(work, "root"), Path(work, "image.sqsh")
        root.mkdir()
        recipe.fill(root, say)
        with _step(say, f"{recipe.name} image: packing"):
            squash(root, image, *_SQUASHFS)
            image.chmod(0o644)
            with image.open("rb") as written:
                os.fsync(written.fileno())
        image.replace(path)
    say(f"{recipe.name} image: {path}, {format_size(path.stat().st_size)}")


def squash(tree: Path, image: Path, *options: str) -> Path:
    """Make a squashfs of a folder, with these options of mksquashfs; returns its path.

    Raises:
        Unavailable: mksquashfs is missing or failed.
    """
    quiet = ("-mkfs-time", "0", "-noappend", "-no-progress", "-quiet")
    _run("mksquashfs", str(tree), str(image), *quiet, *options)
    return image


def _write_environment(root: Path) -> None:
    (root / "ch").mkdir()
    (root / "ch/environment").write_text(_ENVIRONMENT)


def _debian_mirror() -> list[str]:
    """Return this machine's own Debian mirror, or nothing for debootstrap's default."""
    only = ("Created-By: Packages", "Origin: Debian", "Label: Debian")
    if shutil.which("apt-get") is None:
        return []
    return _run("apt-get", "indextargets", "--format", "$(REPO_URI)", *only).split()[:1]


def _static_busybox() -> str:
    busybox = _program("busybox")
    with Path(busybox).open("rb") as program:
        # A dynamic program names its loader in the first kilobytes.
        if b"/ld-" in program.read(4 * KIB):
            raise Unavailable(f"{busybox} is not static: install the package busybox-static")
    return busybox


def _program(name: str) -> str:
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if path is None:
        raise Unavailable(f"{name} not found: install the package {_PACKAGE_OF.get(name, name)}")
    return path


def _run(name: str, *arguments: str, ok: tuple[int, ...] = (0,)) -> str:
    """Run a program to its end and return what it printed; its last lines go into an error."""
    command = [_program(name), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode not in ok:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise Unavailable(f"{name} failed with exit status {done.returncode}:\n{last}")
    return done.stdout


@contextmanager
def _step(say: Say, what: str) -> Iterator[None]:
    say(f"{what} …")
    began = time.monotonic()
    yield
    say(f"{what}: {format_duration(time.monotonic() - began)}")
