"""Split a command line into its simple commands, with those of shells that it starts.

This approximates a shell: words, quotes, operators, variables, `cd`, `export`, `source` and
activated environments are understood, and both branches of an `if` count.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bootseer.env.client.inputs.digest import without_credentials
from bootseer.env.client.inputs.installers import is_python, recognise

MAX_DEPTH = 8
"""Most shells that start each other."""

_SHELLS = frozenset(("sh", "bash", "dash", "ksh", "zsh", "ash"))
_PREFIXES = frozenset(("env", "exec", "command", "nohup", "time", "nice", "timeout", "sudo"))
_PREFIX_VALUES = frozenset(("-u", "-n", "-s", "-k", "-g", "--unset", "--signal", "--kill-after"))
_XARGS_VALUES = frozenset(
    ("-n", "-P", "-I", "-L", "-d", "-a", "-E", "-s", "--arg-file", "--max-args", "--max-procs")
)
INPUT = "<"
"""Program of a pseudo command whose argument is the file from which a command has its input."""
_RESERVED = frozenset(("if", "then", "else", "elif", "do", "while", "until", "!", "{"))
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_VARIABLE = re.compile(
    r"\$(?:\{(?P<name>[A-Za-z_]\w*)(?::?-(?P<default>[^}]*))?\}|(?P<bare>[A-Za-z_]\w*))", re.ASCII
)
_TOKEN = re.compile(
    r"(?P<join>\\\n)|\\(?P<escape>.)"
    r"|'(?P<single>[^']*)'"
    r'|"(?P<double>(?:[^"\\]|\\.)*)"'
    r"|(?P<variable>\$(?:\{[A-Za-z_]\w*(?::?-[^}]*)?\}|[A-Za-z_]\w*))"
    r"|(?P<here><<-?[ \t]*(?P<mark>['\"\w]+)[^\n]*\n)"
    r"|(?P<redirect>(?:\b[0-9])?&?[<>]+[&|]?)"
    r"|(?P<stop>[\n;&|()`])"
    r"|(?P<space>[ \t\r]+)"
    r"|(?P<plain>[^\s\\'\"$;&|()<>`#]+|.)",
    re.DOTALL,
)


class SimpleCommand(NamedTuple):
    """A program to run, as far as can be told beforehand.

    Attributes:
        words: the program and its arguments.
        environ: its environment.
        cwd: where it runs.
    """

    words: tuple[str, ...]
    environ: Mapping[str, str]
    cwd: str


def simple_commands(
    words: Sequence[str],
    environ: Mapping[str, str],
    cwd: str,
    read: Callable[[str], str | None],
    used: Callable[[str, str], None] = lambda name, value: None,
) -> Iterator[SimpleCommand]:
    """Split a command line, and the text of shells that it starts.

    Args:
        words: the command line.
        environ: its environment.
        cwd: where it runs.
        read: returns the text of a script; None if there is none by that path. A script is
            followed once for each folder that it is run in: it may run itself.
        used: called with names and values of environment variables that shell text uses.
    """
    walked: set[tuple[str, str]] = set()

    def read_once(path: str, folder: str) -> str | None:
        if (path, folder) in walked:
            return None
        walked.add((path, folder))
        return read(path)

    yield from _Shell(dict(environ), cwd, read_once, used, 0).run(list(words))


def split_text(text: str, value: Callable[[str], str]) -> Iterator[list[str]]:
    """Split shell text into simple commands, reserved words among them.

    Args:
        text: of a script.
        value: returns the value of a variable; called late, for commands before may set it.

    Returns:
        Words of each command; before one that has its input from a file, `INPUT` and the file.
    """
    words: list[str] = []
    word: str | None = None
    is_file = False  # the word is what input or output is redirected to
    is_input = False
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        assert token is not None  # its last branch takes anything
        at = token.end()
        kind = token.lastgroup or ""
        if kind == "plain" and token[0] == "#" and word is None:
            at = (text + "\n").index("\n", at)
        elif kind in ("plain", "escape", "single"):
            word = (word or "") + token[kind]
        elif kind == "double":
            word = (word or "") + _expanded(token["double"], value)
        elif kind == "variable":
            # Its value is split into words, as the shell does where there are no quotes.
            first, *others = _expanded(token[0], value).split() or [""]
            word = (word or "") + first if first or word is not None else None
            for other in others:
                words.append(word or "")
                word = other
        elif kind != "join":
            if word is not None and is_file and is_input:
                yield [INPUT, word]
            elif word is not None and not is_file:
                words.append(word)
            if kind == "redirect":
                is_input = token[0].lstrip("0123456789") in ("<", "<>")
            is_file = kind == "redirect" or (is_file and word is None and kind == "space")
            word = None
            if kind == "here":
                at = _behind_document(text, at, token["mark"].strip("'\""))
            if kind == "here" or kind == "stop":
                if words:
                    yield words
                words = []
    if word is not None and is_file and is_input:
        yield [INPUT, word]
    elif word is not None and not is_file:
        words.append(word)
    if words:
        yield words


class _Shell:
    """State of a shell that decides which files its commands read."""

    def __init__(
        self,
        environ: dict[str, str],
        cwd: str,
        read: Callable[[str, str], str | None],
        used: Callable[[str, str], None],
        depth: int,
    ) -> None:
        self._environ = environ
        self._given = dict(environ)
        self._cwd = cwd
        self._read = read
        self._used = used
        self._depth = depth

    def run(self, words: list[str]) -> Iterator[SimpleCommand]:
        """Yield the simple commands of a command; those of its text for a shell."""
        words, environ, inputs = _without_prefixes(words, self._environ)
        for path in inputs:
            yield SimpleCommand((INPUT, path), environ, self._cwd)
        if not words:
            return
        text = self._script(words)
        if text is None or self._depth >= MAX_DEPTH:
            yield SimpleCommand(tuple(words), environ, self._cwd)
            return
        inner = _Shell(environ, self._cwd, self._read, self._used, self._depth + 1)
        yield from inner.run_text(text)

    def run_text(self, text: str) -> Iterator[SimpleCommand]:
        """Yield the simple commands of a text."""
        for words in split_text(without_credentials(text), self._value):
            while words and words[0] in _RESERVED:
                words.pop(0)
            if words[:1] == ["export"]:
                words.pop(0)
            words = [name for word in words for name in self._matches(word)]
            if all(_ASSIGNMENT.match(word) for word in words):
                self._environ.update(_pair(word) for word in words)
            elif words[0] == "cd" and len(words) > 1:
                self._cwd = os.path.normpath(os.path.join(self._cwd, words[-1]))
            elif words[0] in (".", "source") and len(words) > 1:
                yield from self._source(os.path.join(self._cwd, words[1]))
            else:
                yield from self.run(words)

    def _matches(self, word: str) -> list[str]:
        """Return the names that match a word, or the word if none does; quotes do not matter."""
        if not glob.has_magic(word):
            return [word]
        below = os.path.join(self._cwd, "")
        found = sorted(glob.glob(os.path.join(glob.escape(below), word)))
        return [n[len(below) :] if n.startswith(below) else n for n in found] or [word]

    def _source(self, path: str) -> Iterator[SimpleCommand]:
        if os.path.basename(path) == "activate":
            folder = os.path.dirname(os.path.normpath(path))
            self._environ["VIRTUAL_ENV"] = os.path.dirname(folder)
            self._environ["PATH"] = folder + os.pathsep + self._environ.get("PATH", "")
            return
        text = self._read(path, self._cwd)
        if text is not None and self._depth < MAX_DEPTH:
            self._depth += 1
            yield from self.run_text(text)
            self._depth -= 1

    def _script(self, words: list[str]) -> str | None:
        """Return the text that a shell runs; None if the command is no shell."""
        if os.path.basename(words[0]) not in _SHELLS:
            if "/" not in words[0] or is_python(words[0]) or recognise(words):
                return None
            text = self._read(os.path.join(self._cwd, words[0]), self._cwd) or ""
            shell = re.match(r"#!\s*(\S+)(?:[ \t]+(\S+))?", text)
            names = map(os.path.basename, filter(None, shell.groups())) if shell else ()
            return text if _SHELLS.intersection(names) else None
        is_text = False
        waiting = words[:0:-1]
        while waiting:
            word = waiting.pop()
            if word[:1] not in ("-", "+"):
                return word if is_text else self._read(os.path.join(self._cwd, word), self._cwd)
            if not word.startswith("--"):
                is_text = is_text or "c" in word
                if word.endswith(("o", "O")) and waiting:
                    waiting.pop()
        return None

    def _value(self, name: str) -> str:
        value = self._environ.get(name, "")
        if name in self._given and self._given[name] == value:
            self._used(name, value)
        return value


def _expanded(text: str, value: Callable[[str], str]) -> str:
    """Expand variables and, as in double quotes, escapes."""
    text = _VARIABLE.sub(
        lambda m: value(m["name"] or m["bare"]) or m["default"] or "", text.replace("\\$", "\0")
    )
    return re.sub(r"\\([\"\\`])|\\\n", r"\1", text).replace("\0", "$")


def _behind_document(text: str, at: int, mark: str) -> int:
    """Return the end of a here-document that begins at ``at``."""
    end = re.compile(rf"^\t*{re.escape(mark)}$\n?", re.MULTILINE).search(text, at)
    return end.end() if end else len(text)


def _pair(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


def _without_prefixes(
    words: list[str], environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str], list[str]]:
    """Remove assignments and programs that run another: `env A=b nice pip install …`.

    Returns:
        The other words, their environment, and files that `xargs` takes arguments from.
    """
    environ = dict(environ)
    words = list(words)
    inputs: list[str] = []
    while words:
        name = os.path.basename(words[0])
        if _ASSIGNMENT.match(words[0]):
            environ.update([_pair(words.pop(0))])
        elif name in _PREFIXES and len(words) > 1:
            words.pop(0)
            while words and words[0].startswith("-"):
                if words.pop(0) in _PREFIX_VALUES and words:
                    words.pop(0)
            if name == "timeout" and words:
                words.pop(0)
        elif name == "xargs" and len(words) > 1:
            words.pop(0)
            while words and words[0].startswith("-"):
                option, _, value = words.pop(0).partition("=")
                if option in _XARGS_VALUES and not value and words:
                    value = words.pop(0)
                if option in ("-a", "--arg-file"):
                    inputs.append(value)
        else:
            break
    return words, environ, inputs
