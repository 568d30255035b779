"""With which job the images of a job are mounted, those of its start and later ones."""

from types import SimpleNamespace

import pytest

from bootseer.agent.node.job import Job, JobFolder
from bootseer.agent.supervisor.images import image_mounts
from bootseer.agent.supervisor.images.image_mounts import ServedImages
from bootseer.agent.supervisor.images.images_first import ImagesFirst

JOB = Job(7, "c", "n1", 1, 1, "u", "/", "k", False, "bootseer://own", 1.0, 1)


@pytest.fixture
def begun(monkeypatch):
    """The stages that were begun, with the jobs that their workers have."""

    async def start(broker, role):
        return SimpleNamespace(channel=None)

    monkeypatch.setattr(image_mounts, "start", start)
    return []


@pytest.fixture
def served(begun):
    def begin(stage, nursery, work, image, job, *rest):
        begun.append((image.path, job))

    context = SimpleNamespace(
        job=JOB,
        folder=JobFolder("/nowhere"),
        broker=None,
        lender=None,
        events=None,
        images_first=ImagesFirst(),
        start=begin,
    )
    return ServedImages(context)


async def test_what_the_job_requests_is_later_than_what_its_plan_mounts(served, begun):
    planned, asked = "bootseer://planned", "bootseer://asked"
    await served.mount(planned, None, is_later=False)
    await served.mount(asked, None)
    assert await served.mount(planned, None), "it is mounted once"
    server_and_prefetch = 2
    expected = [(planned, False)] * server_and_prefetch + [(asked, True)] * server_and_prefetch
    assert [(path, job.is_later) for path, job in begun] == expected
