"""Several mounts of one tree at once, in stores that fail, with processes that die.

Steps that Hypothesis has drawn are begun one after another, and many are under way at once: files
written, replaced, read, renamed and removed through two to four views, what is left over cleared
away, and files replaced in the store by somebody who knows nothing of stripes. Each view has its
own way to one store, late at every step and away for a while, and a client that forgets numbers as
a kernel does.

What holds:

- All of a file that was read by anybody is what somebody has written as one version.
- After a close(2) without an error that version is in the store, unless others came in between.
- What waits for the store at a close(2) is in the store when that is back, or named as lost.
- A listing that opens no manifests shows the lengths that are in them.
- What is left over is taken by `bootseer ckpt gc`, and moves that came half-way are completed by
  `bootseer ckpt verify -R --repair`.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import pytest
import trio
from bootseer_dev.actors.simulation import (
    SETTINGS,
    Died,
    Way,
    deterministic,
    ending_with,
    first_difference,
    no_logs,
    search,
    without,
)
from bootseer_dev.material.checkpoints import read_file
from hypothesis import given, note, settings
from hypothesis import strategies as st

from bootseer.checkpoint.admin.gc import find_orphans, remove_orphans
from bootseer.checkpoint.admin.progress import walk
from bootseer.checkpoint.admin.verify import VerifyResult, verify
from bootseer.checkpoint.files import source as source_module
from bootseer.checkpoint.files.leftovers import Leftovers
from bootseer.checkpoint.files.parts import MAKING
from bootseer.checkpoint.files.stripe_manifest import MAGIC, PARTS_FOLDER
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.inodes import CheckpointInode, InodeTable
from bootseer.checkpoint.mount.open_writers import CloseKind, OpenWriters, ProcessScan
from bootseer.checkpoint.mount.owner_names import OwnerNames
from bootseer.checkpoint.mount.view import CheckpointView
from bootseer.checkpoint.read.fetcher import Fetcher, FetchLimits
from bootseer.checkpoint.write import unit_buffer as unit_buffer_module
from bootseer.checkpoint.write.draft import Draft, Drafts
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.checkpoint.write.spill import Spill
from bootseer.errors import BootseerError, Conflict, Corrupt, NotFound
from bootseer.fuse.view import ROOT_INODE
from bootseer.store.api.base import publish
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.retry import RetryStore

UNIT = 4096
PIECE = 1024
"""Of ordinary objects, of which those of some pieces have several readers."""
FOLDERS = ["", "d", "e", "d/e"]
FILES = [f"{folder}/{name}".lstrip("/") for folder in FOLDERS for name in ("f", "g")]
OPERATIONS = (
    *("stat", "list", "open", "pread", "create", "write", "commit", "append", "grow", "sync"),
    *("finish", "rename", "delete", "delete_tree", "mkdir"),
)
USUAL = {errno.ENOENT, errno.EAGAIN, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY}
STATE = b"user.bootseer.state"
EXPECTED = (BootseerError, OSError)
"""How operations of files fail; anything else ends a test."""


class Spoiled(Exception):
    """Two programs of one mount have written one file: what is in it cannot be told."""


class QuickSpill(Spill):
    """Without threads, for which a clock that jumps does not wait."""

    made: ClassVar[list[Spill]] = []

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.made.append(self)

    @classmethod
    def close_all(cls):
        """Close what those who have died have left open."""
        for spill in cls.made:
            if spill._fd >= 0:
                os.close(spill._fd)
        cls.made.clear()

    async def _run(self, call):
        await trio.lowlevel.checkpoint()
        return call()


async def _closed(self, inode):
    await trio.lowlevel.checkpoint()
    return ProcessScan(CloseKind.LAST, by_opener=True)


class Change:
    """Somebody changes what some names are, which may take its time."""

    def __init__(self, owner, names):
        self.owner = owner
        self.names = set(names)
        self.is_alone = True


class Truth:
    """What there may be under each name, as far as can be told from outside.

    Attributes:
        written: all versions that may ever have been published.
        now: what a name may be: versions, None for nothing. A name that several have changed at
            once is not here.
        names: all that something was or may have been moved to.
    """

    def __init__(self):
        self.written = {b""}
        self.now = {name: {None} for name in FILES}
        self.names = set(FILES)
        self.changes = []

    def begin(self, owner, names):
        change = Change(owner, ())
        self.changes.append(change)
        self.widen(change, names)
        return change

    def widen(self, change, names):
        change.names |= set(names)
        for name in change.names - self.names:
            self.now[name] = {None}
        self.names |= change.names
        for other in self.changes:
            if other is not change and other.names & change.names:
                other.is_alone = change.is_alone = False

    def moved(self, owner, old, new):
        """What a process is changing below a folder, or as that file, has another name to it."""
        for change in self.changes:
            if change.owner is owner:
                news = [new + n[len(old) :] for n in change.names if f"{n}/".startswith(f"{old}/")]
                self.widen(change, news)

    def end(self, change, certain, possible):
        """Learn what a change has come to.

        Args:
            change: that has ended.
            certain: whether `possible` is all that there can be of these names now; if not, what
                there was is possible, too.
            possible: versions by name.
        """
        self.changes.remove(change)
        for name in change.names:
            if not change.is_alone:
                self.now.pop(name, None)
            elif certain:
                self.now[name] = set(possible[name])
            elif name in self.now:
                self.now[name] |= possible.get(name, set())


class Mount:
    """A process that serves a view, and its kernel."""

    def __init__(self, world, number, seed, *, retries):
        self.world = world
        self.number = number
        self.random = random.Random(seed)
        self.way = Way(world.store, seed, OPERATIONS)
        self.store = RetryStore(self.way) if retries else self.way
        self.used = Counter()
        self.known = set()
        self.writing = Counter()
        self.spoiled = set()
        self.replaced = set()  # renamed over
        self.opening = trio.Lock()
        self.changing = defaultdict(trio.Lock)
        self.contents = {}
        self.renames = 0
        self.lost = []
        self.waiting = []

    async def run(self, task_status):
        with ending_with(Died):
            async with trio.open_nursery() as self.nursery:
                tree = CheckpointTree(self.store)
                options = WriteOptions(
                    unit_bytes=UNIT,
                    width=3,
                    streams=6,
                    memory_bytes=16 * UNIT,
                    stuck_s=5,
                    recovery_s=5,
                )
                fetcher = Fetcher(self.nursery, FetchLimits(memory_bytes=4 * UNIT, streams=3))
                self.view = CheckpointView(
                    tree,
                    fetcher,
                    Drafts(tree, self.nursery, options),
                    OwnerNames(1000, 1000, "user"),
                    on_lost=self.lost.append,
                )
                task_status.started()
                await trio.sleep_forever()

    def say(self, *words):
        self.world.say(f"mount {self.number}:", *words)

    # The kernel

    @contextmanager
    def using(self, inode):
        """Have a number that is not forgotten meanwhile."""
        self.known.add(inode)
        self.used[inode] += 1
        try:
            yield inode
        finally:
            self.used[inode] -= 1

    @asynccontextmanager
    async def change_names(self, *inodes):
        """Change what is in these folders, one process at a time."""
        async with AsyncExitStack() as stack:
            for inode in sorted(set(inodes)):
                await stack.enter_async_context(self.changing[inode])
            yield

    @asynccontextmanager
    async def replace_name(self, parent, target, name):
        """Change what is in two folders, and in the one that has this name in the second."""
        with ExitStack() as stack:
            async with self.change_names(parent, target):
                over = set()
                with suppress(FileNotFoundError):
                    found = await self.view.lookup(target, name.encode())
                    over.add(stack.enter_context(self.using(found.inode)))
                    self.replaced.add(found.inode)
                async with self.change_names(*over - {parent, target}):
                    yield

    async def walk(self, stack, folder, *, make):
        """Look up a folder, and keep its number and those above."""
        inode = ROOT_INODE
        for name in folder.split("/") if folder else ():
            try:
                found = await self.view.lookup(inode, name.encode())
            except FileNotFoundError:
                if not make:
                    raise
                with suppress(FileExistsError):
                    async with self.change_names(inode):
                        await self.view.make_folder(inode, name.encode(), 0o755)
                found = await self.view.lookup(inode, name.encode())
            inode = stack.enter_context(self.using(found.inode))
        return inode

    def forget(self):
        """Forget some numbers that nobody has open or looks at, in any order."""
        idle = sorted(inode for inode in self.known if not self.used[inode])
        self.random.shuffle(idle)
        for inode in idle[: self.random.randrange(len(idle) + 1)]:
            self.known.discard(inode)
            self.view.forget(inode)

    # Programs

    async def read(self, path, *, listed=False):
        """Read a file from beginning to end; one that is looked up, or is in a listing."""
        folder, _, name = path.rpartition("/")
        with ExitStack() as stack:
            parent = await self.walk(stack, folder, make=False)
            if listed:
                found = dict(await self.view.entries(parent)).get(name.encode())
                if found is None:
                    return
            else:
                found = await self.view.lookup(parent, name.encode())
            inode = stack.enter_context(self.using(found.inode))
            written = self.writing[inode]
            opened = await self.view.open(inode, os.O_RDONLY)
            content = bytearray()
            try:
                size = self.random.choice([PIECE, UNIT, 3 * UNIT + 5])
                while data := await self.view.read(opened.handle, len(content), size):
                    content += data
                    await trio.sleep(self.random.choice([0, 0.1, 1.5]))
            finally:
                await self.view.close(opened.handle)
            # Here, a file shows what is being written to it.
            if written == self.writing[inode] and not written % 2:
                self.world.check_version(path, bytes(content))
                self.say("read", path, len(content))

    async def read_listed(self, path):
        """Read a file that is in a listing."""
        await self.read(path, listed=True)

    async def write(self, path):
        """Write a file, from nothing or what is there, and close it."""
        folder, _, name = path.rpartition("/")
        truth = self.world.truth
        change = truth.begin(self, [path])
        certain, possible = False, {}
        with ExitStack() as stack:
            try:
                parent = await self.walk(stack, folder, make=True)
                flags = os.O_RDWR | os.O_CREAT | self.random.choice([os.O_TRUNC, 0, 0])
                async with self.opening:
                    inode, opened = await self._create(stack, parent, name.encode(), flags)
                    if self.writing[inode] % 2:
                        # With O_TRUNC, what the other has written is gone.
                        self.spoiled.update({inode} if flags & os.O_TRUNC else ())
                        await self.view.flush(opened.handle)
                        await self.view.close(opened.handle)
                        return
                    self.writing[inode] += 1
                try:
                    certain = await self._write(path, inode, opened.handle, flags, possible)
                finally:
                    self.writing[inode] += 1
            except EXPECTED as error:
                self.say("write", path, repr(error))
                if getattr(error, "errno", None) != errno.ESTALE:  # the kernel looks again
                    self.world.check_reason(error)
            finally:
                if possible and not certain and not self.way.is_dead:
                    self.waiting.append((change, possible))
                else:
                    truth.end(change, certain, {n: possible.get(path, set()) for n in change.names})

    async def _create(self, stack, parent, name, flags):
        with suppress(FileNotFoundError):
            found = await self.view.lookup(parent, name)
            if self.writing[found.inode] % 2:
                raise BlockingIOError(errno.EAGAIN, "another program writes it")
        async with self.change_names(parent):
            found, opened = await self.view.create(parent, name, 0o600, flags, 1)
        return stack.enter_context(self.using(found.inode)), opened

    async def _write(self, path, inode, handle, flags, possible):
        """Change a file and close it; returns whether it has the version in `possible` then."""
        content = self.contents[inode] = bytearray()
        failed = False
        try:
            if not flags & os.O_TRUNC:
                while data := await self.view.read(handle, len(content), UNIT):
                    content += data
            for change in self._changes():
                if not self.world.is_calm and self.random.random() < 0.1:
                    self.way.fail()
                await change(inode, handle, content)
                self.note_contents()
                await trio.sleep(self.random.choice([0, 0, 0.1, 1.0]))
                if self.random.random() < 0.3:
                    self.way.failing = {}
        except EXPECTED as error:
            self.say("change", path, repr(error))
            self.check_reason(inode, error)
            failed = True
        version = bytes(content)
        if inode in self.spoiled:
            self.world.is_spoiled = True
            raise Spoiled
        if not failed:
            self.world.truth.written.add(version)
            possible[path] = {version}
        try:
            await self.view.flush(handle)
            self.say("wrote", path, len(content), "failed" if failed else "")
            certain = not failed
        except EXPECTED as error:
            self.say("close", path, repr(error))
            self.check_reason(inode, error)
            certain = False
        await self.view.close(handle)
        return certain

    def check_reason(self, inode, error):
        """As the world does, but of an ordinary file that was renamed over, content may be gone."""
        is_stale = isinstance(error, Conflict) or getattr(error, "errno", None) == errno.ESTALE
        if not is_stale or inode not in self.replaced:
            self.world.check_reason(error)

    def _changes(self):
        """Choose what to do to a file: anything, or append to it and cut off some again."""
        if self.random.random() < 0.3:
            steps = [self._append, self._sync] * self.random.randrange(1, 4)
            return [*steps, self._truncate, *self.random.choice([[], [self._append]])]
        steps = [self._overwrite] * 5 + [self._append] * 2 + [self._truncate] * 3 + [self._sync] * 2
        return self.random.choices(steps, k=self.random.randrange(1, 8))

    def _offset(self, content):
        last = len(content) // UNIT * UNIT
        edges = [0, len(content), len(content), last, last, last, UNIT, 2 * UNIT, 5 * UNIT]
        return max(0, self.random.choice(edges) + self.random.choice([-1, 0, 0, 0, 0, 1, 7]))

    async def _overwrite(self, inode, handle, content):
        await self._put(handle, content, self._offset(content))

    async def _append(self, inode, handle, content):
        await self._put(handle, content, len(content))

    async def _put(self, handle, content, at):
        data = self.random.randbytes(self.random.choice([1, 1, 20, UNIT, UNIT, UNIT + 1, 3 * UNIT]))
        await self.view.write(handle, at, data)
        content.extend(bytes(max(0, at + len(data) - len(content))))
        content[at : at + len(data)] = data

    async def _truncate(self, inode, handle, content):
        at = self.random.choice([len(content), self._offset(content)])
        await self.view.truncate(inode, handle, at)
        content.extend(bytes(max(0, at - len(content))))
        del content[at:]

    async def _sync(self, inode, handle, content):
        with suppress(*EXPECTED):  # it is tried again by close(2)
            await self.view.sync(handle)

    def note_contents(self):
        """A file that is renamed is published as it is by then."""
        if self.renames:
            self.world.truth.written.update(map(bytes, self.contents.values()))

    async def rename(self, old, new):
        """Rename a file or a folder, unless a folder is renamed elsewhere: see design 022, left."""
        under_way = [old for mount, old in self.world.renaming if mount is not self]
        if under_way and (old in FOLDERS or any(other in FOLDERS for other in under_way)):
            return
        self.world.renaming.append((self, old))
        try:
            await self._rename(old, new)
        finally:
            self.world.renaming.remove((self, old))

    async def _rename(self, old, new):
        truth = self.world.truth
        below = [n[len(old) :] for n in truth.names if f"{n}/".startswith(f"{old}/")]
        pairs = [(old + end, new + end) for end in below]
        names = {name for pair in pairs for name in pair} | {
            name for name in truth.names if f"{name}/".startswith(f"{new}/")
        }
        change = truth.begin(self, names)
        possible = {name: {None} for name in change.names}
        for before, after in pairs:
            if before in truth.now:
                possible[after] = set(truth.now[before])
        certain = all(before in truth.now for before, _ in pairs)
        done = False
        self.renames += 1
        self.note_contents()
        with ExitStack() as stack:
            try:
                here, _, old_name = old.rpartition("/")
                there, _, new_name = new.rpartition("/")
                parent = await self.walk(stack, here, make=False)
                target = await self.walk(stack, there, make=False)
                found = await self.view.lookup(parent, old_name.encode())
                stack.enter_context(self.using(found.inode))
                async with self.replace_name(parent, target, new_name):
                    truth.moved(self, old, new)
                    await self.view.rename(parent, old_name.encode(), target, new_name.encode(), 0)
                    truth.moved(self, old, new)  # with those who have just found the folder
                self.say("renamed", old, new)
                done = True
            except EXPECTED as error:
                self.say("rename", old, new, repr(error))
                self.world.check_reason(error)
            finally:
                self.renames -= 1
                self.world.is_cut |= not done
                if not done or not certain:
                    change.is_alone = False
                truth.end(change, done, possible)

    async def remove(self, path):
        """Remove a file, or what waits here to be published: what others have is there then."""
        change = self.world.truth.begin(self, [path])
        certain = False
        with ExitStack() as stack:
            try:
                folder, _, name = path.rpartition("/")
                parent = await self.walk(stack, folder, make=False)
                found = await self.view.lookup(parent, name.encode())
                stack.enter_context(self.using(found.inode))
                async with self.change_names(parent):
                    state = await self.view.extended(found.inode, STATE)
                    await self.view.remove(parent, name.encode())
                self.say("removed", path, state)
                certain = state == b"complete"
            except EXPECTED as error:
                self.say("remove", path, repr(error))
            finally:
                self.world.truth.end(change, certain, {n: {None} for n in change.names})

    async def gc(self):
        """What `bootseer ckpt gc` does."""
        tree = CheckpointTree(self.store)
        orphans = await find_orphans(tree, "")
        self.say("gc", orphans)
        await remove_orphans(tree, "", orphans)

    async def die(self):
        raise Died

    async def end(self):
        """Publish what waits, and end."""
        if not self.way.is_dead:
            self.way.failing = {}
            with trio.move_on_after(600):  # what cannot be, is named as lost then
                await self.view.publisher.settled()
            await self.view.publisher.end(60)
            self.nursery.cancel_scope.cancel()
        names = {lost.name for lost in self.lost}
        for change, possible in self.waiting:
            is_stored = not self.way.is_dead and not change.names & names
            (versions,) = possible.values()
            self.world.truth.end(change, is_stored, dict.fromkeys(change.names, versions))


class World:
    """The store, its mounts, and what is known of it."""

    def __init__(self, *, is_calm):
        self.store = MemoryStore()
        self.is_calm = is_calm
        self.is_shared = False
        self.is_spoiled = False  # and all that is under way is being cancelled
        self.is_cut = False  # a move has come half-way, and its folder may have moved since
        self.truth = Truth()
        self.mounts = []
        self.renaming = []
        self.told = []

    def say(self, *words):
        self.told.append(f"{trio.current_time():8.2f} " + " ".join(map(str, words)))

    def check_version(self, path, content):
        assert content in self.truth.written, (
            f"{path}: {len(content)} bytes that nobody has written"
        )

    def check_reason(self, error):
        """Alone with a store that is well, nothing fails that a local file system would do."""
        is_alone = len(self.mounts) == 1 and not self.is_shared
        if self.is_calm and is_alone and not self.is_spoiled:
            is_usual = isinstance(error, NotFound) or getattr(error, "errno", None) in USUAL
            assert is_usual, repr(error)

    async def replace(self, path, seed):
        """Replace a file by an ordinary one of the same length."""
        self.is_shared = True
        change = self.truth.begin(None, [path])
        with suppress(*EXPECTED):
            entry = await CheckpointTree(self.store).stat(path)
            content = random.Random(seed).randbytes(max(16, entry.size_bytes))
            self.truth.written.add(content)
            await publish(self.store, path, content)
            self.say("replaced", path, len(content))
            self.truth.end(change, True, {path: {content}})
            return
        self.truth.end(change, False, {})

    async def check(self):
        """Look at the store when nobody is at it any more."""
        tree = CheckpointTree(self.store)
        for folder in FOLDERS:  # what crashes have left of marks is there, too
            read = {entry.name: entry.size_bytes for entry in await tree.list(folder)}
            shown = await CheckpointTree(self.store).show_folder(folder)
            assert {entry.name: entry.size_bytes for entry in shown} == read
        # What a crash has left beside them makes these suspicious.
        truncated = [entry.name for entry in await walk(tree, "") if _is_truncated(entry)]
        await remove_orphans(tree, "", await find_orphans(tree, "", -1, truncated), truncated)
        assert list(await Leftovers(tree).unused("")) == []
        left = [n for n in self.store._entries if f"/{PARTS_FOLDER}/{MAKING}" in f"/{n}"]
        assert left == []
        if self.is_cut:
            await verify(tree, "", VerifyResult(), repair=True)
        for path in FILES:
            found = await read_file(tree, path)
            self.say("found", path, found if found is None else len(found))
            if found is not None:
                self.check_version(path, found)
            if path in self.truth.now:
                expected = self.truth.now[path]
                lengths = [None if each is None else len(each) for each in expected]
                assert found in expected, f"{path} is not one of {lengths} bytes"


KINDS = ["read"] * 3 + ["read_listed", "replace", "rename", "rename", "remove", "forget", "forget"]
KINDS += ["write"] * 5 + ["rename folder", "rename folder", "away", "back", "die", "gc"]
PAUSES_S = [0.0, 0.0, 0.05, 0.3, 1.0, 3.0, 100.0]
DAYS_S = 3 * 86400.0
STEP = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 3),
    st.integers(0, 7),
    st.integers(0, 7),
    st.sampled_from([*PAUSES_S * 5, DAYS_S]),
)


@dataclass
class Plan:
    """What is drawn for a run.

    Attributes:
        steps: kind, mount, file, another file and the seconds until the next one.
        names: of the files; another's may be any.
        mounts: how many there are.
        retries: whether they try again themselves what has failed.
        is_calm: the store never fails and nobody dies.
        seed: of all that is random in it.
    """

    steps: list
    names: list
    mounts: int
    retries: bool
    is_calm: bool
    seed: int


PLANS = st.builds(
    Plan,
    steps=st.lists(STEP, min_size=8, max_size=40),
    names=st.lists(st.sampled_from(FILES), min_size=1, max_size=8, unique=True),
    mounts=st.integers(1, 4),
    retries=st.booleans(),
    is_calm=st.booleans(),
    seed=st.integers(0, 2**32),
)


async def simulate(plan, world):
    seeds = count(plan.seed)
    async with trio.open_nursery() as nursery:
        for number in range(plan.mounts):
            mount = Mount(world, number, next(seeds), retries=plan.retries)
            await nursery.start(mount.run)
            world.mounts.append(mount)

        async def run(mount, operation, *arguments):
            try:
                await operation(*arguments)
            except EXPECTED as error:
                assert not isinstance(error, Corrupt) or "damaged manifest" in str(error)
                mount.say(operation.__name__, *arguments, repr(error))

        for kind, number, one, another, pause_s in plan.steps:
            mount = world.mounts[number % plan.mounts]
            path, other = plan.names[one % len(plan.names)], FILES[another]
            if kind == "replace":
                await world.replace(path, next(seeds))
            elif mount.way.is_dead or (world.is_calm and kind in ("away", "die")):
                continue
            elif kind == "gc":
                mount.nursery.start_soon(run, mount, mount.gc)
            elif kind in ("read", "read_listed", "write", "remove"):
                mount.nursery.start_soon(run, mount, getattr(mount, kind), path)
            elif kind == "rename":
                mount.nursery.start_soon(run, mount, mount.rename, path, other)
            elif kind == "rename folder":
                old, new = (name.rpartition("/")[0] or name[-1] for name in (path, other))
                if old[0] in "de" and new[0] in "de" and not f"{new}/".startswith(f"{old}/"):
                    mount.nursery.start_soon(run, mount, mount.rename, old, new)
            elif kind == "forget":
                mount.forget()
            elif kind == "away":
                mount.way.fail()
            elif kind == "back":
                mount.way.failing = {}
            elif kind == "die":
                mount.say("dies")
                mount.way.is_dead = True
                mount.nursery.start_soon(mount.die)
            await trio.sleep(pause_s)
        for mount in world.mounts:
            mount.way.failing = {}
        await trio.sleep(300)
        for mount in world.mounts:
            await mount.end()
    await world.check()


def _is_truncated(entry):
    return entry.info.size_bytes < len(MAGIC) and bool(entry.problem)


def check(plan):
    world = World(is_calm=plan.is_calm)
    try:
        run(plan, world)
    finally:
        note("\n".join(world.told))


@settings(SETTINGS, max_examples=150, derandomize=True)
@given(PLANS)
def test_several_mounts_and_stores_that_fail(plan):
    check(plan)


@pytest.mark.simulations
@pytest.mark.timeout(0)
def test_more_of_it(capfd):
    with capfd.disabled(), no_logs():
        assert search(PLANS, check)


MENDS = {
    "a reader is of one version": (
        (source_module.PlainSource, "_reader"),
        "get(number, self._info, version)",
        "get(number, self._info)",
    ),
    "a folder is kept for what is in it": (
        (InodeTable, "drop_unused"),
        "is_open or node.children or",
        "is_open or",
    ),
    "a file cut to its length stays as it is": (
        (Draft, "_truncate"),
        "if size_bytes == self.size_bytes:",
        "if False:",
    ),
    "what is written moves with its folder": (
        (CheckpointInode, "move_versions"),
        "self.pending.draft.move(path)",
        "pass",
    ),
    "a part in doubt is not a whole file": (
        (Draft, "_plain_content"),
        "not part.is_whole or",
        "",
    ),
}


@pytest.mark.simulations
@pytest.mark.timeout(0)
@pytest.mark.parametrize("mend", MENDS)
def test_without_a_mend_there_are_differences(mend):
    (owner, name), there, instead = MENDS[mend]
    with no_logs(), without(owner, name, there, instead):
        found = first_difference(PLANS, check)
    if not isinstance(found, AssertionError | KeyError | Corrupt):
        raise found


def run(plan, world):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "_LARGE_BYTES", 2 * PIECE)
        patch.setattr(source_module, "PLAIN_PIECE_BYTES", PIECE)
        patch.setattr(unit_buffer_module, "Spill", QuickSpill)
        patch.setattr(OpenWriters, "scan", _closed)
        try:
            with ending_with(Spoiled):
                deterministic(plan.seed, simulate, plan, world)
        finally:
            QuickSpill.close_all()
