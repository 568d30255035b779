"""The process that opens a job's image, as its user, while the agent is starting."""

import os
import signal

import pytest

from bootseer.agent.job import Job
from bootseer.agent.opener import Opener, open_and_identify, receive
from bootseer.errors import BootseerError, Unavailable

pytestmark = [pytest.mark.root]

NOBODY = 65534
IMAGE_BYTES = b"not a squashfs, and an image all the same" * 1000


@pytest.fixture
def ask(tmp_path):
    """Start an opener for an image; gives it and what it answers."""
    os.chmod(tmp_path, 0o755)
    for parent in tmp_path.parents[:2]:
        os.chmod(parent, 0o755)
    begun = []

    def start(image):
        job = Job(7, "c", "n1", NOBODY, NOBODY, "nobody", "/", "k", False, str(image), 1.0, 1)
        opener = Opener.fork(job, None)
        begun.append(opener)
        return opener

    yield start
    for opener in begun:
        opener.kill()
        opener.answer.close()


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(IMAGE_BYTES)
    path.chmod(0o644)
    return path


def test_it_hands_over_what_it_has_found(ask, image):
    opener = ask(image)
    opened = receive(opener.answer, str(image))
    opener.wait()
    expected = open_and_identify(str(image))
    assert opened.identity == expected.identity
    assert opened.image.size_bytes == len(IMAGE_BYTES)
    assert os.pread(opened.image.fd, 100, 0) == IMAGE_BYTES[:100]
    assert opened.start_ns <= expected.start_ns
    os.close(opened.image.fd)
    os.close(expected.image.fd)


def test_it_opens_with_the_users_rights(ask, image):
    image.chmod(0o600)
    with pytest.raises(BootseerError, match="may not be read by the job's user"):
        receive(ask(image).answer, str(image))


@pytest.mark.parametrize("name", ["missing", "missing\n", "\udcff", "a\0b"])
def test_what_cannot_be_opened_is_told(ask, tmp_path, name):
    with pytest.raises(BootseerError, match="image"):
        receive(ask(tmp_path / name).answer, name)


def test_its_death_is_told(ask, image, monkeypatch):
    monkeypatch.setattr("bootseer.agent.opener.identify", lambda _: signal.pause())
    opener = ask(image)
    opener.kill()
    opener.wait()
    with pytest.raises(Unavailable, match="has died"):
        receive(opener.answer, str(image))
