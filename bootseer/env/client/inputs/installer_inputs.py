"""Add the files that each installer reads, named or not, to a key."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from bootseer.env.client.inputs.digest import KeyProblem
from bootseer.env.client.inputs.installers import InstallerCall, is_python, recognise
from bootseer.env.client.inputs.requirement_files import (
    CONSTRAINTS,
    EDITABLES,
    FIND_LINKS,
    REQUIREMENTS,
    RequirementFiles,
    is_remote,
)
from bootseer.env.client.inputs.shell import SimpleCommand

_ENVIRONMENTS = (".yml", ".yaml")
_BUILDERS = {
    "make": ("Makefile", "makefile", "GNUmakefile"),
    "gmake": ("Makefile", "makefile", "GNUmakefile"),
    "ninja": ("build.ninja",),
    "cmake": ("CMakeLists.txt", "CMakePresets.json"),
    "just": ("justfile", "Justfile", ".justfile"),
    "tox": ("tox.ini", "setup.cfg", "pyproject.toml"),
    "nox": ("noxfile.py",),
    "invoke": ("tasks.py",),
    "bazel": ("WORKSPACE", "MODULE.bazel", "BUILD"),
}
"""What these read themselves; what they start is in no text that is followed."""
_SOURCE = re.compile(r'^source = \{ (editable|directory|path) = "([^"]*)"', re.MULTILINE)
"""Of uv.lock, which uv alone writes."""


def add_reads(files: RequirementFiles, command: SimpleCommand) -> None:
    """Add the files that a command reads.

    Raises:
        KeyProblem: it reads something that no key can tell.
    """
    files.environ = command.environ
    call = recognise(command.words)
    if call is None:
        _add_words(files, command)
        return
    if call.verb == "run" and call.arguments:
        # `conda run`, `poetry run` and `uv run` are followed by a command of its own.
        at = command.words.index(call.arguments[0])
        add_reads(files, command._replace(words=command.words[at:]))
    cwd = command.cwd
    for path in call.values("--directory", *(("-C",) if call.tool == "poetry" else ())):
        cwd = os.path.join(cwd, path)
    if call.tool == "conda":
        _add_conda(files, call, cwd)
    elif call.tool == "conda-lock":
        _locked(files, call.arguments or ("conda-lock.yml",), cwd)
    elif call.tool == "poetry":
        _add_poetry(files, call, cwd)
    elif call.tool == "uv" and not call.verb.startswith("pip"):
        for path in call.values("--project") or [command.environ.get("UV_PROJECT", "")]:
            cwd = os.path.join(cwd, path)
        _add_uv(files, call, cwd)
    elif call.tool != "venv":
        _add_pip(files, call, cwd)


def unbounded(command: SimpleCommand) -> str:
    """Return the program of a command whose inputs are not known, "" for other commands."""
    name = os.path.basename(command.words[0])
    return name if name in _BUILDERS else ""


def _add_words(files: RequirementFiles, command: SimpleCommand) -> None:
    """Add every file that the words of an unknown command name."""
    _add_project(files, command)
    words = command.words[1:] if "/" in command.words[0] else command.words
    for word in words:
        for name in {word, word.partition("=")[2]} - {""}:
            path = os.path.join(command.cwd, name)
            if os.path.isfile(path) and not is_python(path):
                files.archive(path)


def _add_project(files: RequirementFiles, command: SimpleCommand) -> None:
    """Add the project that a build reads, in its working folder or one that it names.

    Raises:
        KeyProblem: `setup.py develop` installs only a pointer to it.
    """
    program, cwd = os.path.basename(command.words[0]), command.cwd
    for option, value in zip(command.words, command.words[1:]):
        if option == "-C":
            cwd = os.path.join(cwd, value)
    for name in _BUILDERS.get(program, ()):
        if os.path.isfile(os.path.join(cwd, name)):
            files.text(os.path.join(cwd, name))
    for at, word in enumerate(command.words):
        if os.path.basename(word) == "setup.py" and (at == 0 or is_python(program)):
            if "develop" in command.words[at:]:
                files.editable(word, "setup.py develop")
            files.local(os.path.join(os.path.dirname(word), "."), "setup.py", command.cwd)


def _add_pip(files: RequirementFiles, call: InstallerCall, cwd: str) -> None:
    """Add the files that pip, `uv pip` and pip-sync read."""
    if call.tool == "uv":
        _uv_settings(files, cwd)
    for name in call.values(*REQUIREMENTS, *CONSTRAINTS, "--requirements-from-script"):
        files.requirements(name, cwd)
    for name in call.values(*EDITABLES):
        files.editable(name, call.tool)
    for name in call.values(*FIND_LINKS):
        files.links(name, cwd)
    for name in call.values("--group"):
        path, _, _ = name.rpartition(":")
        files.requirements(path or "pyproject.toml", cwd)
    if call.tool == "pip-sync" or call.verb == "pip sync":
        for name in call.arguments or (("requirements.txt",) if call.tool == "pip-sync" else ()):
            files.requirements(name, cwd)
    elif call.verb.split(" ")[-1] in ("install", "wheel", "download"):
        for spec in call.arguments:
            files.local(spec, call.tool, cwd)


def _add_uv(files: RequirementFiles, call: InstallerCall, cwd: str) -> None:
    """Add the files of the project that `uv sync`, `uv venv`, `uv run` and others read."""
    _uv_settings(files, cwd)
    for name in (*call.values("--script"), *call.values(*CONSTRAINTS)):
        files.requirements(name, cwd)
    for name in call.values(*FIND_LINKS):
        files.links(name, cwd)
    if call.verb not in ("sync", "run", "add", "remove", "lock"):
        return
    project = _upwards(cwd, "pyproject.toml")
    lock = _upwards(cwd, "uv.lock")
    root = os.path.dirname(lock or project or os.path.join(cwd, "pyproject.toml"))
    texts = [files.text(path) or "" for path in sorted({project, f"{root}/pyproject.toml"} - {""})]
    may_point = not call.has("--no-editable") and not files.environ.get("UV_NO_EDITABLE")
    if lock:
        sources = _SOURCE.findall(files.text(lock) or "")
    else:
        sources = [("editable", ".")] if any(map(_is_package, texts)) else []
    for kind, name in sources:
        leaves_out = ["--no-install-local", "--no-install-workspace"]
        if name == ".":
            leaves_out.append("--no-install-project")
        if call.has(*leaves_out):
            continue
        if kind == "editable" and may_point:
            raise KeyProblem(
                f"uv {call.verb}: {os.path.join(root, name)} would be installed as editable, a "
                "pointer to a folder that can change while the key stays the same; add "
                "--no-install-workspace, or --no-editable"
            )
        files.local(os.path.join(root, name), "uv.lock", root)
    for text in texts if not lock else ():
        files.project_text(text, f"{root}/pyproject.toml")


def _uv_settings(files: RequirementFiles, cwd: str) -> None:
    """Add the files that every uv command reads in or above the working folder."""
    for name in (".python-version", "uv.toml", "pyproject.toml"):
        path = _upwards(cwd, name)
        if path:
            files.text(path)


def _add_poetry(files: RequirementFiles, call: InstallerCall, cwd: str) -> None:
    """Add the files of the project that poetry reads."""
    for path in call.values("-P", "--project"):
        cwd = os.path.join(cwd, path)
    project = _upwards(cwd, "pyproject.toml")
    root = os.path.dirname(project) if project else cwd
    text = files.text(os.path.join(root, "pyproject.toml")) or ""
    if os.path.exists(os.path.join(root, "poetry.toml")):
        files.text(os.path.join(root, "poetry.toml"))
    lock = files.text(os.path.join(root, "poetry.lock")) or ""
    if call.verb not in ("install", "sync", "update", "add"):
        return
    is_package = not re.search(r"^package-mode\s*=\s*false", text, re.MULTILINE)
    if is_package and not call.has("--no-root"):
        raise KeyProblem(
            f"poetry {call.verb}: {root} would be installed as editable, a pointer to a folder "
            "that can change while the key stays the same; add --no-root"
        )
    for package in lock.split("[[package]]"):
        url = re.search(r'^url = "([^"]*)"', package, re.MULTILINE)
        if url and re.search(r'^type = "(directory|file)"', package, re.MULTILINE):
            if re.search(r"^develop = true", package, re.MULTILINE):
                files.editable(url[1], f"{root}/poetry.lock")
            files.local(os.path.join(root, url[1]), "poetry.lock", root)


def _add_conda(files: RequirementFiles, call: InstallerCall, cwd: str) -> None:
    """Add the files that conda, mamba and micromamba read."""
    names = call.values("-f", "--file")
    if call.verb.startswith("env "):
        # `conda env create` reads a file even where none is named.
        names = names or [name for name in call.arguments if name.endswith(_ENVIRONMENTS)]
        _locked(files, names or ("environment.yml",), cwd)
    else:
        _locked(files, names, cwd)
        for spec in call.arguments:
            if spec.endswith((".conda", ".tar.bz2")):
                files.local(spec, call.tool, cwd)


def _locked(files: RequirementFiles, names: Collection[str], cwd: str) -> None:
    """Add files of conda environments, with their requirements for pip."""
    for name in names:
        path = os.path.normpath(os.path.join(cwd, name))
        if is_remote(name):
            files.requirements(name, cwd)  # refuses it
        text = files.text(path) or ""
        folder = os.path.dirname(path)
        if name.endswith(_ENVIRONMENTS):
            files.requirement_lines("\n".join(_pip_lines(text)), folder, folder, path)
        else:
            for line in text.splitlines():
                if line.strip().split("#")[0].endswith((".conda", ".tar.bz2")):
                    files.local(line.strip().split("#")[0], path, folder, cwd)


def _upwards(folder: str, name: str) -> str:
    """Return the nearest file of a name in a folder or above it, "" if there is none."""
    folder = os.path.normpath(folder)
    while not os.path.isfile(os.path.join(folder, name)):
        if folder == os.path.dirname(folder):
            return ""
        folder = os.path.dirname(folder)
    return os.path.join(folder, name)


def _is_package(pyproject: str) -> bool:
    """Whether uv would install a project itself, besides its dependencies."""
    says = re.search(r"^package\s*=\s*(true|false)", pyproject, re.MULTILINE)
    if says:
        return says[1] == "true"
    return re.search(r"^\s*\[build-system\]", pyproject, re.MULTILINE) is not None


def _pip_lines(text: str) -> list[str]:
    """Return the requirements under `- pip:` of an environment.yml."""
    lines: list[str] = []
    indent = -1
    for line in text.splitlines():
        item = re.match(r"(\s*)-\s+(.*)", line)
        if item and indent >= 0 and len(item[1]) > indent:
            lines.append(item[2].strip().strip("'\""))
        elif line.strip():
            indent = len(item[1]) if item and re.match(r"pip:\s*(#.*)?$", item[2]) else -1
    return lines
