"""Find the Python that a command is going to use, as its tool finds it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from bootseer.env.client.inputs.installers import InstallerCall, is_python, recognise
from bootseer.env.client.inputs.probe import SMI_TIMEOUT_S, run
from bootseer.env.client.inputs.shell import SimpleCommand

_SHEBANG_BYTES = 4096


def which(program: str, environ: Mapping[str, str], cwd: str) -> str:
    """Return the path of a program as a shell finds it, "" if there is none."""
    if "/" in program:
        path = os.path.join(cwd, program)
        return path if os.access(path, os.X_OK) and os.path.isfile(path) else ""
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (os.path.join(cwd, folder, program) for folder in folders)
    return next((p for p in paths if os.path.isfile(p) and os.access(p, os.X_OK)), "")


def python_of(command: SimpleCommand) -> str:
    """Return the path of the Python that a command uses, "" if there is none.

    uv itself is asked for its Python: it knows its virtual environments, variables and files. For a
    command that is no installer, it is the Python that `python3` starts.
    """
    environ, cwd = command.environ, command.cwd
    call = recognise(command.words)
    if call is None:
        program = command.words[0]
        named = which(program, environ, cwd) if is_python(program) else ""
        return named or _first(environ, cwd)
    if call.tool == "conda":
        folders = [*call.values("-p", "--prefix"), environ.get("CONDA_PREFIX", "")]
        return _in_folder(folders[0], cwd)
    if call.tool == "uv":
        found = _of_uv(call, environ, cwd)
        if found:
            return found
    options = [*call.values("--python", "-p")]
    if call.tool == "uv" and environ.get("UV_PYTHON"):
        options.append(environ["UV_PYTHON"])
    for name in options:
        named = _named(name, environ, cwd)
        if named:
            return named
    if call.tool in ("uv", "poetry"):
        active = _active(environ, cwd)
        if active or call.tool == "uv":
            return active or _first(environ, cwd)
    return _of_program(call.program, environ, cwd) or _first(environ, cwd)


def _of_program(program: str, environ: Mapping[str, str], cwd: str) -> str:
    """Return the Python that a program is, or that its first line names."""
    path = which(program, environ, cwd)
    if not path or is_python(path):
        return path
    try:
        with open(path, "rb") as file:
            text = file.read(_SHEBANG_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    # pip's own way around the limit of a first line's length: '''exec' /a/long/path "$0" "$@"
    for line in re.findall(r"^(?:#!\s*|'''exec' )(.*)", text, re.MULTILINE)[:2]:
        for word in line.split():
            if is_python(word.strip("\"'")):
                return which(word.strip("\"'"), environ, cwd)
    # A wrapper in a shell, as pyenv's: the Python beside it is wrapped the same way.
    return which(os.path.join(os.path.dirname(path), "python3"), environ, cwd)


def _of_uv(call: InstallerCall, environ: Mapping[str, str], cwd: str) -> str:
    program = which(call.program, environ, cwd)
    if not program or is_python(program):
        return ""
    places = [
        word
        for option in ("--directory", "--project")
        for value in call.values(option)
        for word in (option, value)
    ]
    asked = [
        *places,
        *(["--system"] if call.has("--system") else []),
        *call.values("--python", "-p"),
    ]
    said = run(
        [program, "python", "find", "--no-python-downloads", *asked], environ, SMI_TIMEOUT_S, cwd
    )
    path = (said or "").strip()
    return path if os.access(path, os.X_OK) else ""


def _named(name: str, environ: Mapping[str, str], cwd: str) -> str:
    """Return the Python that an option names: a program, or a virtual environment's folder."""
    if os.path.isdir(os.path.join(cwd, name)):
        return _in_folder(name, cwd)
    is_version = re.fullmatch(r"[0-9]+(\.[0-9]+)?t?", name) is not None
    return which(f"python{name}" if is_version else name, environ, cwd)


def _active(environ: Mapping[str, str], cwd: str) -> str:
    """Return the Python of the environment that is active, or of the project's own."""
    for folder in (environ.get("VIRTUAL_ENV", ""), environ.get("CONDA_PREFIX", ""), ".venv"):
        path = _in_folder(folder, cwd)
        if path:
            return path
    return ""


def _in_folder(folder: str, cwd: str) -> str:
    path = os.path.join(cwd, folder, "bin/python")
    return path if folder and os.access(path, os.X_OK) else ""


def _first(environ: Mapping[str, str], cwd: str) -> str:
    return which("python3", environ, cwd) or which("python", environ, cwd)
