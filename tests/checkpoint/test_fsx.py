"""Random operations on files, on a real HDFS and beside it: `make fsx` does them for longer."""

import errno
import itertools
import os
import random

import pytest
from bootseer_dev.files import fsx, fsx_rounds


@pytest.mark.root
@pytest.mark.fuse
@pytest.mark.hdfs
@pytest.mark.parametrize("seed", [4, 5])
def test_the_mount_does_what_local_files_do(hdfs, seed):
    done = fsx_rounds.run_round(hdfs, seed)
    assert done.total() == fsx_rounds.OPERATIONS
    assert {"map write", "drop caches", "rename", "truncate"} <= set(done)


@pytest.fixture
def machine(tmp_path):
    for name in ("tried", "right"):
        (tmp_path / name).mkdir()
    machine = fsx.Machine(tmp_path / "tried", tmp_path / "right", 1, 4096)
    yield machine
    machine._close_all()


def test_a_seed_does_the_same_again(tmp_path, capsys):
    said = []
    for turn in "12":
        places = [tmp_path / f"{side}{turn}" for side in ("tried", "right")]
        for place in places:
            place.mkdir()
        again = fsx.Machine(*places, 7, 4096)
        for _ in range(300):
            again.step()
        again.finish()
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def fail(*arguments):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        ("pread", lambda file, size, offset: b""),
        ("pwrite", lambda file, data, offset: len(data)),
        ("ftruncate", lambda file, size: None),
        ("rename", lambda old, new: None),
        ("fsync", fail),
    ],
)
def test_a_difference_is_found(machine, monkeypatch, call, instead):
    """One call in twenty does something else, on the side that is tried."""
    chance, right, turns = random.Random(call), getattr(os, call), itertools.count()

    def wrong(*arguments):
        is_tried = next(turns) % 2 == 0
        return (instead if is_tried and chance.random() < 0.05 else right)(*arguments)

    monkeypatch.setattr(os, call, wrong)
    with pytest.raises(fsx.Difference, match="not"):
        for _ in range(5000):
            machine.step()
