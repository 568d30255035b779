"""A store that does not answer is left alone; one that is only slow later is not."""

import pytest
import trio

from bootseer.errors import Denied, NotFound, Transient, Unavailable
from bootseer.store.api.base import read_all
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.store.wrappers.breaker import BreakerStore


class Scripted(WrappedStore):
    """Does for each operation what it is told next: an error to raise, or seconds to take."""

    def __init__(self, *steps):
        super().__init__(MemoryStore())
        self.steps = list(steps)
        self.asked = 0

    async def around(self, operation, name, call):
        self.asked += 1
        step = self.steps.pop(0) if self.steps else 0
        if isinstance(step, Exception):
            raise step
        await trio.sleep(step)
        return await call()


def breaker(*steps, outage=""):
    told = []

    async def tell(why):
        await trio.lowlevel.checkpoint()
        told.append(why)

    inner = Scripted(*steps)
    return BreakerStore(inner, 2.0, tell, outage), inner, told


async def test_after_an_outage_nothing_is_asked(autojump_clock):
    store, inner, told = breaker(Transient("refused"))
    for _ in range(3):
        with pytest.raises(Unavailable, match="does not answer: refused"):
            await read_all(store, "x", 9)
    assert inner.asked == 1 and told == ["refused"] and store.outage == "refused"


async def test_a_first_answer_that_does_not_come_is_an_outage(autojump_clock):
    store, _, told = breaker(60)
    began = trio.current_time()
    with pytest.raises(Unavailable, match="no answer within 2 s"):
        await store.stat("x")
    assert 2 <= trio.current_time() - began < 3 and len(told) == 1


@pytest.mark.parametrize("answer", [NotFound("no"), Denied("no")])
async def test_a_store_that_has_answered_may_take_its_time(autojump_clock, answer):
    store, _, told = breaker(answer, 60)
    with pytest.raises(type(answer)):
        await store.stat("x")
    with pytest.raises(NotFound):
        await store.stat("x")
    assert told == []


async def test_an_answer_counts_for_all_that_wait(autojump_clock):
    store, _, told = breaker(60, 1)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(store.list)
    assert told == []


async def test_an_outage_ends_what_waits(autojump_clock):
    store, _, told = breaker(1.5, Transient("refused"))
    began = trio.current_time()

    async def fail():
        with pytest.raises(Unavailable, match="refused"):
            await store.list()

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(fail)
    assert told == ["refused"] and trio.current_time() - began < 1


async def test_a_known_outage_is_told_nobody(autojump_clock):
    store, inner, told = breaker(outage="refused, 3 s ago")
    with pytest.raises(Unavailable, match="3 s ago"):
        await store.list()
    assert told == [] and inner.asked == 0
