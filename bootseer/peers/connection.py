"""A connection to another node of a job: proofs of the secret, and receiving with a least rate."""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time
from collections.abc import Callable

from bootseer.errors import Corrupt
from bootseer.peers import wire

_CONNECT_S = 0.5
_SILENCE_S = 1.5
"""A peer that waits for the store says so more often."""
_LOOK_S = 0.5
_TIMEOUT = struct.Struct("@ll")


def connect(host: str, port: int, node: int, secret: bytes) -> socket.socket:
    """Connect, and exchange proofs of the secret.

    Args:
        host, port: where the node's server listens.
        node: index of the node in the job.
        secret: of the job.

    Raises:
        OSError: nobody answers.
        Corrupt: it is not a node of this job.
    """
    connection = socket.create_connection((host, port), _CONNECT_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        _set_timeout(connection, _LOOK_S)
        told = receive(connection, len(wire.MAGIC) + wire.NONCE_BYTES)
        if not told.startswith(wire.MAGIC):
            raise Corrupt(f"{host}:{port} is no node of this job")
        theirs, ours = told[len(wire.MAGIC) :], os.urandom(wire.NONCE_BYTES)
        proofs = wire.Proofs(secret, node, port, theirs, ours)
        connection.sendall(ours + proofs.client)
        proof = receive(connection, wire.PROOF_BYTES)
        if not hmac.compare_digest(proof, proofs.server):
            raise Corrupt(f"{host}:{port} is no node of this job")
    except BaseException:
        connection.close()
        raise
    return connection


def receive(
    connection: socket.socket, size_bytes: int, is_slow: Callable[[float], bool] = lambda rate: True
) -> bytes:
    """Receive so many bytes, without copying them unless they come slowly.

    Args:
        connection: whose calls end after `_LOOK_S`.
        size_bytes: to be received.
        is_slow: tells after a while whether a rate in bytes per second is too low.

    Raises:
        OSError: they do not come, or too slowly.
    """
    data, began_s = b"", time.monotonic()
    while len(data) < size_bytes:
        try:
            more = connection.recv(size_bytes - len(data), socket.MSG_WAITALL)
            if not more:
                raise ConnectionResetError("it has ended the connection")
            data = data + more if data else more
        except BlockingIOError:
            pass
        passed_s = time.monotonic() - began_s
        if len(data) < size_bytes and passed_s >= _SILENCE_S and is_slow(len(data) / passed_s):
            raise TimeoutError(f"{len(data)} of {size_bytes} bytes came within {passed_s:.1f} s")
    return data


def _set_timeout(connection: socket.socket, seconds: float) -> None:
    """Have the kernel end each call after a while; Python's timeouts cannot wait for all bytes."""
    value = _TIMEOUT.pack(int(seconds), int(seconds % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
