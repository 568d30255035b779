"""The decoders of tables: a JSON header, rows, a digest.

An input is the header, a zero and the rows; an index's is numbers of rows, and the rows.
"""

import hashlib
import random
import struct
from contextlib import suppress
from dataclasses import replace
from unittest.mock import patch

from bootseer_dev.material.stored_image import manifest_of
from fuzz_base import Decoder

from bootseer.checkpoint.files import stripe_manifest
from bootseer.core import image_manifest as image
from bootseer.core import table
from bootseer.core.tree_rows import BLOCK_BYTES
from bootseer.env.client.scan import TreeNode
from bootseer.env.snapshot import index
from bootseer.env.snapshot.chunks import split
from bootseer.errors import Corrupt
from bootseer.fuse.fastpath import TreeTable
from bootseer.image.hot import hotset, pack, trace
from bootseer.units import MIB

# Tables: JSON, a zero, rows.


def opened_table(data: bytes) -> bytes:
    """Return the input that `sealed_table` makes this table of."""
    length = struct.unpack_from("<I", data, 12)[0]
    return data[16 : 16 + length] + b"\0" + data[16 + length : -32]


def sealed_table(magic: bytes, version: int, row_bytes: int, data: bytes) -> bytes:
    text, _, rows = data.partition(b"\0")
    rows = rows[: len(rows) // row_bytes * row_bytes]
    body = struct.pack("<8sHHI", magic, version, row_bytes, len(text)) + text + rows
    return body + hashlib.sha256(body).digest()


def table_decoder(name, module, row_bytes, samples, decode):
    def run(data):
        sealed = sealed_table(module.MAGIC, module.VERSION, row_bytes, data)
        found = decode(sealed)
        if hasattr(found, "encode"):
            assert decode(found.encode()) == found

    return Decoder(name, lambda: [opened_table(s) for s in samples()], run)


def _traces():
    touches = tuple(trace.Touch(n * 8192, n * 8192 + 4096, n * 10) for n in range(20))
    one = trace.Trace("sqfs1-a", 1 << 30, "run", 5, "node", trace.COMPLETE, touches)
    return [one, replace(one, kind=trace.MISSED, touches=(), run="other")]


def _hot_sets():
    return [hotset.merge("sqfs1-a", _traces())]


def image_manifest():
    return manifest_of(random.Random(1).randbytes(20_000))


def _pack():
    made = image_manifest()
    digest = image.image_digest(made.encode())
    return pack.HotPack(digest, "sqfs1-test", 4096, MIB, 3 * 4096, (0, 2, 1))


def _decode_pack(data):
    found = pack.decode(data, "pack")
    with suppress(Corrupt):
        pack.check_fits(
            found, image_manifest(), image.image_digest(image_manifest().encode()), "pack"
        )
    if found.parts < 1000:
        [found.part_range(i) for i in range(found.parts)]
    return found


def _decode_image(data):
    found = image.decode(data, "image", image.image_digest(data))
    [found.block_range(i) for i in range(found.blocks)]
    found.matches(0, b"")
    # Digests are compared as bytes: a decoded one refers to its file.
    return replace(found, digests=bytes(found.digests))


def _layout():
    units = tuple(stripe_manifest.UnitPlace(n % 3, n // 3 * 4096, n << 70 | n) for n in range(9))
    return stripe_manifest.StripeManifest(9 * 4096 - 5, 4096, "0123456789abcdef" * 2, 3, units)


def _decode_stripe(data):
    """Repair the digest in its header, and decode it."""
    header, rows = table.open_table(
        stripe_manifest.MAGIC, stripe_manifest.VERSION, 26, data, "stripe"
    )
    with suppress(Exception):
        units = [
            stripe_manifest.UnitPlace(p, o, a | b << 64)
            for p, o, a, b in struct.iter_unpack("<HQQQ", rows)
        ]
        there = stripe_manifest.StripeManifest(
            header["size_bytes"], header["unit_bytes"], "", 0, tuple(units)
        )
        header["digest"] = there.digest
        data = table.close_table(
            stripe_manifest.MAGIC, stripe_manifest.VERSION, header, 26, bytes(rows)
        )
    found = stripe_manifest.decode(data, "stripe")
    found.part_bytes()
    return found


TABLES = [
    table_decoder("trace", trace, 20, lambda: [t.encode() for t in _traces()],
                  lambda data: trace.decode(data, "trace")),
    table_decoder("hotset", hotset, 24, lambda: [t.encode() for t in _hot_sets()],
                  lambda data: hotset.decode(data, "hotset")),
    table_decoder("pack", pack, 4, lambda: [_pack().encode()], _decode_pack),
    table_decoder("image", image, 32, lambda: [image_manifest().encode()], _decode_image),
    table_decoder("stripe", stripe_manifest, 26, lambda: [_layout().encode()], _decode_stripe),
]  # fmt: skip


# The index of a snapshot: numbers of inodes, entries and blocks, and bytes of what is deleted.

_COUNTS = struct.Struct("<4H")
FOLDER = TreeNode("folder", 0o755, 0, 0, mtime_ns=7)


def _file(size_bytes, **more):
    return TreeNode("file", 0o644, 0, 0, size_bytes=size_bytes, digest=bytes(32), **more)


def index_seeds():
    tree = {
        b"": FOLDER,
        b"0": FOLDER,
        b"0/a": _file(BLOCK_BYTES + 1, xattrs=((b"user.key", b"value"), (b"user.b", b""))),
        b"0/b": FOLDER,
        b"0/b/c": _file(3),
        b"0/b/d": FOLDER,
        b"0/e": FOLDER._replace(mode=0o1777),
        b"0/l": TreeNode("link", 0o777, 0, 0, target=b"b/c"),
        b"0/n": _file(3, same_as=b"0/b/c"),
        b"1": FOLDER,
    }
    places = {
        b"0/a": index.ContentPlace(96, (100, 20)),
        b"0/b/c": index.ContentPlace(500, (3,)),
    }
    seeds = []
    for one, gone in ((tree, [b"0/x", b"0/y/z"]), ({b"": FOLDER}, [])):
        used = {path: place for path, place in places.items() if path in one}
        encoded = index.encode(one, used, gone)
        rows, left = index._sections(encoded, "")
        counts = _COUNTS.pack(*rows.counts[:3], len(left))
        seeds.append(b"".join([counts, *rows, left]))
    return seeds


def sealed_index(data: bytes) -> bytes:
    counts = _COUNTS.unpack(data[: _COUNTS.size].ljust(_COUNTS.size, b"\0"))
    rest = data[_COUNTS.size :]
    header, at = {}, 0
    for name, count, unit in zip(
        ("inodes", "entries", "blocks"), counts, (80, 12, 4), strict=False
    ):
        header[name] = min(count, (len(rest) - at) // unit)
        at += header[name] * unit
    left = rest[at:]
    header["deleted"] = min(counts[3], len(left))
    gone = left[len(left) - header["deleted"] :]
    strings = left[: len(left) - header["deleted"]]
    header["strings"] = len(strings)
    padded = [part + bytes(-len(part) % 4) for part in (strings, gone)]
    rows = rest[:at] + b"".join(padded)
    return table.close_table(index.MAGIC, index.VERSION, header, 4, rows)


def run_index(data):
    sealed = sealed_index(data)
    accepted = []
    with suppress(Corrupt):
        TreeTable(index.open_rows(sealed, "index"), 1 << 62, 1, 1)
        accepted.append("mount")
    try:
        with patch.object(index, "leads_out", return_value=False):
            found = index.decode(sealed, "index")
    except Corrupt as error:
        assert not accepted or "cannot be deleted" in str(error) or "deleted paths" in str(error)
        raise
    assert accepted, "decoded, and not mounted"
    outside = [path for path, node in found.tree.items() if node.kind == "link"]
    again = index.decode(index.encode(found.tree, found.places, found.deleted), "", outside)
    assert (again.tree, again.places) == (found.tree, found.places)
    assert again.deleted == tuple(sorted(found.deleted))
    if all(node.size_bytes < MIB for node in found.tree.values()):
        chunks = split(found, MIB)
        files = found.places.keys()
        content_bytes = sum(found.tree[path].size_bytes for path in files)
        assert sum(chunk.size_bytes for chunk in chunks) == content_bytes


TABLES.append(Decoder("index", index_seeds, run_index))
