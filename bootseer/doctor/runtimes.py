"""Checks of container runtimes: which are there, and how they are wired."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from bootseer.doctor.check import COMPUTE, Check, Finding, Found, warning
from bootseer.doctor.machine import Machine, NoAnswer
from bootseer.doctor.slurm import plugstack
from bootseer.slurm.configuration import PluginLine
from bootseer.slurm.package import installed
from bootseer.slurm.plugin.files import scripts_folder

_RUNTIMES = {
    "ch-run": "Charliecloud",
    "enroot": "Enroot",
    "apptainer": "Apptainer",
    "singularity": "Singularity",
}
_OUR_SQUASHFUSE = "bootseer-squashfuse"
_OUR_ENROOT = "bootseer-enroot"
_ENROOT_RUNS = ("unsquashfs", "mksquashfs", "enroot-mount")
_HOOKS = "/etc/enroot/hooks.d"
_NO_HOOK = "containers do not get BOOTSEER_IMAGE, the checkpoint and `bootseer mark`"


def _found(machine: Machine) -> Found:
    for program, name in _RUNTIMES.items():
        if not machine.find_program(program):
            continue
        version = ""
        with suppress(NoAnswer):
            argv = [program, "version"] if program == "enroot" else [program, "--version"]
            answer = machine.run(argv, timeout_s=2)
            match = re.search(r"\d+\.\d+[.\w+-]*", answer.stdout + answer.stderr)
            version = match[0] if match else ""
        yield f"{name} {version}".strip()
    for line in _pyxis(machine):
        yield f"Pyxis, {line.place}"
    if len(_linked(machine)) == len(_ENROOT_RUNS):
        yield f"Enroot's containers are mounted by {_OUR_ENROOT}"
    squashfuse = machine.find_program("squashfuse")
    if squashfuse and _is(squashfuse, _OUR_SQUASHFUSE):
        yield f"squashfuse is {_OUR_SQUASHFUSE}"
    elif squashfuse and machine.find_program("enroot"):
        yield f"squashfuse is {squashfuse}; {scripts_folder()}/{_OUR_SQUASHFUSE} is faster"


def _is(path: str, program: str) -> bool:
    return os.path.basename(os.path.realpath(path)) == program


def _linked(machine: Machine) -> list[str]:
    """List the programs that Enroot runs and that are links to bootseer-enroot."""
    found = {name: machine.find_program(name) for name in _ENROOT_RUNS}
    return [name for name, path in found.items() if path and _is(path, _OUR_ENROOT)]


def _pyxis(machine: Machine) -> list[PluginLine]:
    plugins = plugstack(machine).plugins
    return [line for line in plugins if os.path.basename(line.path) == "spank_pyxis.so"]


def _squashfuse(machine: Machine) -> Found:
    linked = _linked(machine)
    missing = [name for name in _ENROOT_RUNS if name not in linked]
    if linked and missing:
        yield warning(
            f"{', '.join(linked)} of the PATH is {_OUR_ENROOT}, but {', '.join(missing)} is not",
            "containers that Pyxis creates are unpacked",
            f"link {', '.join(missing)} to {scripts_folder()}/{_OUR_ENROOT} in the same folder",
        )
    for line in _pyxis(machine) if missing else []:
        if line.argument("use_squashfuse") != "1":
            words = " ".join([line.path, *line.arguments, "use_squashfuse=1"])
            kind = "required" if line.is_required else "optional"
            yield warning(
                f"{line.place}: Pyxis has no use_squashfuse=1",
                "Pyxis unpacks every image before it starts: seconds become minutes, and warming "
                "an image helps little",
                f"write in {line.place}:  {kind} {words}",
            )
    needs = _pyxis(machine) or machine.find_program("enroot")
    if needs and not machine.find_program("squashfuse", "squashfuse_ll"):
        yield warning(
            "there is no squashfuse",
            "Enroot cannot start an image without unpacking it",
            "install the package squashfuse",
        )


def _importer(machine: Machine) -> Found:
    config = machine.config
    for line in _pyxis(machine):
        program = line.argument("importer")
        ours = os.path.basename(program) == "bootseer-importer"
        if ours and not os.access(machine.path(program), os.X_OK):
            yield Finding(
                f"{line.place}: importer={program} cannot be run",
                "every job with --container-image of a registry fails",
                f"write in {line.place}:  importer={scripts_folder()}/bootseer-importer"
                if installed.package()
                else f"run `bootseer plugin install --prefix {os.path.dirname(program)}`",
            )
        if ours and not config.image.importer:
            yield warning(
                f"{line.place} has bootseer-importer, but image.importer is false",
                "images are served only when Pyxis asks for them, not from the prolog on",
                f"set in {config.path}, section [image]:  importer = true",
            )
        if config.image.importer and not ours:
            yield warning(
                f"image.importer is true, but {line.place} has no importer=…/bootseer-importer",
                "the prolog serves images that nobody will ask for",
                f"add to the line in {line.place}:  importer={scripts_folder()}/bootseer-importer",
            )


def _enroot(machine: Machine) -> Found:
    if not machine.find_program("enroot"):
        return
    folder = machine.path(_HOOKS)
    hooks = sorted(folder.glob("*bootseer*.sh")) if folder.is_dir() else []
    install = f"install -m 755 slurm-conf-examples/enroot/hooks.d/50-bootseer.sh {_HOOKS}/"
    if not hooks:
        yield warning(f"there is no hook of BootSeer's in {_HOOKS}", _NO_HOOK, install)
        return
    name = f"{_HOOKS}/{hooks[0].name}"
    if not hooks[0].stat().st_mode & 0o001:
        yield warning(f"{name} is not executable", _NO_HOOK, f"chmod 755 {name}")
    text = hooks[0].read_text()
    if "BOOTSEER_ENV_MOUNTS" not in text:
        yield warning(
            f"{name} is of an older version of BootSeer",
            "containers do not get the job's environments",
            install,
        )
    match = re.search(r"^run_dir=(\S+)", text, re.MULTILINE)
    run_dir = machine.config.node.run_dir
    if match and match[1] != run_dir:
        yield warning(
            f"{name} has run_dir={match[1]}, but node.run_dir is {run_dir}",
            _NO_HOOK,
            f"write in {name}:  run_dir={run_dir}",
        )


CHECKS = (
    Check("runtimes.found", "the container runtimes are known", _found, COMPUTE),
    Check("runtimes.squashfuse", "images are mounted, not unpacked", _squashfuse, COMPUTE),
    Check("runtimes.importer", "Pyxis and image.importer agree", _importer),
    Check("runtimes.enroot", "Enroot has BootSeer's hook", _enroot, COMPUTE),
)
