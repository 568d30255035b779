"""Run a command once, find its result afterwards; when anything goes wrong, run the command."""

import io
import os
import re
import threading
import time

import pytest
import trio

from bootseer.core.event import FALLBACK
from bootseer.env.client.key import key_of
from bootseer.env.client.scan import tree_digest
from bootseer.env.snapshot import repository
from bootseer.env.snapshot.restore_stats import RestoreStats
from bootseer.errors import Corrupt, Denied, NoSpace, Unavailable
from bootseer.image.library import catalog as images
from bootseer.store import key_lease
from bootseer.store.api.base import FolderListing, publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore, HangingStore, ReadOnlyStore
from bootseer.units import format_size

MAKE = """
mkdir -p {0}/lib/deep {0}/none
echo module > {0}/lib/module.py
echo deep > {0}/lib/deep/file
ln {0}/lib/module.py {0}/same.py
ln -s lib/module.py {0}/link
chmod 750 {0}/lib/deep
chmod 4755 {0}/lib/deep/file
touch -d @1234567890.123456789 {0}/lib/module.py
"""


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target"


def fill(target):
    """A base: the command adds to it, replaces, deletes."""
    (target / "lib/old").mkdir(parents=True)
    for name in ("lib/module.py", "lib/old/gone", "kept", "lib/first"):
        (target / name).write_text(name)
    os.link(target / "lib/first", target / "lib/second")
    os.utime(target / "kept", ns=(0, 10**18))
    os.utime(target / "lib/old", ns=(0, 10**18))


CHANGE = MAKE + "rm {0}/lib/old/gone; ln {0}/lib/second {0}/lib/a; touch {0}/kept\n"


def restored(look, folder):
    """What a folder holds, but for rights that no snapshot has."""
    return {path: node._replace(mode=node.mode & 0o1777) for path, node in look(folder).items()}


async def emptied(target):
    await trio.run_process(["rm", "-rf", target])


async def test_the_command_runs_once_and_its_result_is_there_ever_after(lab, target, look):
    before_ns = time.time_ns()
    first = await lab.run(MAKE.format(target), target)
    assert (first.status, lab.runs()) == (0, 1)
    assert "stored as" in first.text
    [snapshot] = [found.snapshot for found in await repository.list_snapshots(lab.store)]
    assert 0 < snapshot.command_ms < 60_000
    stages, key = dict(lab.stages), f"key {snapshot.key[:12]}"
    assert stages["env.find"] == {"detail": f"{key}: none yet"}
    assert stages["env.claim"] == {"detail": f"{key}: user on node captures"}
    captured = stages["env.capture"]
    assert captured["bytes"] == snapshot.content_bytes > 0
    stored_bytes = snapshot.image_bytes
    assert captured["detail"] == f"{snapshot.files} files, {format_size(stored_bytes)} stored"
    assert before_ns < captured["start_ns"] <= snapshot.captured_ns
    made = restored(look, target)
    await emptied(target)
    second = await lab.run(MAKE.format(target), target)
    assert (second.status, lab.runs()) == (0, 1)
    assert "unpacked" in second.text and "without running" in second.text
    took_s = re.search(r"unpacked in ([0-9.]+) s", second.text)
    assert took_s and float(took_s[1]) < 60
    assert dict(lab.stages)["env.find"] == {"bytes": snapshot.content_bytes, "detail": key}
    unpacked = dict(lab.stages)["env.unpack"]
    assert unpacked["bytes"] == snapshot.content_bytes
    assert unpacked["detail"].startswith(f"{snapshot.files} files, ")
    assert tree_digest(restored(look, target)) == tree_digest(made)
    assert {info.name.rpartition("/")[2] for info in await lab.store.list("env/used")} == {
        (await repository.list_snapshots(lab.store))[0].key
    }


