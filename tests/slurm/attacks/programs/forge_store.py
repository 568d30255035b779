"""Fill one's own store with things that are well-formed and meant to harm: `forge_store.py CASE…`.

All is written with the project's own encoders, so that every checksum is right.
"""

import json
import os
import random
import struct
import sys
import time
from pathlib import Path

from blake3 import blake3

from bootseer.core import image_manifest
from bootseer.core.image_manifest import ImageManifest
from bootseer.core.warm_plan import PlannedImage, WarmPlan, object_name
from bootseer.image.hot.hotset import HotRange, HotSet
from bootseer.image.identity import identify, open_image
from bootseer.image.library import catalog

STORE = Path(os.environ.get("STORE", Path.home() / ".bootseer"))


def put(name, data):
    path = STORE / name
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    path.write_bytes(data)


def give_name(name, digest, size_bytes):
    document = {"format": "bootseer image name", "version": 1, "name": name, "digest": digest}
    document |= {"size_bytes": size_bytes, "named_ns": time.time_ns()}
    put(catalog.name_object(name), json.dumps(document).encode())


def manifest(number, blocks, block_bytes=4096, leading=()):
    """A manifest of so many blocks; there are objects for them, which take up no room."""
    random.seed(number)
    digests = random.randbytes(32) * blocks if blocks > 1000 else random.randbytes(32 * blocks)
    size_bytes = blocks * block_bytes
    data = ImageManifest(
        size_bytes,
        block_bytes,
        image_manifest.PART_BYTES,
        "0" * 64,
        f"forged-{number}",
        leading,
        digests,
    ).encode()
    digest = image_manifest.image_digest(data)
    put(catalog.manifest_object(digest), data)
    for part in range(-(-size_bytes // image_manifest.PART_BYTES)):
        put(catalog.part_object(digest, part), b"")
        length = min(image_manifest.PART_BYTES, size_bytes - part * image_manifest.PART_BYTES)
        os.truncate(STORE / catalog.part_object(digest, part), length)
    give_name(f"m{number}", digest, size_bytes)


def manifests(count, blocks):
    """Many images with long manifests, and zeros that are not what they say."""
    for number in range(int(count)):
        manifest(number, int(blocks))


def full_images(count, size_bytes):
    """Many images whose bytes are all there and right, but are no squashfs."""
    for number in range(int(count)):
        random.seed(1000 + number)
        data = random.randbytes(int(size_bytes))
        block = image_manifest.BLOCK_BYTES
        pieces = [data[at : at + block] for at in range(0, len(data), block)]
        encoded = ImageManifest(
            *(len(data), block, image_manifest.PART_BYTES, "0" * 64, f"full-{number}", ()),
            b"".join(blake3(piece).digest() for piece in pieces),
        ).encode()
        digest = image_manifest.image_digest(encoded)
        for at in range(0, len(data), image_manifest.PART_BYTES):
            put(
                catalog.part_object(digest, at // image_manifest.PART_BYTES),
                data[at : at + image_manifest.PART_BYTES],
            )
        put(catalog.manifest_object(digest), encoded)
        give_name(f"m{number}", digest, len(data))


def hot_set(path, count, *odd):
    """A hot set of very many ranges of an image."""
    digest = identify(open_image(path)).digest
    ranges = tuple(HotRange(i * 8192, i * 8192 + 1, i % 1000, 10**6) for i in range(int(count)))
    put(f"hot/{digest}.hotset", HotSet(digest, 1 << 45, ("x",) * 900, ranges).encode())


def plan(key, count):
    """A warm plan of very many images."""
    one = PlannedImage("/mnt/share/tiny.sqsh", "x" * 64, 1, 1)
    put(object_name(key), WarmPlan("mallory", key, (one,) * int(count), ()).encode())


def flip(pattern, seed, bits):
    """Other bits in each object that fits a pattern; checksums of tables are made right."""
    generator = random.Random(int(seed))
    for path in sorted(filter(Path.is_file, STORE.glob(pattern))):
        data = bytearray(path.read_bytes())
        for _ in range(int(bits) if data else 0):
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        if data[:2] == b"BS" and len(data) > 64:
            import hashlib

            data[:8] = path.read_bytes()[:8]
            body = bytes(data[:-32])
            data = body + hashlib.sha256(body).digest()
        path.write_bytes(data)


def squashfs(kind, path):
    """A squashfs whose superblock promises what cannot be."""
    good = bytearray(Path("/mnt/share/tiny.sqsh").read_bytes())
    fields = list(struct.unpack_from("<5I6H8Q", good))
    changes = {
        "inodes": {1: 0xFFFFFFFF},
        "blocks": {3: 0, 6: 0},
        "huge blocks": {3: 1 << 31, 6: 31},
        "fragments": {4: 0xFFFFFFFF},
        "ids": {8: 0xFFFF},
        "no tables": dict.fromkeys(range(13, 19), 18446744073709551615),
        "tables at the end": {n: len(good) - 1 for n in range(13, 19)},
        "tables in order backwards": {n: fields[31 - n] for n in range(13, 19)},
        "long": {12: 2**63},
        "root": {11: 2**64 - 1},
        "codec": {5: 77},
    }
    if kind == "noise":
        noise = random.Random(7).randbytes(len(good) // 2)
        good[96 : 96 + len(noise)] = noise
    elif kind == "half":
        del good[len(good) // 2 :]
    else:
        for at, value in changes[kind].items():
            fields[at] = value
        struct.pack_into("<5I6H8Q", good, 0, *fields)
    Path(path).write_bytes(good)


globals()[sys.argv[1]](*sys.argv[2:])
