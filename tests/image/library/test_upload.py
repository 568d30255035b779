"""Images put into a store, named, read through and removed."""

import json
import os
import subprocess
import threading
from dataclasses import replace

import pytest
import trio
from bootseer_dev.material.containers import Entry, pack_tar, write_layout
from bootseer_dev.material.damage import flip
from bootseer_dev.material.images import TinyImage, write_image
from click.testing import CliRunner

from bootseer.cache.token import manifest_token
from bootseer.cli.image.image import image as command
from bootseer.core import image_manifest as image
from bootseer.errors import ConfigError, Conflict, Corrupt, NotFound, Transient, Unavailable
from bootseer.image.identity import identify, open_image
from bootseer.image.library import catalog, upload
from bootseer.image.library.upload import about_now, add
from bootseer.image.library.verify import verify
from bootseer.store.api.base import publish, read_all
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore, SlowStore
from bootseer.units import MIB

ABOUT = about_now("/images/tiny.sqsh", "alice")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "tiny.sqsh"
    write_image(TinyImage(), path)
    return path


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(image, "PART_BYTES", MIB)


@pytest.fixture(params=["memory", "folder"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "store")


class Between(SlowStore):
    """Somebody else does something, once, right before the first operation that is chosen."""

    def __init__(self, store, chosen, then):
        super().__init__(store, 0)
        self.chosen, self.then = chosen, then

    async def around(self, operation, name, call):
        if self.then is not None and self.chosen(operation, name):
            then, self.then = self.then, None
            await then()
        return await super().around(operation, name, call)


async def stored(store, digest, manifest):
    names = [catalog.part_object(digest, i) for i in range(manifest.parts)]
    return b"".join([await read_all(store, name, MIB) for name in names])


async def test_an_image_is_stored_as_it_is(store, path, small_parts):
    progress = upload.UploadProgress()
    added = await add(store, path, "tiny:1", ABOUT, progress)
    content = path.read_bytes()
    assert await stored(store, added.digest, added.manifest) == content
    assert added.sent_bytes == len(content)
    assert progress.done_bytes == progress.total_bytes == 2 * len(content)
    digest = await catalog.resolve(store, "bootseer://tiny:1")
    assert digest == await catalog.resolve(store, "tiny:1") == added.digest
    _, manifest = await catalog.read_manifest(store, digest)
    sha256 = subprocess.check_output(["sha256sum", path], text=True).split()[0]
    opened = open_image(str(path))
    identity = identify(opened)
    os.close(opened.fd)
    assert (manifest.sha256, manifest.size_bytes) == (sha256, len(content))
    assert (manifest.identity, manifest.leading) == (identity.digest, identity.leading)
    assert await catalog.read_about(store, digest) == ABOUT
    assert await verify(store, digest, manifest, lambda size_bytes: None) == []


async def test_the_token_is_beside_the_manifest_and_goes_with_it(store, path):
    added = await add(store, path, "tiny:1", ABOUT)
    encoded, _ = await catalog.read_manifest(store, added.digest)
    assert await catalog.read_token(store, added.digest) == manifest_token(encoded)
    name = catalog.token_object(added.digest)
    for damaged in (b"", b"zz" * 32, b"ab" * 31, b"\xff" * 64, b"ab" * 40_000):
        await publish(store, name, damaged)
        assert await catalog.read_token(store, added.digest) is None
    await store.delete(name)  # as images of older versions
    assert await catalog.read_token(store, added.digest) is None
    await add(store, path, "tiny:1", ABOUT)
    assert await catalog.read_token(store, added.digest) == manifest_token(encoded)
    await catalog.remove(store, "tiny:1")
    assert await catalog.sweep(store, 0) == [added.digest]
    for gone in (name, catalog.manifest_object(added.digest)):
        with pytest.raises(NotFound):
            await store.stat(gone)


async def test_the_token_has_the_manifests_rights(path, tmp_path):
    store = LocalStore(tmp_path / "store")
    added = await add(store, path, "tiny:1", ABOUT)
    names = (catalog.token_object(added.digest), catalog.manifest_object(added.digest))
    token, manifest = ((tmp_path / "store" / name).stat() for name in names)
    assert (token.st_mode, token.st_uid, token.st_gid) == (
        manifest.st_mode,
        manifest.st_uid,
        manifest.st_gid,
    )


async def test_what_was_interrupted_goes_on(store, path, small_parts):
    left = 9

    def fails(count, operation, name):
        nonlocal left
        left -= operation == "commit"
        return left < 0

    with pytest.raises(Transient):
        await add(FlakyStore(store, fails), path, "tiny:1", ABOUT)
    assert await catalog.list_names(store) == []
    added = await add(store, path, "tiny:1", ABOUT)
    # Of those that were being sent at once, some may have been given up on the way.
    assert 6 * MIB <= path.stat().st_size - added.sent_bytes <= 9 * MIB
    assert await stored(store, added.digest, added.manifest) == path.read_bytes()
    again = await add(store, path, "tiny:2", ABOUT)
    assert (again.digest, again.sent_bytes) == (added.digest, 0)


async def test_damage_is_found_and_mended(store, path, small_parts):
    added = await add(store, path, "tiny", ABOUT)
    parts = [catalog.part_object(added.digest, i) for i in range(added.manifest.parts)]
    whole = await read_all(store, parts[2], MIB)
    spoilt = bytearray(whole)
    spoilt[3 * image.BLOCK_BYTES + 7] ^= 1
    await publish(store, parts[2], bytes(spoilt))
    await publish(store, parts[4], (await read_all(store, parts[4], MIB))[: MIB - 5])
    await store.delete(parts[6])
    found = await verify(store, added.digest, added.manifest, lambda size_bytes: None)
    assert [(d.name, d.offset, d.size_bytes) for d in found] == [
        (parts[2], 3 * image.BLOCK_BYTES, image.BLOCK_BYTES),
        (parts[4], MIB - image.BLOCK_BYTES, image.BLOCK_BYTES),
        (parts[6], 0, MIB),
    ]
    await add(store, path, "tiny", ABOUT, force=True)
    assert await verify(store, added.digest, added.manifest, lambda size_bytes: None) == []


class Noted:
    """A progress of which every state is noted."""

    def __init__(self):
        self.states = [(0, 0)]

    def _set(self, done_bytes, total_bytes):
        self.states.append((done_bytes, total_bytes))

    done_bytes = property(
        lambda self: self.states[-1][0], lambda self, value: self._set(value, self.total_bytes)
    )
    total_bytes = property(
        lambda self: self.states[-1][1], lambda self, value: self._set(self.done_bytes, value)
    )


async def test_progress_is_counted_by_the_chunk_in_both_passes(path, small_parts):
    size = path.stat().st_size
    progress = Noted()
    await add(MemoryStore(), path, "tiny", ABOUT, progress)
    done = [done for done, total in progress.states if total]
    assert {total for _, total in progress.states[2:]} == {2 * size}
    assert done == sorted(done)
    chunks = {*range(0, size, 4 * MIB), size}
    assert {n for n in done if n <= size} == chunks, "read to know its digests"
    assert len({n for n in done if n > size}) == -(-size // MIB), "sent, part by part"
    assert done[-1] == 2 * size


def test_progress_begins_with_nothing():
    progress = upload.UploadProgress()
    assert (progress.done_bytes, progress.total_bytes) == (0, 0)
    progress.add(5)
    progress.add(2)
    assert progress == upload.UploadProgress(total_bytes=0, done_bytes=7)


async def test_what_is_lost_while_it_is_added_is_sent_again_and_nothing_else(path, small_parts):
    store, progress = MemoryStore(), upload.UploadProgress()
    added = await add(store, path, "tiny", ABOUT)
    lost = [catalog.part_object(added.digest, 3), catalog.part_object(added.digest, 5)]

    class Losing(SlowStore):
        async def around(self, operation, name, call):
            if operation == "list" and name == f"images/{added.digest}" and lost:
                await store.delete(lost.pop())
            return await super().around(operation, name, call)

    again = await add(Losing(store, 0), path, "tiny", ABOUT, progress)
    assert again.sent_bytes == 2 * MIB
    assert progress.done_bytes == progress.total_bytes
    assert await stored(store, added.digest, added.manifest) == path.read_bytes()


async def test_an_image_whose_manifest_is_lost_while_it_is_added_has_one_in_the_end(path):
    store = MemoryStore()
    added = await add(store, path, "tiny", ABOUT)

    async def lose():
        await store.delete(catalog.manifest_object(added.digest))

    losing = Between(store, lambda operation, name: operation == "list", lose)
    assert (await upload.put(losing, path, ABOUT)).sent_bytes == 0
    assert losing.then is None
    assert (await catalog.read_manifest(store, added.digest))[1] == added.manifest


async def test_what_is_removed_again_and_again_is_given_up_after_three_times(path):
    store, times = MemoryStore(), 0

    class Removing(SlowStore):
        async def around(self, operation, name, call):
            nonlocal times
            if operation == "list" and name.startswith("images/"):
                times += 1
                await store.delete_tree(name)
            return await super().around(operation, name, call)

    with pytest.raises(Conflict, match="is removed from memory: while it is added"):
        await add(Removing(store, 0), path, "tiny", ABOUT)
    assert times == 3
    assert await catalog.list_names(store) == []


async def test_an_image_that_is_removed_while_it_is_put_there_stays(path):
    """Its last name goes when its parts have been found to be there."""
    store = MemoryStore()
    added = await add(store, path, "tiny", ABOUT)

    async def remove():
        await catalog.remove(store, "tiny")

    removing = Between(store, lambda operation, name: name.endswith("about.json"), remove)
    await upload.put(removing, path, ABOUT)
    assert removing.then is None
    assert await catalog.sweep(store, older_than_s=0) == []
    assert await stored_size(store, added) == path.stat().st_size


async def test_a_store_that_fails_is_sent_nothing_more(path, small_parts):
    store = FlakyStore(MemoryStore(), lambda count, operation, name: operation == "write")
    with pytest.raises(Transient):
        await add(store, path, "tiny", ABOUT)
    sent = [name for operation, name in store.calls if operation == "create"]
    assert len(sent) <= 3, "as many as are sent at once"


async def test_who_gives_up_does_not_wait_until_the_image_is_read(path, monkeypatch):
    may_end = threading.Event()

    def measure(*image):
        trio.from_thread.run_sync(scope.cancel)
        may_end.wait(5)

    monkeypatch.setattr(upload, "_measure", measure)
    with trio.CancelScope() as scope:
        await add(MemoryStore(), path, "tiny", ABOUT)
    assert scope.cancelled_caught
    may_end.set()


async def test_two_add_an_image_at_once_and_no_part_is_replaced(path, small_parts):
    """Jobs read it as soon as the faster one has ended: what they have open stays as it is."""
    store = MemoryStore()
    there = {}

    async def faster():
        added = await add(store, path, "tiny", ABOUT)
        for index in range(added.manifest.parts):
            name = catalog.part_object(added.digest, index)
            there[name] = await store.stat(name)

    slower = Between(store, lambda operation, name: operation == "commit", faster)
    added = await add(slower, path, "tiny", ABOUT)
    assert len(there) == added.manifest.parts
    for name, info in there.items():
        assert (await store.stat(name)).is_version(info)
    assert await stored(store, added.digest, added.manifest) == path.read_bytes()


async def test_a_file_that_changes_meanwhile_is_not_added(tmp_path, path):
    changing = tmp_path / "changing.sqsh"
    changing.write_bytes(path.read_bytes())

    class Changing(MemoryStore):
        async def stat(self, name):
            with changing.open("r+b") as file:
                file.seek(5 * MIB)
                file.write(b"changed!")
            return await super().stat(name)

    store = Changing()
    with pytest.raises(Conflict, match="changed while it was read"):
        await add(store, changing, "tiny", ABOUT)
    assert await catalog.list_names(store) == []


async def test_a_file_that_changes_without_a_trace_is_not_added(tmp_path, path):
    """Its length and times are what they were: the bytes that are sent are looked at again."""
    changing = tmp_path / "changing.sqsh"
    changing.write_bytes(path.read_bytes())
    before = changing.stat()

    async def change():
        with changing.open("r+b") as file:
            file.seek(5 * MIB)
            file.write(b"changed!")
        os.utime(changing, ns=(before.st_atime_ns, before.st_mtime_ns))

    store = Between(MemoryStore(), lambda operation, name: operation == "stat", change)
    with pytest.raises(Conflict, match="changed while it was read"):
        await add(store, changing, "tiny", ABOUT)
    assert await catalog.list_names(store) == []


async def test_a_file_that_was_written_meanwhile_is_not_added_whatever_it_holds(tmp_path, path):
    changing = tmp_path / "changing.sqsh"
    changing.write_bytes(path.read_bytes())

    async def touch():
        os.utime(changing, ns=(0, 0))

    store = Between(MemoryStore(), lambda operation, name: operation == "commit", touch)
    with pytest.raises(Conflict, match="when nobody writes to it"):
        await add(store, changing, "tiny", ABOUT)


async def test_a_file_that_grows_meanwhile_is_not_added(tmp_path, path):
    changing = tmp_path / "changing.sqsh"
    changing.write_bytes(path.read_bytes())
    before = changing.stat()

    async def grow():
        os.truncate(changing, before.st_size + 1)
        os.utime(changing, ns=(before.st_atime_ns, before.st_mtime_ns))

    store = Between(MemoryStore(), lambda operation, name: operation == "commit", grow)
    with pytest.raises(Conflict, match="when nobody writes to it"):
        await add(store, changing, "tiny", ABOUT)


async def test_a_file_that_is_cut_while_it_is_read_is_not_added(tmp_path, path, monkeypatch):
    changing = tmp_path / "changing.sqsh"
    changing.write_bytes(path.read_bytes())

    def identify_and_cut(opened):
        found = identify(opened)
        os.truncate(changing, path.stat().st_size - 1)
        return found

    monkeypatch.setattr(upload, "identify", identify_and_cut)
    with pytest.raises(Conflict, match="became shorter while it was read"):
        await add(MemoryStore(), changing, "tiny", ABOUT)


async def test_an_image_that_is_written_over_is_not_added_cut(tmp_path, path, monkeypatch):
    """The new one is longer than what was to be read when it was opened."""
    changing = tmp_path / "changing.sqsh"
    changing.write_bytes(path.read_bytes())

    def identify_and_change(opened):
        found = identify(opened)
        with changing.open("ab") as file:
            file.write(bytes(MIB))
        return found

    monkeypatch.setattr(upload, "identify", identify_and_change)
    store = MemoryStore()
    with pytest.raises(Conflict, match="changed while it was read; add it again when nobody"):
        await add(store, changing, "tiny", ABOUT)
    assert await catalog.list_names(store) == []


async def test_an_image_that_is_removed_meanwhile_is_added(tmp_path, path):
    """A job may remove what it has imported as soon as the file has been opened."""
    removed = tmp_path / "removed.sqsh"
    removed.write_bytes(path.read_bytes())

    async def remove():
        removed.unlink()

    store = Between(MemoryStore(), lambda operation, name: operation == "create", remove)
    added = await add(store, removed, "tiny", ABOUT)
    assert not removed.exists()
    assert await stored_size(store, added) == path.stat().st_size


async def test_only_a_squashfs_is_added(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"\x7fELF" * 1000)
    with pytest.raises(Unavailable, match="not a squashfs"):
        await add(MemoryStore(), other, "other", ABOUT)


async def test_an_image_goes_with_its_last_name_and_its_bytes_later(store, path):
    added = await add(store, path, "one", ABOUT)
    await catalog.give_name(store, "docker://host#a/b:1", added.digest, 5)
    assert {n.name for n in await catalog.list_names(store)} == {"one", "docker://host#a/b:1"}
    assert await catalog.remove(store, "one") == (added.digest, False)
    with pytest.raises(NotFound, match="image import"):
        await catalog.resolve(store, "one")
    assert await catalog.remove(store, "docker://host#a/b:1") == (added.digest, True)
    assert await catalog.sweep(store) == []
    assert await stored_size(store, added) == path.stat().st_size
    assert (await add(store, path, "back", ABOUT)).sent_bytes == 0
    assert await catalog.sweep(store, older_than_s=0) == []
    assert await catalog.remove(store, added.digest) == (added.digest, True)
    assert await catalog.list_names(store) == []
    assert await catalog.sweep(store, older_than_s=0) == [added.digest]
    assert await store.list("images") == []
    await add(store, path, "gone", ABOUT)
    assert await catalog.remove(store, "gone", now=True) == (added.digest, True)
    assert await store.list("images") == []


@pytest.mark.parametrize(
    "moment", [("delete", "image-names/one.json"), ("create", "images/DIGEST/removed")]
)
async def test_a_name_that_is_given_while_the_last_one_goes_keeps_the_image(path, moment):
    store = MemoryStore()
    added = await add(store, path, "one", ABOUT)

    async def tag():
        await catalog.give_name(store, "two", added.digest, 5)

    moment = (moment[0], moment[1].replace("DIGEST", added.digest))
    going = Between(store, lambda *call: call == moment, tag)
    assert await catalog.remove(going, "one") == (added.digest, False)
    assert going.then is None
    assert await catalog.sweep(store, older_than_s=0) == []
    assert await stored_size(store, added) == path.stat().st_size


async def test_a_name_that_another_image_has_by_now_stays(path):
    store = MemoryStore()
    added = await add(store, path, "one", ABOUT)
    await catalog.give_name(store, "two", added.digest, 5)

    async def tag():
        await catalog.give_name(store, "two", "e" * 64, 5)

    going = Between(store, lambda operation, name: operation == "delete", tag)
    assert await catalog.remove(going, added.digest) == (added.digest, True)
    assert await catalog.resolve(store, "two") == "e" * 64


@pytest.mark.parametrize("how", ["named", "added"])
async def test_an_image_that_comes_back_during_a_sweep_stays(path, how):
    store = MemoryStore()
    added = await add(store, path, "one", ABOUT)
    await catalog.remove(store, "one")

    async def back():
        if how == "named":
            await catalog.give_name(store, "two", added.digest, 5)
        else:
            await upload.put(store, path, ABOUT)

    sweeping = Between(store, lambda *call: call == ("list", "image-names"), back)
    assert await catalog.sweep(sweeping, older_than_s=0) == []
    assert sweeping.then is None
    assert await catalog.sweep(store, older_than_s=0) == []
    assert await stored_size(store, added) == path.stat().st_size


async def test_no_image_goes_whose_name_cannot_be_read(path):
    store = MemoryStore()
    added = await add(store, path, "one", ABOUT)
    await publish(store, f"images/{added.digest}/removed", b"")
    failing = FlakyStore(store, lambda count, operation, name: name.endswith("one.json"))
    with pytest.raises(Transient):
        await catalog.sweep(failing, older_than_s=0)
    assert await catalog.sweep(store, older_than_s=0) == []
    assert await stored_size(store, added) == path.stat().st_size


@pytest.mark.parametrize("what", ["sweep", "deletion under way"])
async def test_an_image_that_goes_while_it_is_added_is_there_in_the_end(path, small_parts, what):
    store = MemoryStore()
    added = await add(store, path, "one", ABOUT)
    await catalog.remove(store, "one")

    async def others():
        if what == "sweep":
            await catalog.sweep(store, older_than_s=0)
        else:
            await store.delete_tree(f"images/{added.digest}")

    def is_before_the_manifest(operation, name):  # all parts were found to be there
        return operation == "create" and name.endswith("about.json")

    again = await add(Between(store, is_before_the_manifest, others), path, "one", ABOUT)
    assert again.sent_bytes == (0 if what == "sweep" else path.stat().st_size)
    assert await stored(store, added.digest, added.manifest) == path.read_bytes()
    assert (await catalog.read_manifest(store, added.digest))[1] == added.manifest


async def test_a_squashfs_is_added_as_it_is_and_an_archive_made_one_meanwhile(path, tmp_path):
    progress = Noted()
    async with upload.as_squashfs(path, tmp_path, "", "", progress) as found:
        assert found == (path, None)
    assert progress.states == [(0, 0)]
    layout = write_layout(tmp_path / "layout", [pack_tar([Entry("a", data=os.urandom(300_000))])])
    (tmp_path / "scratch").mkdir()
    async with upload.as_squashfs(layout, tmp_path / "scratch", "", "", progress) as (made, how):
        assert made.parent.parent == tmp_path / "scratch"
        assert made.stat().st_size == how.size_bytes and how.files == 1
        assert max(progress.states)[0] > 300_000
        assert progress.states[-1] == (0, 0), "what follows counts from the beginning"
    assert not os.listdir(tmp_path / "scratch")


async def test_who_gives_up_a_conversion_does_not_wait_for_its_end(tmp_path):
    layout = write_layout(tmp_path / "layout", [pack_tar([Entry("a", data=os.urandom(900_000))])])
    (tmp_path / "scratch").mkdir()

    class GivingUp(Noted):
        def _set(self, done_bytes, total_bytes):
            super()._set(done_bytes, total_bytes)
            trio.from_thread.run_sync(scope.cancel)

    progress = GivingUp()
    with trio.CancelScope() as scope:
        async with upload.as_squashfs(layout, tmp_path / "scratch", "", "", progress):
            raise AssertionError("it was converted")
    assert scope.cancelled_caught
    assert not os.listdir(tmp_path / "scratch")


async def stored_size(store, added):
    parts = [catalog.part_object(added.digest, i) for i in range(added.manifest.parts)]
    return sum([(await store.stat(name)).size_bytes for name in parts])


@pytest.mark.parametrize("name", ["", "with space", "ünï", "a\n", "f" * 64, "x" * 201, "/" * 90])
def test_what_cannot_be_a_name(name):
    with pytest.raises(ConfigError):
        catalog.check_name(name)


async def test_nothing_is_sent_for_what_cannot_be_a_name(path):
    store = FlakyStore(MemoryStore(), lambda *_: False)
    with pytest.raises(ConfigError):
        await add(store, path, "with space", ABOUT)
    assert store.calls == []


async def test_a_damaged_name_is_no_name(store, path):
    added = await add(store, path, "tiny", ABOUT)
    document = json.loads(await read_all(store, catalog.name_object("tiny"), 10_000))
    await store.mkdir("image-names/folder.json")
    assert [n.name for n in await catalog.list_names(store)] == ["tiny"]
    for change in ({"digest": "../../etc"}, {"name": "other"}, {"version": 2}, {"format": "x"}):
        await publish(store, catalog.name_object("tiny"), json.dumps(document | change).encode())
        with pytest.raises(Exception, match=r"tiny|understood"):
            await catalog.resolve(store, "tiny")
        assert await catalog.list_names(store) == []
    manifest = replace(added.manifest, sha256="0" * 64).encode()
    await publish(store, catalog.manifest_object(added.digest), manifest)
    with pytest.raises(Exception, match="another image"):
        await catalog.read_manifest(store, added.digest)


class TestCommand:
    @pytest.fixture(autouse=True)
    def _settings(self, tmp_path, monkeypatch):
        self.images = lambda: LocalStore(tmp_path / "images")
        monkeypatch.setattr("bootseer.store.from_settings.connect_images", lambda *_: self.images())

    def call(self, *words):
        result = CliRunner().invoke(command, [str(w) for w in words], catch_exceptions=False)
        return result.exit_code, result.output

    def says(self, *words):
        code, output = self.call(*words)
        assert code == 0, output
        return output

    @pytest.mark.parametrize("words", [["import", "PATH", "--name"], ["tag", "tiny"]])
    def test_a_name_that_asks_for_another_image_is_refused_at_once(self, path, words):
        words = [path if word == "PATH" else word for word in words]
        with pytest.raises(ConfigError, match="name it x"):
            self.call(*words, "bootseer://x")

    def test_a_life(self, path, tmp_path):
        assert self.says("ls") == "no image yet: bootseer image import PATH --name NAME\n"
        added = json.loads(self.says("import", path, "--name", "tiny:1", "--json"))
        assert added["size_bytes"] == added["sent_bytes"] == path.stat().st_size
        assert added["digest"] in self.says("import", path, "--name", "tiny:1")
        assert self.says("tag", "tiny:1", "latest") == f"latest: {added['digest']}\n"
        names = json.loads(self.says("ls", "--json"))
        assert {(n["name"], n["digest"]) for n in names} == {
            ("tiny:1", added["digest"]),
            ("latest", added["digest"]),
        }
        assert "tiny:1" in self.says("ls") and added["digest"][:12] in self.says("ls")
        shown = json.loads(self.says("show", "latest", "--json"))
        assert shown["names"] == ["latest", "tiny:1"] and shown["source"] == str(path)
        assert shown["sha256"] in self.says("show", added["digest"])
        assert "no damage" in self.says("verify", "latest")
        part = tmp_path / "images" / catalog.part_object(added["digest"], 0)
        flip(part, 0)
        code, output = self.call("verify", "latest")
        assert code == 4 and "damaged at byte 0" in output and "--force" in output
        assert json.loads(self.call("verify", "latest", "--json")[1])["damaged"][0]["offset"] == 0
        assert "is kept" in self.says("untag", "tiny:1")
        assert "removed" in self.says("untag", "latest")
        assert json.loads(self.says("ls", "--json")) == []

    def test_an_image_is_removed_with_all_its_names(self, path):
        digest = json.loads(self.says("import", path, "--name", "one", "--json"))["digest"]
        self.says("tag", "one", "two")
        code, output = self.call("untag", digest)
        assert code == 2 and "image rm" in output
        assert "removed" in self.says("rm", "one")
        assert json.loads(self.says("ls", "--json")) == []

    def test_an_archive_is_converted_on_the_way(self, tmp_path):
        layout = tmp_path / "layout"
        write_layout(layout, [pack_tar([Entry("file", data=os.urandom(300_000))])])
        added = json.loads(self.says("import", layout, "--name", "oci", "--json"))
        assert added["source_digest"].startswith("sha256:")
        assert self.says("verify", "oci").endswith("checked, no damage\n")
        again = json.loads(self.says("import", layout, "--name", "oci", "--json"))
        assert (again["digest"], again["sent_bytes"]) == (added["digest"], 0)

    def test_an_image_is_written_back(self, path, tmp_path):
        self.says("import", path, "--name", "tiny", "-q")
        assert self.says("export", "tiny", tmp_path / "back.sqsh", "-q") == ""
        assert (tmp_path / "back.sqsh").read_bytes() == path.read_bytes()
        added = json.loads(self.says("show", "tiny", "--json"))
        part = tmp_path / "images" / catalog.part_object(added["digest"], 0)
        flip(part)
        with pytest.raises(Corrupt):
            self.call("export", "tiny", tmp_path / "back.sqsh")
        assert (tmp_path / "back.sqsh").read_bytes() == path.read_bytes()
        assert not list(tmp_path.glob(".back*"))

    def test_what_is_not_there(self):
        with pytest.raises(NotFound, match="image import"):
            self.call("show", "nothing")
