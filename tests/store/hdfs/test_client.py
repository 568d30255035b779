"""How the library for HDFS is called."""

from __future__ import annotations

import threading
from pathlib import PurePosixPath
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from bootseer.errors import Transient
from bootseer.store.hdfs import client
from bootseer.store.hdfs.client import HdfsCalls
from bootseer.store.hdfs.options import HdfsOptions
from bootseer.store.hdfs.store import HdfsStore

URL = "hdfs://namenode:8020/root"


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What clients were made of."""
    made: list[tuple[Any, Any]] = []

    class Client:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            made.append((args, kwargs))

    monkeypatch.setattr(client, "Client", Client)
    return made


def calls(options: HdfsOptions | None = None) -> HdfsCalls:
    threads = trio.CapacityLimiter(1)
    return HdfsCalls("hdfs://namenode:8020", URL, options or HdfsOptions(), threads)


def test_a_client_is_made_at_the_first_use_and_once(clients: list[tuple[Any, Any]]) -> None:
    HdfsStore("namenode:8020", PurePosixPath("/root"))
    asked = calls()
    assert clients == []
    assert asked.client() is asked.client()
    assert len(clients) == 1


def test_a_client_goes_by_the_options(clients: list[tuple[Any, Any]]) -> None:
    calls(HdfsOptions("/conf", "FILE:/tmp/krb5cc_1", "ada")).client()
    calls().client()
    with_all, with_none = clients
    assert with_all == (
        ("hdfs://namenode:8020", client.DEADLINES),
        {
            "config_dir": "/conf",
            "kerberos_cache": "FILE:/tmp/krb5cc_1",
            "kerberos_principal": "ada",
        },
    )
    assert set(with_none[1].values()) == {None}


async def test_a_call_that_hangs_is_left_behind_and_takes_a_place() -> None:
    asked = calls()
    entered, release, left = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        release.wait(5)
        left.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(asked.run, "stat", "a", hang)
        await trio.to_thread.run_sync(entered.wait, 5)
        nursery.cancel_scope.cancel()
    assert not left.is_set()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked.run, "stat", "a", lambda: None)
            await wait_all_tasks_blocked()
            # What counts against threads of its own does not wait for it.
            await asked.run("write", "a", lambda: None, threads=trio.CapacityLimiter(1))
            scope.cancel()
    assert scope.cancelled_caught
    release.set()
    await asked.run("stat", "a", lambda: None)


async def test_errors_name_the_operation_and_the_object() -> None:
    def fail() -> None:
        raise RuntimeError("Connection reset")

    with pytest.raises(Transient, match=f"cannot stat 'a' in {URL}: Connection reset"):
        await calls().run("stat", "a", fail)
