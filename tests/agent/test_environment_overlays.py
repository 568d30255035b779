"""What the supervisor asks for before a job can write over an environment."""

import os

import pytest

from bootseer.agent.supervisor import environment_overlays
from bootseer.errors import NoSpace


@pytest.mark.parametrize(("free", "fits"), [(0.0, True), (0.1, True), (0.11, False), (0.9, False)])
def test_no_environment_is_mounted_on_a_nearly_full_disk(tmp_path, monkeypatch, free, fits):
    space = os.statvfs(tmp_path)
    values = dict(zip(("blocks", "bfree", "bavail"), (1000, 200, 100), strict=True))
    full = os.statvfs_result((*space[:2], *values.values(), *space[5:]))
    monkeypatch.setattr(environment_overlays.os, "statvfs", lambda folder: full)
    if fits:
        environment_overlays._check_room(str(tmp_path), free)
    else:
        with pytest.raises(NoSpace, match="no space for files"):
            environment_overlays._check_room(str(tmp_path), free)


def test_free_space_is_read_from_the_disk(tmp_path):
    environment_overlays._check_room(str(tmp_path), 0.0)
    with pytest.raises(NoSpace):
        environment_overlays._check_room(str(tmp_path), 1.0)
