"""A folder moves when nobody uses what is below it, and who comes then waits."""

import pytest
import trio
import trio.testing

from bootseer.checkpoint.mount.folder_locks import FolderLocks

ABOVE = {"file": "folder", "other": "folder", "folder": "top", "top": None, "elsewhere": None}


def is_below(name, folder):
    above = ABOVE[name]
    return above is not None and (above == folder or is_below(above, folder))


class Folders:
    """The moves of some folders, and in which order things were done."""

    def __init__(self):
        self.unused = []
        self.locks = FolderLocks(is_below, self.unused.append)
        self.done = []
        self.may_go_on = {}

    async def use(self, *names):
        async with self.locks.using(*names):
            await self._stay("used", *names)

    async def move(self, folder):
        async with self.locks.moving(folder):
            await self._stay("moved", folder)

    async def _stay(self, *what):
        self.done.append(what)
        event = self.may_go_on[what] = trio.Event()
        await event.wait()

    async def go_on(self, *what):
        self.may_go_on.pop(what).set()
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
async def begin(nursery):
    """Begin something, and let it come as far as it can."""

    async def begin(call, *arguments):
        nursery.start_soon(call, *arguments)
        await trio.testing.wait_all_tasks_blocked()

    return begin


@pytest.fixture
def folders():
    return Folders()


@pytest.mark.parametrize("moved", ["folder", "top"])
@pytest.mark.parametrize("used", [("file",), ("folder",), ("elsewhere", "file"), ("file", "file")])
async def test_a_folder_moves_when_what_is_in_it_is_not_used_any_more(folders, begin, used, moved):
    await begin(folders.use, *used)
    await begin(folders.move, moved)
    assert folders.done == [("used", *used)]
    await folders.go_on("used", *used)
    assert folders.done == [("used", *used), ("moved", moved)]
    await folders.go_on("moved", moved)


async def test_a_folder_moves_when_the_last_of_several_has_ended(folders, begin):
    await begin(folders.use, "file")
    await begin(folders.use, "other")
    await begin(folders.move, "top")
    await folders.go_on("used", "file")
    assert ("moved", "top") not in folders.done
    assert folders.unused == ["file"]
    await folders.go_on("used", "other")
    assert ("moved", "top") in folders.done
    await folders.go_on("moved", "top")


@pytest.mark.parametrize("used", [("file",), ("folder",), ("top",), ("elsewhere", "other")])
async def test_who_comes_while_a_folder_moves_waits(folders, begin, used):
    await begin(folders.move, "top")
    await begin(folders.use, *used)
    await begin(folders.use, "elsewhere")
    assert folders.done == [("moved", "top"), ("used", "elsewhere")]
    await folders.go_on("moved", "top")
    assert folders.done[2:] == [("used", *used)]
    await folders.go_on("used", *used)
    await folders.go_on("used", "elsewhere")


async def test_who_comes_while_a_folder_waits_to_be_moved_waits_too(folders, begin):
    await begin(folders.use, "file")
    await begin(folders.move, "folder")
    await begin(folders.use, "other")
    assert folders.done == [("used", "file")]
    await folders.go_on("used", "file")
    await folders.go_on("moved", "folder")
    assert folders.done == [("used", "file"), ("moved", "folder"), ("used", "other")]
    await folders.go_on("used", "other")


async def test_what_is_elsewhere_moves_and_is_used_at_any_time(folders, begin):
    await begin(folders.use, "file")
    await begin(folders.move, "elsewhere")
    assert ("moved", "elsewhere") in folders.done
    await begin(folders.use, "other")
    assert ("used", "other") in folders.done
    for what in list(folders.may_go_on):
        await folders.go_on(*what)


async def test_a_move_that_fails_holds_nobody_up(folders, begin):
    with pytest.raises(ValueError, match="it fails"):
        async with folders.locks.moving("top"):
            await begin(folders.use, "file")
            assert folders.done == []
            raise ValueError("it fails")
    await trio.testing.wait_all_tasks_blocked()
    assert folders.done == [("used", "file")]
    await folders.go_on("used", "file")


def test_a_number_is_used_until_all_who_use_it_have_ended(folders):
    locks = folders.locks
    with locks.holding("file", "other"):
        with locks.holding("file"):
            assert locks.uses("file") and locks.uses("other")
        assert locks.uses("file")
        assert folders.unused == []
    assert folders.unused == ["file", "other"]
    assert not locks.uses("file") and not locks.uses("other") and not locks.uses("top")
    with pytest.raises(ValueError, match="it fails"), locks.holding("file"):
        raise ValueError("it fails")
    assert not locks.uses("file")
