"""What is made of a configuration, and of answers that no NameNode would give."""

from __future__ import annotations

import json
import os
import pwd
import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bootseer.errors import BootseerError, Denied, NotFound, Unavailable
from bootseer.store.api.base import BlockLocation, StoreSpace
from bootseer.store.hdfs import webhdfs

HA = {
    "dfs.ha.namenodes.pair": "a, b",
    "dfs.namenode.rpc-address.pair.a": "one:8020",
    "dfs.namenode.rpc-address.pair.b": "two:8020",
}
PAIR_B = "dfs.namenode.http-address.pair.b"
ANY = "dfs.namenode.http-address"


@pytest.mark.parametrize(
    ("authority", "settings", "addresses"),
    [
        ("host:8020", {}, [("host", 9870)]),
        ("host", {}, [("host", 9870)]),
        ("[fe80::1]:8020", {}, [("fe80::1", 9870)]),
        ("host:8020", {ANY: "0.0.0.0:50070"}, [("host", 50070)]),
        ("host:8020", {ANY: "host:50070"}, [("host", 50070)]),
        ("host:8020", {ANY: "another:50070"}, [("host", 9870)]),
        ("pair", HA, [("one", 9870), ("two", 9870)]),
        ("pair", HA | {PAIR_B: "web:1"}, [("one", 9870), ("web", 1)]),
        ("pair", HA | {PAIR_B: "0.0.0.0:1"}, [("one", 9870), ("two", 1)]),
        ("pair", {"dfs.ha.namenodes.pair": "a"}, []),
        ("ns", {"dfs.namenode.rpc-address.ns": "one:8020"}, [("one", 9870)]),
        ("[fe80::1]", {}, [("fe80::1", 9870)]),
    ],
)
def test_finds_the_namenodes(
    authority: str, settings: dict[str, str], addresses: list[tuple[str, int]]
) -> None:
    assert webhdfs.http_addresses(authority, settings) == addresses


def test_reads_a_configuration(tmp_path: Path) -> None:
    assert webhdfs.read_settings("") == {}
    assert webhdfs.read_settings(str(tmp_path)) == {}
    site = tmp_path / "hdfs-site.xml"
    site.write_text(
        "<configuration><property><name> a </name><value>1</value><final>true</final></property>"
        "<property><name>b</name></property></configuration>"
    )
    assert webhdfs.read_settings(str(tmp_path)) == {"a": "1", "b": ""}
    site.write_text("<configuration>")
    with pytest.raises(Unavailable, match=r"hdfs-site\.xml"):
        webhdfs.read_settings(str(tmp_path))
    site.unlink()
    site.mkdir()
    with pytest.raises(Unavailable, match=r"cannot read .*hdfs-site\.xml"):
        webhdfs.read_settings(str(tmp_path))


class Server:
    """Answers every request with what a test has set."""

    def __init__(self) -> None:
        self.status = 200
        self.answer = b""
        self.asked: list[str] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append(self.path)
                self.send_response(owner.status)
                self.send_header("Location", self.path)
                self.end_headers()
                self.wfile.write(owner.answer)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = ("127.0.0.1", self.http.server_port)

    def says(self, document: object, status: int = 200) -> None:
        self.status = status
        self.answer = json.dumps(document).encode()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


def located(*blocks: object) -> object:
    return {"BlockLocations": {"BlockLocation": list(blocks)}}


def block(offset: object = 0, length: object = 1, hosts: object = ("a",)) -> object:
    return {"offset": offset, "length": length, "hosts": hosts}


def test_what_a_namenode_says_is_understood(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "some&body")
    server.says(located(block(0, 5, ["a", "b"]), block(5, 2, [])))
    assert webhdfs.block_locations([server.address], "/with space?") == [
        BlockLocation(0, 5, ("a", "b")),
        BlockLocation(5, 2, ()),
    ]
    assert server.asked == [
        "/webhdfs/v1/with%20space%3F?op=GETFILEBLOCKLOCATIONS&user.name=some%26body"
    ]


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"BlockLocations": None},
        {"BlockLocations": {"BlockLocation": {}}},
        located(None),
        located({}),
        located(block(offset=-1)),
        located(block(offset=1)),
        located(block(length=1.5)),
        located(block(length=True)),
        located(block(length="1")),
        located(block(length=1 << 63)),
        located(block(0, 2), block(1, 2)),
        located(block(0, 2), block(3, 2)),
        located(block(hosts="a")),
        located(block(hosts=[1])),
        located(block(hosts=[""])),
        located(block(hosts=["a\x1b[31m"])),
        located(block(hosts=["a" * 256])),
        located(block(hosts=["a"] * 65)),
        located(*[block(0, 0)] * (webhdfs.MAX_BLOCKS + 1)),
    ],
)
def test_answers_that_make_no_sense(server: Server, document: object) -> None:
    server.says(document)
    with pytest.raises(Unavailable, match="make no sense"):
        webhdfs.block_locations([server.address], "/object")


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[" * 100_000, b"\xff", b"9" * 5000, b" " * 5000]
)
def test_answers_that_are_no_json(server: Server, answer: bytes) -> None:
    server.answer = answer
    with pytest.raises(Unavailable, match="cannot ask http://127"):
        webhdfs.block_locations([server.address], "/object")


