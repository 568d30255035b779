"""What is wrong with files is found and named, and what was left half done is completed."""

import os
import time

import pytest
import trio
import xxhash
from bootseer_dev.material.checkpoints import UNIT_BYTES, import_folder
from bootseer_dev.material.damage import flip

from bootseer.checkpoint.admin import verify as verify_module
from bootseer.checkpoint.admin.gc import find_orphans, remove_orphans
from bootseer.checkpoint.admin.verify import VerifyResult, verify
from bootseer.checkpoint.files import source, stripe_manifest
from bootseer.checkpoint.files.parts import FROM, MAKING, parts_folder, parts_of
from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER, StripeManifest, UnitPlace
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.read.fetcher import FetchLimits
from bootseer.errors import Conflict, Corrupt, Denied, NotFound, Transient
from bootseer.store.api.base import publish
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.testing.fault_store import FlakyStore
from bootseer.units import format_numbers

UNITS = 12


async def put_striped(store, folder, name):
    """Put a file there whose units are dealt round over three parts."""
    parts_id = os.urandom(16).hex()
    parts = [bytearray() for _ in range(3)]
    units = []
    for index in range(UNITS):
        data = os.urandom(UNIT_BYTES - 100 if index == UNITS - 1 else UNIT_BYTES)
        part = parts[index % 3]
        units.append(UnitPlace(index % 3, len(part), xxhash.xxh3_128_intdigest(data)))
        part += data
    for index, part in enumerate(parts):
        await publish(store, f"{parts_folder(folder, parts_id)}/{index:04d}", part)
    layout = StripeManifest(UNITS * UNIT_BYTES - 100, UNIT_BYTES, parts_id, 3, tuple(units))
    await publish(store, f"{folder}/{name}", layout.encode())


@pytest.fixture
async def store(tmp_path):
    """A store with a striped file, a plain one, and one more below."""
    (tmp_path / "source" / "folder").mkdir(parents=True)
    (tmp_path / "source" / "plain").write_bytes(os.urandom(UNIT_BYTES))
    (tmp_path / "source" / "folder" / "file").write_bytes(os.urandom(3 * UNIT_BYTES))
    store = LocalStore(tmp_path / "store")
    await import_folder(store, tmp_path / "source")
    await put_striped(store, "run", "file")
    return store


@pytest.fixture
async def layout(store):
    return (await CheckpointTree(store).stat("run/file")).layout


@pytest.fixture
def part(tmp_path, layout):
    """The path of the first part of the file."""
    return tmp_path / "store" / "run" / PARTS_FOLDER / layout.parts_id / "0000"


def units_in(layout, part):
    return tuple(index for index, unit in enumerate(layout.units) if unit.part == part)


async def look(store, name="run", **options):
    result = VerifyResult()
    await verify(CheckpointTree(store), name, result, **options)
    return result


async def test_what_is_whole_is_read_and_nothing_said(store):
    found = await look(store)
    assert (found.problems, found.notes, found.repaired) == ([], [], [])
    assert (
        found.progress.moved_bytes
        == found.progress.total_bytes
        == (UNITS + 1 + 3) * UNIT_BYTES - 100
    )
    assert found.progress.done_files == 3
    assert (await look(store, deep=False)).progress.done_files == 2
    assert (await look(store, "run/folder/file")).progress.moved_bytes == 3 * UNIT_BYTES


async def test_a_flipped_byte_is_found_in_its_unit(store, layout, part):
    wrong = units_in(layout, 0)[-1]
    content = bytearray(part.read_bytes())
    content[layout.units[wrong].offset] ^= 1
    part.write_bytes(content)
    found = await look(store)
    (problem,) = found.problems
    assert (problem.name, problem.part, problem.units) == ("run/file", 0, (wrong,))
    assert f"run/file: unit {wrong} in part 0000: " in str(problem)
    assert found.progress.done_files == 2
    assert (
        found.progress.moved_bytes
        == found.progress.total_bytes - layout.unit_range(wrong).size_bytes
    )


