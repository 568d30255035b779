"""A version that is not published yet: what it says of itself, and what its draft is told."""

import pytest
import trio

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.mount.pending_version import PendingVersion
from bootseer.errors import Closed, Transient
from bootseer.store.api.base import ObjectInfo

ENTRY = FileEntry(ObjectInfo("file", 4, 10**18))


class Draft:
    """Notes what it is told."""

    def __init__(self):
        self.mode, self.mtime_ns = 0o644, None
        self.calls = []
        self.error = None

    async def write(self, offset, data):
        await trio.lowlevel.checkpoint()
        self.calls.append(("write", offset, data))

    async def truncate(self, size_bytes):
        await trio.lowlevel.checkpoint()
        self.calls.append(("truncate", size_bytes))

    async def publish(self):
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        return ENTRY

    def lose(self, error):
        self.calls.append(("lose", error))


@pytest.fixture
def pending():
    return PendingVersion(Draft())


async def test_a_write_has_its_own_time_and_no_other(pending):
    for change in (lambda: pending.write(0, b"data"), lambda: pending.truncate(2)):
        pending.set_attributes(None, 1)
        assert (pending.mtime_ns, pending.draft.mtime_ns) == (1, 1)
        await change()
        assert pending.mtime_ns > 1 and pending.draft.mtime_ns is None
    assert pending.draft.calls == [("write", 0, b"data"), ("truncate", 2)]


def test_attributes_that_are_not_given_stay(pending):
    before_ns = pending.mtime_ns
    pending.set_attributes(0o600, None)
    assert (pending.draft.mode, pending.mtime_ns, pending.draft.mtime_ns) == (
        0o600,
        before_ns,
        None,
    )
    pending.set_attributes(None, 5)
    assert (pending.draft.mode, pending.mtime_ns, pending.draft.mtime_ns) == (0o600, 5, 5)


async def test_it_says_why_it_waits_or_is_lost(pending):
    assert pending.state == "being written"
    pending.draft.error = Transient("away")
    with pytest.raises(Transient):
        await pending.publish()
    assert (pending.state, pending.is_lost) == ("waiting: away", False)
    pending.draft.error = None
    assert await pending.publish() is ENTRY
    lost = Closed("no time")
    pending.lose(lost)
    assert (pending.state, pending.is_lost) == ("lost: no time", True)
    assert pending.draft.calls == [("lose", lost)]
