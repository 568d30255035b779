"""When fetches start: for readers at once, ahead as there are streams, and each once."""

from collections import deque
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from bootseer.fetch_scheduler import Fetch, FetchScheduler


@dataclass(eq=False, slots=True)
class Named(Fetch):
    """A fetch that takes until a test ends it."""

    name: int
    may_end: trio.Event


class Owner:
    """Fetches, in the order in which they start."""

    def __init__(self, nursery):
        self.queue, self.started, self.running = deque(), [], {}
        self.is_held = False
        self.scheduler = FetchScheduler(
            nursery, self.run, self.next, streams=3, streams_beside_urgent=1
        )

    def next(self):
        if self.is_held or not self.queue:
            return None
        self.started.append(self.queue[0].name)
        return self.queue.popleft()

    async def run(self, fetch):
        assert fetch.name in self.started and fetch.name not in self.running
        self.running[fetch.name] = fetch
        await fetch.may_end.wait()
        del self.running[fetch.name]

    def fetch(self, name):
        return Named(name, trio.Event())

    async def ahead(self, *names):
        self.queue += map(self.fetch, names)
        self.scheduler.start_ahead()
        await trio.testing.wait_all_tasks_blocked()

    async def urgent(self, name):
        fetch = next((f for f in self.queue if f.name == name), None)
        if fetch is None:
            fetch = self.fetch(name)
        else:
            self.queue.remove(fetch)
        self.started.append(name)
        self.scheduler.promote(fetch)
        await trio.testing.wait_all_tasks_blocked()
        return fetch

    async def end(self, name):
        self.running[name].may_end.set()
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def owner(nursery):
    return Owner(nursery)


async def test_read_ahead_starts_in_order_as_streams_become_free(owner):
    await owner.ahead(*range(6))
    assert owner.started == [0, 1, 2] and owner.scheduler.running == {True: 0, False: 3}
    await owner.end(1)
    assert owner.started == [0, 1, 2, 3]
    for name in (0, 2, 3, 4, 5):
        await owner.end(name)
    assert owner.started == [*range(6)] and owner.scheduler.running == {True: 0, False: 0}


async def test_urgent_fetches_start_at_once_however_many_there_are(owner):
    await owner.ahead(*range(5))
    for name in (4, 10, 11, 12, 13):
        fetch = await owner.urgent(name)
        assert fetch.is_urgent and owner.started[-1] == name
    assert owner.scheduler.running == {True: 5, False: 3}
    assert [fetch.name for fetch in owner.queue] == [3]


async def test_beside_an_urgent_fetch_little_is_read_ahead(owner):
    await owner.urgent(10)
    await owner.ahead(*range(4))
    assert owner.started == [10, 0]
    await owner.end(0)
    assert owner.started == [10, 0, 1]
    await owner.end(10)
    assert owner.started == [10, 0, 1, 2, 3]


async def test_a_fetch_that_has_started_is_not_started_again_and_stays_what_it_is(owner):
    await owner.ahead(0)
    owner.scheduler.promote(owner.running[0])
    await trio.testing.wait_all_tasks_blocked()
    assert owner.started == [0] and not owner.running[0].is_urgent
    assert owner.scheduler.running == {True: 0, False: 1}


async def test_a_stream_that_is_given_up_early_is_counted_once(owner):
    await owner.ahead(*range(5))
    for _ in range(2):
        owner.scheduler.release(owner.running[0])
        await trio.testing.wait_all_tasks_blocked()
        assert owner.started == [0, 1, 2, 3] and 0 in owner.running
    await owner.end(0)
    assert owner.started == [0, 1, 2, 3] and owner.scheduler.running[False] == 3


async def test_a_queue_that_gives_nothing_is_asked_again_when_a_fetch_ends(owner):
    await owner.ahead(0)
    owner.is_held = True
    await owner.ahead(1)
    assert owner.started == [0]
    owner.is_held = False
    await owner.end(0)
    assert owner.started == [0, 1]


async def test_a_fetch_that_is_cancelled_leaves_its_stream():
    async with trio.open_nursery() as nursery:
        owner = Owner(nursery)
        await owner.urgent(1)
        await owner.ahead(2)
        nursery.cancel_scope.cancel()
    assert owner.scheduler.running == {True: 0, False: 0}
