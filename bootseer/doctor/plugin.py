"""Checks of the plugin: its line in plugstack.conf, its files, and what they need."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from bootseer.doctor.check import COMPUTE, Check, Finding, Fix, Found, Unchecked, warning
from bootseer.doctor.machine import Machine, set_mode
from bootseer.doctor.slurm import argument_seconds, our_lines, plugstack, slurm_release
from bootseer.slurm.configuration import IncludeLine, PluginLine
from bootseer.slurm.package import installed
from bootseer.slurm.plugin.files import CONF, PLUGIN, SCRIPTS, python_path, scripts_folder
from bootseer.slurm.plugin.release import is_loadable, plugin_release
from bootseer.store.local.atomic_file import new_file

_NO_OPTIONS = "srun does not know --bootseer, and nothing is warmed or recorded"
_HOOKS = {"bootseer-prolog", "bootseer-epilog"}
_NO_HOOK = "slurmd runs it for each job: nothing is warmed, nothing is recorded"
_WITHOUT = dict.fromkeys(_HOOKS, _NO_HOOK) | {
    "bootseer-importer": "Pyxis cannot get images from BootSeer's store",
    "bootseer-squashfuse": "Enroot cannot mount images by it, which halves their starts",
    "bootseer-enroot": "containers that Enroot creates are unpacked",
}


def _install() -> str:
    """Return the command that puts the plugin's files and its line in place."""
    package = installed.plugin_package()
    if package:
        return f"as root: {package.install_again(package.plugin)}"
    return "run `bootseer plugin install` here, as root"


def _install_at(path: str) -> str:
    if installed.plugin_package():
        return _install()
    return f"{_install()}; with --prefix {os.path.dirname(path)} for this place"


def _set_argument(argument: str) -> str:
    """Return what gives the plugin another argument."""
    if installed.plugin_package():
        return f"write {argument} into the line of {installed.LINE}"
    return f"bootseer plugin install -- {argument}"


def _our_line(machine: Machine) -> PluginLine:
    lines = our_lines(machine)
    if not lines:
        raise Unchecked("plugstack.conf does not name the plugin, see plugin.listed")
    return lines[0]


def _listed(machine: Machine) -> Found:
    stack = plugstack(machine)
    lines = our_lines(machine)
    if lines:
        yield f"{lines[0].place} names {lines[0].path}"
        return
    folder = f"{os.path.dirname(stack.path)}/plugstack.conf.d"
    if machine.path(f"{folder}/{CONF}").exists():
        yield Finding(
            f"{stack.path} does not include {folder}/{CONF}",
            _NO_OPTIONS,
            f"add to {stack.path}:  include {folder}/*.conf",
        )
        return
    yield Finding(f"{stack.path} does not name the plugin {PLUGIN}", _NO_OPTIONS, _install())


def _once(machine: Machine) -> Found:
    lines = our_lines(machine)
    if len(lines) < 2:
        return
    stack = plugstack(machine)
    places = list(dict.fromkeys(line.place for line in lines))
    what = f"the plugin is loaded {len(lines)} times: {', '.join(line.place for line in lines)}"
    why = "Slurm prints an error for every srun, or calls each hook as often"
    if len(places) > 1:
        mend = f"remove all lines of {PLUGIN} but the one in {lines[0].file}"
        yield Finding(what, why, mend)
        return
    again = _superfluous_includes(stack.includes, lines[0].file)
    names = ", ".join(line.place for line in again)
    own = [line for line in again if line.file == stack.path]
    fix = partial(_remove_lines, machine, own) if own and own == again else None
    mend = f"remove the second include: {names}" if names else "remove one of the includes"
    yield Finding(what, why, mend, fix=fix)


def _superfluous_includes(includes: list[IncludeLine], file: str) -> list[IncludeLine]:
    """Return the include lines after the first that lead to the file, if all its files came."""
    leading = [line for line in dict.fromkeys(includes) if file in line.files]
    seen = set(leading[0].files) if leading else set()
    return [line for line in leading[1:] if set(line.files) <= seen]