async def test_room_is_made_for_what_was_captured_last(lab, tmp_path, monkeypatch):
    monkeypatch.setattr("bootseer.env.admin.gc.IN_USE_NS", -1)
    first, second = tmp_path / "first", tmp_path / "second"
    await lab.run(MAKE.format(first), first)
    [old] = await repository.list_snapshots(lab.store)
    stored_bytes = old.snapshot.image_bytes
    await lab.run(MAKE.format(second), second, context=lab.context(quota_bytes=3 * stored_bytes))
    assert old.key in {found.key for found in await repository.list_snapshots(lab.store)}
    (second / "more").touch()
    context = lab.context(quota_bytes=5 * stored_bytes // 2)
    await lab.run(MAKE.format(second), second, context=context)
    kept = {found.key for found in await repository.list_snapshots(lab.store)}
    assert len(kept) == 2 and old.key not in kept


async def test_a_base_is_made_what_the_command_made_of_it(lab, target, look):
    fill(target)
    await lab.run(CHANGE.format(target), target)
    made = restored(look, target)
    assert b"lib/old/gone" not in made
    await emptied(target)
    fill(target)
    second = await lab.run(CHANGE.format(target), target)
    assert (second.status, lab.runs()) == (0, 1)
    assert "unpacked" in second.text
    assert restored(look, target) == made
    assert tree_digest(restored(look, target)) == tree_digest(made)


async def test_another_base_is_another_key(lab, target):
    fill(target)
    await lab.run(CHANGE.format(target), target)
    await emptied(target)
    await lab.run(CHANGE.format(target), target)
    assert lab.runs() == 2


async def test_what_is_there_already_stays(lab, target, look):
    await lab.run(MAKE.format(target), target)
    made = look(target)
    second = await lab.run(MAKE.format(target), target)
    assert (second.status, lab.runs()) == (0, 1)
    assert "there already" in second.text
    assert look(target) == made
    (target / "same.py").unlink()
    await lab.run(MAKE.format(target), target)
    assert lab.runs() == 2


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        ("chmod 700 {0}/lib/module.py", 2),
        ("touch -d @1 {0}/lib/module.py", 2),
        ("ln -sfn none {0}/link", 2),
        ("touch -d @1 {0}/lib", 1),  # of folders it changes with each look
    ],
)
async def test_what_is_there_already_is_told_without_reading(lab, target, change, runs):
    await lab.run(MAKE.format(target), target)
    await trio.run_process(["sh", "-c", change.format(target)])
    done = await lab.run(MAKE.format(target), target)
    assert lab.runs() == runs
    assert ("there already" in done.text) == (runs == 1)


async def test_several_targets(lab, tmp_path, look):
    targets = [tmp_path / "a", tmp_path / "b"]
    script = "".join(MAKE.format(target) for target in targets) + f"echo b > {targets[1]}/only"
    await lab.run(script, *targets)
    made = [restored(look, target) for target in targets]
    for target in targets:
        await emptied(target)
    await lab.run(script, *targets)
    assert lab.runs() == 1
    assert [restored(look, target) for target in targets] == made


async def test_a_target_that_is_a_link_to_a_folder(lab, tmp_path, look):
    (tmp_path / "real").mkdir()
    target = tmp_path / "target"
    target.symlink_to("real")
    await lab.run(MAKE.format(target), target)
    made = restored(look, tmp_path / "real")
    await emptied(tmp_path / "real")
    (tmp_path / "real").mkdir()
    second = await lab.run(MAKE.format(target), target)
    assert lab.runs() == 1
    assert "unpacked" in second.text
    assert target.is_symlink()
    assert restored(look, tmp_path / "real") == made


async def test_a_target_that_the_caller_is_in_is_not_replaced(lab, target, look, monkeypatch):
    await lab.run(MAKE.format(target), target)
    made = restored(look, target)
    await emptied(target)
    target.mkdir()
    monkeypatch.chdir(target)
    lab.mounter = Mounter()
    assert "unpacked" in (await lab.run(MAKE.format(target), target, mode="mount")).text
    assert restored(look, ".") == made


async def test_a_target_made_anew_by_the_command(lab, target, look):
    fill(target)
    script = f"rm -rf {target} && mkdir {target}\n{MAKE.format(target)}"
    await lab.run(script, target)
    made = restored(look, target)
    assert b"kept" not in made
    await emptied(target)
    fill(target)
    await lab.run(script, target)
    assert lab.runs() == 1
    assert restored(look, target) == made


async def test_names_that_are_no_text(lab, tmp_path, look):
    target = tmp_path / os.fsdecode(b"\xff target")
    script = f"echo 1 > \"$(printf '{tmp_path}/\\377 target')/file\""
    assert "stored as" in (await lab.run(script, target)).text
    await emptied(target)
    assert "unpacked" in (await lab.run(script, target)).text
    assert (target / "file").read_text() == "1\n"


