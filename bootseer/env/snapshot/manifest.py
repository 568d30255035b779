"""The manifest of a snapshot: its key, targets and digests. Written last, trusted first."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bootseer.core.fields import Fields, open_document
from bootseer.env.client import key as env_key
from bootseer.env.client.key import EMPTY, KeyPart
from bootseer.errors import Corrupt, Unavailable

VERSION = 2
_OUTDATED = 1
"""With tar frames beside the squashfs; the next capture replaces it."""
MAX_BYTES = 4 << 20
MAX_TARGETS = 16
MAX_FINDINGS = 1000
MAX_OUTSIDE = 10_000
_SHOWN_CHARS = 4000
_FORMAT = "bootseer env snapshot"
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_CAPTURE = re.compile(r"[0-9a-f]{16}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a captured tree may have elsewhere.

    Attributes:
        kind: in a word or two, "editable install".
        path: as the command's user sees it.
        detail: the problem, and what to do.
    """

    kind: str
    path: str
    detail: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The manifest of a snapshot.

    Attributes:
        key: that it is stored under.
        parts: of the key.
        targets: absolute paths of its folders 0, 1 and so on.
        bases: what each held before, `EMPTY` or a digest.
        capture: name of this capture: no other writes the same objects.
        digest: of its tree, see `bootseer.env.client.scan.tree_digest`.
        image: digest of its squashfs, which is stored as an image.
        image_bytes: length of the squashfs.
        index: SHA-256 of its index.
        files: number of files, folders and links.
        content_bytes: of its files.
        outside: paths of links that lead out of their target, in hexadecimal digits.
        findings: problems that it may have elsewhere; the first of very many.
        captured_ns: time of the capture, nanoseconds since 1970.
        captured_by: name of the user.
        node: name of the node.
        command_ms: time that the command took.
    """

    key: str
    parts: tuple[KeyPart, ...]
    targets: tuple[str, ...]
    bases: tuple[str, ...]
    capture: str
    digest: str
    image: str
    image_bytes: int
    index: str
    files: int
    content_bytes: int
    outside: tuple[str, ...]
    findings: tuple[Finding, ...]
    captured_ns: int
    captured_by: str
    node: str
    command_ms: int

    @property
    def outside_paths(self) -> list[bytes]:
        """Paths of links that may lead out of their target."""
        return [bytes.fromhex(path) for path in self.outside]

    @property
    def is_whole(self) -> bool:
        """Whether all of its targets were empty before: then it can be mounted."""
        return all(base == EMPTY for base in self.bases)

    def encode(self) -> bytes:
        document = asdict(self)
        document["parts"] = env_key.to_document(self.parts)
        return json.dumps({"format": _FORMAT, "version": VERSION, **document}).encode() + b"\n"


def decode(data: bytes, name: str, key: str) -> Snapshot:
    """Decode the manifest of the snapshot that is stored under a key.

    Args:
        data: the manifest.
        name: for messages.
        key: that it should have.

    Raises:
        UnknownVersion: it is of a later version.
        Corrupt: it is damaged, of an earlier version, or another snapshot's.
    """
    fields = open_document(data, name, _FORMAT, VERSION, _OUTDATED)
    parts = env_key.from_document(fields.unread("parts"), name)
    snapshot = Snapshot(
        key=_digest(fields, "key", name),
        parts=parts,
        targets=tuple(_target(t, name) for t in fields.texts("targets", MAX_TARGETS)),
        bases=tuple(fields.texts("bases", MAX_TARGETS, 64)),
        capture=_digest(fields, "capture", name, _CAPTURE),
        digest=_digest(fields, "digest", name),
        image=_digest(fields, "image", name),
        image_bytes=fields.count("image_bytes"),
        index=_digest(fields, "index", name),
        files=fields.count("files"),
        content_bytes=fields.count("content_bytes"),
        outside=tuple(fields.texts("outside", MAX_OUTSIDE, 2 * 4096)),
        findings=tuple(
            Finding(found.text("kind", 40), found.text("path"), found.text("detail"))
            for found in fields.objects("findings", MAX_FINDINGS)
        ),
        captured_ns=fields.count("captured_ns"),
        captured_by=fields.text("captured_by", 256),
        node=fields.text("node", 256),
        command_ms=fields.count("command_ms"),
    )
    try:
        _ = snapshot.outside_paths
    except ValueError as error:
        raise Corrupt(f"{name}: a path of a link is no path") from error
    if snapshot.key != key or env_key.key_of(parts) != key:
        raise Corrupt(f"{name}: this is the snapshot of another key, {snapshot.key[:12]}")
    if not snapshot.targets or len(snapshot.targets) != len(snapshot.bases):
        raise Corrupt(f"{name}: it does not say what was in its targets before")
    return snapshot


def check(data: bytes, name: str, key: str) -> None:
    """Check a manifest before it is stored.

    Raises:
        Unavailable: it is too long.
        Corrupt: see `decode`.
    """
    if len(data) > MAX_BYTES:
        raise Unavailable(f"{name} would have {len(data):,} bytes, and may have {MAX_BYTES:,}")
    decode(data, name, key)


def shown_path(path: bytes, targets: Sequence[str]) -> str:
    """Return a path in a snapshot as its user sees it, printable and of bounded length."""
    number, _, below = path.partition(b"/")
    whole = os.path.join(targets[int(number)], os.fsdecode(below))
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in whole)[:_SHOWN_CHARS]


def is_key(text: str) -> bool:
    """Whether a text can be a key."""
    return _DIGEST.fullmatch(text) is not None


def _digest(fields: Fields, key: str, name: str, pattern: re.Pattern[str] = _DIGEST) -> str:
    value = fields.text(key, 64)
    if not pattern.fullmatch(value):
        raise Corrupt(f"{name}: field {key!r} is no digest")
    return value


def _target(path: str, name: str) -> str:
    if not path.startswith("/") or os.path.normpath(path) != path or path == "/":
        raise Corrupt(f"{name}: {path[:200]!a} is no place for an environment")
    return path
