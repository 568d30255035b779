"""Two nodes' supervisors and their workers, and one import between them."""

import json
import os
import socket
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest
import trio
import trio.testing
from bootseer_dev.material.images import TinyImage, write_image

from bootseer.agent.messages.broker import Role
from bootseer.agent.messages.control import REQUESTS, Done, ImportAwaited, Kept
from bootseer.agent.messages.worker import StartTask, supervisor_end, worker_end
from bootseer.agent.node.job import Job, JobFolder
from bootseer.agent.supervisor import import_uploads, supervisor
from bootseer.agent.supervisor.control_server import Peer
from bootseer.agent.supervisor.images import import_waits
from bootseer.agent.workers import await_import, upload_import
from bootseer.agent.workers.base import Task
from bootseer.config import Config
from bootseer.errors import Closed, ConfigError, Unavailable
from bootseer.image.library import catalog, import_lease
from bootseer.image.library.import_lease import FOLDER
from bootseer.image.library.verify import verify
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore, SlowStore

NAME = "docker://registry#image:tag"
USER = 20001
JOB = Job(7, "c", "n1", USER, USER, "alice", "/home/alice", "k", False, "", 1.0, 1, nodes=2)
WORK = {Role.UPLOAD_IMPORT: upload_import, Role.AWAIT_IMPORT: await_import}


class InProcess:
    """A worker that runs in a task of the test's."""

    def __init__(self, role, nursery):
        ends = socket.socketpair()
        for end in ends:
            end.setblocking(False)
        self.role = role
        self.channel, self._theirs = supervisor_end(ends[0]), worker_end(ends[1])
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self.ended = trio.Event()

    async def send_task(self, job, config, outage=""):
        self._nursery.start_soon(self._run, Task(self._theirs, StartTask(job, config.values)))

    async def _run(self, task):
        try:
            with self._scope, suppress(Closed):
                await WORK[self.role].run(task)
        finally:
            self._theirs.close()
            self.ended.set()

    async def end(self):
        self._scope.cancel()
        self.channel.close()


class Site:
    """Two nodes of a job with a store that is theirs, and the workers that they have started."""

    def __init__(self, folder, nursery):
        self.store = MemoryStore()
        self.images = self.store
        self.workers = []
        self._nursery = nursery
        self.nodes = [self.agent(folder, index) for index in range(2)]

    def agent(self, folder, index, **settings):
        config = Config({"node.cache_dir": str(folder / "cache"), **settings})
        job = folder / f"{index}-{len(settings)}"
        os.makedirs(job / "state")
        node = JOB._replace(node=f"n{index + 1}", node_index=index)
        agent = supervisor.Supervisor(JobFolder(str(job)), node, config, None, None)
        agent._nursery = self._nursery
        return agent

    async def start(self, broker, role):
        self.workers.append(InProcess(role, self._nursery))
        return self.workers[-1]