async def test_a_file_that_the_command_reads_counts(lab, target, tmp_path):
    needs = tmp_path / "requirements.txt"
    for content, runs in [("a", 1), ("b", 2), ("a", 2)]:
        needs.write_text(content)
        await emptied(target)
        await lab.run(MAKE.format(target), target, key_files=[str(needs)])
        assert lab.runs() == runs


async def test_refresh_captures_anew(lab, target):
    script = f"cat {target.parent}/what > {target}/file"
    for what, force, runs in [("a", False, 1), ("b", True, 2), ("c", False, 2)]:
        (target.parent / "what").write_text(what)
        await emptied(target)
        await lab.run(script, target, force=force)
        assert lab.runs() == runs
    assert (target / "file").read_text() == "b"


async def test_no_capture(lab, target):
    done = await lab.run(MAKE.format(target), target, no_capture=True)
    assert (done.status, lab.runs()) == (0, 1)
    assert await repository.list_snapshots(lab.store) == []


@pytest.mark.parametrize("status", [1, 3, 255])
async def test_what_a_failing_command_made_is_not_kept(lab, target, status):
    done = await lab.run(f"{MAKE.format(target)}exit {status}", target)
    assert done.status == status
    told = {"status": FALLBACK, "detail": f"the command failed with {status}"}
    assert dict(lab.stages)["env.capture"] == told
    assert await repository.list_snapshots(lab.store) == []
    assert await lab.store.list("env/claims") == []
    assert not any(info.name.startswith("images/") for info in await lab.store.list("images"))


async def test_without_wait_it_is_kept_after_the_command_side_has_gone(lab, target):
    done = await lab.run(MAKE.format(target), target, waits=False)
    assert (
        "stored" not in done.text.partition(" capturing its result: ")[2]
    )  # nobody waited to hear it
    assert (await repository.list_snapshots(lab.store))[0].snapshot is not None
    assert await lab.store.list("env/claims") == []


async def test_variables_of_the_command_reach_the_findings(lab, target, monkeypatch):
    seen = []

    def examine(tree, read, targets, home, environ):
        seen.append(dict(environ))
        return []

    monkeypatch.setattr("bootseer.env.server.capturer.examine", examine)
    lab.environ |= {"PYTHONNOUSERSITE": "1", "TMPDIR": "/elsewhere"}
    lab.environ.pop("SLURM_TMPDIR", None)
    await lab.run(MAKE.format(target), target)
    assert seen == [{"PYTHONNOUSERSITE": "1", "TMPDIR": "/elsewhere"}]


async def test_what_no_snapshot_holds_is_among_its_findings(lab, target):
    await lab.run(f"{MAKE.format(target)}mkfifo {target}/pipe", target)
    (listed,) = await repository.list_snapshots(lab.store)
    found = [(finding.kind, finding.path) for finding in listed.snapshot.findings]
    assert ("left out", f"{target}/pipe") in found


async def test_a_target_that_cannot_be_looked_at_keeps_nothing(lab, target, monkeypatch):
    def scan_before(folder):
        raise PermissionError("not yours")

    monkeypatch.setattr("bootseer.env.server.capturer.capture.scan_before", scan_before)
    done = await lab.run(MAKE.format(target), target)
    assert (done.status, lab.runs()) == (0, 1)
    assert "without capturing it: a target cannot be read: not yours" in done.text
    assert await lab.store.list("env/claims") == []


async def test_a_question_may_be_larger_than_what_a_socket_holds(lab, target):
    extra = [str(number) * 4000 for number in range(100, 200)]
    await lab.run(MAKE.format(target), target, extra=extra)
    assert "there already" in (await lab.run(MAKE.format(target), target, extra=extra)).text


HANGING = ["capturer.capture.scan_before", "capturer.capture.scan_after", "capturer.examine"]
HANGING += ["lookup.scan_folder"]


@pytest.mark.parametrize("name", HANGING)
async def test_a_folder_that_hangs_does_not_keep_a_session(lab, target, monkeypatch, name):
    """Such as one of a share that is away."""
    reached, goes_on = threading.Event(), threading.Event()
    lab_serve, scope = lab.serve, trio.CancelScope()

    def hang(*args, **options):
        reached.set()
        goes_on.wait(12)
        raise OSError("it was away")

    async def serve(end, context):
        with scope:
            await lab_serve(end, context)

    if name == "lookup.scan_folder":
        await lab.run(MAKE.format(target), target)
    monkeypatch.setattr(f"bootseer.env.server.{name}", hang)
    lab.serve = serve
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lab.run, MAKE.format(target), target)
            while not reached.is_set():
                await trio.sleep(0.01)
            scope.cancel()
    goes_on.set()