def _remove_lines(machine: Machine, lines: list[IncludeLine]) -> str:
    """Comment include lines out, each if it is still there."""
    path = Path(os.path.realpath(machine.path(lines[0].file)))
    text = path.read_text().splitlines()
    present = []
    for line in lines:
        at = line.number - 1
        words = text[at].partition("#")[0].split() if at < len(text) else []
        if words[:2] == ["include", line.pattern]:
            text[at] = f"# {text[at]}  # a second time"
            present.append(line)
    if not present:
        return f"{lines[0].file} has changed meanwhile: nothing was done"
    before = path.stat()
    with new_file(path, 0o600) as (fd, _):
        os.write(fd, ("\n".join(text) + "\n").encode())
        os.fchown(fd, before.st_uid, before.st_gid)
        os.fchmod(fd, before.st_mode & 0o7777)
    return f"commented out the second include in {lines[0].file}"


def _optional(machine: Machine) -> Found:
    line = _our_line(machine)
    if line.is_required:
        yield warning(
            f"{line.place} has the plugin as `required`",
            "if it cannot be loaded, jobs fail and nodes drain",
            f"write in {line.place}:  optional {line.path} {' '.join(line.arguments)}".rstrip(),
        )


def _file(machine: Machine) -> Found:
    line = _our_line(machine)
    if not line.path.startswith("/"):
        yield warning(
            f"{line.place} names {line.path} without its folder",
            "Slurm looks for it in PluginDir, which an upgrade may change",
            _install(),
        )
        return
    if not machine.path(line.path).is_file():
        yield Finding(
            f"{line.place} names {line.path}, which is not there",
            f"Slurm ignores the line: {_NO_OPTIONS}",
            _install_at(line.path),
        )
        return
    closed = machine.closed_to_users(line.path)
    if closed:
        yield Finding(
            f"users cannot read {line.path}: {closed} is closed to them",
            f"srun runs as the user: {_NO_OPTIONS}",
            f"chmod o+rx {closed}",
            fix=_opener(machine, line.path) if closed == line.path else None,
        )


def _opener(machine: Machine, name: str) -> Fix | None:
    """Return what opens a file of the installation to all, if it is root's."""
    path = machine.path(name)
    return partial(_open_to_all, path, name) if path.stat().st_uid == 0 else None


def _open_to_all(path: Path, name: str) -> str:
    set_mode(path, 0o755)
    return f"opened {name} to all (mode 0755)"


def _release(machine: Machine) -> Found:
    line = _our_line(machine)
    path = machine.path(line.path)
    if not path.is_file():
        raise Unchecked(f"{line.path} is not there, see plugin.file")
    try:
        built_for = plugin_release(path)
    except ValueError as error:
        yield Finding(f"{line.path}: {error}", f"Slurm refuses it: {_NO_OPTIONS}", _install())
        return
    release = slurm_release(machine)
    yield f"plugin for Slurm {built_for}, installed is {release}"
    if not is_loadable(built_for, release):
        yield Finding(
            f"{line.path} was compiled for Slurm {built_for}, but {release} is installed",
            f"Slurm refuses a plugin of another major release: {_NO_OPTIONS}",
            f"install the headers of Slurm {release}, then {_install()}",
        )


def _libexec(machine: Machine) -> str:
    """Return the folder of the entry scripts."""
    lines = our_lines(machine)
    if lines:
        return lines[0].argument("libexec") or os.path.dirname(lines[0].path)
    return str(scripts_folder())


def _scripts(machine: Machine) -> Found:
    folder = _libexec(machine)
    for name in SCRIPTS:
        path = f"{folder}/{name}"
        file = machine.path(path)
        what = ""
        if not file.is_file():
            what = f"{path} is not there"
        elif not file.stat().st_mode & 0o100:
            what = f"{path} is not executable (mode {file.stat().st_mode & 0o777:04o})"
        if not what:
            continue
        why = _WITHOUT[name]
        fix = _opener(machine, path) if file.is_file() else None
        mend = f"chmod 755 {path}" if file.is_file() else _install()
        if name in _HOOKS:
            yield Finding(what, why, mend, fix=fix)
        else:
            yield warning(what, why, mend, fix)


