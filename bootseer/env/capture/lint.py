"""Find what in a captured tree may fail on another node, or weeks later.

Names and a few hundred small files tell that; no module and no library is opened. A snapshot is
restored at the paths at which it was captured, so paths into a target are fine.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from urllib.parse import unquote, urlsplit

from bootseer.env.capture.site_packages import (
    SMALL_BYTES,
    VOLATILE,
    WHY,
    PathRules,
    SitePackages,
    absolute,
    distribution,
    is_below,
    sort_install,
)
from bootseer.env.client.scan import TreeNode
from bootseer.env.snapshot.manifest import Finding
from bootseer.errors import BootseerError

MOST_PER_KIND = 50
_SHEBANG_BYTES = 4 << 10
_DETAIL_CHARS = 300
_PATH_CHARS = 4000
_SAMPLE = 64
_FEW_SOURCES = 100

_SITE_OF_PYTHON = re.compile(r"(.*)/lib/python(\d+\.\d+t?)/(?:site|dist)-packages")
# Where a first line would be too long or has blanks, pip, uv and conda go through a shell:
# '''exec' "/a/long/path/python" "$0" "$@"
_EXEC = re.compile(r"""'''exec' (?:"([^"]+)"|(\S+))""")


def examine(
    tree: Mapping[bytes, TreeNode],
    read: Callable[[bytes, int], bytes],
    targets: Sequence[str],
    home: str,
    environ: Mapping[str, str],
    *,
    listing: Callable[[str], Iterable[str]] = os.listdir,
) -> list[Finding]:
    """Find what in a tree may fail elsewhere.

    Args:
        tree: of the snapshot, by path with the target's number before it.
        read: returns the beginning of a file; takes its path and the most bytes to return.
        targets: absolute paths.
        home: of the user.
        environ: of the command.
        listing: returns the names in a folder of the node.

    Returns:
        Findings by rule and then by path: at most `MOST_PER_KIND` of a kind, and one that counts
        the others. Files that cannot be read are left out.
    """
    install = sort_install(tree, read, targets, PathRules(targets, home, environ))
    editable = _Editables(install)
    return list(
        _bounded(
            [
                *_links(install),
                *editable.findings(),
                *_path_files(install, editable.locations),
                *_scripts(install),
                *_environments(install),
                *_uncompiled(install),
                *_stale(install),
                *_shadowed(install, home, environ, listing),
            ]
        )
    )


def _links(install: SitePackages) -> Iterator[Finding]:
    """Find links to paths that the snapshot does not hold."""
    for path in install.links:
        folder = install.shown(path.rpartition(b"/")[0])
        leads_to = absolute(folder, os.fsdecode(install.tree[path].target))
        kind = install.places.kind(leads_to)
        if kind != "inside":
            name = "volatile link" if kind in VOLATILE else "link to outside"
            yield _finding(name, install.shown(path), "leads to ", leads_to, f", {WHY[kind]}")


class _Editables:
    """Editable installs: projects that are imported from their source folders.

    Attributes:
        locations: their source folders.
    """

    def __init__(self, install: SitePackages) -> None:
        self.locations: list[str] = []
        self._install = install
        # By the folder and name that all files of one project share: the first says most.
        self._found: dict[tuple[bytes, str], tuple[bytes, str]] = {}
        for path, text in install.texts(install.direct_urls, SMALL_BYTES):
            location = _editable_location(text)
            if location is not None:
                info = path.rpartition(b"/")[0]
                self._add(info, info.removesuffix(b".dist-info"), location)
        for path, text in install.texts(install.egg_links, SMALL_BYTES):
            location = absolute(self._folder(path), text.partition("\n")[0].strip())
            self._add(path, path.removesuffix(b".egg-link"), location)
        named = filter(_is_editable, install.path_files)
        for path, text in install.texts(named, SMALL_BYTES):
            paths = _outside(install, path, text)
            if not paths and not re.search(r"^import\s", text, re.MULTILINE):
                continue
            self._add(path, path.removesuffix(b".pth"), paths[0] if paths else "")
        for path in install.finders:
            self._add(path, path.removesuffix(b"_finder.py"), "")

    def findings(self) -> Iterator[Finding]:
        for path, location in sorted(self._found.values()):
            if location and self._install.places.kind(location) == "inside":
                continue
            yield _finding(
                "editable install",
                self._install.shown(path),
                "imported from ",
                location or "where it was written",
                ", outside of the snapshot: nodes without it fail, and what is edited there later "
                "is used; install it without -e, or make that folder a target",
            )

    def _folder(self, path: bytes) -> str:
        return self._install.shown(path.rpartition(b"/")[0])

    def _add(self, path: bytes, project: bytes, location: str) -> None:
        folder, _, name = project.rpartition(b"/")
        plain = re.sub(r"[^a-z0-9]+", "_", os.fsdecode(name).lower())
        self._found.setdefault((folder, plain.removeprefix("_editable_")), (path, location))
        if location:
            self.locations.append(location)


def _is_editable(path: bytes) -> bool:
    return path.rpartition(b"/")[2].startswith(b"__editable__")


def _editable_location(direct_url: str) -> str | None:
    """Return the folder of an editable install, None if it is none; see PEP 610."""
    try:
        document = json.loads(direct_url)
        if document["dir_info"]["editable"] is not True:
            return None
        url = urlsplit(document["url"])
        return os.path.normpath(unquote(url.path)) if url.scheme == "file" else ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # What was copied from a folder or a wheel is in the snapshot, whatever its URL.
        return None


def _path_files(install: SitePackages, editable: Sequence[str]) -> Iterator[Finding]:
    """Find folders outside of the targets that .pth files put on Python's path."""
    others = (path for path in install.path_files if not _is_editable(path))
    for path, text in install.texts(others, SMALL_BYTES):
        paths = [
            leads_to
            for leads_to in _outside(install, path, text)
            if not any(is_below(leads_to, location) for location in editable)
        ]
        if paths:
            more = f" (and {len(paths) - 1} more folders)" if len(paths) > 1 else ""
            why = WHY[install.places.kind(paths[0])]
            before, after = "has Python import from ", f"{more}, {why}"
            yield _finding("path file", install.shown(path), before, paths[0], after)


def _outside(install: SitePackages, path: bytes, text: str) -> list[str]:
    """Return the folders outside of the targets that a .pth file names.

    Lines that run code are ignored: coverage, setuptools and namespace packages have them.
    """
    folder = install.shown(path.rpartition(b"/")[0])
    lines = (line.rstrip() for line in text.splitlines())
    named = (
        absolute(folder, line)
        for line in lines
        if line and not line.startswith(("#", "import ", "import\t"))
    )
    return [leads_to for leads_to in named if install.places.kind(leads_to) != "inside"]


def _scripts(install: SitePackages) -> Iterator[Finding]:
    """Find interpreters of scripts outside of the targets; one finding for each."""
    users: defaultdict[str, list[bytes]] = defaultdict(list)
    for path, text in install.texts(install.scripts, _SHEBANG_BYTES):
        interpreter = _interpreter(text)
        if interpreter:
            users[interpreter].append(path)
    for interpreter, paths in users.items():
        kind = install.places.kind(interpreter)
        if kind in ("inside", "system"):
            continue
        more = f", as {len(paths) - 1} more scripts," if len(paths) > 1 else ""
        yield _finding(
            "interpreter",
            install.shown(paths[0]),
            f"runs on{more} ",
            interpreter,
            f", {WHY[kind]}; install with a Python of the image or of a target",
        )


def _interpreter(script: str) -> str:
    """Return the absolute path of a script's interpreter, "" if it names none."""
    first, _, rest = script.partition("\n")
    words = first[2:].split()
    if not first.startswith("#!") or not words:
        return ""
    path = words[0]
    if path in ("/bin/sh", "/usr/bin/sh") and (found := _EXEC.match(rest)):
        path = found[1] or found[2]
    return os.path.normpath(path) if path.startswith("/") else ""


def _environments(install: SitePackages) -> Iterator[Finding]:
    """Find virtual environments that need more of a node than its system's Python."""
    for path, text in install.texts(install.configs, SMALL_BYTES):
        pairs = (line.partition("=") for line in text.splitlines())
        settings = {key.strip().lower(): value.strip() for key, _, value in pairs}
        base = settings.get("home", "")
        kind = install.places.kind(os.path.normpath(base)) if base else ""
        if kind in VOLATILE:
            after = f", {WHY[kind]}; make it with a Python of the image"
            yield _finding("base Python", install.shown(path), "its Python is in ", base, after)
        if settings.get("include-system-site-packages", "").lower() == "true":
            yield _finding(
                "system packages",
                install.shown(path),
                "the packages of ",
                base or "the node's Python",
                " and of ~/.local are used too, and may be others on other nodes; make it without "
                "--system-site-packages, or use one image on all of them",
            )


def _uncompiled(install: SitePackages) -> Iterator[Finding]:
    """Find targets in which most packages come without bytecode."""
    total = Counter(path.partition(b"/")[0] for path in install.sources)
    missing = Counter(
        path.partition(b"/")[0] for path in install.sources if path not in install.compiled
    )
    for top, count in sorted(missing.items()):
        if count > _FEW_SOURCES and count * 2 > total[top]:
            yield _finding(
                "no bytecode",
                install.shown(top),
                f"imports compile up to {count} files: at every start where it is read-only, else "
                "once per node; let pip compile (it does without --no-compile), give uv "
                "--compile-bytecode, or end with `python -m compileall -q ",
                install.shown(top),
                "`",
            )


def _stale(install: SitePackages) -> Iterator[Finding]:
    """Find bytecode that does not belong to the source beside it, in a sample; see PEP 552."""
    both = [
        (source, compiled)
        for source, compiled in install.compiled.items()
        if (node := install.tree.get(source)) is not None and node.kind == "file"
    ]
    count = min(len(both), _SAMPLE)
    stale = []
    for source, compiled in (both[n * len(both) // count] for n in range(count)):
        try:
            header = install.read(compiled, 16)
        except (OSError, BootseerError):
            continue
        node = install.tree[source]
        wanted = (0, node.mtime_ns // 1_000_000_000, node.size_bytes)
        is_timed = len(header) == 16 and not any(header[4:8])
        if is_timed and header[4:] != b"".join(map(_four_bytes, wanted)):
            stale.append(compiled)
    if stale:
        yield _finding(
            "stale bytecode",
            install.shown(stale[0]),
            f"made of another source than is beside it, as {len(stale)} of {count} that were "
            "looked at: imports compile it again; end the command with `python -m compileall -q ",
            install.shown(stale[0].partition(b"/")[0]),
            "`",
        )


def _four_bytes(number: int) -> bytes:
    return (number & 0xFFFF_FFFF).to_bytes(4, "little")


def _shadowed(
    install: SitePackages,
    home: str,
    environ: Mapping[str, str],
    listing: Callable[[str], Iterable[str]],
) -> Iterator[Finding]:
    """Find packages that the user has in ~/.local too.

    Python puts these before its own site-packages, Conda's too. They come after what is in
    PYTHONPATH, as folders of `pip --target` are, and after the packages of a virtual environment.
    """
    base = environ.get("PYTHONUSERBASE") or os.path.join(home, ".local")
    if environ.get("PYTHONNOUSERSITE") or not base.startswith("/"):
        return
    first = {os.path.normpath(path) for path in environ.get("PYTHONPATH", "").split(":") if path}
    names = partial(_names, listing)
    configs = set(map(install.shown, install.configs))
    for site, distributions in sorted(install.sites.items()):
        folder = install.shown(site)
        of_python = _SITE_OF_PYTHON.fullmatch(folder)
        if of_python is None or not distributions or folder in first:
            continue
        prefix, version = of_python.groups()
        theirs = os.path.normpath(f"{base}/lib/python{version}/site-packages")
        is_venv = f"{prefix}/pyvenv.cfg" in configs or "pyvenv.cfg" in names(prefix or "/")
        if is_venv or install.places.kind(theirs) == "inside":
            continue
        both = sorted(distributions & {distribution(name) for name in names(theirs)} - {""})
        if both:
            more = f" and {len(both) - 3} more" if len(both) > 3 else ""
            yield _finding(
                "user site",
                folder,
                f"{_short(', '.join(both[:3]), 80)}{more}: also in ",
                theirs,
                ", which comes first and is not in the snapshot: set PYTHONNOUSERSITE=1 in the job",
            )


def _names(listing: Callable[[str], Iterable[str]], folder: str) -> set[str]:
    try:
        return set(listing(folder))
    except OSError:
        return set()


def _bounded(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Limit the findings of a kind; the last one counts those that were left out."""
    kinds: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        kinds[finding.kind].append(finding)
    for kind, found in kinds.items():
        yield from found[:MOST_PER_KIND]
        if left_out := found[MOST_PER_KIND:]:
            yield Finding(kind, left_out[0].path, f"{len(left_out)} more like these begin here")


def _finding(kind: str, path: str, before: str, what: str, after: str) -> Finding:
    """Make a finding; a long path in its detail is shortened."""
    what = _short(what, _DETAIL_CHARS - len(before) - len(after))
    return Finding(kind, _short(path, _PATH_CHARS), f"{before}{what}{after}")


def _short(text: str, most_chars: int) -> str:
    """Make a text printable, and leave out its middle if it is too long."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    if len(text) <= most_chars:
        return text
    head = (most_chars - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most_chars - 1 - head) :]}"