# Mounting.


class Mounter:
    def __init__(self, error=None):
        self.asked = []
        self.error = error

    async def mount(self, key, folders, read_only):
        self.asked.append((key, len(folders), read_only))
        if self.error:
            raise self.error


async def test_a_snapshot_is_mounted_where_that_can_be(lab, target):
    await lab.run(MAKE.format(target), target)
    await emptied(target)
    lab.mounter = Mounter()
    done = await lab.run(MAKE.format(target), target, read_only=True, mode="mount")
    assert "mounted" in done.text
    assert [asked[1:] for asked in lab.mounter.asked] == [(1, True)]
    assert list(target.iterdir()) == []  # this one does nothing
    (listed,) = await repository.list_snapshots(lab.store)
    size_bytes = listed.snapshot.content_bytes
    assert dict(lab.stages)["env.mount"] == {"bytes": size_bytes, "detail": str(target)}
    unpacked = await lab.run(MAKE.format(target), target, mode="unpack")
    assert "unpacked" in unpacked.text
    assert len(lab.mounter.asked) == 1


async def test_what_cannot_be_mounted_is_unpacked(lab, target):
    await lab.run(MAKE.format(target), target)
    await emptied(target)
    lab.mounter = Mounter(Unavailable("no fuse"))
    done = await lab.run(MAKE.format(target), target, mode="mount")
    assert "unpacked" in done.text
    assert lab.errors() == {"env.mount": "no fuse"}
    assert lab.runs() == 1


async def test_what_took_less_before_is_chosen(lab, target):
    """This one is small: at first it is unpacked; when mounts have been quick, it is mounted."""
    lab.mounter = Mounter()
    await lab.run(MAKE.format(target), target)
    for mount_s, how in ((5.0, "unpacked"), (1e-6, "mounted")):
        await repository.write_stats(lab.store, RestoreStats(mount_s, unpack_s_per_gb=1.1))
        await emptied(target)
        assert how in (await lab.run(MAKE.format(target), target)).text
        if how == "unpacked":
            assert dict(lab.stages)["env.mount"]["detail"].startswith("unpacked: mount 5")
    assert 1e-6 != (await repository.read_stats(lab.store)).mount_s < 5


async def test_what_unpacking_took_is_remembered(lab, target, monkeypatch):
    monkeypatch.setattr("bootseer.env.snapshot.restore_stats._LEAST_BYTES", 1)
    await lab.run(MAKE.format(target), target)
    await repository.write_stats(lab.store, RestoreStats(unpack_s_per_1000_files=10_000.0))
    await emptied(target)
    await lab.run(MAKE.format(target), target)
    found = await repository.read_stats(lab.store)
    assert found.mount_s == RestoreStats().mount_s
    assert 5_000 < found.unpack_s_per_1000_files < 8_000  # it took next to nothing


async def test_how_far_it_is_unpacked_is_told(lab, target, monkeypatch):
    await lab.run(MAKE.format(target), target)
    await emptied(target)
    monkeypatch.setattr("bootseer.env.server.progress._PROGRESS_S", 0.01)
    shown = io.StringIO()
    shown.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", shown)

    async def unpack(store, snapshot, places, count, parts):
        count(3000)
        count(4000)
        while "unpacking 7 kB of 12 B" not in shown.getvalue():
            await trio.sleep(0.01)
        return 12_000

    monkeypatch.setattr("bootseer.env.server.restorer.unpack", unpack)
    with trio.fail_after(10):
        await lab.run(MAKE.format(target), target)
    assert dict(lab.stages)["env.unpack"]["detail"].endswith(" files, 12 kB read")


