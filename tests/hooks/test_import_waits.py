"""Which node of a step imports an image that is new to the store, and which wait for it."""

from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest

from bootseer.agent.messages.control import (
    AnnounceImport,
    AwaitImport,
    GetStatus,
    ImagePath,
    ImportAwaited,
    ServeImage,
)
from bootseer.errors import Corrupt, NotFound, Unavailable, UnknownImage
from bootseer.slurm import importer

NAME = "docker://ubuntu:24.04"
STEP = {"SLURM_STEP_NODELIST": "n[1-3]", "SLURM_JOB_ID": "7", "BOOTSEER_SOCKET": "/x/jobs/7/s"}


class Agent:
    """Stands in for the agent of a node; notes what it is asked, and which image is there."""

    def __init__(self, node):
        self.node = node
        self.asked = []
        self.is_announced = False
        self.comes = True
        self.missing = UnknownImage("there is no image")

    def ask(self, socket, request, answer, deadline_s):
        self.asked.append(type(request))
        match request:
            case GetStatus():
                return SimpleNamespace(job={"node": self.node})
            case ServeImage():
                if self.missing is not None:
                    raise self.missing
                return ImagePath(self.served)
            case AwaitImport():
                assert deadline_s > importer.SERVE_S
                if isinstance(self.comes, Exception):
                    raise self.comes
                self.missing = None if self.comes else self.missing
                return ImportAwaited(self.comes, "n1 has failed")
        return answer(True)

    def begin(self, socket, request):
        assert isinstance(request, AnnounceImport)
        self.is_announced = True
        return closing(SimpleNamespace(close=lambda: setattr(self, "is_announced", False)))

    def tell(self, socket, request):
        self.asked.append(type(request))


@pytest.fixture
def agent(monkeypatch, tmp_path):
    agent = Agent("n2")
    imported, served = tmp_path / "imported.sqsh", tmp_path / "served.sqsh"
    for path in (imported, served):
        path.write_bytes(b"hsqs")

    def do_import(uri, environ):
        agent.asked.append("announced import" if agent.is_announced else "import")
        return str(imported)

    monkeypatch.setattr(importer, "control_client", agent)
    monkeypatch.setattr(importer, "_socket", lambda environ: "/agent.sock")
    monkeypatch.setattr(importer, "_import", do_import)
    agent.imported, agent.served = str(imported), str(served)
    return agent


def imports(agent):
    return [what for what in agent.asked if isinstance(what, str)]


def test_the_first_node_imports_and_the_others_know_of_it(agent):
    agent.node = "n1"
    assert importer.get(NAME, STEP) == agent.imported
    assert imports(agent) == ["announced import"] and AwaitImport not in agent.asked
    assert not agent.is_announced


@pytest.mark.parametrize("node", ["n2", "n3"])
def test_the_others_wait_for_it_and_have_it_served(agent, node):
    agent.node = node
    assert importer.get(NAME, STEP) == agent.served
    assert imports(agent) == [] and not agent.is_announced


@pytest.mark.parametrize("comes", [False, Unavailable("no answer"), Corrupt("not an answer")])
def test_what_does_not_come_is_imported(agent, comes, capfd):
    agent.comes = comes
    assert importer.get(NAME, STEP) == agent.imported
    assert imports(agent) == ["import"]
    why = "n1 has failed" if comes is False else str(comes)
    assert f"{NAME} is imported: {why}" in capfd.readouterr().err


@pytest.mark.parametrize(
    "changed",
    [
        {"SLURM_STEP_NODELIST": "n2"},
        {"SLURM_STEP_NODELIST": ""},
        {"SLURM_STEP_NODELIST": "m[1-9]"},
        {"SLURM_STEP_NODELIST": "n[1-"},
    ],
)
def test_a_node_that_is_alone_imports(agent, changed):
    """As in a batch script, or where the variable is of another job."""
    assert importer.get(NAME, STEP | changed) == agent.imported
    assert imports(agent) == ["import"] and AwaitImport not in agent.asked


def test_the_node_of_the_batch_script_is_not_taken_for_this_one(agent):
    """srun passes these variables on, and Pyxis runs the importer before a task has its own."""
    inherited = {"SLURM_NODEID": "0", "SLURMD_NODENAME": "n1"}
    assert importer.get(NAME, STEP | inherited) == agent.served
    assert imports(agent) == []


@pytest.mark.parametrize(
    "why", [Unavailable("8 images already"), Corrupt("damaged"), NotFound("no agent")]
)
def test_nobody_waits_if_the_image_cannot_be_served_anyway(agent, why):
    agent.missing = why
    assert importer.get(NAME, STEP) == agent.imported
    assert AwaitImport not in agent.asked and GetStatus not in agent.asked


def test_images_that_are_not_kept_are_not_waited_for(agent):
    assert importer.get("podman://x", STEP) == agent.imported
    with pytest.raises(UnknownImage):
        importer.get("bootseer://x", STEP)
    assert imports(agent) == ["import"] and AwaitImport not in agent.asked


def test_an_announcement_that_fails_costs_nothing(agent, monkeypatch):
    agent.node = "n1"

    def begin(socket, request):
        raise Unavailable("cannot talk to the agent")

    monkeypatch.setattr(agent, "begin", begin)
    assert importer.get(NAME, STEP) == agent.imported
    assert imports(agent) == ["import"]


def test_an_announcement_ends_with_an_import_that_fails(agent, monkeypatch):
    agent.node = "n1"

    def fail(uri, environ):
        assert agent.is_announced
        raise Unavailable("enroot import failed")

    monkeypatch.setattr(importer, "_import", fail)
    with pytest.raises(Unavailable):
        importer.get(NAME, STEP)
    assert not agent.is_announced


def test_an_agent_that_tells_no_node_is_not_waited_for(agent):
    agent.node = None
    with ExitStack() as announced:
        assert not importer._has_come("/agent.sock", NAME, STEP, announced)
    assert not agent.is_announced