@pytest.fixture
def site(tmp_path, nursery, monkeypatch):
    site = Site(tmp_path, nursery)
    monkeypatch.setattr(import_uploads, "start", site.start)
    monkeypatch.setattr(import_waits, "start", site.start)
    for worker in (upload_import, await_import):
        monkeypatch.setattr(worker, "connect_images", lambda *_: site.images)
    monkeypatch.setattr(Task, "store", lambda self: site.store)
    monkeypatch.setattr(upload_import, "_be_idle", lambda: site.workers.append("idle"))
    monkeypatch.setattr(import_lease, "_FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(import_lease, "_LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(import_lease, "ANNOUNCE_S", 2.0)
    yield site
    for importer in Importer.made:
        importer.close()
    Importer.made.clear()
    nursery.cancel_scope.cancel()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "image.sqsh"
    write_image(TinyImage(), path)
    return str(path)


class Importer:
    """A connection of an importer to its node's agent."""

    made: ClassVar = []

    def __init__(self):
        self.made.append(self)
        self.ours, theirs = socket.socketpair()
        self.ours.setblocking(False)
        theirs.setblocking(False)
        self.peer = Peer(USER, os.getpid(), lambda: socket.socket(fileno=os.dup(theirs.fileno())))
        self._theirs = theirs

    async def ask(self, agent, op, **more):
        request = {"op": op, "image": NAME, **more}
        return await agent._handle(REQUESTS.decode(json.dumps(request).encode()), self.peer)

    def close(self):
        self.ours.close()
        self._theirs.close()


async def is_over(agent):
    """Whether all uploads of an agent have ended."""
    return not agent._keeping._under_way


def details(agent):
    return {event.stage: (event.status, event.detail) for event in agent.events._events}


async def settled(check):
    """Wait until something holds."""
    with trio.fail_after(10):
        while not await check():
            await trio.sleep(0.01)


async def answer_of(agent, during):
    """Return the answer for a node that waits while something else is done."""
    answers = []

    async def wait():
        answers.append(await Importer().ask(agent, "await"))

    with trio.fail_after(20):
        async with trio.open_nursery() as waiting:
            waiting.start_soon(wait)
            await trio.sleep(0.3)
            assert answers == []
            await during()
    (answer,) = answers
    return answer


async def leases(site):
    return await site.store.list(FOLDER)


async def announced(site, agent=None):
    """An importer of the first node's, whose import the others know of."""
    importer = Importer()
    assert await importer.ask(agent or site.nodes[0], "announce") == Done()
    await settled(lambda: leases(site))
    return importer


async def test_one_node_imports_for_both(site, file):
    importer = await announced(site)

    async def upload():
        assert await importer.ask(site.nodes[0], "keep", path=file) == Kept(True)
        importer.close()

    assert await answer_of(site.nodes[1], upload) == ImportAwaited(True, "")
    await catalog.resolve(site.store, NAME)
    assert await leases(site) == [] and "idle" not in site.workers
    assert details(site.nodes[1]) == {"image.wait": ("ok", f"alice on n1 has imported {NAME}")}
    assert [*details(site.nodes[0])] == ["image.announce", "image.keep"]
    assert all(status == "ok" for status, _ in details(site.nodes[0]).values())


async def test_an_importer_that_ends_without_a_file_gives_the_lease_up(site):
    importer = await announced(site)

    async def fail():
        importer.close()

    answer = await answer_of(site.nodes[1], fail)
    assert not answer.stored and "alice on n1 has not added it" in answer.detail
    assert await leases(site) == []
    assert details(site.nodes[1])["image.wait"][0] == "fallback"
    await settled(lambda: is_over(site.nodes[0]))
    await announced(site)  # by another step


async def test_nobody_waits_for_an_upload_that_is_slower_than_an_import(site, monkeypatch, file):
    monkeypatch.setattr(upload_import, "LEAST_UPLOAD_S", 0.2)
    site.images = SlowStore(MemoryStore(), 0.3)
    importer = await announced(site)

    async def upload():
        await importer.ask(site.nodes[0], "keep", path=file)
        importer.close()

    answer = await answer_of(site.nodes[1], upload)
    assert not answer.stored
    await settled(lambda: is_over(site.nodes[0]))
    status, detail = details(site.nodes[0])["image.keep"]
    assert status == "ok" and "other nodes did not wait" in detail
    assert site.workers.count("idle") == 1
    await catalog.resolve(site.images, NAME)


async def test_an_image_that_the_user_may_not_add_is_waited_for_by_nobody(site):
    refuses = FlakyStore(MemoryStore(), lambda _count, operation, _name: operation == "create")
    site.images = refuses
    importer = Importer()
    await importer.ask(site.nodes[0], "announce")
    answer = await Importer().ask(site.nodes[1], "await")
    assert not answer.stored and "no other node has announced" in answer.detail
    importer.close()
    await settled(lambda: is_over(site.nodes[0]))
    assert details(site.nodes[0])["image.announce"][0] == "fallback"


async def test_a_node_without_the_lease_uploads_its_import_too(site, file):
    """As the first node of another step of the job."""
    first = await announced(site)
    second = await announced(site, site.nodes[1])
    assert await second.ask(site.nodes[1], "keep", path=file) == Kept(True)
    assert await first.ask(site.nodes[0], "keep", path=file) == Kept(True)
    for agent in site.nodes:
        await settled(lambda agent=agent: is_over(agent))
    assert await leases(site) == []
    await catalog.resolve(site.store, NAME)


async def test_two_jobs_that_import_the_same_image_at_once_both_do(site, tmp_path, file):
    """Their squashfs differ; each is whole, and the name is one's."""
    other = tmp_path / "other.sqsh"
    write_image(TinyImage(seed=7), other)
    jobs = [site.nodes[0], site.agent(tmp_path, 2)]
    jobs[1]._keeping._context = replace(jobs[1]._context, job=JOB._replace(job_id=8, node="n3"))
    importers = [Importer(), Importer()]
    for agent, importer in zip(jobs, importers, strict=True):
        await importer.ask(agent, "announce")

    async def are_announced():
        return len(await leases(site)) == 2

    await settled(are_announced)
    async with trio.open_nursery() as nursery:
        for agent, importer, path in zip(jobs, importers, (file, str(other)), strict=True):
            nursery.start_soon(partial(importer.ask, agent, "keep", path=path))
    for agent in jobs:
        await settled(lambda agent=agent: is_over(agent))
    images = [info.name.rpartition("/")[2] for info in await site.store.list("images")]
    assert 1 <= len(images) <= 2 and await catalog.resolve(site.store, NAME) in images
    for digest in images:
        _, manifest = await catalog.read_manifest(site.store, digest)
        assert await verify(site.store, digest, manifest, lambda size_bytes: None) == []


async def test_a_wait_ends_with_its_importer(site, nursery):
    await announced(site)
    waiting, answers = Importer(), []

    async def wait():
        answers.append(await waiting.ask(site.nodes[1], "await"))

    nursery.start_soon(wait)
    await trio.sleep(0.2)
    waiting.close()
    await site.workers[-1].ended.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert answers == [ImportAwaited(False, "the importer has ended")]


async def test_a_worker_that_dies_ends_the_wait(site):
    await announced(site)

    async def kill():
        site.workers[-1]._scope.cancel()

    answer = await answer_of(site.nodes[1], kill)
    assert not answer.stored and "gone" in answer.detail


@pytest.mark.parametrize("setting", [{"image.keep_imports": False}, {"image.import_wait_s": 0.0}])
async def test_the_settings_can_disable_waiting(site, tmp_path, setting):
    agent = site.agent(tmp_path, 1, **setting)
    with pytest.raises(Unavailable, match="settings disable"):
        await Importer().ask(agent, "await")
    assert site.workers == []


async def test_what_is_not_uploaded_is_not_announced(site, tmp_path):
    agent = site.agent(tmp_path, 0, **{"image.keep_imports": False})
    assert await Importer().ask(agent, "announce") == Done()
    for op in ("await", "announce"):
        with pytest.raises(ConfigError, match="registry"):
            await Importer().ask(site.nodes[0], op, image="bootseer://x")
    assert site.workers == []


async def test_a_user_can_have_only_so_many(site, nursery):
    for number in range(import_uploads.MAX_KEPT):
        await Importer().ask(site.nodes[0], "announce", image=f"docker://x{number}")
    with pytest.raises(Unavailable, match="already being uploaded"):
        await Importer().ask(site.nodes[0], "announce")

    async def wait(number):
        await Importer().ask(site.nodes[1], "await", image=f"docker://y{number}")

    for number in range(import_waits.MAX_SERVED):
        nursery.start_soon(wait, number)
    await trio.sleep(0.2)
    with pytest.raises(Unavailable, match="waits are running"):
        await Importer().ask(site.nodes[1], "await")


async def test_the_end_of_the_job_ends_an_announced_import(site):
    await announced(site)
    site.nodes[0]._keeping.end()
    await settled(lambda: is_over(site.nodes[0]))
    assert details(site.nodes[0])["image.keep"][0] == "fallback"