async def test_damaged_figures_are_none(lab):
    huge = b'{"mount_s": 1%s}' % (b"0" * 400)
    deep = b"[" * 100_000
    for data in (
        b"",
        b"[]",
        b'{"mount_s": "x"}',
        b'{"mount_s": 1e400}',
        b'{"mount_s": -1}',
        b'{"mount_s": 0}',
        b'{"mount_s": 1e6}',
        huge,
        deep,
    ):
        await publish(lab.store, "env/figures.json", data)
        assert await repository.read_stats(lab.store) == RestoreStats()


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"[" * 100_000])
async def test_a_damaged_last_run_is_told(lab, data):
    await publish(lab.store, repository._last_object(["/venv"]), data)
    with pytest.raises(Corrupt):
        await repository.read_run(lab.store, ["/venv"])


async def test_where_other_nodes_see_the_target_it_is_unpacked(lab, target, monkeypatch):
    monkeypatch.setattr("bootseer.env.server.restorer.is_of_this_node", lambda folder: False)
    await lab.run(MAKE.format(target), target)
    await repository.write_stats(lab.store, RestoreStats(mount_s=1e-6, unpack_s_per_gb=1.1))
    lab.mounter = Mounter()
    for nodes, mode, how in (
        (2, "auto", "unpacked"),
        (0, "auto", "unpacked"),
        (1, "auto", "mounted"),
        (2, "mount", "mount"),
    ):
        await emptied(target)
        context = lab.context(nodes=nodes)
        assert how in (await lab.run(MAKE.format(target), target, context=context, mode=mode)).text


async def test_a_groups_snapshot_is_used_where_the_user_has_none(lab, target):
    shared = MemoryStore()
    others = lab.context(store=shared)
    await lab.run(MAKE.format(target), target, context=others)
    await emptied(target)
    mine = lab.context(shared=(shared,))
    assert "unpacked" in (await lab.run(MAKE.format(target), target, context=mine)).text
    assert "there already" in (await lab.run(MAKE.format(target), target, context=mine)).text
    assert lab.runs() == 1
    assert [found.snapshot for found in await repository.list_snapshots(lab.store)] == []


async def test_into_a_base_it_is_unpacked(lab, target):
    fill(target)
    await lab.run(CHANGE.format(target), target)
    await emptied(target)
    fill(target)
    lab.mounter = Mounter()
    assert "unpacked" in (await lab.run(CHANGE.format(target), target)).text
    assert lab.mounter.asked == []


# Several at once.


async def several(lab, script, targets, **options):
    found = []

    async def one(target):
        found.append(await lab.run(script, target, **options))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for target in targets:
                nursery.start_soon(one, target)
    return found


async def test_of_several_one_runs_the_command(lab, target):
    """All to one place: each restores over what is there, as nodes do to places of their own."""
    script = f"sleep 0.5; {MAKE.format(target)}"
    done = await several(lab, script, [target] * 4)
    assert lab.runs() == 1
    assert [ran.status for ran in done] == [0] * 4
    assert sum("stored as" in ran.text for ran in done) == 1
    assert sum("without running" in ran.text for ran in done) == 3
    assert await lab.store.list("env/claims") == []


class LateClaim(MemoryStore):
    """Somebody else publishes, and lets go of the claim, between a look and a claim."""

    def __init__(self):
        super().__init__()
        self.before = None

    async def list(self, folder=""):
        if self.before and folder.startswith("env/claims"):
            before, self.before = self.before, None
            await before()
        return await super().list(folder)


async def test_what_was_captured_just_before_the_claim_is_restored(lab, target):
    lab.store = store = LateClaim()

    async def other():
        await lab.run(MAKE.format(target), target)
        await emptied(target)
        target.mkdir()

    store.before = other
    done = await lab.run(MAKE.format(target), target)
    assert lab.runs() == 1
    assert "without running" in done.text


async def hold(lab, target, script):
    """Have a claim on the key of a script, of somebody who does not capture."""
    await lab.run(script, target, no_capture=True)
    parts = await repository.read_run(lab.store, [str(target)])
    lab.counts.unlink()
    await emptied(target)
    assert await key_lease.acquire(
        lab.store, repository.lease_folder(key_of(parts)), "other on elsewhere"
    )


async def test_who_waits_too_long_goes_on_alone(lab, target):
    await hold(lab, target, MAKE.format(target))
    done = await lab.run(MAKE.format(target), target, wait_s=0)
    assert (done.status, lab.runs()) == (0, 1)
    assert "other on elsewhere has not captured it within 0 s" in done.text
    assert await repository.list_snapshots(lab.store) == []