def test_the_most_that_makes_sense(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhdfs, "MAX_BLOCKS", 3)
    longest = (1 << 63) - 1
    hosts = ["h" * 255] * webhdfs.MAX_HOSTS
    server.says(located(block(0, 0), block(0, 0, []), block(0, longest, hosts)))
    monkeypatch.setattr(webhdfs, "MAX_ANSWER_BYTES", len(server.answer))
    assert webhdfs.block_locations([server.address], "/object")[2] == BlockLocation(
        0, longest, tuple(hosts)
    )
    monkeypatch.setattr(webhdfs, "MAX_ANSWER_BYTES", len(server.answer) - 1)
    with pytest.raises(Unavailable, match="too long"):
        webhdfs.block_locations([server.address], "/object")


def test_an_answer_that_comes_too_slowly(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.says(located())
    for last_s, is_late in ((webhdfs.DEADLINE_S, False), (webhdfs.DEADLINE_S + 0.01, True)):
        times = chain([0], repeat(last_s))
        monkeypatch.setattr(webhdfs, "time", SimpleNamespace(monotonic=partial(next, times)))
        if is_late:
            with pytest.raises(Unavailable, match="takes too long"):
                webhdfs.block_locations([server.address], "/object")
        else:
            assert webhdfs.block_locations([server.address], "/object") == []


def test_whoever_runs_the_process_asks(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    server.says(located())
    webhdfs.block_locations([server.address], "/object")
    name = pwd.getpwuid(os.geteuid()).pw_name
    assert server.asked[0].endswith(f"&user.name={name}")
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)
    with pytest.raises(Unavailable, match="uid 4000000000 has no name"):
        webhdfs.block_locations([server.address], "/object")


def test_an_answer_without_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhdfs, "MAX_ANSWER_BYTES", 100_000)
    server.answer = b" " * 1_000_000
    with pytest.raises(Unavailable, match="too long"):
        webhdfs.block_locations([server.address], "/object")


@pytest.mark.parametrize(
    ("status", "document", "error"),
    [
        (404, {"exception": "FileNotFoundException", "message": "File does not exist"}, NotFound),
        (403, {"exception": "AccessControlException", "message": "no\n\tat java"}, Denied),
        (
            403,
            {"exception": "AccessControlException", "message": "/a (is not a directory)"},
            NotFound,
        ),
        (403, {"exception": "StandbyException", "message": "on standby"}, Unavailable),
        (400, {"exception": "IllegalArgumentException", "message": "op"}, Unavailable),
        (500, {"exception": 1, "message": None}, Unavailable),
        (500, "text", Unavailable),
        (401, {}, Unavailable),
        (307, {}, Unavailable),
    ],
)
def test_refusals(
    server: Server, status: int, document: object, error: type[BootseerError]
) -> None:
    server.says({"RemoteException": document}, status)
    with pytest.raises(error) as raised:
        webhdfs.block_locations([server.address], "/object")
    assert type(raised.value) is error
    assert str(raised.value).isprintable()


def test_the_next_namenode_is_asked(server: Server) -> None:
    server.says({"FsStatus": {"capacity": 10, "used": 1, "remaining": 9}})
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert webhdfs.space([closed.getsockname(), server.address]) == StoreSpace(10, 9)
        with pytest.raises(Unavailable, match="refused"):
            webhdfs.space([closed.getsockname()])
    with pytest.raises(Unavailable, match="configured"):
        webhdfs.space([])


def test_a_namenode_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhdfs, "DEADLINE_S", 0.1)
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.raises(Unavailable, match="timed out"):
        webhdfs.space([silent.getsockname()])


@pytest.mark.parametrize("status", [None, {}, {"capacity": 1}, {"capacity": -1, "remaining": 0}])
def test_space_that_makes_no_sense(server: Server, status: object) -> None:
    server.says({"FsStatus": status})
    with pytest.raises(Unavailable, match="makes no sense"):
        webhdfs.space([server.address])
