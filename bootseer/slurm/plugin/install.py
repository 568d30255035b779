"""Put the plugin, its scripts and its line in plugstack.conf in place, and remove them."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bootseer.env import build_zipapp
from bootseer.errors import ConfigError, Conflict, Denied, NotFound
from bootseer.slurm.package import installed
from bootseer.slurm.plugin import program_link
from bootseer.slurm.plugin.build import build
from bootseer.slurm.plugin.files import (
    ADVICE,
    CONF,
    PLUGIN,
    PLUGSTACK_DIR,
    PREFIX,
    SCRIPTS,
    put,
    python_path,
    scripts_folder,
    share,
)
from bootseer.slurm.plugin.include_line import ensure_include, remove_include

_ARGUMENT = re.compile(
    r"(libexec|run_dir)=/\S*|(advice_timeout|max_wait|epilog_timeout)=[0-9]{1,5}(\.[0-9]{1,3})?",
    re.ASCII,
)

_RESTART = "restart slurmd on the nodes: it looks for prolog hooks only when it starts"


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """What was put where, and what is left for the administrator to do.

    Attributes:
        files: all that were written, and the link.
        notes: what is as it should be.
        next_steps: what is left to do.
    """

    files: tuple[Path, ...]
    notes: tuple[str, ...]
    next_steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemovedPlugin:
    """What was removed, and the plugstack.conf whose include line was."""

    files: tuple[Path, ...]
    changed: tuple[Path, ...]


def install(
    prefix: Path = PREFIX,
    plugstack_dir: Path = PLUGSTACK_DIR,
    *,
    built: Path | None = None,
    slurm_include: Path | None = None,
    advice: bool = True,
    prolog_only: bool = False,
    include: bool = False,
    link: Path | None = None,
    arguments: Sequence[str] = (),
) -> InstalledPlugin:
    """Put the plugin, the entry scripts and the plugstack line in place.

    Args:
        prefix: the folder for libraries and scripts.
        plugstack_dir: the folder whose ``*.conf`` the site's plugstack.conf includes.
        built: a folder that `build` has filled; None builds now.
        slurm_include: as for `build`.
        advice: as for `build`.
        prolog_only: the entry scripts only, for slurm.conf's ``Prolog=`` and ``Epilog=``.
        include: add a line to plugstack.conf if no line there includes the plugin's.
        link: also make this link to the program `bootseer`.
        arguments: for the plugin's line; none keeps those of an existing line.

    Raises:
        ConfigError: an argument is not one of the plugin's.
        Conflict: something else is where the link should be, or the plugin is from a package.
        Denied: a folder cannot be written to.
        Unavailable: as for `build`.

    Durability: every file is replaced as a whole, so that a daemon which loads it meanwhile finds
    the old or the new one.
    """
    for argument in arguments:
        if not _ARGUMENT.fullmatch(argument):
            raise ConfigError(
                f"{argument!r} is not an argument of the plugin; see `install --help`"
            )
    _refuse_package()
    is_packaged = installed.package() is not None  # with scripts and advice, but another plugin
    with _denied_is_ours(), tempfile.TemporaryDirectory() as scratch:
        if built is None and not prolog_only:
            built = Path(scratch)
            build(built, slurm_include, advice=advice and not is_packaged)
        # What is missing is told before anything is written.
        if built is not None and not (built / PLUGIN).is_file():
            raise NotFound(f"there is no {PLUGIN} in {built}; run `bootseer plugin build` first")
        files = [program_link.make(link)] if link is not None else []
        if not is_packaged:
            files += _put_scripts(prefix)
        if prolog_only or built is None:
            steps = _prolog_steps(scripts_folder(prefix))
            return InstalledPlugin(tuple(files), (), (*steps, *_link_step()))
        for name in (PLUGIN, ADVICE):
            if (built / name).is_file():
                files.append(put(prefix / name, (built / name).read_bytes(), mode=0o755))
        conf = plugstack_dir / CONF
        words = list(arguments) or _arguments(conf)
        if is_packaged and not any(word.startswith("libexec=") for word in words):
            words.insert(0, f"libexec={installed.LIBEXEC}")
        line = shlex.join(["optional", str(prefix / PLUGIN), *words])
        # Slurm reads the line again for every job: it must not name what is not there yet.
        files.append(put(conf, f"{line}\n".encode(), mode=0o644))
        notes, steps = ensure_include(conf, add=include)
    return InstalledPlugin(tuple(files), notes, (*steps, _RESTART, *_link_step()))


def uninstall(
    prefix: Path = PREFIX,
    plugstack_dir: Path = PLUGSTACK_DIR,
    *,
    link: Path = program_link.LINK,
) -> RemovedPlugin:
    """Remove what `install` has put in place, and nothing else; list what was there.

    Raises:
        Conflict: the plugin is from a package.
        Denied: a file cannot be removed.
    """
    _refuse_package()
    removed: list[Path] = []
    changed: list[Path] = []
    conf = plugstack_dir / CONF
    with _denied_is_ours():
        # The line goes first, or srun would look for a plugin that is gone.
        for path in (
            conf,
            *(prefix / n for n in (PLUGIN, ADVICE, *SCRIPTS, build_zipapp.NAME)),
        ):
            if path.is_symlink() or path.exists():
                path.unlink()
                removed.append(path)
        with contextlib.suppress(OSError):  # not there, or somebody else's files are in it
            prefix.rmdir()
        if program_link.remove(link):
            removed.append(link)
        changed += remove_include(conf)
    return RemovedPlugin(tuple(removed), tuple(changed))


def _refuse_package() -> None:
    package = installed.plugin_package()
    if package:
        raise Conflict(
            f"the package {package.plugin} has installed the plugin, and upgrades and removes it; "
            f"its arguments are in {installed.LINE}"
        )


def _fill_in(script: str) -> str:
    return script.replace("@PYTHON@", sys.executable).replace(
        '["@PYTHON_PATH@"]', repr(python_path())
    )


def _put_scripts(prefix: Path) -> list[Path]:
    files = []
    for name, folder in SCRIPTS.items():
        text = _fill_in((share(folder) / name).read_text())
        files.append(put(prefix / name, text.encode(), mode=0o755))
    files.append(put(prefix / build_zipapp.NAME, build_zipapp.build(), mode=0o755))
    return files


def _arguments(conf: Path) -> list[str]:
    """List the arguments that an administrator gave the plugin in an existing file."""
    lines = conf.read_text().splitlines() if conf.is_file() else []
    for words in map(str.split, lines):
        if words[:1] in (["optional"], ["required"]) and words[1:2][0].endswith(f"/{PLUGIN}"):
            return words[2:]
    return []


def _link_step() -> tuple[str, ...]:
    if program_link.is_in_path():
        return ()
    return (
        f"for users' PATH, repeat with --link (makes {program_link.LINK}); without, the program is "
        f"{program_link.program()}",
    )


def _prolog_steps(prefix: Path) -> tuple[str, ...]:
    return (
        f"set in slurm.conf:  Prolog={prefix / 'bootseer-prolog'}",
        f"set in slurm.conf:  Epilog={prefix / 'bootseer-epilog'}",
        "run:  scontrol reconfigure",
        "the options of srun, sbatch and salloc come from the plugin: install it where jobs are "
        "submitted",
    )


@contextlib.contextmanager
def _denied_is_ours() -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise Denied(
            f"cannot write {error.filename2 or error.filename}: {error.strerror}; run this as root"
        ) from error
