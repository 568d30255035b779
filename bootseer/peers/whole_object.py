"""A small object as a store has it, or that it has none, as the nodes of a job hand it on.

digest of all that follows, and of where the object is
length of what the store says of the object, as 2 bytes; 0 if there is none
what it says, see `wire.encode_info`
the object's bytes
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from bootseer.errors import Corrupt, NotFound
from bootseer.peers import wire
from bootseer.store.api.base import ObjectInfo, Reader, Store, readable_bytes
from bootseer.units import MIB

MAX_BYTES = 4 * MIB
"""Larger objects are read from the store: one node would send all of it to all of its row."""
_INFO = struct.Struct("!H")
DIGEST_BYTES = 32
MAX_ANSWER_BYTES = DIGEST_BYTES + _INFO.size + wire.MAX_INFO_BYTES + MAX_BYTES


@dataclass(eq=False)
class WholeObject(Reader):
    """An object that is open for reading, and is in memory.

    Attributes:
        info: what the store says of it.
        data: all of its bytes.
    """

    info: ObjectInfo
    data: bytes

    async def pread(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + readable_bytes(offset, size, len(self.data))]


async def read_answer(store: Store, number: int, name: str) -> bytes:
    """Read an object as it is handed on; that it does not exist is an answer as well.

    Args:
        store: to read.
        number: of it among the job's stores.
        name: of the object.

    Raises:
        Corrupt: it is too large to be handed on.
        BootseerError: the store does not give it.
    """
    try:
        async with store.open(name) as reader:
            if reader.size_bytes > MAX_BYTES:
                raise Corrupt(f"{name!r} in {store.url} is not small")
            data = await reader.pread(0, reader.size_bytes)
            return encode(number, name, reader.info, data)
    except NotFound:
        return encode(number, name, None)


def encode(number: int, name: str, info: ObjectInfo | None, data: bytes = b"") -> bytes:
    """Return an answer.

    Args:
        number: of the store among the job's.
        name: of the object.
        info: what the store says of it, None if there is none.
        data: its bytes.
    """
    described = b"" if info is None else wire.encode_info(info)
    said = _INFO.pack(len(described)) + described + (b"" if info is None else data)
    return with_digest(number, name, said)


def with_digest(number: int, name: str, said: bytes) -> bytes:
    """Return what is said of an object with its digest before it; see `encode`."""
    return _digest(number, name, said) + said


def decode(answer: bytes, number: int, name: str) -> WholeObject:
    """Return the object that an answer has.

    Args:
        answer: see `read_answer`.
        number: of the store among the job's.
        name: of the object.

    Raises:
        NotFound: there is none.
        Corrupt: these are not the bytes that were read from the store.
    """
    said = answer[DIGEST_BYTES:]
    if len(said) < _INFO.size or _digest(number, name, said) != answer[:DIGEST_BYTES]:
        raise Corrupt(f"a peer does not give {name!r} as it has read it")
    (info_bytes,) = _INFO.unpack_from(said)
    if not info_bytes:
        raise NotFound(f"there is no {name!r}")
    data = said[_INFO.size + info_bytes :]
    info = wire.decode_info(said[_INFO.size : _INFO.size + info_bytes], name)
    if info.size_bytes != len(data):
        raise Corrupt(f"a peer does not give all of {name!r}")
    return WholeObject(info, data)


def _digest(number: int, name: str, said: bytes) -> bytes:
    found = hashlib.blake2b(f"{number} {name}\0".encode(), digest_size=DIGEST_BYTES)
    found.update(said)
    return found.digest()
