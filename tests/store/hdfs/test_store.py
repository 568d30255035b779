"""The HDFS store, on real daemons."""

import os
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath

import pytest
import trio
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.cluster.spec import HEAD, address
from bootseer_dev.hdfs import Hdfs, hadoop_jars
from bootseer_dev.hdfs.conf import DATA_DIR, RPC_PORT

from bootseer.errors import ConfigError, Conflict, Denied, NotFound, Transient, Unavailable
from bootseer.store.api.base import StoreSpace, publish, read_all
from bootseer.store.api.name import TEMPORARY_PREFIX
from bootseer.store.from_url import open_store
from bootseer.store.hdfs import webhdfs
from bootseer.store.hdfs.options import HdfsOptions, find_conf_dir
from bootseer.store.hdfs.store import HdfsStore
from bootseer.store.local.owner_rules import PrivateOwner, TrustedOwners
from bootseer.store.wrappers.limit import LimitStore
from bootseer.testing.store_suite import StoreSuite

pytestmark = [pytest.mark.root, pytest.mark.hdfs]

BUILD = Path(__file__).parents[3] / "build"
NAMENODE = f"{address(HEAD)}:{RPC_PORT}"
_numbers = count()


def at(path, **options):
    return HdfsStore(NAMENODE, PurePosixPath(path), **options)


