"""Resources that tasks and threads share."""

from __future__ import annotations

import threading

import pytest
import trio

from bootseer.errors import Closed
from bootseer.store.api import descriptor_lease as lease_module
from bootseer.store.api.descriptor_lease import Lease
from bootseer.store.api.write_sequence import WriteSequence


class Thread:
    """Work that hangs until `release`, in a thread that a task has left."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()
        self.has_worked = False

    def work(self) -> None:
        self.entered.set()
        self.release.wait(10)
        self.has_worked = True

    async def begin(self, lease: Lease) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lease.run, self.work)
            await trio.to_thread.run_sync(self.entered.wait, 10)
            nursery.cancel_scope.cancel()


@pytest.fixture
def closed() -> threading.Event:
    """Set when the resources are cleaned up."""
    return threading.Event()


@pytest.fixture
def places() -> trio.CapacityLimiter:
    """For two threads: there is one again when a thread has ended."""
    return trio.CapacityLimiter(2)


@pytest.fixture
def lease(closed: threading.Event, places: trio.CapacityLimiter) -> Lease:
    made = Lease(places)
    made.resources.callback(closed.set)
    return made


async def test_the_last_thread_cleans_up(
    lease: Lease, closed: threading.Event, places: trio.CapacityLimiter
) -> None:
    first, last = Thread(), Thread()
    await first.begin(lease)
    await last.begin(lease)
    assert not lease.ended
    await lease.end()
    assert lease.ended
    for thread in (first, last):
        assert not closed.is_set()
        thread.release.set()
        await places.acquire_on_behalf_of(thread)
    assert closed.is_set()


async def test_a_thread_that_ends_before_the_task_cleans_nothing_up(
    lease: Lease, closed: threading.Event
) -> None:
    await lease.run(lambda: None)
    assert not closed.is_set()
    await lease.end()
    assert closed.is_set()
    with pytest.raises(Closed):
        await lease.run(lambda: None)


async def test_a_task_that_is_cancelled_cleans_up(lease: Lease, closed: threading.Event) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await lease.end()
    assert closed.is_set()


async def test_nobody_waits_for_ever_for_what_does_not_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_module, "CLOSE_GRACE_S", 0.01)
    thread = Thread()
    lease = Lease(trio.CapacityLimiter(1))
    lease.resources.callback(thread.work)
    await lease.end()
    assert not thread.has_worked
    thread.release.set()


async def test_what_fails_to_close_is_of_no_interest() -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    lease = Lease(trio.CapacityLimiter(1))
    lease.resources.callback(fail)
    await lease.end()


async def test_closing_does_not_queue_behind_threads_that_hang(closed: threading.Event) -> None:
    threads = trio.CapacityLimiter(1)
    lease = Lease(threads)
    lease.resources.callback(closed.set)
    async with threads:
        await lease.end()
    assert closed.is_set()


# One step at a time


def test_a_gate_lets_one_step_through_at_a_time() -> None:
    gate = WriteSequence("name")
    with gate.step(), pytest.raises(Closed, match="'name' takes no more"), gate.step():
        pass
    with gate.step(last=True):
        pass
    with pytest.raises(Closed), gate.step():
        pass


def test_a_gate_stays_shut_after_a_step_that_failed() -> None:
    gate = WriteSequence("name")
    with pytest.raises(KeyError), gate.step():
        raise KeyError
    with pytest.raises(Closed), gate.step():
        pass


def test_a_gate_that_is_shut_lets_nothing_through() -> None:
    gate = WriteSequence("name")
    gate.shut()
    with pytest.raises(Closed), gate.step():
        pass
