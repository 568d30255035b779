"""What is in the packages: the files of each, laid out below a folder as on a machine."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from click.shell_completion import get_completion_class

from bootseer import __version__
from bootseer.cli.main import cli
from bootseer.slurm.package import installed
from bootseer.slurm.package.versions import PACKAGED
from bootseer_dev.cluster.roots.root import checkout
from bootseer_dev.packages.man_pages import man_pages
from bootseer_dev.packages.targets import Target

MAIN = "bootseer"
_COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/bootseer",
    "fish": "usr/share/fish/vendor_completions.d/bootseer.fish",
}
_ZSH = {True: "usr/share/zsh/site-functions", False: "usr/share/zsh/vendor-completions"}
"""Where zsh looks, by whether the packages are RPMs."""


@dataclass(frozen=True, slots=True)
class Build:
    """Packages of one version for one system.

    Attributes:
        target: the system.
        revision: of the packages, from 1.
    """

    target: Target
    revision: int

    @property
    def version(self) -> str:
        """Of the packages, and the name of the environment's folder."""
        return f"{__version__}-{self.revision}{self.target.suffix}"

    @property
    def plugin(self) -> str:
        """The name of the package with the plugin."""
        return f"{MAIN}-plugin-slurm{self.target.slurm}"


def template(name: str, values: Mapping[str, str]) -> str:
    """Return a file of the checkout's packages/ with each ``@WORD@`` replaced."""
    text = (checkout() / "packages" / name).read_text()
    for word, value in values.items():
        text = text.replace(f"@{word}@", value)
    return text


def put_main(build: Build, environment: Path, built: Path, stage: Path) -> None:
    """Lay out the package with the program.

    Args:
        build: what is built.
        environment: its virtual environment, which is moved.
        built: the folder with what `build-environment` has made beside it.
        stage: the folder that stands for the machine's root.
    """
    packaged = stage / installed.FOLDER.relative_to("/") / PACKAGED
    packaged.parent.mkdir(parents=True)
    environment.rename(packaged)
    marker = {"version": build.version, "plugin": build.plugin, "is_rpm": build.target.is_rpm}
    _write(packaged / installed.NAME, json.dumps(marker) + "\n")
    program = stage / "usr/bin/bootseer"
    program.parent.mkdir(parents=True)
    program.symlink_to(installed.CURRENT / "bin/bootseer")
    source = checkout()
    _write(stage / "etc/bootseer/bootseer.toml", _example("bootseer.toml"))
    for kind in ("sysusers", "tmpfiles"):
        text = (source / "packages" / f"bootseer.{kind}").read_text()
        _write(stage / f"usr/lib/{kind}.d/bootseer.conf", text)
    for shell, name in _COMPLETIONS.items():
        _write(stage / name, _completion(shell))
    _write(stage / _ZSH[build.target.is_rpm] / "_bootseer", _completion("zsh"))
    for name, page in man_pages().items():
        _write_compressed(stage / "usr/share/man/man1" / f"{name}.gz", page)
    documents = _put_documents(stage, MAIN)
    shutil.copyfile(built / "python-packages.txt", documents / "python-packages.txt")
    shutil.copytree(source / "slurm-conf-examples", documents / "examples")


def put_plugin(build: Build, built: Path, stage: Path) -> None:
    """Lay out the package with the plugin; see `put_main`."""
    library = stage / installed.PLUGIN.relative_to("/")
    library.parent.mkdir(parents=True)
    shutil.copyfile(built / library.name, library)
    library.chmod(0o755)
    line = (checkout() / "packages/plugstack.conf").read_text()
    _write(stage / installed.LINE.relative_to("/"), line)
    (stage / "etc/slurm/plugstack.conf.d").mkdir(parents=True)  # for the link
    _put_documents(stage, build.plugin)


def size_bytes(stage: Path) -> int:
    """Return what the files of a package take."""
    return sum(path.lstat().st_size for path in stage.rglob("*") if not path.is_dir())


def descriptions(build: Build, stage: Path) -> tuple[str, str]:
    """Return what the two packages say of themselves, in lines of less than 80 characters."""
    files = sum(1 for path in stage.rglob("*") if not path.is_dir())
    main = (
        "BootSeer records what a job's start-up reads, and has it on every node the next\n"
        "time. This package has the program in a Python environment of its own, without\n"
        "compiler, headers or tests, for login and compute nodes.\n"
        f"It takes {size_bytes(stage) / 1e6:.0f} MB in {files} files."
    )
    plugin = (
        f"The plugin for Slurm {build.target.slurm}, and the line by which Slurm loads it.\n"
        "After an installation or upgrade restart slurmd, which ends no job."
    )
    return main, plugin


def _example(name: str) -> str:
    return (checkout() / "slurm-conf-examples" / name).read_text()


def _completion(shell: str) -> str:
    found = get_completion_class(shell)
    assert found is not None
    return found(cli, {}, "bootseer", "_BOOTSEER_COMPLETE").source()


def _put_documents(stage: Path, package: str) -> Path:
    folder = stage / "usr/share/doc" / package
    notice = "BootSeer is distributed under the Apache License 2.0. Licences of what the Python\n"
    notice += "environment contains besides are in /usr/share/doc/bootseer/python-packages.txt.\n\n"
    _write(folder / "copyright", notice + (checkout() / "LICENSE").read_text())
    _write_compressed(folder / "changelog.gz", (checkout() / "CHANGELOG.md").read_text())
    return folder


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _write_compressed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