@pytest.fixture(scope="module", autouse=True)
def hdfs():
    jars = hadoop_jars(BUILD)
    spec = ClusterSpec(name=f"store-{os.getpid()}", nodes=0, datanodes=2)
    with Cluster.up(spec) as cluster:
        started = Hdfs.start(cluster, jars)
        with cluster.network(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(webhdfs, "DEADLINE_S", 60)  # a NameNode's first answers may be late
            yield started


class TestHdfsStore(StoreSuite):
    def make_store(self, scratch):
        return at(f"/suite/{next(_numbers)}")


class TestPrivateHdfsStore(StoreSuite):
    def make_store(self, scratch):
        return at(f"/private-suite/{next(_numbers)}", private=True)


async def make_all(store):
    """Make objects and folders in every way there is."""
    await publish(store, "created/on/object", b"1")
    async with store.append("appended/on/object") as appender:
        await appender.finish()
    await store.mkdir("made/on/folder")
    await store.mkdir("with/mode", mode=0o751)
    await publish(store, "mode/object", b"", mode=0o644)
    await store.rename("created/on/object", "renamed/on/object")


async def modes(store, folder=""):
    """The mode of the folder and of all that is in it, by name."""
    found = {folder: (await store.stat(folder)).mode} if folder else {}
    for info in await store.list(folder):
        found |= await modes(store, info.name) if info.is_folder else {info.name: info.mode}
    return found


async def test_what_a_user_s_own_store_makes_is_private(monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    url = at("/user/alice/of/her").url
    store = open_store(url, owner_uid=os.geteuid())
    await make_all(store)
    found = await modes(at("/user/alice"), "of")
    assert found.pop("of/her/with/mode") == 0o751
    assert found.pop("of/her/mode/object") == 0o644
    objects = {"of/her/renamed/on/object", "of/her/appended/on/object"}
    assert {name: found.pop(name) for name in objects} == dict.fromkeys(objects, 0o600)
    assert set(found) >= {"of", "of/her", "of/her/created/on", "of/her/made/on/folder"}
    assert set(found.values()) == {0o700}
    monkeypatch.setenv("HADOOP_USER_NAME", "mallory")
    with pytest.raises(Denied, match="user=mallory"):
        await read_all(open_store(url), "renamed/on/object", 1)


async def test_what_other_stores_make_has_hdfs_s_modes():
    store = open_store(at("/as-hdfs-has-it").url)
    await make_all(store)
    found = await modes(store)
    assert found.pop("with/mode") == 0o751
    for name in ("renamed/on/object", "appended/on/object", "mode/object"):
        assert found.pop(name) == 0o644
    assert set(found.values()) == {0o755}


async def test_the_users_rights_hold(monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    alice = at("/user/alice")
    await publish(alice, "own", b"1")
    monkeypatch.setenv("HADOOP_USER_NAME", "mallory")
    mallory = at("/user/alice")
    with pytest.raises(Denied, match=r"user=mallory"):
        await publish(mallory, "own", b"2")
    with pytest.raises(Denied):
        await mallory.delete("own")
    assert await read_all(alice, "own", 1) == b"1"


async def test_whose_it_is_and_who_may_use_it_is_what_hdfs_says(hdfs, monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    store = at("/user/alice")
    async with store.create("attributes/object", mode=0o640) as writer:
        await writer.commit()
    await store.set_mtime("attributes/object", 1_234_567_890_123_000_000)
    info = await store.stat("attributes/object")
    shown = hdfs.fs("-stat", "%u %g %a %Y", "/user/alice/attributes/object").stdout
    assert shown.split() == [info.owner, info.group, "640", "1234567890123"]
    assert info.owner == "alice"


async def test_what_was_just_written_is_opened_whole(monkeypatch):
    """A NameNode may show a file before its DataNodes have told of the last block."""
    store = at(f"/whole/{next(_numbers)}")
    await publish(store, "empty", b"")
    await publish(store, "object", b"content")
    known = await store.stat("object")
    client = store._client()
    early = [client.read(store._path(("empty",)))]

    class Early:
        def read(self, path):
            return early.pop() if early else client.read(path)

        def __getattr__(self, name):
            return getattr(client, name)

    monkeypatch.setattr(store, "_client", Early)
    async with store.open("object", known=known) as reader:
        assert await reader.pread(0, 99) == b"content"
    assert not early


async def test_there_is_nothing_below_an_object():
    store = at("/below")
    await publish(store, "object", b"")
    for operation in (store.stat, store.delete, store.delete_tree):
        with pytest.raises(NotFound):
            await operation("object/below")
    with pytest.raises(NotFound):
        await store.rename("object/below", "other")
    with pytest.raises(NotFound):
        await store.set_replication("object/below", 1)
    await publish(store, "other", b"")
    with pytest.raises(Conflict):
        await store.rename("other", "object/below")


async def test_names_that_cannot_be_used_are_told():
    store = at("/names")
    await publish(store, "folder/object", b"")
    for name in ("a\tb", f"{TEMPORARY_PREFIX}left"):
        await store._run(
            "make", name, partial(store._client().mkdirs, f"/names/folder/{name}", 0o755)
        )
    listing = await store.list("folder")
    assert [info.name for info in listing] == ["folder/object"]
    assert [one.name for one in listing.unlisted] == ["folder/a\tb"]


async def test_errors_are_one_line_and_name_operation_and_object():
    store = at("/errors")
    await publish(store, "object", b"")
    with pytest.raises(Conflict) as raised:
        await publish(store, "object/below", b"")
    text = str(raised.value)
    assert "create 'object/below' in hdfs://" in text
    assert text.isprintable() and "org.apache" not in text
    with pytest.raises(ConfigError, match="does not allow"):
        await publish(store, "a:b", b"")


async def test_the_number_of_copies_and_the_length_of_a_block_can_be_chosen(hdfs):
    async with at("/chosen").create("object", replication=1, block_bytes=1 << 20) as writer:
        await writer.write(bytes(3 << 20))
        await writer.commit()
    shown = hdfs.fs("-stat", "%r %o %b", "/chosen/object").stdout
    assert shown.split() == ["1", str(1 << 20), str(3 << 20)]


async def test_a_nameservice_of_the_configuration_is_found(hdfs, tmp_path, monkeypatch):
    conf_dir = hdfs.cluster.state_dir / "etc" / "hadoop"
    (tmp_path / "core-site.xml").write_text((conf_dir / "core-site.xml").read_text())
    (tmp_path / "hdfs-site.xml").write_text(
        "<configuration>"
        "<property><name>dfs.nameservices</name><value>pair</value></property>"
        "<property><name>dfs.ha.namenodes.pair</name><value>a,b</value></property>"
        "<property><name>dfs.namenode.rpc-address.pair.a</name><value>10.77.0.1:8021</value>"
        "</property>"
        "<property><name>dfs.namenode.rpc-address.pair.b</name><value>10.77.0.1:8020</value>"
        "</property>"
        "<property><name>dfs.namenode.http-address.pair.a</name><value>10.77.0.1:9871</value>"
        "</property>"
        "</configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    await publish(open_store("hdfs://pair/ha"), "object", b"0")
    monkeypatch.setenv("HADOOP_CONF_DIR", "/nonexistent")
    store = open_store("hdfs://pair/ha", hdfs=HdfsOptions(find_conf_dir(str(tmp_path))))
    await publish(store, "object", b"1")
    assert await read_all(at("/ha"), "object", 1) == b"1"
    assert [block.size_bytes for block in await store.block_locations("object")] == [1]


async def test_blocks_are_where_it_says(hdfs):
    store = LimitStore(at("/located ü%"), deadline_s=60, operations=trio.CapacityLimiter(1))
    async with store.create("object", replication=1, block_bytes=1 << 20) as writer:
        for number in range(4):
            await writer.write(marker(number).ljust(1 << 20, b"\0")[: (1 << 20) - number // 3])
        await writer.commit()
    blocks = await store.block_locations("object")
    sizes = [1 << 20, 1 << 20, 1 << 20, (1 << 20) - 1]
    assert [block.size_bytes for block in blocks] == sizes
    assert [block.offset for block in blocks] == [0, 1 << 20, 2 << 20, 3 << 20]
    assert [set(block.hosts) for block in blocks] == [holders(hdfs, n) for n in range(4)]


def marker(number):
    return f"block {number} of the located".encode()


def holders(hdfs, number):
    """Addresses of the DataNodes that have a block of that marker on their disk."""
    argv = ["grep", "-qr", marker(number).decode(), f"{DATA_DIR}/data"]
    names = hdfs.cluster.spec.datanode_names
    return {address(n) for n in names if not hdfs.cluster.run(argv, node=n, check=False).returncode}


async def test_blocks_of_what_is_not_there_or_not_ones_own(monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    store = at("/user/alice")
    await store.mkdir("closed", mode=0o700)
    await publish(store, "closed/object", b"1")
    await publish(store, "empty", b"")
    assert await store.block_locations("empty") == []
    for name in ("missing", "closed", "closed/object/below"):
        with pytest.raises(NotFound, match=name):
            await store.block_locations(name)
    monkeypatch.setenv("HADOOP_USER_NAME", "mallory")
    with pytest.raises(Denied, match="user=mallory"):
        await store.block_locations("closed/object")


async def test_space_is_the_whole_file_systems(hdfs):
    space = await at("/").space()
    figures = hdfs.jmx(HEAD, "Hadoop:service=NameNode,name=FSNamesystem")
    assert space.total_bytes == figures["CapacityTotal"]
    assert 0 < space.free_bytes <= space.total_bytes


@pytest.mark.parametrize("name", ["with space", "100%", "question?", "hash#", "ünï"])
async def test_the_url_of_a_store_opens_it(name):
    await publish(at(f"/urls/{name}"), "object", b"1")
    url = at(f"/urls/{name}").url
    assert await read_all(open_store(url), "object", 1) == b"1"


async def test_a_namenode_that_does_not_answer_takes_no_longer_than_the_deadline(hdfs):
    store = at("/x")
    await publish(store, "object", b"1")
    limited = LimitStore(store, deadline_s=0.5, operations=trio.CapacityLimiter(1))
    hdfs.signal("head", "STOP")
    try:
        with pytest.raises(Transient, match=r"0\.5 s"):
            await limited.stat("object")
    finally:
        hdfs.signal("head", "CONT")
    assert await read_all(store, "object", 1) == b"1"


async def test_a_dead_namenode_is_a_passing_matter(hdfs):
    store = at("/y")
    await publish(store, "object", b"1")
    hdfs.stop("head")
    try:
        with pytest.raises(Transient, match="stat 'object'"):
            await store.stat("object")
        with pytest.raises(Unavailable, match="GETFILEBLOCKLOCATIONS"):
            await store.block_locations("object")
        assert await store.space() == StoreSpace(None, None)
    finally:
        hdfs.start_namenode()
    assert await read_all(store, "object", 1) == b"1"


async def test_what_others_can_write_in_a_shared_store_is_refused(hdfs, monkeypatch):
    for command in (
        ("-mkdir", "-p", "/shared-images/image-names"),
        ("-chown", "-R", "provider:staff", "/shared-images"),
    ):
        hdfs.fs(*command)
    monkeypatch.setenv("HADOOP_USER_NAME", "provider")
    url = at("/shared-images").url
    name = "image-names/train"
    provider = TrustedOwners("provider", 1)
    await publish(open_store(url, trusted=provider), name, b"1")
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")

    async def read(group=""):
        owners = TrustedOwners("alice", 2, group, 12345 if group else None)
        return await read_all(open_store(url, trusted=owners), name, 1)

    assert await read() == b"1"
    for where in ("", "/image-names", f"/{name}"):
        for mode, says in (("777", "everybody"), ("775", "group staff")):
            hdfs.fs("-chmod", mode, f"/shared-images{where}")
            with pytest.raises(Denied, match=f"{says} can write in {url}{where}:"):
                await read()
        assert await read("staff") == b"1"
        hdfs.fs("-chmod", "755", f"/shared-images{where}")
    hdfs.fs("-chown", "mallory", "/shared-images/image-names")
    with pytest.raises(Denied, match="belongs to user mallory"):
        await read()
    hdfs.fs("-chown", "alice", "/shared-images/image-names")
    assert await read() == b"1"


async def test_a_users_own_store_that_others_can_write_is_refused(hdfs, monkeypatch):
    """Also one that another user has made first where the URL names no user."""
    names = {"alice": PrivateOwner(("alice",)), "of the node": PrivateOwner(("ada", "ada_a"))}
    url = at("/own").url
    name = "plans/train"

    def as_user(user):
        monkeypatch.setenv("HADOOP_USER_NAME", user)

    async def read(owner="alice"):
        as_user("alice")
        first, *others = names[owner].names
        options = HdfsOptions(kerberos_principal=f"{others[0]}/n1@REALM" if others else "")
        store = open_store(url, owner_uid=os.geteuid(), owner_name=first, hdfs=options)
        return await read_all(store, name, 1)

    hdfs.fs("-mkdir", "-p", "/own")
    hdfs.fs("-chmod", "1777", "/own")
    as_user("mallory")
    await publish(open_store(url), name, b"0")
    with pytest.raises(Denied, match=r"others can write in .*{user}"):
        await read()
    hdfs.fs("-chmod", "755", "/own")
    hdfs.fs("-chown", "mallory", "/own")
    with pytest.raises(Denied, match="belongs to user mallory, not to alice"):
        await read()
    hdfs.fs("-chown", "alice", "/own")  # what is in it is mallory's still
    with pytest.raises(Denied, match=f"{name} belongs to user mallory"):
        await read()
    hdfs.fs("-rm", "-r", "/own/plans")
    as_user("alice")
    await publish(open_store(url, owner_uid=os.geteuid(), owner_name="alice"), name, b"1")
    assert await read() == b"1"
    with pytest.raises(Denied, match="belongs to user alice, not to ada"):
        await read("of the node")
    hdfs.fs("-chmod", "-R", "go-rwx", "/own")  # then whoever can read it has written it
    assert await read("of the node") == b"1"
    hdfs.fs("-chmod", "620", f"/own/{name}")
    with pytest.raises(Denied, match="others can write"):
        await read()
