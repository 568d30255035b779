"""A broker at work in a thread, with folders of a test's own."""

import os
import socket
import threading

import pytest

from bootseer.agent.broker import messages
from bootseer.agent.broker.broker import Broker
from bootseer.agent.broker.messages import Reply
from bootseer.agent.broker.processes import Processes
from bootseer.agent.node import control_socket
from bootseer.agent.node.broker_settings import BrokerSettings
from bootseer.agent.node.job import Job, JobFolder
from bootseer.testing.cluster.poll import wait_until

JOB = Job(7, "c", "n1", 65534, 65534, "nobody", "/", "k", False, "", 1.0, 1)


class BrokerAtWork:
    """A broker, and the supervisor's end of its channel.

    Attributes:
        folder, job, settings: what the broker has.
        processes: that it has charge of.
        end: the supervisor's.
    """

    def __init__(self, path, job):
        self.folder, self.job = JobFolder(str(path / "run/jobs/7")), job
        os.makedirs(self.folder.path)
        nobody = ("nobody", 65534, 65534)
        folders = (str(path / "run"), str(path / "cache"))
        self.settings = BrokerSettings(*nobody, *folders, 1 << 30, 0.0, 0.5, [])
        self.processes = Processes(self.folder, job)
        self.broker = Broker(self.folder, job, self.settings, self.processes)
        self.end, self._its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.end.settimeout(20)
        listener = control_socket.listen(self.folder.mounts, 0, socket.SOCK_SEQPACKET)
        self._result = []
        self._threads = set(threading.enumerate())
        self._thread = threading.Thread(target=self._run, args=(listener,), daemon=True)
        self._thread.start()

    def _run(self, listener):
        try:
            self._result.append(self.broker.run(self._its, listener))
        finally:
            self._its.close()  # as at the end of its process

    def ask(self, request, fds=(), number=1):
        """Have something done; returns the reply, and the descriptors that came with it."""
        return self.ask_raw(messages.encode(number, request), fds)

    def ask_raw(self, message, fds=()):
        socket.send_fds(self.end, [message], fds)
        reply, back = messages.receive(self.end)
        return Reply.decode(reply), back

    def result(self):
        """Wait for its end; returns what it says then."""
        self._thread.join(20)
        return self._result[0]

    def close(self):
        self.end.close()
        self._thread.join(20)
        for handle in list(self.processes._pids):
            self.processes.kill(handle)
        # Other tests fork, and may have one thread only.
        wait_until(lambda: not set(threading.enumerate()) - self._threads, "the end of its threads")


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