class UnlistedClaims(FlakyStore):
    """As NFS with attribute caches: what another node has just made is there, but not listed."""

    async def around(self, operation, name, call):
        found = await super().around(operation, name, call)
        is_claims = operation == "list" and name.startswith("env/claims/")
        return FolderListing() if is_claims else found


async def test_a_claim_that_is_not_listed_yet_is_not_asked_for_without_a_pause(
    lab, target, monkeypatch
):
    monkeypatch.setattr("bootseer.env.server.session._PAUSES_S", (0.2, 0.2))
    await hold(lab, target, MAKE.format(target))
    store = UnlistedClaims(lab.store, lambda *_: False)
    done = await lab.run(MAKE.format(target), target, wait_s=1, context=lab.context(store))
    assert "somebody has not captured it within 1 s" in done.text
    looks = [name for operation, name in store.calls if operation == "create"]
    assert 2 <= len([name for name in looks if name.startswith("env/claims/")]) <= 12


async def test_a_claim_whose_holder_is_gone_runs_out(lab, target, monkeypatch):
    monkeypatch.setattr("bootseer.store.key_lease.LASTS_S", 0.4)
    await hold(lab, target, MAKE.format(target))
    watched = FlakyStore(lab.store, lambda *_: False)
    done = await lab.run(MAKE.format(target), target, context=lab.context(watched))
    assert done.text.count("waiting for other on elsewhere") == 1
    assert "stored as" in done.text
    assert lab.runs() == 1
    manifest = repository.manifest_object(await key_in(lab))
    # Each look is 10 ms after the one before.
    assert watched.calls.count(("open", manifest)) < 50


async def key_in(lab):
    (listed,) = await repository.list_snapshots(lab.store)
    return listed.key


async def test_who_waits_for_long_is_not_taken_for_gone(lab, target, monkeypatch):
    """Neither for another who captures, nor for what is stored."""
    monkeypatch.setattr("bootseer.env.client.connection._SILENCE_S", 0.5)
    monkeypatch.setattr("bootseer.env.server.progress._SILENCE_S", 0.1)
    monkeypatch.setattr("bootseer.store.key_lease.LASTS_S", 1.2)
    await hold(lab, target, MAKE.format(target))
    slow = Late(lab.store, 1.0)
    done = await lab.run(MAKE.format(target), target, context=lab.context(slow))
    assert "stored as" in done.text
    assert lab.runs() == 1


class Late(FlakyStore):
    """Takes its time to take a manifest."""

    def __init__(self, inner, late_s):
        super().__init__(inner, lambda *_: False)
        self.late_s = late_s

    async def context(self, operation, name, call):
        if operation == "commit" and name.endswith("manifest.json"):
            await trio.sleep(self.late_s)
        return await super().context(operation, name, call)


async def test_of_two_who_capture_the_first_to_publish_wins(lab, target, monkeypatch):
    """As where a store cannot tell who of several has a claim."""

    async def everybodys(store, key, who):
        return key_lease.KeyLease(1, who, "", 0)

    monkeypatch.setattr("bootseer.store.key_lease.acquire", everybodys)
    script = f"sleep 0.4; echo $$ > {target}/mine; sleep 0.4"
    done = await several(lab, script, [target] * 2)
    assert [ran.status for ran in done] == [0, 0]
    assert lab.runs() == 2
    assert sum("stored as" in ran.text for ran in done) == 1
    assert sum("exists already" in ran.text for ran in done) == 1
    (listed,) = await repository.list_snapshots(lab.store)
    folder = repository.folder_of(listed.key)
    kept = {info.name.rpartition("/")[2] for info in await lab.store.list(folder)}
    assert kept == {listed.snapshot.capture, "manifest.json"}
    await emptied(target)
    assert "unpacked" in (await lab.run(script, target)).text


# Stores that fail.


async def test_a_store_that_is_away_keeps_nobody(lab, target):
    gone = FlakyStore(lab.store, lambda *_: True)
    with trio.fail_after(5):
        done = await lab.run(MAKE.format(target), target, context=lab.context(gone))
    assert (done.status, lab.runs()) == (0, 1)
    assert "without capturing it: cannot open" in done.text


async def test_a_store_that_takes_nothing(lab, target):
    store = ReadOnlyStore(lab.store)
    done = await lab.run(MAKE.format(target), target, context=lab.context(store))
    assert (done.status, lab.runs()) == (0, 1)
    assert "read-only" in done.text


