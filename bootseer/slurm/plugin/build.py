"""Compile the plugin and the library that gives advice at submit."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bootseer.errors import Unavailable
from bootseer.slurm.plugin.files import ADVICE, PLUGIN, python_path, share

SOURCES = (
    "bootseer",
    "options",
    "request",
    "submit",
    "release",
    "advice",
    "script",
    "step",
    "mounts",
    "exec",
)
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fstack-protector-strong", "-Wl,-z,relro")
_WARNINGS = ("-Wall", "-Wextra", "-Wconversion")


@dataclass(frozen=True, slots=True)
class BuiltPlugin:
    """What a build has made.

    Attributes:
        files: the libraries.
        slurm_version: the release whose headers they were compiled against, such as "22.05.8";
            Slurm loads them in that release only.
        python: the interpreter's version that gives advice at submit, None without advice.
    """

    files: tuple[Path, ...]
    slurm_version: str
    python: str | None


def build(output: Path, slurm_include: Path | None = None, *, advice: bool = True) -> BuiltPlugin:
    """Compile the plugin with the site's C compiler into a folder.

    Args:
        output: the folder, made if it is missing.
        slurm_include: the folder that has ``slurm/spank.h``; None looks in the usual places.
        advice: also compile the library that gives advice at submit.

    Raises:
        Unavailable: a header, the compiler or libpython is missing; the message names a package.
    """
    include = _slurm_include(slurm_include)
    version = _slurm_version(include)
    source = share("spank")
    output.mkdir(parents=True, exist_ok=True)
    files = [output / PLUGIN]
    _compile(
        [source / f"{name}.c" for name in SOURCES],
        output / PLUGIN,
        [*_WARNINGS, f"-I{include}", f"-Wl,--version-script={source / 'bootseer.map'}"],
    )
    if advice:
        files.append(output / ADVICE)
        _build_advice(source, output / ADVICE)
    python = ".".join(map(str, sys.version_info[:3])) if advice else None
    return BuiltPlugin(tuple(files), version, python)


def _slurm_include(given: Path | None) -> Path:
    if given is not None:
        places = [given]
    else:
        srun = shutil.which("srun")
        beside = [Path(srun).resolve().parent.parent / "include"] if srun else []
        places = [*beside, Path("/usr/include"), Path("/usr/local/include")]
        places.append(Path("/opt/slurm/include"))
    for place in places:
        if (place / "slurm" / "spank.h").is_file():
            return place
    raise Unavailable(
        f"no slurm/spank.h in {', '.join(map(str, places))}; install libslurm-dev (Debian, Ubuntu) "
        "or slurm-devel (RHEL, SUSE), or name the folder with --slurm-include"
    )


def _slurm_version(include: Path) -> str:
    header = include / "slurm" / "slurm_version.h"
    text = header.read_text() if header.is_file() else ""
    match = re.search(r"^#define\s+SLURM_VERSION_NUMBER\s+0x([0-9a-fA-F]{6})\b", text, re.MULTILINE)
    if match is None:
        raise Unavailable(f"{header} does not tell Slurm's version; install Slurm's headers again")
    # Slurm writes 22.05.8 as 0x160508.
    major, minor, micro = bytes.fromhex(match[1])
    return f"{major}.{minor:02d}.{micro}"


def _build_advice(source: Path, target: Path) -> None:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise Unavailable(
            f"no {header}; install python3-dev (Debian, Ubuntu) or python3-devel (RHEL, SUSE) for "
            f"{sys.executable}, or build with --no-advice"
        )
    library = _libpython()
    home = f"{sys.base_prefix}:{sys.base_exec_prefix}"
    with tempfile.TemporaryDirectory() as scratch:
        generated = Path(scratch) / "bootseer_advice.c"
        # In a process of its own: cffi's generator prints as it goes.
        subprocess.run(
            [sys.executable, source / "build_spank.py", generated],
            env={**os.environ, "PYTHONPATH": ":".join(python_path())},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        _compile(
            [source / "advice_python.c", generated],
            target,
            [
                f"-DBOOTSEER_PYTHONHOME={_c_string(home)}",
                f"-DBOOTSEER_PYTHONPATH={_c_string(':'.join(python_path()))}",
                f"-I{header.parent}",
                f"-Wl,--version-script={source / 'advice.map'}",
                f"-L{library.parent}",
                f"-l:{library.name}",
                f"-Wl,-rpath,{library.parent}",
            ],
        )


def _libpython() -> Path:
    name = f"libpython{sysconfig.get_config_var('LDVERSION')}.so"
    for variable in ("LIBDIR", "LIBPL"):
        folder = Path(sysconfig.get_config_var(variable) or "/")
        for path in (folder / name, folder / (sysconfig.get_config_var("MULTIARCH") or "") / name):
            if path.is_file():
                return path
    raise Unavailable(
        f"{sys.executable} has no shared library {name}; install python3-dev (Debian, Ubuntu) or "
        "python3-devel (RHEL, SUSE), use a Python built with --enable-shared, or build with "
        "--no-advice"
    )


def _compile(sources: Sequence[Path], target: Path, flags: Sequence[str]) -> None:
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        raise Unavailable(f"no C compiler {compiler[0]}; install gcc, or name one in $CC")
    command = [*compiler, *_FLAGS, *flags, *shlex.split(os.environ.get("CFLAGS", ""))]
    # Sources before flags: the linker takes from a library only what is asked for by then.
    command[len(compiler) : len(compiler)] = map(str, sources)
    result = subprocess.run([*command, "-o", target], capture_output=True, text=True)
    if result.returncode:
        raise Unavailable(f"cannot compile {target.name}:\n{result.stderr.rstrip()}")


def _c_string(text: str) -> str:
    return '"' + "".join(rf"\{byte:03o}" for byte in os.fsencode(text)) + '"'
