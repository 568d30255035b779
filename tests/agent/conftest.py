"""A broker and a lender at work in threads, with folders of a test's own."""

import os
import socket
import threading

import pytest
from bootseer_dev.cluster.poll import wait_until

from bootseer.agent.broker.broker import Broker
from bootseer.agent.broker.processes import Processes
from bootseer.agent.broker.user_slots import UserSlots
from bootseer.agent.lender.lender import Lender
from bootseer.agent.messages import broker as broker_messages
from bootseer.agent.messages import lender as lender_messages
from bootseer.agent.node import control_socket
from bootseer.agent.node.broker_settings import BrokerSettings, NodeAccount
from bootseer.agent.node.job import Job, JobFolder
from bootseer.ipc.descriptors import receive
from bootseer.ipc.request import MAX_BYTES, MAX_DESCRIPTORS
from bootseer.ipc.request_client import decode_reply, encode_request
from bootseer.ipc.request_server import RequestServer

JOB = Job(7, "c", "n1", 65534, 65534, "nobody", "/", "k", False, "", 1.0, 1)


class AtWork:
    """A process of an agent's at work in a thread, and the supervisor's end of its channel.

    Attributes:
        end: the supervisor's.
    """

    def __init__(self, verbs):
        self._verbs = verbs
        self.end, self._its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.end.settimeout(20)
        self._result = []
        self._threads = set(threading.enumerate())
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._result.append(self._serve())
        finally:
            self._its.close()  # as at the end of its process

    def ask(self, request, fds=(), number=1):
        """Have something done; returns the reply, and the descriptors that came with it."""
        return self.ask_raw(encode_request(self._verbs, number, request), fds)

    def ask_raw(self, request, fds=()):
        socket.send_fds(self.end, [request], fds)
        reply, back = receive(self.end, MAX_BYTES, MAX_DESCRIPTORS)
        return decode_reply(reply), back

    def result(self):
        """Wait for its end; returns what it says then."""
        self._thread.join(20)
        return self._result[0]

    def close(self):
        self.end.close()
        self._thread.join(20)
        # Other tests fork, and may have one thread only.
        wait_until(lambda: not self._left(), "the end of its threads")

    def _left(self):
        """List the threads that it has begun: Trio's are the test's own, and idle for 10 s."""
        new = set(threading.enumerate()) - self._threads
        return [thread for thread in new if not thread.name.startswith("Trio thread")]


class BrokerAtWork(AtWork):
    """A broker.

    Attributes:
        folder, job, settings: what the broker has.
        processes: that it has charge of.
    """

    def __init__(self, path, job):
        self.folder, self.job = JobFolder(str(path / "run/jobs/7")), job
        os.makedirs(self.folder.path)
        self.settings = settings_in(path)
        self.processes = Processes(self.folder, job, UserSlots(str(path / "users"), job.uid))
        self.broker = Broker(self.folder, job, self.settings, self.processes)
        self._listener = control_socket.listen(self.folder.mounts, 0, socket.SOCK_SEQPACKET)
        super().__init__(broker_messages.VERBS)

    def _serve(self):
        return self.broker.run(self._its, self._listener)

    def close(self):
        super().close()
        for handle in list(self.processes._children):
            self.processes.kill(handle)


class LenderAtWork(AtWork):
    """A lender, with root's rights.

    Attributes:
        settings: what it has.
    """

    def __init__(self, path, uid):
        self.settings = settings_in(path)
        self._lender = Lender(uid, self.settings)
        super().__init__(lender_messages.VERBS)

    def _serve(self):
        RequestServer(self._its, lender_messages.VERBS, self._lender.carry_out).run()


def settings_in(path):
    """Return a broker's settings, with folders under a path."""
    folders = (str(path / "run"), str(path / "cache"))
    accounts = (NodeAccount("nobody", 65534, 65534), NodeAccount("daemon", 1, 1))
    return BrokerSettings(*accounts, *folders, 1 << 30, 0.0, 0.5, [])


@pytest.fixture
def start_broker(tmp_path):
    """Start a broker for a job's user."""
    begun = []

    def start(uid=JOB.uid):
        begun.append(BrokerAtWork(tmp_path, JOB._replace(uid=uid)))
        return begun[-1]

    yield start
    for broker in begun:
        broker.close()


@pytest.fixture
def broker(start_broker):
    return start_broker()


@pytest.fixture
def start_lender(tmp_path):
    """Start a lender for a job's user."""
    begun = []

    def start(uid):
        begun.append(LenderAtWork(tmp_path, uid))
        return begun[-1]

    yield start
    for lender in begun:
        lender.close()


@pytest.fixture
def node_settings(tmp_path):
    """A broker's settings, with folders of the test's."""
    return settings_in(tmp_path)
