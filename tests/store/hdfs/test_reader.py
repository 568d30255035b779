"""Reading an object in HDFS, without one: what fails once, and what the NameNode says then."""

from pathlib import PurePosixPath
from types import SimpleNamespace

import pytest

from bootseer.errors import Conflict, Transient
from bootseer.store.api.base import ObjectInfo
from bootseer.store.hdfs import client
from bootseer.store.hdfs.store import HdfsStore
from bootseer.store.wrappers.backoff import Backoff
from bootseer.store.wrappers.retry import RetryStore

CONTENT = b"content"


class Library:
    """A client of hdfs-native's with one file, whose next read fails."""

    def __init__(self, *_, **__):
        self.mtime_ms = 5000
        self.is_there = True
        self.fails = True

    def get_file_info(self, path):
        if not self.is_there:
            raise FileNotFoundError(path)
        return SimpleNamespace(
            length=len(CONTENT),
            modification_time=self.mtime_ms,
            isdir=False,
            permission=0o644,
            owner="alice",
            group="alice",
        )

    def read(self, path):
        return File(self)


class File:
    def __init__(self, library):
        self.library = library

    def __len__(self):
        return len(CONTENT)

    def read_range(self, offset, size):
        if self.library.fails:
            self.library.fails = False
            raise RuntimeError("DataTransferError: All DataNodes failed")
        return CONTENT[offset : offset + size]


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(client, "Client", lambda *_, **__: made)
    return made


@pytest.fixture
def store(library):
    return HdfsStore("namenode:8020", PurePosixPath("/root"))


# As the parts of a striped file are opened: nobody has asked for their time.
SIZE_ALONE = ObjectInfo("name", len(CONTENT), 0)


async def test_a_read_that_failed_is_tried_again_where_only_the_size_is_known(store):
    retrying = RetryStore(store, Backoff(attempts=2, first_s=0.001))
    async with retrying.open("name", known=SIZE_ALONE) as reader:
        assert await reader.pread(0, 100) == CONTENT


async def test_an_object_that_is_gone_is_no_passing_cause(store, library):
    async with store.open("name", known=SIZE_ALONE) as reader:
        library.is_there = False
        with pytest.raises(Conflict, match="replaced or deleted"):
            await reader.pread(0, 100)


async def test_a_version_is_not_read_on_after_it_was_replaced(store, library):
    async with store.open("name") as reader:
        library.fails = True
        with pytest.raises(Transient):
            await reader.pread(0, 100)
        library.fails, library.mtime_ms = True, 6000
        with pytest.raises(Conflict, match="replaced or deleted"):
            await reader.pread(0, 100)
