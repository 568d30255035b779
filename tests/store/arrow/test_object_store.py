"""The store by pyarrow's file systems, on an S3 server."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest
import trio
from pyarrow import fs

from bootseer.errors import ConfigError, Conflict, Denied, NotFound, Transient, Unavailable
from bootseer.store.api.base import Capabilities, ObjectInfo, publish, read_all
from bootseer.store.api.name import TEMPORARY_PREFIX
from bootseer.store.arrow import filesystem as arrowfs
from bootseer.store.arrow import object_store as arrow
from bootseer.store.arrow.bucket_calls import describe
from bootseer.store.arrow.errors import translate
from bootseer.store.arrow.object_store import ArrowStore
from bootseer.store.arrow.writer import TemporaryObject
from bootseer.store.from_url import open_store
from bootseer.store.wrappers.limit import LimitStore
from bootseer.testing.store_suite import StoreSuite

WRITE_AND_DIE = """
import os, sys, trio
from bootseer.store.from_url import open_store

async def main():
    async with open_store(sys.argv[1]).create("folder/object") as writer:
        await writer.write(bytes(int(sys.argv[2])))
        if sys.argv[3] == "exit":
            sys.exit(0)
        os.kill(os.getpid(), 9)

trio.run(main)
"""


@pytest.fixture(scope="module", autouse=True)
def server(s3_server):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "id")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "geheim")
        yield s3_server


class TestArrowStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def use(self, server):
        self.server = server

    def make_store(self, scratch):
        return open_store(self.server.url())


def everything(store):
    """All names in the bucket, whoever may see them."""
    filesystem, path = arrowfs.connect(store._bucket._whole_url)
    found = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    return [info.path for info in found if info.is_file]


def test_times_that_are_listed_are_those_of_an_object():
    """Some servers list milliseconds, and what they tell of an object has seconds, as HTTP has."""
    times = (1_672_628_645_123_000_000, 1_672_628_645_000_000_000)
    listed, told = (fs.FileInfo("name", fs.FileType.File, size=3, mtime_ns=ns) for ns in times)
    assert describe("name", listed) == describe("name", told)


async def test_a_prefix_is_a_root_of_its_own(server):
    url = server.url("/a/prefix")
    store = open_store(url)
    await publish(store, "folder/object", b"1")
    outer = open_store(url.replace("/a/prefix", ""))
    assert await read_all(outer, "a/prefix/folder/object", 1) == b"1"
    assert await outer.list("a/prefix") == [
        (await outer.stat("a/prefix/folder")),
    ]
    assert await read_all(open_store(store.url), "folder/object", 1) == b"1"


@pytest.mark.parametrize("end", ["kill", "exit"])
@pytest.mark.parametrize("size", [1, 12 << 20])
async def test_a_process_that_ends_leaves_nothing_visible(server, end, size):
    """pyarrow may complete the upload at the end, and does for a normal one."""
    store = open_store(server.url())
    argv = [sys.executable, "-P", "-c", WRITE_AND_DIE, store.url, str(size), end]
    await trio.run_process(argv, check=False)
    assert await store.list("folder") == []
    assert [info.name for info in await store.list()] == ["folder"]


async def test_what_is_left_of_an_upload_is_reaped(server, monkeypatch):
    store = open_store(server.url())
    name = f"{TEMPORARY_PREFIX}left"
    with store._bucket.filesystem().open_output_stream(store._bucket.path((name,))) as left:
        left.write(b"1")
    listing = await store.list()
    assert (listing, listing.unlisted) == ([], [])
    assert await store.reap_temporaries(3600) == 0
    [path] = everything(store)
    uploaded_ns = store._bucket.filesystem().get_file_info(path).mtime_ns
    clock = SimpleNamespace(time_ns=lambda: uploaded_ns + 5 * 10**9)
    monkeypatch.setattr(arrow, "time", clock)
    assert await store.reap_temporaries(5.001) == 0
    # Whatever folder it was for: it is in the root.
    assert await store.reap_temporaries(5, "folder") == 1
    assert everything(store) == []


async def test_names_that_cannot_be_used_are_told(server):
    store = open_store(server.url())
    await publish(store, "folder/object", b"1")
    with store._bucket.filesystem().open_output_stream(
        store._bucket.path(("folder", "a\tb"))
    ) as other:
        other.write(b"1")
    listing = await store.list("folder")
    assert [info.name for info in listing] == ["folder/object"]
    assert [one.name for one in listing.unlisted] == ["folder/a\tb"]
    assert "control character" in listing.unlisted[0].problem


async def test_nothing_is_left_of_a_commit_or_of_none(server):
    store = open_store(server.url())
    await publish(store, "committed", bytes(12 << 20))
    async with store.create("discarded") as writer:
        await writer.write(bytes(12 << 20))
    with trio.fail_after(60):  # a thread ends what took too long
        while [path.rpartition("/")[2] for path in everything(store)] != ["committed"]:
            await trio.sleep(0.05)


def test_an_upload_that_is_discarded_is_completed_before_it_is_deleted(tmp_path):
    """Or it would be when its stream goes."""
    path = str(tmp_path / "upload")
    upload = TemporaryObject(
        fs.LocalFileSystem(), path, fs.LocalFileSystem().open_output_stream(path)
    )
    upload.discard()
    assert upload.stream.closed
    assert not os.path.exists(path)


async def test_a_read_of_what_was_deleted_is_no_empty_one(server):
    store = open_store(server.url())
    await publish(store, "object", b"1")
    async with store.open("object") as reader:
        await store.delete("object")
        with pytest.raises(Conflict, match="deleted"):
            await reader.pread(0, 1)


async def test_what_is_replaced_while_it_is_opened_is_another_version(server, monkeypatch):
    """So the time is asked for again after that; but only if it matters."""
    store = open_store(server.url())
    await publish(store, "object", b"1")
    times_ns = [5 * 10**9, 6 * 10**9]
    told = [fs.FileInfo("object", fs.FileType.File, size=1, mtime_ns=ns) for ns in times_ns]
    monkeypatch.setattr(store._bucket, "find", lambda parts: told.pop(0))
    with pytest.raises(Conflict, match="replaced"):
        async with store.open("object", version=ObjectInfo("object", 1, times_ns[0])):
            pass
    told = [fs.FileInfo("object", fs.FileType.File, size=1, mtime_ns=times_ns[0])]
    async with store.open("object") as reader:
        assert await reader.pread(0, 1) == b"1"
    assert reader.file.closed


async def test_a_bucket_that_is_not_there(server):
    url = server.url().replace("bucket-", "nobucket-")
    with pytest.raises(Unavailable, match="no such bucket"):
        await publish(open_store(url), "object", b"1")


async def test_a_server_that_hangs_takes_no_longer_than_the_deadline(server):
    limit = trio.CapacityLimiter(1)
    store = LimitStore(open_store(server.url()), deadline_s=0.5, operations=limit)
    await publish(store, "object", b"1")
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(Transient, match=r"0\.5 s"):
            await store.stat("object")
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert await read_all(store, "object", 1) == b"1"


async def test_a_server_that_is_not_there():
    url = "s3://bucket?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
    with pytest.raises(Transient, match="stat 'object' in s3://"):
        await open_store(url).stat("object")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/a?region=r", "s3://bucket/a?region=r"),
        ("s3://key:geheim@bucket/a?region=r", "s3://bucket/a?region=r"),
        ("gs://token@bucket/a", "gs://bucket/a"),
        ("abfs://box@account.host/a", "abfs://box@account.host/a"),
        ("abfs://account:geheim@host/a", "abfs://account@host/a"),
        ("abfs://box@host/a?client_secret=geheim&tenant_id=t", "abfs://box@host/a?tenant_id=t"),
        ("s3://b?endpoint_override=h:1&secret_key=geheim", "s3://b?endpoint_override=h:1"),
    ],
)
def test_credentials_are_not_shown(url, shown):
    assert ArrowStore(url).url == shown


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:geheim@bucket/a?region=r&nosuch=1",
        "s3://bucket/a?allow_bucket_creation=geheim",
        "gs://bucket?nosuch=geheim",
        "abfss://box@account.host/a?client_secret=geheim",
    ],
)
async def test_options_that_are_none_are_refused_without_being_shown(url):
    with pytest.raises(ConfigError) as raised:
        await open_store(url).stat("object")
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize("url", ["gs://anonymous@bucket/a", "abfs://account:a2V5@host/box/a"])
def test_the_other_file_systems_are_pyarrows(url):
    filesystem, path = arrowfs.connect(url)
    assert isinstance(filesystem, (fs.GcsFileSystem, fs.AzureFileSystem))
    assert path.endswith("/a")


@pytest.mark.parametrize(("secret", "same"), [("ge/heim", True), ("ge%2Fheim", False)])
def test_the_credentials_of_the_url_are_the_ones_that_count(secret, same):
    filesystem, path = arrowfs.connect("s3://AKID:ge%2Fheim@bucket/%61?region=r&scheme=http")
    expected = fs.S3FileSystem(
        access_key="AKID",
        secret_key=secret,
        region="r",
        scheme="http",
        connect_timeout=arrowfs.CONNECT_TIMEOUT_S,
        request_timeout=arrowfs.REQUEST_TIMEOUT_S,
    )
    assert filesystem.equals(expected) is same
    assert path == "bucket/a"


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (OSError("AWS Error ACCESS_DENIED during PutObject operation: x"), Denied),
        (OSError("AWS Error SIGNATURE_DOES_NOT_MATCH during HeadObject operation: x"), Denied),
        (OSError("AWS Error UNKNOWN (HTTP status 403) during HeadObject operation: x"), Denied),
        (OSError("AWS Error UNKNOWN (HTTP status 503) during HeadObject operation"), Transient),
        (OSError("AWS Error UNKNOWN (HTTP status 400) ...: KeyTooLongError Message"), ConfigError),
        (OSError("AWS Error SLOW_DOWN during PutObject operation: x"), Transient),
        (OSError("AWS Error NO_SUCH_KEY during CopyObject operation: x"), NotFound),
        (
            OSError(
                "AWS Error INVALID_REQUEST ...: The specified copy source is larger than the "
                "maximum allowable size for a copy source: 5368709120"
            ),
            Unavailable,
        ),
        (FileNotFoundError(2, "x"), NotFound),
        (PermissionError(13, "x"), Denied),
        (OSError("AWS Error UNKNOWN (HTTP status 400) ...: EntityTooLarge Message"), Unavailable),
        (OSError("AWS Error UNKNOWN (HTTP status 409) ...: x"), Conflict),
        (IsADirectoryError(21, "x"), Conflict),
        (FileExistsError(17, "x"), Conflict),
        (ValueError("x"), Unavailable),
        (NotImplementedError("x"), Unavailable),
        (OSError("Connection reset"), Transient),
    ],
)
def test_translates_errors(error, meaning):
    told = translate(error, "stat", "a/b", "s3://bucket")
    assert type(told) is meaning
    assert "cannot stat 'a/b' in s3://bucket: " in str(told)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Connection\n reset", "Connection reset"),
        ("refused (Request ID: 12:ab)", "refused"),
        ("x" * 1000, "x" * 300),
        ("", "OSError"),
    ],
)
def test_a_reason_is_one_line_that_is_not_too_long(text, reason):
    assert str(translate(OSError(text), "stat", "a", "s3://b")).partition("s3://b: ")[2] == reason


@pytest.mark.parametrize(
    "operation",
    [
        lambda store: store.set_mode("a", 0o600),
        lambda store: store.set_mtime("a", 0),
        lambda store: store.set_replication("a", 2),
        lambda store: store.space(),
        lambda store: store.append("a").__aenter__(),
    ],
)
async def test_what_it_cannot_do_can_be_cancelled(operation):
    with trio.CancelScope() as scope:
        scope.cancel()
        await operation(ArrowStore("s3://bucket"))
    assert scope.cancelled_caught


async def test_what_is_reaped_is_below_a_folder_that_can_be():
    with pytest.raises(ConfigError):
        await ArrowStore("s3://bucket").reap_temporaries(0, "../other")


def test_says_what_it_can_do():
    assert ArrowStore("s3://bucket").capabilities == Capabilities(
        atomic_rename=False,
        replication=False,
        attributes=False,
        append=False,
        exclusive=False,
        snapshots=False,
    )
