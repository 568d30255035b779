"""Merge the layers of an image by name: which entry of which layer is what in the end.

The rules are those of the OCI image specification (layer.md), and where it says nothing, what
umoci, Docker and containerd do when they unpack: a name below a symbolic link of the image lies
where the link leads, inside the image; the last entry of a name wins; a folder over a folder keeps
what is in it; whiteouts hide what lower layers have, wherever they stand in their own layer.

Nothing is read but headers, and names are all that is kept: about 350 bytes for a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bootseer.errors import Corrupt
from bootseer.tar import BLOCK, CHARACTER, FOLDER, HARD_LINK, SYMLINK, Member

MAX_NAME_BYTES = 4095
"""Longer names cannot be opened on Linux."""
_MAX_COMPONENT_BYTES = 255
_MAX_LINKS = 40  # followed on the way to one name, as in the kernel
_MAX_DEPTH = (MAX_NAME_BYTES + 1) // 2
_MAX_TEXT_BYTES = 512 << 20  # of names and links: 2 million of them have 250 each

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_AUFS = ".wh..wh."  # begins what AUFS kept for itself
_NO_SOURCE = -1
_MAX_ENTRIES = 1 << 32


class _Node:
    """What a name stands for.

    Attributes:
        children: by name, None if it is no folder.
        source: the number of the entry that describes it.
        touched: the last layer that had the name, or one below it.
        hidden: the last layer that hid all that lower ones have below it.
        link: where a symbolic link points.
    """

    __slots__ = ("children", "hidden", "link", "source", "touched")

    def __init__(self, source: int, touched: int, link: str | None = None) -> None:
        self.children: dict[str, _Node] | None = None
        self.source = source
        self.touched = touched
        self.hidden = -1
        self.link = link


def _folder(source: int, touched: int) -> _Node:
    node = _Node(source, touched)
    node.children = {}
    return node


@dataclass(slots=True)
class MergePlan:
    """What is to be taken from the layers.

    Attributes:
        names: of what the entry with this number describes; more than one are hard links.
        implied: folders that no entry describes.
        root: describes the root folder, if an entry does.
        devices: names of device nodes, which are in none of the above.
    """

    names: dict[int, list[str]] = field(default_factory=dict)
    implied: list[str] = field(default_factory=list)
    root: Member | None = None
    devices: list[str] = field(default_factory=list)


class LayerMerge:
    """The tree that results from the layers added so far, lowest first."""

    def __init__(self, max_entries: int) -> None:
        """Begin with an empty root folder; `max_entries` counts folders without one, too."""
        self._root = _folder(_NO_SOURCE, 0)
        self._root_member: Member | None = None
        self._devices: set[int] = set()
        self._layer = 0
        self._left = max_entries
        self._text_left = _MAX_TEXT_BYTES

    def add(self, layer: int, index: int, member: Member) -> None:
        """Add an entry: the one of this number in its layer.

        Raises:
            Corrupt: its name, or what it links to, is not acceptable, or there are too many.
        """
        self._layer = layer
        self._count(len(member.name) + len(member.link))
        parts = _split(member.name)
        if not parts:
            if member.kind != FOLDER:
                raise Corrupt("the root folder is something else in a layer")
            self._root_member = member
            return
        *above, name = parts
        if name.startswith(_WHITEOUT):
            self._hide(above, name)
            return
        if any(part.startswith(_AUFS) for part in above):
            return
        folder = self._walk(above, make=True)
        assert folder is not None and folder.children is not None
        # What a hard link replaces is gone before it is followed, as where layers are unpacked.
        old = folder.children.pop(name, None)
        if member.kind == HARD_LINK:
            node = self._linked(member)
        else:
            node = _Node(source_of(layer, index), layer)
            if member.kind == SYMLINK:
                node.link = _check_link(member)
            elif member.kind in (CHARACTER, BLOCK):
                self._devices.add(node.source)
            elif member.kind == FOLDER and old is not None and old.children is not None:
                node.children, node.hidden = old.children, old.hidden
            elif member.kind == FOLDER:
                node.children = {}
        folder.children[name] = node

    def finish(self) -> MergePlan:
        """Return what to read from which layer; the merge cannot be used afterwards.

        Raises:
            Corrupt: links made names too long, or all names together.
        """
        plan = MergePlan(root=self._root_member)
        self._text_left = _MAX_TEXT_BYTES
        for path, node in self._all():
            self._count(len(path), entries=0)
            if len(path) > MAX_NAME_BYTES:
                raise Corrupt(f"a name is too long: {path[:80]!a}…")
            if node.source in self._devices:
                plan.devices.append(path)
            elif node.source == _NO_SOURCE:
                plan.implied.append(path)
            else:
                plan.names.setdefault(node.source, []).append(path)
        return plan

    def _all(self) -> Iterator[tuple[str, _Node]]:
        waiting = [("", self._root)]
        while waiting:
            path, folder = waiting.pop()
            children, folder.children = folder.children or {}, {}
            while children:
                name, node = children.popitem()
                yield path + name, node
                if node.children is not None:
                    waiting.append((f"{path}{name}/", node))

    def _count(self, text_bytes: int, entries: int = 1) -> None:
        self._left -= entries
        self._text_left -= text_bytes
        if self._left < 0 or self._text_left < 0:
            raise Corrupt("there are more files in it, or longer names, than may be")

    def _walk(self, parts: list[str], *, make: bool = False) -> _Node | None:
        """Find a folder by its path, through links; None where there is nothing.

        With `make`, folders that are missing are made, and all on the way are marked as touched.

        Raises:
            Corrupt: what is there is no folder, or links go round in circles.
        """
        links = 0
        way = [self._root]
        rest = parts[::-1]
        while rest:
            name = rest.pop()
            if name == "..":
                way = way[:-1] or way
                continue
            children = way[-1].children
            assert children is not None
            node = children.get(name)
            if node is not None and node.link is not None:
                links += 1
                if links > _MAX_LINKS or len(rest) > _MAX_DEPTH:
                    raise Corrupt(f"{_join(parts)} lies behind symbolic links without an end")
                self._count(len(node.link), entries=0)
                if node.link.startswith("/"):
                    way = [self._root]
                rest += [part for part in node.link.split("/") if part not in ("", ".")][::-1]
                continue
            if node is None:
                if not make:
                    return None
                self._count(len(name))
                node = children[name] = _folder(_NO_SOURCE, self._layer)
            if node.children is None:
                if not make:
                    return None
                raise Corrupt(f"{_join(parts)} is used as a folder, but {name!a} in it is not one")
            way.append(node)
        if make:
            for node in way:
                node.touched = self._layer
        return way[-1]

    def _linked(self, member: Member) -> _Node:
        """Return another name's node for what a hard link links to."""
        *above, name = _split(member.link) or [""]
        folder = self._walk(above)
        target = folder.children.get(name) if folder is not None and folder.children else None
        if target is None or target.children is not None:
            kind = "a folder" if target is not None else "not there"
            raise Corrupt(f"{member.name!a} is a hard link to {member.link!a}, which is {kind}")
        return _Node(target.source, self._layer, target.link)

    def _hide(self, above: list[str], name: str) -> None:
        folder = self._walk(above)
        if folder is None or folder.children is None:
            return
        if name == _OPAQUE:
            self._hide_lower(folder)
            return
        hidden = name[len(_WHITEOUT) :]
        if hidden in ("", ".", ".."):
            raise Corrupt(f"{_join([*above, name])} hides no name")
        node = folder.children.get(hidden)
        if node is None:
            return
        if node.touched != self._layer:
            del folder.children[hidden]
        elif node.children is not None:
            self._hide_lower(node)

    def _hide_lower(self, folder: _Node) -> None:
        """Remove what this layer has not touched from a folder, and from the folders in it."""
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            children = folder.children
            assert children is not None
            if folder.hidden == self._layer:
                continue  # what has come since is of this layer
            folder.hidden = self._layer
            for name, node in list(children.items()):
                if node.touched != self._layer:
                    del children[name]
                elif node.children is not None:
                    waiting.append(node)


def source_of(layer: int, index: int) -> int:
    """Return the number of an entry among those of all layers."""
    return layer * _MAX_ENTRIES + index


def _split(name: str) -> list[str]:
    """Return the components of a name in a layer; it is relative to the root, whatever it says.

    Raises:
        Corrupt: it leads out of its folder, or cannot be the name of a file.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(name) > MAX_NAME_BYTES or len(_raw(name)) > MAX_NAME_BYTES:
        raise Corrupt(f"a name is too long: {name[:80]!a}…")
    for part in parts:
        if part == "..":
            raise Corrupt(f"{name!a} would lead out of the image")
        if len(part) * 4 > _MAX_COMPONENT_BYTES and len(_raw(part)) > _MAX_COMPONENT_BYTES:
            raise Corrupt(f"a name is too long: {part[:80]!a}…")
    return parts


def _check_link(member: Member) -> str:
    if not member.link or len(_raw(member.link)) > MAX_NAME_BYTES:
        raise Corrupt(f"the symbolic link {member.name[:80]!a} points nowhere, or too far")
    return member.link


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _join(parts: list[str]) -> str:
    return ascii("/".join(parts))