async def test_who_has_the_store_does_not_answer(lab, target, monkeypatch):
    monkeypatch.setattr("bootseer.env.client.connection._SILENCE_S", 0.2)
    hanging = lab.context(HangingStore(lab.store))
    ended = trio.Event()

    async def serve(end, context):
        with trio.CancelScope() as scope:
            lab.scope = scope
            await lab_serve(end, context)

    lab_serve, lab.serve = lab.serve, serve

    async def run():
        done = await lab.run(MAKE.format(target), target, context=hanging)
        assert "no answer within 0.2 s" in done.text
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        while not (target / "link").exists():
            await trio.sleep(0.01)
        lab.scope.cancel()
    assert ended.is_set()
    assert lab.runs() == 1


@pytest.mark.parametrize("after", range(9))
async def test_a_store_that_goes_away_while_it_is_restored_from(lab, target, after):
    script = f"ls -A {target} > {target}.seen\n" + MAKE.format(target)
    await lab.run(script, target)
    await emptied(target)
    target.mkdir()
    reads = []

    def fails(count, operation, name):
        reads.extend([name] * (operation in ("open", "pread") and "/snapshots/" in name))
        return len(reads) > after

    done = await lab.run(script, target, context=lab.context(FlakyStore(lab.store, fails)))
    assert done.status == 0
    assert len(reads) > after or lab.runs() == 1
    if len(reads) > after:
        assert lab.runs() == 2
        assert (target.parent / "target.seen").read_text() == ""
    assert (target / "lib/module.py").read_text() == "module\n"
    assert [path for path in target.parent.iterdir() if "bootseer-" in path.name] == []


LOST = ("index", "squashfs", "manifest of the squashfs")


def object_of(listed, what):
    """Return the name of an object of a snapshot."""
    if what == "index":
        return repository.folder_of(listed.key, listed.snapshot.capture) + "/index"
    image = listed.snapshot.image
    return images.part_object(image, 0) if what == "squashfs" else images.manifest_object(image)


@pytest.mark.parametrize("lost", LOST)
async def test_what_has_lost_a_part_is_captured_anew(lab, target, lost):
    await lab.run(MAKE.format(target), target)
    (listed,) = await repository.list_snapshots(lab.store)
    await emptied(target)
    name = object_of(listed, lost)
    await lab.store.delete(name)
    done = await lab.run(MAKE.format(target), target)
    assert (done.status, lab.runs()) == (0, 2)
    assert "stored as" in done.text
    await emptied(target)
    assert "unpacked" in (await lab.run(MAKE.format(target), target)).text


@pytest.mark.parametrize("damaged", LOST)
@pytest.mark.parametrize("status", [0, 7])
async def test_what_is_damaged_is_captured_anew(lab, target, damaged, status):
    script = f"{MAKE.format(target)}exit $(cat {target.parent}/status)"
    (target.parent / "status").write_text("0")
    await lab.run(script, target)
    (listed,) = await repository.list_snapshots(lab.store)
    name = object_of(listed, damaged)
    content = bytearray(await read_all(lab.store, name, 1 << 20))
    content[len(content) // 2] ^= 1
    await publish(lab.store, name, content)
    (target.parent / "status").write_text(str(status))
    await emptied(target)
    done = await lab.run(script, target)
    assert (done.status, lab.runs()) == (status, 2)
    await emptied(target)
    (target.parent / "status").write_text("0")
    await lab.run(script, target)
    assert lab.runs() == (2 if status == 0 else 3)


async def test_no_room_for_it_is_told_and_the_snapshot_stays(lab, target, monkeypatch):
    """The command may find room, or fails by itself; others are not kept waiting for it."""
    await lab.run(MAKE.format(target), target)
    before = await repository.list_snapshots(lab.store)
    await emptied(target)

    for number, error in enumerate([NoSpace("no room"), Denied("not yours")], 2):

        def fails(*args, error=error, **options):
            raise error

        monkeypatch.setattr("bootseer.env.restore.download.restore", fails)
        done = await lab.run(MAKE.format(target), target)
        assert (done.status, lab.runs()) == (0, number)
        assert str(error) in done.text
        await emptied(target)
    after = await repository.list_snapshots(lab.store)
    assert [found.snapshot for found in after] == [found.snapshot for found in before]
    assert await images.sweep(lab.store) == []
