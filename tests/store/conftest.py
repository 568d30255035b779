import http.client
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from threading import RLock
from typing import Any
from urllib.parse import urlsplit

import pytest
from bootseer_dev.cluster.poll import wait_until
from hdfs_native import FileReader, FileWriter, WriteOptions

from bootseer.store.api.name import TEMPORARY_PREFIX
from bootseer.store.hdfs import client

pytest.register_assert_rewrite("bootseer.testing.store_model", "bootseer.testing.store_suite")

_numbers = count()


class Server:
    """An S3 server of its own on loopback."""

    def __init__(self, folder):
        self.log = folder / "log"
        argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        self.address = urlsplit(wait_until(self._url, "the S3 server", timeout_s=30)).netloc

    def _url(self):
        words = self.log.read_text().split()
        return next((word for word in words if word.startswith("http://127.")), "")

    def url(self, path=""):
        """The URL of a new bucket, or of a path in it."""
        bucket = f"bucket-{next(_numbers)}"
        connection = http.client.HTTPConnection(self.address)
        connection.request("PUT", f"/{bucket}")
        assert connection.getresponse().status == 200
        connection.close()
        options = f"endpoint_override={self.address}&scheme=http&region=us-east-1"
        return f"s3://{bucket}{path}?{options}"


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory):
    started = Server(tmp_path_factory.mktemp("s3"))
    yield started
    started.process.kill()
    started.process.wait()


class PanicException(BaseException):
    """Known by its name, as the library's is."""


@dataclass(eq=False)
class Inode:
    """A file or a folder, as the library describes it.

    Attributes:
        content: what was written; None of a folder.
        length: how much of it was synced, and is there to be read.
        is_open: somebody writes to it.
    """

    content: bytes | None
    permission: int
    owner: str
    group: str
    modification_time: int = 0
    length: int = 0
    is_open: bool = False
    path: str = ""

    @property
    def isdir(self) -> bool:
        return self.content is None