def _interpreter(machine: Machine) -> Found:
    folder = _libexec(machine)
    for name in SCRIPTS:
        path = machine.path(f"{folder}/{name}")
        if not path.is_file():
            continue
        with path.open("rb") as file:
            first = file.readline(4096).decode(errors="replace")
        program = first.removeprefix("#!").split()[0] if first.startswith("#!") else ""
        if not program or not os.access(machine.path(program), os.X_OK):
            yield Finding(
                f"{folder}/{name} needs the interpreter {program or '(none)'}, which cannot be run",
                "nothing is warmed; with Prolog= in slurm.conf the node is drained",
                f"install BootSeer again, then {_install()}",
            )
            return
        yield f"{name} runs {program}"


def _environment(machine: Machine) -> Found:
    places = dict.fromkeys([os.path.abspath(sys.prefix), *python_path()])
    for place in places:
        if not machine.path(place).exists():
            continue  # a folder of another Python that is on the path
        closed = machine.closed_to_users(place)
        if closed:
            yield Finding(
                f"users cannot read the installation {place}: {closed} is closed to them",
                "srun's advice, `bootseer` and `bootseer-importer` run as the user, and fail",
                f"chmod o+rx {closed}, or install into a folder that all can read",
            )
            return
    yield f"users can read {', '.join(places)}"


def _arguments(machine: Machine) -> Found:
    line = _our_line(machine)
    config = machine.config
    run_dir = line.argument("run_dir") or "/run/bootseer"
    if run_dir != config.node.run_dir:
        yield Finding(
            f"{line.place} has run_dir={run_dir}, but node.run_dir is {config.node.run_dir}",
            "the plugin looks for the job's agent in another folder than it is in",
            _set_argument(f"run_dir={config.node.run_dir}"),
        )
    longest_s = max(config.prolog.max_wait_s, config.prolog.wait_s)
    max_wait_s, epilog_s = argument_seconds(machine)
    if max_wait_s < longest_s:
        yield warning(
            f"{line.place} has max_wait={max_wait_s:g}, less than the prolog's longest wait of "
            f"{longest_s:g} s",
            "the plugin kills a prolog that waits longer",
            _set_argument(f"max_wait={longest_s:g}"),
        )
    deadline_s = config.epilog.deadline_s
    if epilog_s <= deadline_s:
        yield warning(
            f"{line.place} has epilog_timeout={epilog_s:g}, not more "
            f"than epilog.deadline_s = {deadline_s:g}",
            "the plugin kills the epilog before it has published what was recorded",
            _set_argument(f"epilog_timeout={deadline_s + 5:g}"),
        )


def _same_names(machine: Machine) -> Found:
    """Find another copy of the plugin that Slurm loads under another path."""
    paths = {line.path for line in our_lines(machine)}
    if len(paths) > 1:
        yield warning(
            f"plugstack.conf names different copies of the plugin: {', '.join(sorted(paths))}",
            "Slurm loads the first; an upgrade may replace the other only",
            f"leave one line of {PLUGIN}",
        )


CHECKS = (
    Check("plugin.listed", "plugstack.conf names the plugin", _listed),
    Check("plugin.once", "the plugin is loaded once", _once),
    Check("plugin.copies", "there is one copy of the plugin", _same_names),
    Check("plugin.optional", "a failing plugin fails no job", _optional),
    Check("plugin.file", "the plugin is there, and users can read it", _file),
    Check("plugin.release", "the plugin is for the installed Slurm", _release),
    Check("plugin.arguments", "its arguments fit bootseer.toml", _arguments),
    Check("plugin.scripts", "prolog, epilog and importer can be run", _scripts, COMPUTE),
    Check("plugin.interpreter", "their interpreter can be run", _interpreter, COMPUTE),
    Check("plugin.environment", "users can read the installation", _environment),
)
