"""Build the packages of one system, from the checkout to files in build/packages."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from bootseer_dev.cluster.roots import inside
from bootseer_dev.cluster.roots.root import checkout
from bootseer_dev.packages import roots
from bootseer_dev.packages.content import Build, put_main, put_plugin
from bootseer_dev.packages.deb import build_debs
from bootseer_dev.packages.rpm import build_rpms

_FOLDER = "/build"
"""In a root: everything that a build makes but the environment."""
_SOURCES = (
    *("bootseer", "c_ext", "spank", "prolog", "epilog", "importer", "squashfuse", "enroot"),
    "slurm-conf-examples",
    *("packages", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"),
)


def build_packages(build: Build, output: Path, say: Callable[[str], None]) -> list[Path]:
    """Build the two packages of a system; returns their paths.

    Args:
        build: the system and the revision.
        output: the folder for the packages; packages of the same name are replaced.
        say: takes a line for each thing that takes time.

    Raises:
        Unavailable: something is missing or failed; the text has the end of the log.
    """
    target = build.target
    root = roots.for_building(target.suite, say)
    say(f"building {build.version} for {target.name}")
    place = Path(f"{root.folder}{_FOLDER}")
    shutil.rmtree(place, ignore_errors=True)
    (place / "out").mkdir(parents=True)
    _copy_sources(place / "source")
    output.mkdir(parents=True, exist_ok=True)
    log = output / f"{target.name}.log"
    log.unlink(missing_ok=True)
    script = f"{_FOLDER}/source/packages/build-environment"
    arguments = (f"{_FOLDER}/source", target.python, build.version, f"{_FOLDER}/plugin")
    inside.run(root, [script, *arguments], log)
    environment = root.folder / "opt/bootseer" / build.version
    put_main(build, environment, place / "plugin", place / "stage/bootseer")
    put_plugin(build, place / "plugin", place / "stage/plugin")
    built = (build_rpms if target.is_rpm else build_debs)(build, root, _FOLDER, log)
    paths = [shutil.copy2(place / "out" / name, output) for name in built]
    shutil.rmtree(place)
    return [Path(path) for path in paths]


def _copy_sources(target: Path) -> None:
    """Copy what the packages are made of, so that nothing is written in the checkout."""
    target.mkdir()
    for name in _SOURCES:
        source = checkout() / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy2(source, target / name)
