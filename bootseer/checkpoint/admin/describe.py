"""Describe a striped file and check that its parts are there, without reading them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import trio

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.parts import parts_beside
from bootseer.checkpoint.files.stripe_manifest import StripeManifest, part_name
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.errors import BootseerError, NotFound
from bootseer.store.api.base import Placement
from bootseer.units import format_numbers


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A problem of a file.

    Attributes:
        name: of the file.
        text: description of the problem.
        part: the part that has it, if known.
        units: those that cannot be read.
    """

    name: str
    text: str
    part: int | None = None
    units: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return one line with file, part and units."""
        if self.part is None:
            return self.text if self.name in self.text else f"{self.name}: {self.text}"
        which = f"unit{'s' if len(self.units) > 1 else ''} {format_numbers(self.units)}"
        return f"{self.name}: {which} in part {part_name(self.part)}: {self.text}"


@dataclass(frozen=True, slots=True)
class PartInfo:
    """A part of a striped file as it is in the store; None for what is unknown."""

    index: int
    need_bytes: int
    size_bytes: int | None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileDescription:
    """A file without its content.

    Attributes:
        entry: of the file.
        folder: of its parts; "" for an ordinary object.
        parts: of a striped file.
        hosts: machines that have blocks of an ordinary object, where the store tells.
        problems: those that are known.
    """

    entry: FileEntry
    folder: str = ""
    parts: tuple[PartInfo, ...] = ()
    hosts: tuple[str, ...] = ()
    problems: tuple[FileProblem, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Tell whether no problem is known."""
        return not self.problems


async def describe(tree: CheckpointTree, name: str) -> FileDescription:
    """Return the description of a file or folder, without reading its content.

    Raises:
        NotFound: there is none.
    """
    entry = await tree.stat(name)
    if entry.problem is not None:
        return FileDescription(entry, problems=(FileProblem(name, str(entry.problem)),))
    if entry.layout is None:
        hosts = () if entry.is_folder else await _hosts(tree, name)
        return FileDescription(entry, hosts=hosts)
    folder, parts = await find_parts(tree, entry, entry.layout)
    problems = part_problems(entry, entry.layout, parts)
    limit = trio.CapacityLimiter(8)

    async def ask(at: int) -> None:
        async with limit:
            hosts = await _hosts(tree, f"{folder}/{part_name(at)}")
            parts[at] = replace(parts[at], hosts=hosts)

    async with trio.open_nursery() as nursery:
        for part in parts:
            if part.size_bytes is not None:
                nursery.start_soon(ask, part.index)
    return FileDescription(entry, folder, tuple(parts), (), tuple(problems))


async def find_parts(
    tree: CheckpointTree, entry: FileEntry, layout: StripeManifest
) -> tuple[str, list[PartInfo]]:
    """Return the folder of the parts of a file, and the length of each part."""
    try:
        folder, listed = await tree.parts.find(entry.name, layout)
    except NotFound:
        folder, listed = parts_beside(entry.name, layout), ()
    found = {info.name.rpartition("/")[2]: info for info in listed}
    parts = []
    for index, need_bytes in enumerate(layout.part_bytes()):
        info = found.get(part_name(index))
        parts.append(PartInfo(index, need_bytes, info.size_bytes if info else None))
    return folder, parts


def part_problems(
    entry: FileEntry, layout: StripeManifest, parts: Sequence[PartInfo]
) -> list[FileProblem]:
    """Return a problem for each part that is missing or too short."""
    units: dict[int, list[int]] = {}
    for index, unit in enumerate(layout.units):
        units.setdefault(unit.part, []).append(index)
    problems = []
    for part in parts:
        held = tuple(units.get(part.index, ()))
        if not held:
            continue
        if part.size_bytes is None:
            problems.append(FileProblem(entry.name, "the part is missing", part.index, held))
        elif part.size_bytes < part.need_bytes:
            text = f"the part has {part.size_bytes} of {part.need_bytes} bytes"
            problems.append(FileProblem(entry.name, text, part.index, held))
    return problems


async def _hosts(tree: CheckpointTree, name: str) -> tuple[str, ...]:
    """Return the machines that have blocks of an object; none where the store does not tell."""
    if not isinstance(tree.store, Placement):
        return ()
    try:
        blocks = await tree.store.block_locations(name)
    except BootseerError:
        return ()
    return tuple(dict.fromkeys(host for block in blocks for host in block.hosts))
