"""The process that has the block cache: its rights, and its end."""

import os
import signal
import socket
import time

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.material.stored_image import manifest_of

from bootseer.agent.broker.folders import make_folders
from bootseer.agent.broker.forks import fork_lender
from bootseer.agent.messages.lender import VERBS, CreateEntry, OpenEntry
from bootseer.agent.node.job import Job, JobFolder
from bootseer.cache.token import manifest_token, seal_manifest
from bootseer.core import image_manifest
from bootseer.errors import Corrupt, Denied, NotFound, Unavailable
from bootseer.ipc.descriptors import receive
from bootseer.ipc.request import MAX_BYTES, MAX_DESCRIPTORS
from bootseer.ipc.request_client import decode_reply, encode_request

pytestmark = pytest.mark.root
USER = 65533
JOB = Job(7, "c", "n1", USER, USER, "nobody", "/", "k", False, "", 1.0, 1)
MANIFEST = manifest_of(bytes(50 * 4096)).encode()


@pytest.fixture
def lender(tmp_path, node_settings, place):
    """Fork the lender of a job; gives its process id, and the supervisor's end of its channel."""
    make_folders(JobFolder(str(tmp_path)), node_settings)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(20)
    pid = fork_lender(JOB, node_settings, theirs)
    yield pid, ours
    ours.close()
    os.kill(pid, signal.SIGKILL)  # not reaped yet
    os.waitpid(pid, 0)


def ask(end, request, fds=()):
    socket.send_fds(end, [encode_request(VERBS, 1, request)], fds)
    reply, back = receive(end, MAX_BYTES, MAX_DESCRIPTORS)
    return decode_reply(reply), back


def lend_new(end):
    decoded = image_manifest.decode(MANIFEST, "", image_manifest.image_digest(MANIFEST))
    fd = seal_manifest(MANIFEST)
    try:
        return ask(end, CreateEntry(len(MANIFEST), decoded.size_bytes, decoded.blocks), [fd])
    finally:
        os.close(fd)


def status(pid):
    with open(f"/proc/{pid}/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def test_the_lender_has_only_the_rights_of_the_caches_account(lender, node_settings):
    pid, end = lender
    reply, _ = ask(end, OpenEntry(bytes(32)))
    assert isinstance(reply.error, NotFound)
    account, found = node_settings.cache_account, status(pid)
    assert set(found["Uid"].split()) == {str(account.uid)}
    assert set(found["Gid"].split()) == {str(account.gid)}
    assert {found[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")
    # The standard three and its channel.
    assert len(os.listdir(f"/proc/{pid}/fd")) == 4


def test_entries_belong_to_the_account_and_are_charged_to_the_user(lender, node_settings):
    _, end = lender
    reply, fds = lend_new(end)
    assert reply.error is None and len(fds) == 7
    assert os.pread(fds[0], len(MANIFEST) + 1, 0) == MANIFEST
    assert {os.fstat(fd).st_uid for fd in fds[:6]} == {node_settings.cache_account.uid}
    (name,) = (n for n in os.listdir(node_settings.blocks) if not n.startswith("."))
    assert os.stat(f"{node_settings.blocks}/{name}/user").st_size == USER
    for fd in fds:
        os.close(fd)
    again, fds = ask(end, OpenEntry(manifest_token(MANIFEST)))
    assert again.error is None
    for fd in fds:
        os.close(fd)


def test_the_lender_ends_with_the_supervisor(lender):
    pid, end = lender
    assert isinstance(ask(end, OpenEntry(bytes(32)))[0].error, NotFound)
    end.close()
    wait_until(lambda: status(pid)["State"].startswith("Z"), "its end")


def test_a_killed_lender_closes_its_channel(lender):
    pid, end = lender
    os.kill(pid, signal.SIGKILL)
    began_s = time.monotonic()
    with pytest.raises((OSError, Corrupt)):  # nothing can be sent, or nothing comes back
        ask(end, OpenEntry(bytes(32)))
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("kind", ["missing", "another's", "open to others"])
def test_a_folder_that_is_not_the_accounts_alone_is_not_used(lender, node_settings, kind):
    _, end = lender
    if kind == "missing":
        os.rmdir(node_settings.blocks)
    elif kind == "another's":
        os.chown(node_settings.blocks, USER, USER)
    else:
        os.chmod(node_settings.blocks, 0o777)
    reply, fds = lend_new(end)
    assert isinstance(reply.error, Denied | Unavailable) and not fds
    if kind != "missing":
        assert os.listdir(node_settings.blocks) == []
