"""Sort the files of an install by kind, and judge the paths that they name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from bootseer.env.client.scan import TreeNode
from bootseer.env.snapshot.index import leads_out
from bootseer.env.snapshot.manifest import shown_path
from bootseer.errors import BootseerError

_MOST_READS = 500
"""Files that one rule opens at most: more are no install, or would take too long."""
SMALL_BYTES = 64 << 10

_TEMPORARY = ("/tmp", "/var/tmp", "/run", "/var/run", "/dev/shm")
_TEMPORARY_NAMED = ("TMPDIR", "TMP", "TEMP", "SLURM_TMPDIR", "XDG_RUNTIME_DIR")
_HOMES = ("/home", "/root")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/nix", "/gnu")
WHY = {
    "temporary": "a place for temporary files, which other nodes and later jobs do not have",
    "home": "a home folder: this works only where every node has that, with the same in it",
    "system": "a folder of this node: every other one needs the same there",
    "elsewhere": "outside of the snapshot: every node needs the same there",
}
"""What a path needs that leads out of all targets, by its kind."""
VOLATILE = ("temporary", "home")

_SITES = (b"site-packages", b"dist-packages")
_DISTRIBUTION = re.compile(r"(.+?)(?:-.*)?\.(?:dist|egg)-info")


class PathRules:
    """Tells which paths exist on other nodes, and later."""

    def __init__(self, targets: Sequence[str], home: str, environ: Mapping[str, str]) -> None:
        named = [os.path.normpath(environ.get(name, "")) for name in _TEMPORARY_NAMED]
        # In this order: a target may be in a temporary folder, and that in a home.
        self._kinds = (
            ("inside", [*targets]),
            ("temporary", [*_TEMPORARY, *named]),
            ("home", [*_HOMES, os.path.normpath(home)]),
            ("system", _SYSTEM),
        )

    def kind(self, path: str) -> str:
        """Return "inside" for a path in a target, or a key of `WHY`."""
        for kind, folders in self._kinds:
            if any(is_below(path, folder) for folder in folders):
                return kind
        return "elsewhere"


@dataclass(slots=True)
class SitePackages:
    """The tree of an install by kinds of files; all paths in order.

    Attributes:
        links: links that may lead out of their target.
        sites: folders that hold distributions, with the distributions' names.
        direct_urls, path_files, egg_links, finders, scripts, configs: files that rules read.
        sources: Python sources in packages.
        compiled: bytecode, by the path of its source.
    """

    tree: Mapping[bytes, TreeNode]
    read: Callable[[bytes, int], bytes]
    targets: Sequence[str]
    places: PathRules
    links: list[bytes] = field(default_factory=list)
    sites: dict[bytes, set[str]] = field(default_factory=dict)
    direct_urls: list[bytes] = field(default_factory=list)
    path_files: list[bytes] = field(default_factory=list)
    egg_links: list[bytes] = field(default_factory=list)
    finders: list[bytes] = field(default_factory=list)
    scripts: list[bytes] = field(default_factory=list)
    configs: list[bytes] = field(default_factory=list)
    sources: list[bytes] = field(default_factory=list)
    compiled: dict[bytes, bytes] = field(default_factory=dict)

    def shown(self, path: bytes) -> str:
        """Return the absolute path of a path in the tree."""
        return shown_path(path, self.targets).rstrip("/")

    def texts(self, paths: Iterable[bytes], most_bytes: int) -> Iterator[tuple[bytes, str]]:
        """Read the beginning of files; those that are no text are left out."""
        for path in islice(paths, _MOST_READS):
            try:
                data = self.read(path, most_bytes)
            except (OSError, BootseerError):
                continue
            if b"\0" not in data:
                yield path, os.fsdecode(data)


def sort_install(
    tree: Mapping[bytes, TreeNode],
    read: Callable[[bytes, int], bytes],
    targets: Sequence[str],
    places: PathRules,
) -> SitePackages:
    """Sort a tree; see `bootseer.env.capture.lint.examine`."""
    install = SitePackages(tree, read, targets, places)
    paths = sorted(tree)
    for path in paths:
        folder, _, name = path.rpartition(b"/")
        if name in _SITES and tree[path].kind == "folder":
            install.sites.setdefault(path, set())
        elif name.endswith((b".dist-info", b".egg-info")) and folder:
            install.sites.setdefault(folder, set()).add(distribution(os.fsdecode(name)))
    packages: set[bytes] = set()
    for path in paths:
        folder, _, name = path.rpartition(b"/")
        node = tree[path]
        if node.kind == "folder":
            if path in install.sites or folder in packages:
                packages.add(path)
        elif node.kind == "link":
            if leads_out(path, node.target):
                install.links.append(path)
        elif name.endswith(b".pyc"):
            package, _, cache = folder.rpartition(b"/")
            if cache == b"__pycache__":
                # What is for -O, x.cpython-311.opt-1.pyc, comes out as that of no source.
                module = name[: -len(b".pyc")].rpartition(b".")[0]
                install.compiled[package + b"/" + module + b".py"] = path
        elif name.endswith(b".py"):
            if folder in packages:
                install.sources.append(path)
            if name.startswith(b"__editable___") and name.endswith(b"_finder.py"):
                install.finders.append(path)
        elif node.size_bytes <= SMALL_BYTES and not name.endswith(b".so"):
            _sort_small(install, path, b"/" not in folder or folder in install.sites)
    return install


def _sort_small(install: SitePackages, path: bytes, is_site: bool) -> None:
    """Keep a small file that some rule reads."""
    folder, _, name = path.rpartition(b"/")
    if name == b"direct_url.json" and folder.endswith(b".dist-info"):
        install.direct_urls.append(path)
    elif name.endswith(b".pth") and is_site:
        install.path_files.append(path)
    elif name.endswith(b".egg-link") and is_site:
        install.egg_links.append(path)
    elif name == b"pyvenv.cfg":
        install.configs.append(path)
    elif install.tree[path].mode & 0o111 and _is_bin(install, folder):
        install.scripts.append(path)


def _is_bin(install: SitePackages, folder: bytes) -> bool:
    """Whether a folder holds the commands of an environment; packages may have a `bin`, too."""
    prefix, _, name = folder.rpartition(b"/")
    if not prefix:
        return os.path.basename(install.shown(folder)) == "bin"
    marks = (b"pyvenv.cfg", b"conda-meta", b"lib")
    return name == b"bin" and (
        b"/" not in prefix or any(prefix + b"/" + mark in install.tree for mark in marks)
    )


def distribution(name: str) -> str:
    """Return the normalised name (PEP 503) of a distribution, "" if the folder is of none."""
    found = _DISTRIBUTION.fullmatch(name)
    return re.sub(r"[-_.]+", "-", found[1]).lower() if found else ""


def absolute(folder: str, path: str) -> str:
    """Return the absolute path of a path relative to a folder; links are not followed."""
    return "/" + os.path.normpath(os.path.join(folder, path)).lstrip("/")


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder, or below it; no path counts as below /."""
    return path == folder or path.startswith(folder + "/")
