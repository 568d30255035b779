"""What of a start is remembered of the hot set that was read ahead of it."""

import random

import pytest

from bootseer.agent.messages.worker import PrefetchBegun
from bootseer.agent.supervisor.images.image_record import JobImage
from bootseer.core.ranges import ByteRange
from bootseer.image.hot.holdout import draw
from bootseer.image.hot.trace import Touch
from bootseer.units import GIB, MIB

HOT = [ByteRange(n * 2 * MIB, n * 2 * MIB + MIB) for n in range(200)]
BEYOND = Touch(GIB, GIB + 20 * MIB, 1)


class Image(JobImage):
    """That nobody watches."""

    async def close(self, deadline):
        raise NotImplementedError

    def recorded(self):
        raise NotImplementedError

    def touched_bytes(self):
        return 0


def start(share, seed, *, is_cut_short):
    """Return what a start that has come so far in its hot set publishes of the holdout."""
    image = Image("/image", "sqfs1-" + "a" * 64, 2 * GIB)
    image.is_cut_short = is_cut_short
    pieces = draw(HOT, random.Random(seed))
    image.note_prefetch(PrefetchBegun(HOT, pieces, 0))
    end = HOT[int(share * len(HOT)) - 1].stop if share else 0
    read = [Touch(piece.start, piece.stop, 1) for piece in pieces if piece.stop <= end]
    return image.to_record(image.new_touches([*read, BEYOND]))[1]


@pytest.mark.parametrize("seed", range(5))
def test_a_start_that_was_cut_short_does_not_judge_later_pieces(seed):
    assert start(0.3, seed, is_cut_short=False)
    assert not start(0.3, seed, is_cut_short=True)


@pytest.mark.parametrize("is_cut_short", [False, True])
def test_one_that_reads_other_things_is_a_doubt(is_cut_short):
    assert start(0, 1, is_cut_short=is_cut_short)
    assert not start(1, 1, is_cut_short=is_cut_short)
