"""Read slurm.conf and plugstack.conf as Slurm does."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PAIR = re.compile(r'([\w.]+)\s*[-*+/]?=\s*(?:"([^"]*)"|(\S+))(?=\s|$)', re.ASCII)
"""As Slurm's own parser has it, several on a line."""

_MAX_DEPTH = 10
"""Levels of files that include others."""

Locate = Callable[[str], Path]
"""Where a file of the machine is."""


@dataclass(frozen=True, slots=True)
class PluginLine:
    """A plugin's line in plugstack.conf, or in a file that it includes.

    Attributes:
        file: path of the file.
        number: of the line, from 1.
        is_required: whether jobs fail if the plugin does.
        path: of the plugin, as written.
        arguments: of the plugin.
    """

    file: str
    number: int
    is_required: bool
    path: str
    arguments: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"

    def argument(self, name: str) -> str:
        """Return the last value of ``NAME=VALUE``; "" if there is none."""
        values = [text.partition("=")[2] for text in self.arguments if text.startswith(f"{name}=")]
        return values[-1] if values else ""


@dataclass(frozen=True, slots=True)
class IncludeLine:
    """An `include` line, and the files that it finds."""

    file: str
    number: int
    pattern: str
    files: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"

    def __str__(self) -> str:
        return f"{self.place}: include {self.pattern}"


class PlugStack:
    """The plugins that Slurm loads, in its order.

    Attributes:
        path: of plugstack.conf.
        plugins: a line each; a file that is included twice has its lines here twice.
        includes: the `include` lines.
        files: all files that were read, each as often.
    """

    def __init__(self, path: str, locate: Locate = Path) -> None:
        """Read it; files that are missing have no lines.

        Args:
            path: of plugstack.conf.
            locate: where files are.

        Raises:
            OSError: a file is there and cannot be read.
        """
        self.path = path
        self.plugins: list[PluginLine] = []
        self.includes: list[IncludeLine] = []
        self.files: list[str] = []
        self._locate = locate
        self._read(path, 0)

    def lines_that_include(self, path: Path) -> list[IncludeLine]:
        """List the lines by which Slurm reads a file that exists; it reads it once for each."""
        return [
            line
            for line in self.includes
            for name in line.files
            if self._locate(name).exists() and os.path.samefile(self._locate(name), path)
        ]

    def _read(self, file: str, depth: int) -> None:
        try:
            text = self._locate(file).read_text(errors="replace")
        except (FileNotFoundError, IsADirectoryError):
            return
        self.files.append(file)
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if len(words) < 2:
                continue
            if words[0] == "include" and depth < _MAX_DEPTH:
                found = tuple(self._matches(file, words[1]))
                self.includes.append(IncludeLine(file, number, words[1], found))
                for name in found:
                    self._read(name, depth + 1)
            elif words[0] in ("required", "optional"):
                is_required = words[0] == "required"
                line_of = PluginLine(file, number, is_required, words[1], tuple(words[2:]))
                self.plugins.append(line_of)

    def _matches(self, file: str, pattern: str) -> Iterator[str]:
        """List the files that an include line means, relative to its own file's folder."""
        whole = os.path.join(os.path.dirname(file), pattern)
        top = str(self._locate("/"))
        for found in sorted(glob.glob(str(self._locate(whole)))):
            yield f"/{os.path.relpath(found, top)}"


class SlurmConf:
    """What slurm.conf sets.

    Attributes:
        path: of the file.
        nodes: names and host names of the compute nodes, as written.
    """

    def __init__(self, path: str, locate: Locate = Path) -> None:
        """Read it.

        Args:
            path: of the file.
            locate: where files are.

        Raises:
            OSError: it cannot be read.
        """
        self.path = path
        self.nodes: list[str] = []
        self._values: dict[str, str] = {}
        self._locate = locate
        self._read(path, 0)

    def get(self, name: str, default: str = "") -> str:
        """Return a parameter's value; names are not case-sensitive."""
        return self._values.get(name.lower(), default)

    def seconds(self, name: str, default: float) -> float:
        """Return a parameter's number; the default where it is not set or not a number."""
        with suppress(ValueError):
            return float(self.get(name))
        return float("inf") if self.get(name).upper() in ("INFINITE", "UNLIMITED") else default

    def flags(self, name: str) -> set[str]:
        """Return the words of a parameter with commas, in lower case."""
        return {word.strip().lower() for word in self.get(name).split(",")} - {""}

    def _read(self, file: str, depth: int) -> None:
        text = self._locate(file).read_text(errors="replace").replace("\\\n", " ")
        for line in text.splitlines():
            content = line.partition("#")[0]
            words = content.split()
            if len(words) == 2 and words[0].lower() == "include" and depth < _MAX_DEPTH:
                with suppress(FileNotFoundError):
                    self._read(os.path.join(os.path.dirname(file), words[1]), depth + 1)
                continue
            pairs = [(k.lower(), text or word) for k, text, word in _PAIR.findall(content)]
            kind = pairs[0][0] if pairs else ""
            if kind == "nodename":
                wanted = ("nodename", "nodehostname")
                self.nodes += [value for key, value in pairs if key in wanted]
            elif kind not in ("partitionname", "frontendname", "nodeset", "downnodes"):
                self._values.update(pairs)
