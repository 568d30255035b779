"""Build the SPANK plugin against a site's Slurm, and put it where Slurm finds it.

Two libraries come out. ``bootseer.so`` is the plugin: plain C, loaded by srun, slurmd and
slurmstepd. ``bootseer-advice.so`` embeds Python and is loaded at submit only, by a child of srun,
and only when a job asks for BootSeer: linking libpython into the plugin itself would cost every
srun and every step its loading, and would make the nodes depend on it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import bootseer
from bootseer.env import build_zipapp
from bootseer.errors import ConfigError, Conflict, Denied, NotFound, Unavailable
from bootseer.posix import write_fully
from bootseer.slurm import plugstack, program_link
from bootseer.slurm.configuration import PlugStack
from bootseer.slurm.package import installed
from bootseer.store.local.atomic_file import new_file

PREFIX = Path("/usr/local/libexec/bootseer")
PLUGSTACK_DIR = Path("/etc/slurm/plugstack.conf.d")
PLUGIN = "bootseer.so"
ADVICE = "bootseer-advice.so"
CONF = "bootseer.conf"
SCRIPTS = {
    "bootseer-prolog": "prolog",
    "bootseer-epilog": "epilog",
    "bootseer-importer": "importer",
}

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
_ARGUMENT = re.compile(
    r"(libexec|run_dir)=/\S*|(advice_timeout|max_wait|epilog_timeout)=[0-9]{1,5}(\.[0-9]{1,3})?",
    re.ASCII,
)

_RESTART = "restart slurmd on the nodes: it looks for prolog hooks only when it starts"


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


def share(name: str) -> Path:
    """Find a folder that is installed as data beside the package, or lies in a checkout.

    Raises:
        NotFound: it is in neither place.
    """
    package = Path(bootseer.__file__).parent
    for folder in (package / "share" / name.replace("-", "_"), package.parent / name):
        if folder.is_dir():
            return folder
    raise NotFound(f"BootSeer's {name}/ is missing beside {package}; install the package again")


def scripts_folder(prefix: Path = PREFIX) -> Path:
    """Return the folder of the entry scripts: the package's, if this BootSeer is from one."""
    return installed.LIBEXEC if installed.package() else prefix


def python_path() -> list[str]:
    """List the folders that hold the package and what it imports, for an isolated interpreter."""
    package = str(Path(bootseer.__file__).parent.parent)
    sites = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    return list(dict.fromkeys([package, *sites]))


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
                files.append(_put(prefix / name, (built / name).read_bytes(), mode=0o755))
        conf = plugstack_dir / CONF
        words = list(arguments) or _arguments(conf)
        if is_packaged and not any(word.startswith("libexec=") for word in words):
            words.insert(0, f"libexec={installed.LIBEXEC}")
        line = shlex.join(["optional", str(prefix / PLUGIN), *words])
        # Slurm reads the line again for every job: it must not name what is not there yet.
        files.append(_put(conf, f"{line}\n".encode(), mode=0o644))
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


def _fill_in(script: str) -> str:
    return script.replace("@PYTHON@", sys.executable).replace(
        '["@PYTHON_PATH@"]', repr(python_path())
    )


def _put_scripts(prefix: Path) -> list[Path]:
    files = []
    for name, folder in SCRIPTS.items():
        text = _fill_in((share(folder) / name).read_text())
        files.append(_put(prefix / name, text.encode(), mode=0o755))
    files.append(_put(prefix / build_zipapp.NAME, build_zipapp.build(), mode=0o755))
    return files


def _put(path: Path, content: bytes, *, mode: int) -> Path:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with new_file(path, 0o600) as (fd, _):
        write_fully(fd, memoryview(content))
        os.fchmod(fd, mode)
        if os.geteuid() == 0:
            os.fchown(fd, 0, 0)
    return path


def _arguments(conf: Path) -> list[str]:
    """List the arguments that an administrator gave the plugin in an existing file."""
    lines = conf.read_text().splitlines() if conf.is_file() else []
    for words in map(str.split, lines):
        if words[:1] in (["optional"], ["required"]) and words[1:2][0].endswith(f"/{PLUGIN}"):
            return words[2:]
    return []


def plugstack_of(conf: Path) -> Path:
    """Return the path of the plugstack.conf whose folder of includes has ``conf``."""
    return conf.parent.parent / "plugstack.conf"


def ensure_include(conf: Path, *, add: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Add the include line if that is wanted and needed; returns notes, and what is left to do."""
    including = plugstack_of(conf)
    found = PlugStack(str(including)).lines_that_include(conf)
    if len(found) > 1:
        lines = ";  ".join(map(str, found))
        return (), (
            f"keep one of these lines, or srun warns of each option of the plugin:  {lines}",
        )
    if found:
        return (f"{including} includes it already, nothing is to be added:  {found[0]}",), ()
    if add:
        text = _text_of(including)
        _rewrite(including, plugstack.with_include(text, conf))
        return (f"added to {including}:  include {conf}",), ()
    return (), (f"add this line to {including}, or repeat with --include:  include {conf}",)


def remove_include(conf: Path) -> list[Path]:
    """Remove what `ensure_include` has added; returns the file that had it, if one had."""
    including = plugstack_of(conf)
    text = _text_of(including)
    left = plugstack.without_include(text, conf)
    if left == text:
        return []
    _rewrite(including, left) if left else including.unlink()
    return [including]


def _text_of(plugstack_conf: Path) -> str:
    return (
        plugstack_conf.read_bytes().decode(errors="surrogateescape")
        if plugstack_conf.is_file()
        else ""
    )


def _rewrite(plugstack_conf: Path, text: str) -> None:
    path = plugstack_conf.resolve()  # sites link it to a folder that all nodes mount
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
    _put(path, text.encode(errors="surrogateescape"), mode=mode)


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