async def test_every_wrong_unit_is_named(store, layout, part):
    part.write_bytes(bytes(len(part.read_bytes())))
    found = await look(store)
    assert [problem.units for problem in found.problems] == [(u,) for u in units_in(layout, 0)]


async def test_a_part_that_is_too_short_is_named_with_its_units(store, layout, part):
    os.truncate(part, part.stat().st_size - 1)
    (problem,) = (await look(store)).problems
    assert (problem.part, problem.units) == (0, units_in(layout, 0))
    assert f"{part.stat().st_size} of {part.stat().st_size + 1} bytes" in str(problem)


async def test_a_longer_part_is_whole(store, part):
    with part.open("ab") as file:
        file.write(b"not acknowledged")
    assert (await look(store)).problems == []


async def test_a_missing_part_is_named_with_its_units(store, layout, part):
    part.unlink()
    found = await look(store)
    (problem,) = found.problems
    assert (problem.part, problem.units) == (0, units_in(layout, 0))
    assert "missing" in str(problem)
    lost = sum(layout.unit_range(unit).size_bytes for unit in problem.units)
    assert found.progress.moved_bytes == found.progress.total_bytes - lost
    assert found.progress.done_bytes == found.progress.total_bytes


async def test_a_file_without_any_parts_has_lost_them_all(store, layout):
    await store.delete_tree(parts_folder("run", layout.parts_id))
    found = await look(store, "run/file")
    assert [(problem.part, problem.units) for problem in found.problems] == [
        (part, units_in(layout, part)) for part in range(3)
    ]
    assert found.progress.failures == []
    assert (found.progress.done_bytes, found.progress.moved_bytes) == (layout.size_bytes, 0)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[: len(data) // 2], "damaged manifest"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "mismatch|checksum|SHA"),
        (lambda data: data[:8] + b"\xff" + data[9:], "version"),
        (lambda data: data[:5], "damaged manifest"),
    ],
    ids=["half", "flipped", "version", "truncated"],
)
async def test_a_manifest_that_cannot_be_used_is_named(store, tmp_path, damage, says):
    path = tmp_path / "store" / "run" / "file"
    path.write_bytes(damage(path.read_bytes()))
    found = await look(store, repair=True)
    (problem,) = found.problems
    assert problem.name == "run/file"
    assert any(word in str(problem) for word in says.split("|"))
    assert (found.progress.done_files, found.progress.total_files) == (2, 3)
    assert found.progress.moved_bytes == 4 * UNIT_BYTES
    assert found.progress.done_bytes == found.progress.total_bytes
    orphans = await find_orphans(CheckpointTree(store), "run", -1)
    assert orphans.unused == () and isinstance(orphans.problem, Corrupt)
    judged = await find_orphans(CheckpointTree(store), "run", -1, ["run/file"])
    assert len(judged.unused) == 1


