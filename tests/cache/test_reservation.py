"""Room for blocks: both ends of the socket, and what the keeper does with what it gets."""

import socket
import threading
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.cache import reservation
from bootseer.cache.reservation import STEP_BYTES, answer_reservation
from bootseer.cache.reservation_client import ReservationClient, Room
from bootseer.errors import Corrupt, Unavailable
from bootseer.units import MIB


@contextmanager
def served(answer):
    """A client, and a thread that answers it with what ``answer`` makes of each message."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def serve():
        while message := theirs.recv(4096):
            for part in answer(message):
                theirs.send(part)

    thread = threading.Thread(target=serve)
    thread.start()
    client = ReservationClient(ours)
    try:
        yield client
    finally:
        client.close()
        thread.join()
        theirs.close()


class Budget:
    """A cache that has so much room, and notes what it was asked."""

    def __init__(self, left_bytes):
        self.left_bytes = left_bytes
        self.asked = []

    def reserve(self, size_bytes, wanted_bytes):
        self.asked.append((size_bytes, wanted_bytes))
        for amount in (wanted_bytes, size_bytes):
            if amount <= self.left_bytes:
                self.left_bytes -= amount
                return amount
        return 0

    def answer(self, message):
        return [answer_reservation(message, self.reserve)]


@given(st.lists(st.integers(1, MIB), max_size=30), st.integers(0, 8 * MIB))
def test_no_more_is_taken_than_was_granted(sizes, budget_bytes):
    budget = Budget(budget_bytes)
    with served(budget.answer) as client:
        room = Room(client.reserve)
        taken = sum(size for size in sizes if room.take(size))
    assert taken <= budget_bytes
    if sum(sizes) <= budget_bytes:
        assert taken == sum(sizes)


def test_space_is_requested_in_large_steps():
    budget = Budget(2 * STEP_BYTES)
    with served(budget.answer) as client:
        room = Room(client.reserve)
        assert all(room.take(MIB) for _ in range(64))
        assert budget.asked == [(MIB, STEP_BYTES)]
        assert room.take(MIB)
    assert budget.asked == [(MIB, STEP_BYTES)] * 2


def test_granted_space_is_used_to_the_last_byte():
    grants = [10, 5, 0]
    room = Room(lambda size_bytes, wanted_bytes: grants.pop(0))
    assert room.take(4) and room.take(6) and grants == [5, 0]
    assert not room.take(6)  # the five are kept for less
    assert not room.take(6) and not grants
    assert room.take(5)


def test_sensible_requests_are_answered_by_their_number():
    asked = []

    def reserve(*sizes_bytes):
        asked.append(sizes_bytes)
        return sum(sizes_bytes)

    for size_bytes, wanted_bytes in ((1, 0), (STEP_BYTES, STEP_BYTES), (5, 7)):
        message = reservation.REQUEST.pack(9, size_bytes, wanted_bytes)
        answer = answer_reservation(message, reserve)
        assert reservation.ANSWER.unpack(answer) == (9, size_bytes + wanted_bytes)
    assert asked == [(1, 0), (STEP_BYTES, STEP_BYTES), (5, 7)]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"x",
        reservation.REQUEST.pack(1, 1, 1) + b"x",
        reservation.REQUEST.pack(1, 0, 1),
        reservation.REQUEST.pack(1, STEP_BYTES + 1, 1),
        reservation.REQUEST.pack(1, 1, STEP_BYTES + 1),
        reservation.REQUEST.pack(1, 2**64 - 1, 2**64 - 1),
    ],
)
def test_an_invalid_request_is_refused(message):
    with pytest.raises(Corrupt):
        answer_reservation(message, lambda size, wanted: pytest.fail("it was carried out"))


def test_an_answer_that_comes_late_counts_for_nothing():
    def answer(message):
        number, size_bytes, _ = reservation.REQUEST.unpack(message)
        late = reservation.ANSWER.pack(number - 1, 5 * size_bytes)
        return [late, reservation.ANSWER.pack(number, size_bytes)]

    with served(answer) as client:
        assert client.reserve(100, 200) == 100
        assert client.reserve(300, 300) == 300


def test_a_client_does_not_wait_for_ever():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client = ReservationClient(ours, answer_s=0.01)
    with pytest.raises(Unavailable):
        client.reserve(1, 1)  # nobody answers
    theirs.send(b"no answer")
    with pytest.raises(Unavailable):
        client.reserve(1, 1)
    theirs.send(reservation.ANSWER.pack(3, 5) + b"x")
    with pytest.raises(Unavailable, match="lost the connection"):
        client.reserve(1, 1)
    theirs.close()
    with pytest.raises(Unavailable):
        client.reserve(1, 1)
    client.close()