class NameNode:
    """An HDFS in memory, in the place of the library's client.

    How far it is like one, the suite says that HDFS itself has passed.

    Attributes:
        inodes: all there is, by path.
        calls: operations so far, each with the path that it was about.
        made: the options of files that were made.
        before: is called with both before each operation, in its thread, and may raise.
        user: who makes what is made.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.made: list[WriteOptions] = []
        self.before: Callable[[str, str], object] = lambda operation, path: None
        self.user = "alice"
        self.inodes = {"/": Inode(None, 0o755, "hdfs", "staff")}
        self._lock = RLock()
        self._now_ms = 0

    def get_file_info(self, path: str) -> Inode:
        with self.doing("get_file_info", path):
            return self._shown(path)

    def list_status(self, path: str, recursive: bool = False) -> Iterator[Inode]:
        with self.doing("list_status", path):
            if not self._need(path).isdir:
                return iter([self._shown(path)])
            below = path.rstrip("/") + "/"
            names = sorted((name for name in self.inodes if name.startswith(below)), reverse=True)
            return iter(
                self._shown(name)
                for name in names
                if name != "/" and (recursive or "/" not in name.removeprefix(below))
            )

    def read(self, path: str) -> FileReader:
        with self.doing("read", path):
            inode = self._need(path)
            assert inode.content is not None
            raw: Any = RawReader(self, path, inode.content[: inode.length])
            return FileReader(raw)

    def create(self, path: str, options: WriteOptions) -> FileWriter:
        with self.doing("create", path):
            if path in self.inodes and not options.overwrite:
                raise FileExistsError(path)
            self._check_above(path)
            above = _above(path)
            if above not in self.inodes and options.create_parent:
                self._make(above, 0o755)
            self._need(above)
            self.made.append(options)
            raw: Any = RawWriter(self, path, self._new(path, b"", options.permission))
            return FileWriter(raw)

    def recover_lease(self, path: str) -> bool:
        with self.doing("recover_lease", path):
            self._need(path).is_open = False
            return True

    def mkdirs(self, path: str, permission: int = 0o755, create_parent: bool = False) -> None:
        with self.doing("mkdirs", path):
            self._check_above(path)
            if path in self.inodes and not self.inodes[path].isdir:
                raise FileExistsError(path)
            if not create_parent:
                self._need(_above(path))
            self._make(path, permission)

    def rename(self, old: str, new: str, overwrite: bool = False) -> None:
        with self.doing("rename", old):
            inode = self._need(old)
            self._check_above(new)
            self._need(_above(new))
            if taken := self.inodes.get(new):
                if not overwrite:
                    raise FileExistsError(new)
                if taken.isdir != inode.isdir:
                    raise refusal(
                        "java.io.IOException", f"{old} and {new} must both be directories"
                    )
                del self.inodes[new]
            for path in self._tree(old):
                self.inodes[new + path.removeprefix(old)] = self.inodes.pop(path)
            self._changed(old, new)

    def delete(self, path: str, recursive: bool = False) -> bool:
        with self.doing("delete", path):
            self._check_above(path)
            if path not in self.inodes:
                return False
            if len(self._tree(path)) > 1 and not recursive:
                raise refusal("PathIsNotEmptyDirectoryException", f"{path} is non empty")
            for gone in self._tree(path):
                del self.inodes[gone]
            self._changed(path)
            return True

    def set_times(self, path: str, mtime: int, atime: int) -> None:
        with self.doing("set_times", path):
            self._check_above(path)
            if mtime < 0 or atime != 2**64 - 1:
                raise OverflowError(mtime)
            self._need(path).modification_time = mtime

    def set_permission(self, path: str, permission: int) -> None:
        with self.doing("set_permission", path):
            self._check_above(path)
            self._need(path).permission = permission

    def set_replication(self, path: str, replication: int) -> bool:
        with self.doing(f"set_replication {replication}", path):
            return not self._need(path).isdir

    def temporaries(self) -> list[str]:
        """What there is of files in the making."""
        return [path for path in self.inodes if TEMPORARY_PREFIX in path]

    def asked(self, operation: str) -> list[str]:
        """The paths that an operation was about, in order."""
        return [path for asked, path in self.calls if asked == operation]

    def doing(self, operation: str, path: str) -> RLock:
        self.before(operation, path)
        self.calls.append((operation, path))
        return self._lock

    def tick(self) -> int:
        """The time, in which no two changes are made."""
        self._now_ms = max(self._now_ms + 1, time.time_ns() // 1_000_000)
        return self._now_ms

    def _shown(self, path: str) -> Inode:
        inode = self._need(path)
        # There are more bits than a mode has: one says that there is an access control list.
        return replace(inode, path=path, permission=inode.permission | 1 << 12)

    def _need(self, path: str) -> Inode:
        if path not in self.inodes:
            raise FileNotFoundError(path)
        return self.inodes[path]

    def _tree(self, path: str) -> list[str]:
        return [other for other in self.inodes if f"{other}/".startswith(f"{path}/")]

    def _check_above(self, path: str) -> None:
        while path != "/":
            path = _above(path)
            if path in self.inodes and not self.inodes[path].isdir:
                raise refusal("ParentNotDirectoryException", f"{path} (is not a directory)")

    def _make(self, path: str, permission: int) -> None:
        if path not in self.inodes:
            self._make(_above(path), permission)
            self._new(path, None, permission)

    def _new(self, path: str, content: bytes | None, permission: int) -> Inode:
        is_open = content is not None
        made = Inode(content, permission, self.user, "staff", self.tick(), is_open=is_open)
        self.inodes[path] = made
        self._changed(path)
        return made

    def _changed(self, *paths: str) -> None:
        for path in paths:
            if above := self.inodes.get(_above(path)):
                above.modification_time = self.tick()


class RawReader:
    """What one of the library's readers reads by."""

    def __init__(self, namenode: NameNode, path: str, content: bytes) -> None:
        self.namenode, self.path, self.content = namenode, path, content

    def file_length(self) -> int:
        return len(self.content)

    def read_range(self, offset: int, size: int) -> bytes:
        with self.namenode.doing("read_range", self.path):
            if offset + size > len(self.content):
                raise PanicException("past the end")
            return self.content[offset : offset + size]


class RawWriter:
    """What one of the library's writers writes by."""

    def __init__(self, namenode: NameNode, path: str, inode: Inode) -> None:
        self.namenode, self.path, self.inode = namenode, path, inode

    def write(self, data: bytes) -> int:
        with self.step("write") as content:
            assert type(data) in (bytes, bytearray)  # anything else is taken byte by byte
            self.inode.content = content + data
        return len(data)

    def hsync(self) -> None:
        with self.step("hsync") as content:
            self.inode.length = len(content)

    def close(self) -> None:
        with self.step("close") as content:
            self.inode.length, self.inode.is_open = len(content), False
            self.inode.modification_time = self.namenode.tick()

    @contextmanager
    def step(self, operation: str) -> Iterator[bytes]:
        with self.namenode.doing(operation, self.path):
            if not self.inode.is_open or self.inode not in self.namenode.inodes.values():
                raise refusal("LeaseExpiredException", f"No lease on {self.path}")
            assert self.inode.content is not None
            yield self.inode.content


def refusal(kind: str, text: str) -> RuntimeError:
    """What the library makes of an exception of a NameNode's."""
    return RuntimeError(f'RPCError("org.apache.hadoop.{kind}", "{text}\\n\\tat java")')


def _above(path: str) -> str:
    return path.rpartition("/")[0] or "/"


@pytest.fixture
def namenode(monkeypatch):
    made = NameNode()
    monkeypatch.setattr(client, "Client", lambda *_, **__: made)
    return made
