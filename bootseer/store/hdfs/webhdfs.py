"""What a NameNode tells over HTTP alone: where blocks are, and how much room there is.

The library for HDFS has no calls for these. Nothing here is needed to read or write: the caller
continues without it where there is no WebHDFS, or only one that wants Kerberos.
"""

from __future__ import annotations

import http.client
import json
import os
import pwd
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

from bootseer.errors import BootseerError, Denied, NotFound, Unavailable
from bootseer.store.api.base import BlockLocation, StoreSpace

HTTP_PORT = 9870
"""Of a NameNode, where its configuration names no other."""

DEADLINE_S = 3.0
"""For one NameNode to answer in full."""

MAX_ANSWER_BYTES = 32 << 20
MAX_BLOCKS = 100_000
"""Of one file: 12 TB of the usual 128 MiB."""

MAX_HOSTS = 64
"""Of one block: more than any erasure code has."""

_MAX_HOST_CHARS = 255
_PIECE_BYTES = 1 << 16
_TEXT_LENGTH = 300
_ANYWHERE = ("", "0.0.0.0", "::")


def read_settings(conf_dir: str) -> dict[str, str]:
    """Return the settings of a Hadoop configuration's hdfs-site.xml; none if there is no such file.

    Raises:
        Unavailable: it is not to be read.
    """
    path = Path(conf_dir or "/nonexistent", "hdfs-site.xml")
    try:
        found = ElementTree.parse(path).getroot().iter("property")
    except FileNotFoundError:
        return {}
    except (OSError, ElementTree.ParseError) as error:
        raise Unavailable(f"cannot read {path}: {error}") from error
    return {item.findtext("name", "").strip(): item.findtext("value", "").strip() for item in found}


def http_addresses(authority: str, settings: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return where the NameNodes of a file system answer, in the order to try them.

    Args:
        authority: ``HOST:PORT`` of a NameNode, or a nameservice.
        settings: of hdfs-site.xml.
    """
    key = "dfs.namenode.http-address"
    if nodes := settings.get(f"dfs.ha.namenodes.{authority}"):
        suffixes = [f".{authority}.{node.strip()}" for node in nodes.split(",")]
    elif f"dfs.namenode.rpc-address.{authority}" in settings:
        suffixes = [f".{authority}"]
    else:
        host, _ = _split(authority)
        named, port = _split(settings.get(key, ""))
        return [(host, port if named in (*_ANYWHERE, host) else HTTP_PORT)]
    addresses = []
    for suffix in suffixes:
        rpc_host, _ = _split(settings.get(f"dfs.namenode.rpc-address{suffix}", ""))
        host, port = _split(settings.get(key + suffix, ""))
        addresses.append((rpc_host if host in _ANYWHERE else host, port))
    return [address for address in addresses if address[0] not in _ANYWHERE]


def block_locations(addresses: Sequence[tuple[str, int]], path: str) -> list[BlockLocation]:
    """Ask where the blocks of a file are.

    Args:
        addresses: what `http_addresses` returned.
        path: in the file system.

    Raises:
        NotFound: there is no such file.
        Denied: this user may not know.
        Unavailable: no NameNode gave an answer that makes sense.
    """
    return _blocks(_ask(addresses, path, "GETFILEBLOCKLOCATIONS"), path)


def space(addresses: Sequence[tuple[str, int]]) -> StoreSpace:
    """Ask how much room the whole file system has.

    Raises:
        BootseerError: as for `block_locations`; NameNodes before Hadoop 3.4 do not know.
    """
    answer = _ask(addresses, "/", "GETSTATUS")
    try:
        status = answer["FsStatus"]
        return StoreSpace(_natural(status["capacity"]), _natural(status["remaining"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"a NameNode's answer to GETSTATUS makes no sense: {error!r}") from error


def _ask(addresses: Sequence[tuple[str, int]], path: str, operation: str) -> Any:
    problem = Unavailable("no NameNode's HTTP address is configured")
    for host, port in addresses:
        try:
            return _ask_one(host, port, path, operation)
        except Unavailable as error:  # on standby, or gone: another one may know
            problem = error
    raise problem


def _ask_one(host: str, port: int, path: str, operation: str) -> Any:
    where = f"cannot ask http://{host}:{port} for {operation} of {path!r}"
    query = urlencode({"op": operation, "user.name": _user()})
    try:
        status, content = _get(host, port, f"/webhdfs/v1{quote(path)}?{query}")
        if status == http.client.UNAUTHORIZED:
            raise Unavailable(f"{where}: it wants Kerberos, which is not for HTTP here")
        answer = json.loads(content)
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise Unavailable(f"{where}: {error}") from error
    if status != http.client.OK:
        raise _refusal(where, answer)
    return answer


def _get(host: str, port: int, target: str) -> tuple[int, bytes]:
    until = time.monotonic() + DEADLINE_S
    content = bytearray()
    with closing(http.client.HTTPConnection(host, port, timeout=DEADLINE_S)) as connection:
        connection.request("GET", target)
        with connection.getresponse() as response:
            while piece := response.read1(_PIECE_BYTES):
                content += piece
                if len(content) > MAX_ANSWER_BYTES or time.monotonic() > until:
                    raise ValueError("the answer is too long, or takes too long")
            return response.status, bytes(content)


def _refusal(where: str, answer: Any) -> BootseerError:
    try:
        kind = str(answer["RemoteException"]["exception"])
        text = str(answer["RemoteException"]["message"])
    except (KeyError, TypeError):
        return Unavailable(f"{where}: refused, without a reason")
    meaning: type[BootseerError] = Unavailable
    if kind == "FileNotFoundException" or "(is not a directory)" in text:
        meaning = NotFound
    elif kind == "AccessControlException":
        meaning = Denied
    return meaning(f"{where}: {' '.join(text.split())[:_TEXT_LENGTH]}")


def _blocks(answer: Any, path: str) -> list[BlockLocation]:
    try:
        items = answer["BlockLocations"]["BlockLocation"]
        if not isinstance(items, list) or len(items) > MAX_BLOCKS:
            raise ValueError("no list of blocks, or too long a one")
        blocks = [_block(item) for item in items]
        stop = 0
        for block in blocks:
            if block.offset != stop:
                raise ValueError("blocks that do not follow one another")
            stop += block.size_bytes
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"a NameNode's blocks of {path!r} make no sense: {error!r}") from error
    return blocks


def _block(item: Any) -> BlockLocation:
    hosts = item["hosts"]
    if not isinstance(hosts, list) or len(hosts) > MAX_HOSTS:
        raise ValueError("no list of hosts, or too long a one")
    for host in hosts:
        if not isinstance(host, str) or not 0 < len(host) <= _MAX_HOST_CHARS:
            raise ValueError("a host without a name, or with too long a one")
        if not host.isprintable():
            raise ValueError(f"a host of the name {host!r}")
    return BlockLocation(_natural(item["offset"]), _natural(item["length"]), tuple(hosts))


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{str(value)[:50]!r} is no number of bytes")
    return value


def _user() -> str:
    """Return whom the library for HDFS says that this process is."""
    try:
        return os.environ.get("HADOOP_USER_NAME") or pwd.getpwuid(os.geteuid()).pw_name
    except KeyError as error:
        raise Unavailable(f"uid {os.geteuid()} has no name to go by") from error


def _split(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT``, where the port may be missing and IPv6 stands in brackets."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        host, port = address, str(HTTP_PORT)
    return host.strip("[]"), int(port)
