"""What nodes of a job say to each other: proofs that both know the job's secret, then requests.

    server:  MAGIC, nonce
    client:  nonce, proof of the secret
    server:  proof of the secret
    client:  request, name, with EVENTS the events; again and again
    server:  for each request: any number of WAIT, then DATA and its bytes, or FAILED

A stranger learns nothing but random numbers: either side proves that it knows the secret before it
is told anything. Data are sent in the clear, as stores send them; whoever reads them checks them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from enum import IntEnum
from typing import NamedTuple

from bootseer.errors import Corrupt
from bootseer.store.api.base import ObjectInfo
from bootseer.units import MIB

MAGIC = b"bootseer peers 1"
NONCE_BYTES = 16
PROOF_BYTES = hashlib.sha256().digest_size
PIECE_BYTES = MIB
"""Has a home; no request goes beyond the end of a piece."""
MAX_NAME_BYTES = 1024
MAX_INFO_BYTES = 4096
IS_SHARED = b"\1"
"""Answers SHARED; `IS_OWN` does so, too."""
IS_OWN = b"\0"

_REQUEST = struct.Struct("!BBHIQ")
REQUEST_BYTES = _REQUEST.size
_SERVER = struct.Struct("!IH")
_ANSWER = struct.Struct("!BxxxI")
ANSWER_BYTES = _ANSWER.size


class Kind(IntEnum):
    """What a request asks for.

    DESCRIBE is for the object's `ObjectInfo`, READ for bytes. READ_STORE is a home's request: who
    gets it reads the store, and asks nobody else. OBJECT is for all of a small object, or that
    there is none, see `bootseer.peers.whole_object`. SHARED asks whether another node has asked the
    same of this name; its offset is the index of the node that asks.

    EVENTS gives what is to be stored in a pack, and waits until it is. A node's own publisher asks
    for all that was given with TAKE_EVENTS, and says that it is in the store with EVENTS_STORED.
    """

    DESCRIBE = 1
    READ = 2
    READ_STORE = 3
    OBJECT = 4
    SHARED = 5
    EVENTS = 6
    TAKE_EVENTS = 7
    EVENTS_STORED = 8


_KINDS = frozenset(Kind)


class Status(IntEnum):
    """What begins an answer."""

    WAIT = 0
    DATA = 1
    FAILED = 2


class PeerRequest(NamedTuple):
    """A request for an object, or a part of one.

    Attributes:
        kind: what it asks for.
        store: number of the store among the job's.
        name: of the object; of EVENTS, of the node.
        offset, size_bytes: the range, within one piece; 0 and 0 where it is no part of an object.
            Of EVENTS, the size is that of `content`; see `Kind` for SHARED.
        content: follows EVENTS.
    """

    kind: Kind
    store: int
    name: str
    offset: int = 0
    size_bytes: int = 0
    content: bytes = b""

    @property
    def piece(self) -> int:
        """The number of the piece."""
        return self.offset // PIECE_BYTES

    def encode(self) -> bytes:
        name = self.name.encode()
        header = _REQUEST.pack(self.kind, self.store, len(name), self.size_bytes, self.offset)
        return header + name + self.content


def decode_request(header: bytes) -> tuple[PeerRequest, int]:
    """Return a request without its name and content, and the length of the name in bytes.

    Raises:
        Corrupt: it is no request.
    """
    kind, store, name_bytes, size_bytes, offset = _REQUEST.unpack(header)
    if kind not in _KINDS or not 0 < name_bytes <= MAX_NAME_BYTES:
        raise Corrupt("this is no request of a peer")
    if size_bytes > PIECE_BYTES - offset % PIECE_BYTES:
        raise Corrupt("a peer asks for more than a piece")
    return PeerRequest(Kind(kind), store, "", offset, size_bytes), name_bytes


def encode_answer(status: Status, size_bytes: int = 0) -> bytes:
    """Return what begins an answer with so many bytes."""
    return _ANSWER.pack(status, size_bytes)


def decode_answer(header: bytes, most_bytes: int) -> tuple[Status, int]:
    """Return what an answer begins with, and how many bytes follow.

    Args:
        header: of `ANSWER_BYTES` bytes.
        most_bytes: that may follow.

    Raises:
        Corrupt: it is no answer to that request.
    """
    status, size_bytes = _ANSWER.unpack(header)
    if status > Status.FAILED or size_bytes > (most_bytes if status == Status.DATA else 0):
        raise Corrupt("this is no answer of a peer")
    return Status(status), size_bytes


def encode_info(info: ObjectInfo) -> bytes:
    """Return the bytes of an answer to DESCRIBE."""
    return json.dumps([info.size_bytes, info.mtime_ns, info.version]).encode()


def decode_info(data: bytes, name: str) -> ObjectInfo:
    """Return what a peer says of an object.

    Raises:
        Corrupt: it says something else.
    """
    try:
        size_bytes, mtime_ns, version = json.loads(data)
    except (ValueError, TypeError, RecursionError) as error:
        raise Corrupt("a peer does not describe the object") from error
    if not (
        type(size_bytes) is int
        and type(mtime_ns) is int
        and type(version) is str
        and 0 <= size_bytes < 1 << 63
    ):
        raise Corrupt("a peer does not describe the object")
    return ObjectInfo(name, size_bytes, mtime_ns, version=version)


class Proofs:
    """What only those who know a job's secret can say on one connection.

    They say which server is meant, too: who listens at one node's port cannot hand on what is said
    to another node's server, or to this node's at another port.

    Attributes:
        client, server: each side's proof, `PROOF_BYTES` bytes.
    """

    def __init__(
        self, secret: bytes, node: int, port: int, server_nonce: bytes, client_nonce: bytes
    ) -> None:
        """Compute both.

        Args:
            secret: of the job.
            node, port: of the server: its index in the job, and where it listens.
            server_nonce, client_nonce: of this connection.
        """
        said = _SERVER.pack(node, port) + server_nonce + client_nonce
        self.client = hmac.digest(secret, b"client" + said, "sha256")
        self.server = hmac.digest(secret, b"server" + said, "sha256")
