"""The slow share: what it shows, what it costs, and that every node has its own page cache."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from bootseer_dev.cluster import Cluster, ClusterSpec, CommandFailed, wait_until
from bootseer_dev.files.slow_share import FolderView, SharedLine

from bootseer.errors import ConfigError, Conflict
from bootseer.fuse.view import ROOT_INODE
from bootseer.units import MIB, NS_PER_S

AT = "/mnt/share"
BIG_BYTES = 3 * MIB + 17


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now_ns = 10 * NS_PER_S

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "big").write_bytes(os.urandom(BIG_BYTES))
    (folder / "sub" / "small").write_text("small")
    (folder / "link").symlink_to("sub/small")
    (folder / "private").write_text("secret")
    (folder / "private").chmod(0o600)
    return folder


@pytest.mark.leaves_open  # the file is its process's
class TestTheLine:
    def test_it_is_taken_in_turns_by_all_who_share_it(self, tmp_path: Path) -> None:
        clock = Clock()
        one, other = (SharedLine(tmp_path / "line", 1000, clock) for _ in range(2))
        assert one.reserve(500) == clock.now_ns + NS_PER_S // 2
        assert other.reserve(1000) == clock.now_ns + 3 * NS_PER_S // 2
        assert one.reserve(0) == clock.now_ns + 3 * NS_PER_S // 2

    def test_idle_time_is_not_saved_up(self, tmp_path: Path) -> None:
        clock = Clock()
        line = SharedLine(tmp_path / "line", 1000, clock)
        line.reserve(1000)
        clock.now_ns += 60 * NS_PER_S
        assert line.reserve(100) == clock.now_ns + NS_PER_S // 10


@pytest.mark.leaves_open  # the folder is its process's
class TestTheView:
    async def test_it_shows_the_source(self, source: Path) -> None:
        view = FolderView(source)
        entries = dict(await view.entries(ROOT_INODE))
        assert set(entries) == {b"big", b"sub", b"link", b"private"}
        assert entries[b"big"].size_bytes == BIG_BYTES
        assert entries[b"private"].mode & 0o777 == 0o600
        assert await view.link_target(entries[b"link"].inode) == b"sub/small"
        small = await view.lookup(entries[b"sub"].inode, b"small")
        opened = await view.open(small.inode, os.O_RDONLY)
        assert await view.read(opened.handle, 1, 100) == b"mall"
        await view.close(opened.handle)
        with pytest.raises(FileNotFoundError):
            await view.lookup(ROOT_INODE, b"none")

    async def test_a_replaced_file_is_another_file(self, source: Path) -> None:
        view = FolderView(source)
        before = await view.lookup(ROOT_INODE, b"big")
        (source / "new").write_bytes(b"new")
        (source / "new").replace(source / "big")
        with pytest.raises(Conflict):
            await view.open(before.inode, os.O_RDONLY)
        after = await view.lookup(ROOT_INODE, b"big")
        assert after.inode != before.inode
        assert after.size_bytes == 3

    async def test_a_rewritten_file_s_cached_pages_are_dropped_once(self, source: Path) -> None:
        view = FolderView(source)
        inode = (await view.lookup(ROOT_INODE, b"big")).inode
        kept = []
        for content in (None, None, b"rewritten", None):
            if content is not None:
                (source / "big").write_bytes(content)
            opened = await view.open(inode, os.O_RDONLY)
            kept.append(opened.keep_cache)
            await view.close(opened.handle)
        assert kept == [True, True, False, True]

    async def test_a_forgotten_file_gets_a_new_number(self, source: Path) -> None:
        view = FolderView(source)
        first = await view.lookup(ROOT_INODE, b"big")
        assert (await view.lookup(ROOT_INODE, b"big")).inode == first.inode
        view.forget(first.inode)
        assert (await view.lookup(ROOT_INODE, b"big")).inode > first.inode

    async def test_every_request_waits(
        self, source: Path, autojump_clock: trio.testing.MockClock
    ) -> None:
        view = FolderView(source, latency_s=2)
        began = trio.current_time()
        found = await view.lookup(ROOT_INODE, b"big")
        opened = await view.open(found.inode, os.O_RDONLY)
        await view.read(opened.handle, 0, 10)
        await view.close(opened.handle)
        assert trio.current_time() - began == pytest.approx(6)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.up(ClusterSpec(name=f"share-{os.getpid()}", nodes=2)) as cluster:
        yield cluster


@pytest.mark.root
@pytest.mark.slurm
@pytest.mark.fuse
class TestTheMount:
    @pytest.fixture
    def mounted(self, cluster: Cluster, source: Path) -> Iterator[Path]:
        cluster.mount_share(source, at=AT, latency_s=0, bandwidth_bytes_per_s=None)
        yield source
        cluster.unmount_share(AT)

    def test_users_see_the_same_bytes_on_every_node(self, cluster: Cluster, mounted: Path) -> None:
        for node in cluster.node_names:
            cluster.run(["diff", "-r", str(mounted), AT], node=node)
            with pytest.raises(CommandFailed, match="Permission denied"):
                cluster.run(["cat", f"{AT}/private"], user="alice", node=node)
            with pytest.raises(CommandFailed, match="Read-only file system"):
                cluster.run(["touch", f"{AT}/new"], node=node)
        with pytest.raises(CommandFailed, match="No such file"):
            cluster.run(["ls", f"{AT}/big"])  # the head has no share unless asked for

    def test_every_node_has_a_page_cache_of_its_own(self, cluster: Cluster, mounted: Path) -> None:
        cluster.run(["cp", f"{AT}/big", "/dev/null"], user="alice", node="n1")
        assert _resident_bytes(cluster, "n1") >= BIG_BYTES
        assert _resident_bytes(cluster, "n2") == 0

    def test_a_replaced_file_is_noticed(self, cluster: Cluster, mounted: Path) -> None:
        assert cluster.run(["cat", f"{AT}/sub/small"], node="n1").stdout == "small"
        (mounted / "next").write_text("other")
        (mounted / "next").replace(mounted / "sub" / "small")
        wait_until(
            lambda: cluster.run(["cat", f"{AT}/sub/small"], node="n1").stdout == "other",
            "the node sees the new file",
        )

    def test_a_file_rewritten_in_place_is_noticed(self, cluster: Cluster, mounted: Path) -> None:
        assert cluster.run(["cat", f"{AT}/link"], node="n1").stdout == "small"
        (mounted / "sub" / "small").write_text("SMALL")
        wait_until(
            lambda: cluster.run(["cat", f"{AT}/link"], node="n1").stdout == "SMALL",
            "the node sees the new content",
        )

    def test_the_daemon_outlives_killed_readers(self, cluster: Cluster, source: Path) -> None:
        cluster.mount_share(source, at=AT, latency_s=0.05, bandwidth_bytes_per_s=20e6)
        before = _daemons(cluster, "n1")
        for _ in range(5):
            reader = cluster.popen(["cat", f"{AT}/big"], node="n1", stdout=subprocess.DEVNULL)
            pid = wait_until(lambda: _pid(cluster, "n1", f"cat {AT}/big"), "the reader runs")
            os.kill(pid, signal.SIGKILL)
            reader.communicate()
        assert cluster.run(["cmp", str(source / "big"), f"{AT}/big"], node="n1").stdout == ""
        assert _daemons(cluster, "n1") == before
        cluster.unmount_share(AT)

    def test_bandwidth_is_shared_by_the_nodes(self, cluster: Cluster, source: Path) -> None:
        # Slow enough for the limit to show through whatever else the machine does.
        rate = 5e6
        cluster.mount_share(source, at=AT, latency_s=0, bandwidth_bytes_per_s=rate)
        began = time.monotonic()
        readers = [
            cluster.popen(["cat", f"{AT}/big"], node=node, stdout=subprocess.DEVNULL)
            for node in cluster.node_names
        ]
        for reader in readers:
            reader.communicate()
            assert reader.returncode == 0
        assert time.monotonic() - began >= len(readers) * BIG_BYTES / rate
        cluster.unmount_share(AT)

    def test_it_goes_without_a_trace(self, cluster: Cluster, source: Path) -> None:
        before = {node: cluster.mounts(node) for node in cluster.node_names}
        cluster.mount_share(source, at=AT, read_ahead_kib=4096)
        (mount,) = [mount for mount in cluster.mounts("n1") if mount.mountpoint == AT]
        assert mount.kind == "fuse.bootseer"
        read_ahead = Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb")
        assert read_ahead.read_text() == "4096\n"
        assert AT not in Path("/proc/self/mounts").read_text()
        (daemon,) = _daemons(cluster, "n1")
        os.kill(daemon, signal.SIGTERM)  # one ends by signal, the other by unmounting
        wait_until(lambda: not _daemons(cluster, "n1"), "the daemon ended")
        cluster.unmount_share(AT)
        assert {node: cluster.mounts(node) for node in cluster.node_names} == before
        assert not _daemons(cluster, "n2")

    def test_it_stays_while_in_use(self, cluster: Cluster, mounted: Path) -> None:
        user = cluster.popen(["sleep", "1000"], node="n2", cwd=AT)
        pid = wait_until(lambda: _pid(cluster, "n2", "sleep 1000"), "the user is there")
        with pytest.raises(CommandFailed, match="busy"):
            cluster.unmount_share(AT)
        os.kill(pid, signal.SIGKILL)
        user.communicate()

    def test_it_is_mounted_where_it_leaves_nothing(self, cluster: Cluster, source: Path) -> None:
        with pytest.raises(ConfigError, match="below /mnt/"):
            cluster.mount_share(source, at="/usr/share/x")


def _resident_bytes(cluster: Cluster, node: str) -> int:
    command = ["fincore", "--bytes", "--noheadings", "--output=RES", f"{AT}/big"]
    return int(cluster.run(command, node=node).stdout)


def _pid(cluster: Cluster, node: str, command: str) -> int:
    return next((p.pid for p in cluster.processes(node) if p.command == command), 0)


def _daemons(cluster: Cluster, node: str) -> list[int]:
    return [p.pid for p in cluster.processes(node) if "slow_share" in p.command]
