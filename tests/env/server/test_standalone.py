"""A process of the caller's own that has the store, where there is no agent."""

import ast
import json
import os
import pwd
import socket
import sys

import pytest

from bootseer import config
from bootseer.env.server import standalone
from bootseer.errors import Unavailable

FACTS = """
import os, socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
links = [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1)]
end.sendall(ascii((os.getsid(0) == os.getpid(), links, sys.argv[2:])).encode())
"""


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_it_has_a_session_of_its_own_and_nothing_of_the_commands_input_and_output(monkeypatch):
    monkeypatch.setattr(standalone, "_BOOT", FACTS)
    with standalone.start() as end, end.makefile("rb") as answer:
        assert ast.literal_eval(answer.read().decode()) == (True, ["/dev/null"] * 2, sys.path)


def test_who_asks_is_told_why_it_cannot_be_done(monkeypatch):
    def nowhere():
        raise Unavailable("no store")

    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setattr(standalone, "_context", nowhere)
        monkeypatch.setattr(sys, "argv", ["", str(os.dup(theirs.fileno()))])
        standalone.main()
        assert json.loads(ours.recv(1000)) == {"error": "no store", "kind": "Unavailable"}


def test_it_is_the_callers_store_on_one_node(monkeypatch, tmp_path):
    values = {"store.url": tmp_path.as_uri()}
    monkeypatch.setattr(config, "load", lambda: config.Config(values))
    context = standalone._context()
    user = pwd.getpwuid(os.getuid())
    assert (context.user, context.home) == (user.pw_name, user.pw_dir)
    assert (context.node, context.nodes) == (os.uname().nodename, 1)
    assert context.store.url == tmp_path.as_uri()


def test_a_user_without_a_name_is_told_so(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    with pytest.raises(Unavailable, match="user 4000000000 has no name"):
        standalone._context()
