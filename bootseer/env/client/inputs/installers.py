"""Parse the command lines of installers."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?", re.ASCII)
_PIP = re.compile(r"pip[0-9.]*", re.ASCII)

_WITH_VALUE = """
-r --requirement -c --constraint --build-constraint -e --editable -t --target --platform
--python-version --implementation --abi --root --prefix --src --upgrade-strategy -C
--config-settings --config-setting --global-option --install-option --no-binary --only-binary
--progress-bar --root-user-action --report -i --index-url --extra-index-url -f --find-links
--python --log --log-file --proxy --retries --timeout --exists-action --trusted-host --cert
--client-cert --cache-dir --use-feature --use-deprecated --keyring-provider --group
--requirements-from-script --uploaded-prior-to --resume-retries --python-executable --pip-args
--requirements --constraints --override --overrides --exclude --excludes -b --build-constraints
--extra --index --default-index --index-strategy -P --upgrade-package --resolution --prerelease
--fork-strategy --no-build-isolation-package --exclude-newer --exclude-newer-package --link-mode
--reinstall-package --refresh-package --python-platform -p --torch-backend
--config-settings-package --color --allow-insecure-host --directory --project --config-file
--python-preference --no-extra --no-group --only-group --no-install-package --package --script
--no-build-package --no-binary-package --env-file --prompt
--name --file --channel --channel-priority --subdir --solver --repodata-fn --root-prefix
-E --extras --only --with --without
"""
"""Options that a value follows: of pip and pip-tools, uv, conda, poetry."""

_VALUED = frozenset(_WITH_VALUE.split())
_PIP_FLAGS = frozenset(("--pre", "--upgrade"))
"""Those that begin the name of an option with a value; pip takes beginnings for the whole."""


class InstallerCall(NamedTuple):
    """The command line of an installer.

    Attributes:
        tool: "pip", "pip-sync", "uv", "conda", "conda-lock", "poetry", or "venv".
        program: as it was named; for `python -m pip` the Python.
        verb: command, "install"; with its group, if there are groups: "pip install", "env create".
        options: with their values, "" for those without.
        arguments: the words that are neither.
    """

    tool: str
    program: str
    verb: str
    options: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]

    def values(self, *names: str) -> list[str]:
        return [value for name, value in self.options if name in names]

    def has(self, *names: str) -> bool:
        return any(name in names for name, _ in self.options)


def is_python(program: str) -> bool:
    """Whether a program has the name of a Python."""
    return _PYTHON.fullmatch(os.path.basename(program)) is not None


def recognise(words: Sequence[str]) -> InstallerCall | None:
    """Parse the command line of an installer; None for other commands."""
    program, arguments = words[0], list(words[1:])
    name = os.path.basename(program)
    if is_python(name):
        module = _module(arguments)
        if module is None:
            return None
        name, arguments = module
    if _PIP.fullmatch(name):
        tool = "pip"
    elif name in ("conda", "mamba", "micromamba"):
        tool = "conda"
    elif name in ("pip-sync", "uv", "conda-lock", "poetry"):
        tool = name
    elif name in ("venv", "virtualenv"):
        tool = "venv"
    else:
        return None
    options, rest = split_options(arguments, tool)
    words_of_verb = {"venv": 0, "pip-sync": 0}.get(tool, 1)
    if rest[:1] == ["env"] or (tool == "uv" and rest[:1] == ["pip"]):
        words_of_verb = 2
    verb = " ".join(rest[:words_of_verb])
    return InstallerCall(tool, program, verb, tuple(options), tuple(rest[words_of_verb:]))


def split_options(
    words: Sequence[str], tool: str = "pip"
) -> tuple[list[tuple[str, str]], list[str]]:
    """Split words into options with values, and others: `-r FILE`, `-rFILE`, `-qr FILE`, `--x=y`.

    Args:
        words: without the program.
        tool: whose options they are.
    """
    valued = _VALUED | {"-n"} if tool == "conda" else _VALUED  # uv's -n has none
    options: list[tuple[str, str]] = []
    rest: list[str] = []
    waiting = list(reversed(words))
    while waiting:
        word = waiting.pop()
        if word == "--":
            rest += reversed(waiting)
            break
        if word.startswith("--"):
            name, has_value, value = word.partition("=")
            name = _whole_name(name) if tool == "pip" else name
            if not has_value and name in valued and waiting:
                value = waiting.pop()
            options.append((name, value))
        elif word.startswith("-") and len(word) > 1:
            for at, letter in enumerate(word[1:], 2):
                name, value = "-" + letter, ""
                if name in valued:
                    value = word[at:].lstrip("=") or (waiting.pop() if waiting else "")
                options.append((name, value))
                if name in valued:
                    break
        else:
            rest.append(word)
    return options, rest


def _module(arguments: list[str]) -> tuple[str, list[str]] | None:
    """Return the module that a Python runs with -m, and the module's arguments."""
    for at, word in enumerate(arguments):
        if word.startswith("-m"):
            named = [word[2:], *arguments[at + 1 :]] if word[2:] else arguments[at + 1 :]
            return (named[0], named[1:]) if named else None
        is_value = at > 0 and arguments[at - 1] in ("-X", "-W")
        if word.startswith("-c") or not (word.startswith("-") or is_value):
            return None
    return None


def _whole_name(name: str) -> str:
    """Return the option that a name abbreviates, or the name."""
    if name in _VALUED or name in _PIP_FLAGS:
        return name
    begun = sorted(option for option in _VALUED if option.startswith(name))
    is_one = begun and all(option.startswith(begun[0]) for option in begun)
    return begun[0] if is_one else name