async def test_what_another_copy_has_right_is_whole_and_noted(store, layout):
    """The first reader of a part gives wrong bytes, one that is opened again right ones."""
    opened = {}

    class WrongOnce(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "open":
                opened[name] = opened.get(name, 0) + 1
            data = await call()
            if operation == "pread" and name.endswith("/0001") and opened[name] == 1:
                return bytes(len(data))
            return data

    found = await look(WrongOnce(store), "run/file")
    assert found.problems == []
    assert found.notes and all("another copy is right" in note for note in found.notes)
    assert len(found.notes) <= len(units_in(layout, 1))
    assert found.progress.moved_bytes == layout.size_bytes


async def test_a_part_whose_machine_does_not_answer_is_one_problem(store, layout):
    def fails(count, operation, name):
        return operation == "pread" and name.endswith(f"{layout.parts_id}/0001")

    flaky = FlakyStore(store, fails)
    found = await look(flaky)
    (problem,) = found.problems
    assert (problem.part, problem.units) == (1, units_in(layout, 1))
    assert "cannot be read: " in str(problem)
    assert found.progress.done_bytes == found.progress.total_bytes
    # What was asked for before that was known; the rest is not waited for.
    part = f"{parts_folder('run', layout.parts_id)}/0001"
    assert flaky.calls.count(("pread", part)) <= 2 * 3


async def test_machines_that_do_not_answer_are_a_problem_each(store, layout):
    def fails(count, operation, name):
        return operation == "pread" and layout.parts_id in name and not name.endswith("/0002")

    found = await look(FlakyStore(store, fails))
    assert sorted((problem.part, problem.units) for problem in found.problems) == [
        (part, units_in(layout, part)) for part in (0, 1)
    ]


@pytest.mark.parametrize("lost", [False, True])
async def test_a_file_of_which_nothing_can_be_read_is_no_damaged_one(store, layout, part, lost):
    """It is the store that does not answer; but what is missing is known to be."""
    if lost:
        part.unlink()

    def fails(count, operation, name):
        return operation == "pread" and layout.parts_id in name

    found = await look(FlakyStore(store, fails))
    assert [(f.name, type(f.error)) for f in found.progress.failures] == [("run/file", Transient)]
    texts = [str(problem) for problem in found.problems if problem.part is None]
    assert len(texts) == 1 and "flaky" in texts[0]
    assert [problem.part for problem in found.problems if problem.part is not None] == [0] * lost


async def test_what_is_wrong_on_one_machine_is_told_though_others_do_not_answer(
    store, layout, part
):
    part.write_bytes(bytes(len(part.read_bytes())))

    def fails(count, operation, name):
        return operation == "pread" and layout.parts_id in name and not name.endswith("/0000")

    found = await look(FlakyStore(store, fails))
    assert found.progress.failures == []
    assert sorted((problem.part, problem.units) for problem in found.problems) == [
        *((0, (unit,)) for unit in units_in(layout, 0)),
        *((part, units_in(layout, part)) for part in (1, 2)),
    ]


async def test_an_error_that_is_no_damage_ends_the_reading_of_a_file(store, layout):
    class Denying(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "open" and layout.parts_id in name:
                raise Denied("another user's")
            return await call()

    found = await look(Denying(store))
    assert [(f.name, type(f.error)) for f in found.progress.failures] == [("run/file", Denied)]
    assert [str(problem) for problem in found.problems] == ["run/file: another user's"]
    assert found.progress.done_files == 2


@pytest.mark.parametrize("name", ["run/plain", "run/file"])
async def test_where_a_large_object_is_kept_is_asked_before_it_is_read(
    store, placed, monkeypatch, name
):
    """Of parts it need not be known."""
    monkeypatch.setattr(source, "_LARGE_BYTES", 1)
    assert (await look(placed, name)).problems == []
    assert placed.asked == ["run/plain"] * (name == "run/plain")


async def test_an_ordinary_object_that_may_not_be_read_is_no_damaged_one(store):
    class Denying(WrappedStore):
        async def around(self, operation, name, call):
            if (operation, name) == ("open", "run/plain"):
                raise Denied("another user's")
            return await call()

    found = await look(Denying(store))
    assert [(f.name, type(f.error)) for f in found.progress.failures] == [("run/plain", Denied)]


async def test_an_ordinary_object_that_cannot_be_read_is_one_problem(store, tmp_path, monkeypatch):
    """However many pieces of it: there is no part, and there are no units."""
    monkeypatch.setattr(source, "PLAIN_PIECE_BYTES", UNIT_BYTES)
    await publish(store, "run/plain", bytes(9 * UNIT_BYTES))

    class Short(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "pread" and name == "run/plain":
                raise Corrupt("it is shorter now")
            return await call()

    found = await look(Short(store))
    assert [(p.name, p.text, p.part, p.units) for p in found.problems] == [
        ("run/plain", "it is shorter now", None, ())
    ]
    assert found.progress.failures == []


@pytest.mark.parametrize(("memory_units", "at_once"), [(0.5, 1), (1, 1), (2, 2), (100, 6)])
async def test_as_much_is_read_at_once_as_there_is_memory_for(
    autojump_clock, monkeypatch, memory_units, at_once
):
    busy = most = 0

    class Slow(WrappedStore):
        async def around(self, operation, name, call):
            nonlocal busy, most
            if operation != "pread" or PARTS_FOLDER not in name:
                return await call()
            busy += 1
            most = max(most, busy)
            await trio.sleep(1)
            busy -= 1
            return await call()

    limits = FetchLimits(memory_bytes=int(memory_units * UNIT_BYTES))
    monkeypatch.setattr(verify_module, "limits_for", lambda files: limits)
    store = Slow(MemoryStore())
    await put_striped(store, "run", "file")
    assert (await look(store, "run/file")).problems == []
    assert most == at_once


async def test_a_store_that_is_gone_ends_it_soon(store, tmp_path):
    for number in range(30):
        await publish(store, f"run/more{number}", b"content")
    asked = []

    def fails(count, operation, name):
        asked.append(name)
        return operation in ("open", "pread") and "more" in name

    with pytest.raises(Exception, match="flaky"):
        await look(FlakyStore(store, fails))
    assert not any("more29" in name for name in asked)


async def test_what_is_replaced_meanwhile_is_not_called_damaged(store, part):
    tree = CheckpointTree(store)

    class Replaced(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "list" and PARTS_FOLDER in name and part.exists():
                part.unlink()
                os.utime(part.parents[2] / "file", ns=(0, 0))
            return await call()

    result = VerifyResult()
    await verify(CheckpointTree(Replaced(store)), "run/file", result)
    assert [type(f.error) for f in result.progress.failures] == [Conflict]
    assert (await tree.stat("run/file")).layout is not None


@pytest.mark.parametrize("gone", [False, True])
async def test_what_is_replaced_while_its_parts_are_brought_is_not_repaired(store, moving, gone):
    class Replaced(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "stat" and name == "run/file":
                looks.append(name)
                if len(looks) > 1:
                    await (store.delete(name) if gone else publish(store, name, b"another"))
            return await call()

    looks = []
    found = await look(Replaced(store), "run/file", repair=True)
    assert [type(f.error) for f in found.progress.failures] == [Conflict]
    assert found.repaired == [] and (await store.stat(moving)).is_folder


@pytest.fixture
async def moving(store, layout):
    """The file as a move from another folder leaves it that ends before the last step."""
    there = parts_folder("run/folder", layout.parts_id)
    await store.rename(parts_folder("run", layout.parts_id), there)
    await publish(store, f"{parts_of('run')}/{FROM}1", b"folder")
    return there


class TestInterruptedMoves:
    async def test_are_noted(self, store, moving):
        found = await look(store)
        assert found.problems == [] and found.progress.done_files == 3
        assert "run/file" in found.notes[0] and "--repair" in found.notes[0]
        assert (await store.stat(moving)).is_folder

    async def test_are_completed_before_what_leads_to_the_parts_is_removed(
        self, store, layout, moving
    ):
        tree = CheckpointTree(store)
        orphans = await find_orphans(tree, "run", -1)
        assert [info.name for info in orphans.abandoned] == [f"{parts_of('run')}/{FROM}1"]
        assert orphans.unused == []
        await remove_orphans(tree, "run", orphans)
        assert (await store.stat(parts_folder("run", layout.parts_id))).is_folder
        assert (await look(store)).notes == []

    async def test_are_completed(self, store, layout, moving):
        found = await look(store, repair=True)
        assert found.problems == [] and len(found.repaired) == 1
        with pytest.raises(NotFound):
            await store.stat(moving)
        assert (await store.stat(parts_folder("run", layout.parts_id))).is_folder
        found = await look(store, repair=True)
        assert (found.problems, found.notes, found.repaired) == ([], [], [])

    async def test_are_completed_from_a_folder_that_was_renamed_meanwhile(
        self, store, layout, moving
    ):
        """Nothing leads to the parts any more; a folder with marks alone has none."""
        await store.rename("run/folder", "run/new")
        await store.mkdir(parts_folder("run/another", layout.parts_id) + "/named-1")
        found = await look(store)
        assert [problem.name for problem in found.problems] == ["run/file"] * 3
        assert "'run/new/.bootseer-parts'" in found.notes[0] and "--repair" in found.notes[0]
        found = await look(store, repair=True)
        assert found.problems == [] and found.progress.done_files == 3
        assert found.repaired == ["run/file: its parts are beside it again"]
        assert (await look(store)).notes == []

    async def test_of_which_the_parts_are_nowhere_are_problems(self, store, layout, moving):
        await store.delete_tree(moving)
        for repair in (False, True):
            found = await look(store, repair=repair)
            assert [problem.text for problem in found.problems] == ["the part is missing"] * 3
            assert (found.notes, found.repaired) == ([], [])


async def test_names_that_cannot_be_used_are_problems_and_nothing_goes_for_them(store, tmp_path):
    """The parts beside a manifest that was given one are its own."""
    run = tmp_path / "store" / "run"
    (run / "file").rename(run / "lo\tss")
    (run / "folder" / "link").symlink_to("file")
    found = await look(store)
    assert [(problem.name, "control character" in problem.text) for problem in found.problems] == [
        ("run/lo\tss", True)
    ]
    assert found.notes == ["run/folder/link: left out, a link or special file"]
    orphans = await find_orphans(CheckpointTree(store), "run", -1)
    assert orphans.unused == () and "rename it" in str(orphans.problem)
    (run / "lo\tss").rename(run / "file")
    orphans = await find_orphans(CheckpointTree(store), "run", -1)
    assert (orphans.unused, orphans.problem) == ([], None)


async def abandoned(store, folder, age_s):
    name = f"{folder}/{PARTS_FOLDER}/{MAKING}{os.urandom(16).hex()}"
    await publish(store, f"{name}/0000", b"part")
    await store.set_mtime(name, time.time_ns() - int(age_s * 1e9))
    return name


async def test_repair_says_in_which_folders_it_has_removed_something(store, tmp_path):
    root = CheckpointTree(LocalStore(tmp_path / "store"))
    for folder in ("", "run/folder", "run"):
        name = parts_folder(folder, MAKING + os.urandom(16).hex())
        await publish(store, f"{name}/0000", b"part")
        await store.set_mtime(name, 0)
    result = VerifyResult()
    await verify(root, "", result, repair=True)
    what = "removed the parts of 1 abandoned writes"
    assert result.repaired == [f"{folder}: {what}" for folder in ("/", "run", "run/folder")]


async def test_repair_of_a_file_is_of_its_folder(store):
    given_up = await abandoned(store, "run", 3 * 86400)
    below = await abandoned(store, "run/folder", 3 * 86400)
    assert len((await look(store, "run/file", repair=True)).repaired) == 1
    assert (await store.stat(below)).is_folder
    with pytest.raises(NotFound):
        await store.stat(given_up)


async def test_repair_removes_what_was_given_up(store):
    old = await abandoned(store, "run/folder", 3 * 86400)
    new = await abandoned(store, "run", 3600)
    assert (await look(store)).repaired == []
    assert len((await look(store, repair=True)).repaired) == 1
    assert (await store.stat(new)).is_folder
    with pytest.raises(NotFound):
        await store.stat(old)


class TestSweep:
    async def lost(self, store, age_s=3 * 86400):
        """Have parts whose manifest has been removed."""
        folder = f"run/{PARTS_FOLDER}/{os.urandom(16).hex()}"
        await publish(store, f"{folder}/0000", b"part")
        await store.set_mtime(folder, time.time_ns() - int(age_s * 1e9))
        return folder

    async def test_finds_only_what_is_old_and_of_no_file(self, store):
        tree = CheckpointTree(store)
        given_up = await abandoned(store, "run", 3 * 86400)
        await abandoned(store, "run", 3600)
        lost = await self.lost(store)
        await self.lost(store, 3600)
        orphans = await find_orphans(tree, "run")
        assert [info.name for info in orphans.abandoned] == [given_up]
        assert [info.name for info in orphans.unused] == [lost]
        assert (await store.stat(lost)).is_folder
        assert await remove_orphans(tree, "run", orphans) == 2
        assert (await find_orphans(tree, "run")).unused == []
        assert (await look(store)).problems == []

    async def test_keeps_all_parts_while_a_manifest_cannot_be_read(self, store, tmp_path):
        tree = CheckpointTree(store)
        lost = await self.lost(store)
        path = tmp_path / "store" / "run" / "folder" / "file"
        flip(path)
        orphans = await find_orphans(tree, "run")
        assert isinstance(orphans.problem, Corrupt)
        assert await remove_orphans(tree, "run", orphans) == 0
        orphans = await find_orphans(tree, "run", ignored=["run/folder/file"])
        assert [info.name for info in orphans.unused] == [lost]

    async def test_an_empty_file_can_be_said_to_be_no_manifest(self, store):
        await publish(store, "run/empty", b"")
        await self.lost(store)
        tree = CheckpointTree(store)
        assert (await tree.stat("run/empty")).problem is not None
        orphans = await find_orphans(tree, "run", ignored=["run/empty"])
        assert await remove_orphans(tree, "run", orphans, ["run/empty"]) == 1
        assert (await tree.stat("run/empty")).problem is None

    @pytest.mark.parametrize("length", [8, 100, 200])
    async def test_takes_what_has_lost_its_end_for_a_manifest(self, monkeypatch, length):
        """However short it is, or long: its parts may be those that nobody names."""
        monkeypatch.setattr(stripe_manifest, "MAX_BYTES", 200)
        store = MemoryStore()
        await self.lost(store)
        await publish(store, "run/damaged", stripe_manifest.MAGIC.ljust(length, b"x"))
        await publish(store, "run/other", b"no manifest")
        tree = CheckpointTree(store)
        orphans = await find_orphans(tree, "run")
        assert orphans.unused == () and "'run/damaged' is a damaged" in str(orphans.problem)
        orphans = await find_orphans(tree, "run", ignored=["run/damaged"])
        assert len(orphans.unused) == 1 and orphans.problem is None

    async def test_does_not_look_into_what_cannot_be_a_manifest(self, store, monkeypatch):
        monkeypatch.setattr(stripe_manifest, "MAX_BYTES", 2 * UNIT_BYTES)
        await publish(store, "run/short", b"BSSTRIP")
        await publish(store, "run/long", bytes(2 * UNIT_BYTES + 1))
        await self.lost(store)
        flaky = FlakyStore(store, lambda *_: False)
        await find_orphans(CheckpointTree(flaky), "run", ignored=["run/short"])
        looked = {name for operation, name in flaky.calls if operation == "pread"}
        assert looked >= {"run/plain", "run/file"} and "run/long" not in looked

    @pytest.mark.parametrize("error", [Transient("away"), NotFound("gone meanwhile")])
    async def test_keeps_all_parts_while_it_cannot_look_into_a_file(self, store, error):
        class Refusing(WrappedStore):
            async def around(self, operation, name, call):
                if (operation, name) == ("open", "run/plain"):
                    raise error.again()
                return await call()

        lost = await self.lost(store)
        orphans = await find_orphans(CheckpointTree(Refusing(store)), "run")
        if isinstance(error, NotFound):
            assert [info.name for info in orphans.unused] == [lost]
        else:
            assert orphans.unused == () and "away; whether it is" in str(orphans.problem)

    async def test_takes_what_is_just_old_enough(self, monkeypatch):
        now_ns = time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda: now_ns)
        store = MemoryStore()
        for age_s in (99.9, 100):
            await self.lost(store, age_s)
            await abandoned(store, "run", age_s)
        orphans = await find_orphans(CheckpointTree(store), "run", 100)
        for found in (orphans.unused, orphans.abandoned):
            assert [now_ns - info.mtime_ns for info in found] == [100 * 10**9]

    async def test_keeps_what_has_got_its_name_meanwhile(self, store, layout):
        tree = CheckpointTree(store)
        manifest = layout.encode()
        await store.delete("run/file")
        orphans = await find_orphans(tree, "run", -1)
        assert [info.name for info in orphans.unused] == [parts_folder("run", layout.parts_id)]
        await publish(store, "run/file", manifest)
        assert await remove_orphans(tree, "run", orphans) == 0
        assert (await look(store)).problems == []


def test_numbers_are_written_as_people_do():
    assert format_numbers([7, 3, 11, 12, 13]) == "3, 7, 11-13"
    assert format_numbers([]) == ""
