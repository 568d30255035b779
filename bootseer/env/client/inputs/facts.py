"""Find out all that the result of an install command depends on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from bootseer.env.client.inputs.digest import KeyProblem, text_digest
from bootseer.env.client.inputs.installer_config import InstallerConfig, settings
from bootseer.env.client.inputs.installer_inputs import add_reads, unbounded
from bootseer.env.client.inputs.installers import InstallerCall, is_python, recognise
from bootseer.env.client.inputs.interpreter import python_of, which
from bootseer.env.client.inputs.probe import PythonFacts, accelerator, ask_python, installer_version
from bootseer.env.client.inputs.requirement_files import RequirementFiles
from bootseer.env.client.inputs.shell import INPUT, SimpleCommand, simple_commands
from bootseer.env.client.key import KeyFacts, numbered

MAX_PYTHONS = 4

_OF_A_RUN = re.compile(
    r"SLURM\w*|SPANK\w*|BOOTSEER\w*|TMPDIR|TMP|TEMP|PWD|OLDPWD|SHLVL|HOSTNAME|PATH|HOME|USER|LOGNAME"
)
"""Variables that shell text may use and that say nothing of the result, or that would make every
job's key another one."""


def gather(
    command: Sequence[str],
    targets: Mapping[str, str],
    *,
    environ: Mapping[str, str],
    cwd: str,
    extra: Sequence[str] = (),
    key_files: Sequence[str] = (),
    image_digest: str = "",
    root: str = "/",
) -> KeyFacts:
    """Find out all that the result of a command depends on.

    Args:
        command: its words.
        targets: folders that it installs to, and a text for what is in each: `EMPTY`, or a digest.
        environ: the command's environment.
        cwd: where it runs.
        extra: more texts that the result depends on.
        key_files: more files that the result depends on.
        image_digest: digest of the container image around.
        root: folder with proc, sys and etc.

    Raises:
        KeyProblem: the result depends on something that no key can tell.
    """
    cwd = os.path.abspath(cwd)
    folders = {os.path.normpath(os.path.join(cwd, path)): base for path, base in targets.items()}
    files = RequirementFiles(cwd, environ, tuple(folders))
    variables: dict[str, str] = {}

    def use(name: str, value: str) -> None:
        if not _OF_A_RUN.fullmatch(name):
            variables[f"variable {name}"] = str(text_digest(os.fsencode(value)))

    commands = list(simple_commands(command, environ, cwd, files.read_script, use))
    for simple in commands:
        add_reads(files, simple)
    for path in key_files:
        if not os.path.isfile(os.path.join(cwd, path)):
            raise KeyProblem(f"--key-file {path}: there is no such file")
        files.archive(os.path.join(cwd, path))
    pythons = _pythons(commands)
    found = _settings(commands, [python.prefix for python in pythons], root)
    for name in found.requirements:
        files.requirements(name, cwd)
    for name in found.links:
        files.links(name, cwd)
    for name in found.editables:
        files.editable(name, "a setting of pip")
    smi = which("nvidia-smi", environ, cwd) or None
    return KeyFacts(
        command=tuple(command),
        targets=folders,
        pythons=pythons,
        installers=_installers(commands, pythons),
        platform=_platform(pythons),
        accelerator=accelerator(environ, smi, root),
        files={**files.parts, **variables},
        settings=found.parts,
        extra=tuple(extra),
        image_digest=image_digest,
        unbounded=tuple(dict.fromkeys(filter(None, map(unbounded, commands)))),
    )


def _calls(commands: Iterable[SimpleCommand]) -> list[tuple[InstallerCall, SimpleCommand]]:
    found = ((recognise(simple.words), simple) for simple in commands)
    return [(call, simple) for call, simple in found if call]


def _pythons(commands: Sequence[SimpleCommand]) -> tuple[PythonFacts, ...]:
    """Probe every Python that the commands use; the first on PATH if they name none."""
    asked: dict[str, PythonFacts] = {}
    telling = [s for s in commands if recognise(s.words) or is_python(s.words[0])]
    for simple in telling or [s for s in commands if s.words[0] != INPUT][:1]:
        path = python_of(simple)
        call = recognise(simple.words)
        if path and path not in asked:
            if len(asked) == MAX_PYTHONS:
                raise KeyProblem(
                    f"the command uses more than {MAX_PYTHONS} Pythons; split it, one for each"
                )
            tool = {"poetry": "poetry", "pip-sync": "pip-tools"}.get(call.tool if call else "")
            asked[path] = ask_python(path, simple.environ, tool or "pip")
    return tuple(dict.fromkeys(asked.values()))


def _installers(
    commands: Sequence[SimpleCommand], pythons: Sequence[PythonFacts]
) -> tuple[str, ...]:
    """Return the installers with their versions, each once."""
    found: dict[str, None] = {}
    for call, simple in _calls(commands):
        if call.tool in ("uv", "conda"):
            program = which(call.program, simple.environ, simple.cwd)
            said = program and installer_version(call.tool, program, simple.environ, simple.cwd)
            found[said or f"{call.tool} unknown"] = None
        else:
            for python in pythons:
                found[f"{call.tool} {python.installer}"] = None
    return tuple(found)


def _settings(
    commands: Sequence[SimpleCommand], prefixes: Sequence[str], root: str
) -> InstallerConfig:
    """Gather the settings of all installers that the commands use or may use."""
    also = {"pip-sync": ("pip",), "venv": ("pip",), "conda-lock": ("conda",)}
    found = [
        settings(
            # environment.yml has packages that conda has pip install
            {*also.get(call.tool, (call.tool,)), *(("pip",) if call.tool == "conda" else ())},
            simple.environ,
            prefixes=(*prefixes, *_prefix(call, simple)),
            config_files=[os.path.join(simple.cwd, p) for p in call.values("--config-file")],
            verb=call.verb if call.tool == "pip" else "install",
            root=root,
        )
        for call, simple in _calls(commands)
    ]
    if not found:
        found = [
            settings(("pip", "uv", "conda"), simple.environ, prefixes=prefixes, root=root)
            for simple in commands
        ]
    parts: dict[str, list[str]] = {}
    for each in found:
        for name, value in each.parts.items():
            values = parts.setdefault(name, [])
            if value not in values:
                values.append(value)
    return InstallerConfig(
        {
            key: text
            for name, values in parts.items()
            for key, text in numbered(name, values).items()
        },
        tuple(dict.fromkeys(name for each in found for name in each.requirements)),
        tuple(dict.fromkeys(name for each in found for name in each.links)),
        tuple(dict.fromkeys(name for each in found for name in each.editables)),
    )


def _prefix(call: InstallerCall, simple: SimpleCommand) -> tuple[str, ...]:
    """Return the folder where conda is installed, which has settings, too."""
    program = which(call.program, simple.environ, simple.cwd) if call.tool == "conda" else ""
    return (os.path.dirname(os.path.dirname(os.path.realpath(program))),) if program else ()


def _platform(pythons: Sequence[PythonFacts]) -> str:
    machines = {f"{python.machine}, {python.libc}": None for python in pythons}
    if machines:
        return "; ".join(machines)
    import platform  # rarely needed

    return f"{os.uname().machine}, {' '.join(platform.libc_ver())}".strip()
