"""Run an install command once, and find its result there ever after: the side of the command.

Whoever has the store is asked over a socket (`bootseer.env.server.session`); if nobody answers, the
command runs as it would without. Standard library only, for any Python from 3.8 on: this runs
inside containers too.
"""

from __future__ import annotations

import array
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from bootseer.env.client import key as env_key
from bootseer.env.client.inputs.digest import text_digest
from bootseer.env.client.inputs.facts import gather
from bootseer.env.client.recorder import InputRecorder, RecordedInputs, without_record
from bootseer.env.client.scan import scan_folder, shape
from bootseer.env.client.target_lock import HELD, locked
from bootseer.env.client.temporary import remove_leftovers
from bootseer.errors import BootseerError, ConfigError, Unavailable
from bootseer.units import format_size

_SILENCE_S = 90.0
"""Longest without a word from who restores; the command runs then."""
_LETS_GO_S = 10.0
"""Longest to wait until it does nothing in the targets any more."""
_MAX_LINE_BYTES = 1 << 20
_SHOWN = 5
"""Of what a command has read, in one line."""
_JOB_NUMBERS = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID")
VARIABLES = ("PYTHONNOUSERSITE", "TMPDIR", "SLURM_TMPDIR")
"""Of the command, that decide what may go wrong with what it makes."""


class RunOptions(NamedTuple):
    """What `env run` is asked to do.

    Attributes:
        command: that installs.
        targets: folders that it installs to.
        mode: "auto", "mount" or "unpack".
        read_only: nothing needs to be written to the targets afterwards.
        refresh: run the command, whatever there is, and keep what it makes.
        captures: keep what it makes.
        waits: until that is stored.
        wait_s: longest to wait for another node where the same command is running, and for another
            process that has a target.
        extra: what else the result depends on.
        key_files: files that it depends on.
    """

    command: Sequence[str]
    targets: Sequence[str]
    mode: str = "auto"
    read_only: bool = False
    refresh: bool = False
    captures: bool = True
    waits: bool = False
    wait_s: int = 600
    extra: Sequence[str] = ()
    key_files: Sequence[str] = ()


class Keys(NamedTuple):
    """The key of a command.

    Attributes:
        parts: that it is made of.
        as_empty: that it would be made of if the targets held nothing.
        unbounded: programs of it that read what no part tells.
    """

    parts: Sequence[env_key.KeyPart]
    as_empty: Sequence[env_key.KeyPart]
    unbounded: Sequence[str] = ()


Say = Callable[[str], None]
Connect = Callable[[], socket.socket]
"""Returns a socket on which who has the store says hello; raises OSError if there is nobody."""


def keys_of(
    run_options: RunOptions,
    targets: Sequence[str],
    environ: Mapping[str, str],
    cwd: str,
    image: str,
) -> Keys:
    """Find out what the result of a command depends on.

    Args:
        run_options: with the command.
        targets: absolute paths.
        environ: of the command.
        cwd: where it runs.
        image: digest of the image that it runs in, "" for none.

    Raises:
        BootseerError: no key could tell.
    """
    bases = {target: _base(target) for target in targets}
    empty = _facts_as_empty(run_options, targets, environ, cwd, image)
    facts = empty._replace(targets=bases)
    unbounded = () if run_options.key_files else facts.unbounded
    return Keys(env_key.parts_of(facts), env_key.parts_of(empty), unbounded)


def _facts_as_empty(
    run_options: RunOptions,
    targets: Sequence[str],
    environ: Mapping[str, str],
    cwd: str,
    image: str,
) -> env_key.KeyFacts:
    """Find out what the result depends on, but for what the targets hold; see `keys_of`."""
    return gather(
        run_options.command,
        dict.fromkeys(targets, env_key.EMPTY),
        environ=without_record(environ),
        cwd=cwd,
        extra=run_options.extra,
        key_files=run_options.key_files,
        image_digest=image,
    )


def _mark(
    parts: Sequence[env_key.KeyPart], targets: Sequence[str], environ: Mapping[str, str], cwd: str
) -> str:
    """Return what tells a result from others, and is the same before and after it was made.

    Pythons and files in the targets may be the command's own work. Others are found by PATH.

    Args:
        parts: of the key as if the targets held nothing.
        targets: absolute paths.
        environ: of the command.
        cwd: where it runs.
    """
    inside = tuple(os.path.join(os.path.realpath(target), "") for target in targets)

    def is_made(part: env_key.KeyPart) -> bool:
        kind, _, name = part.name.partition(" ")
        if kind in ("python", "installer", "platform"):
            return True
        path = os.path.realpath(os.path.join(cwd, name))
        return kind in ("file", "project") and path.startswith(inside)

    path = env_key.KeyPart("PATH", str(text_digest(os.fsencode(environ.get("PATH", "")))))
    return env_key.key_of([path, *(part for part in parts if not is_made(part))])


def _find_mark(
    run_options: RunOptions, targets: Sequence[str], environ: Mapping[str, str], image: str
) -> str:
    """Find out what is in `_mark`, "" if no key could tell; see `keys_of`."""
    try:
        cwd = os.getcwd()
        facts = _facts_as_empty(run_options, targets, environ, cwd, image)
    except (BootseerError, OSError):
        return ""
    return _mark(env_key.parts_of(facts), targets, environ, cwd)


def warnings(targets: Sequence[str], keys: Keys, environ: Mapping[str, str]) -> list[str]:
    """Say what is wrong with a key: that it may not change, or that it never is the same again.

    Args:
        targets: absolute paths.
        keys: of the command.
        environ: of the command.
    """
    said = []
    if keys.unbounded:
        said.append(
            f"what {' and '.join(keys.unbounded)} reads is not in the key, and what is restored "
            "may be older than that: name the files with --key-file, or run with --refresh"
        )
    numbers = {environ.get(name) for name in _JOB_NUMBERS}
    for target in targets:
        if numbers.intersection(re.findall("[0-9]+", target)):
            said.append(
                f"--target {target} has the number of this job in it and is a part of the key: "
                "no other job finds what is kept; name a folder that is the same in all of them"
            )
    return said


def run(run_options: RunOptions, connect: Connect, environ: Mapping[str, str], say: Say) -> int:
    """Have the result of a command: restored, or by running it. Returns its exit status.

    Args:
        run_options: what to do.
        connect: to who has the store.
        environ: of the command.
        say: takes lines for people.
    """
    targets = [_made_folder(target) for target in run_options.targets]
    _check_apart(targets)

    def on_wait(target: str) -> None:
        say(f"waiting for another process that is at work in {target}")

    until = time.monotonic() + run_options.wait_s
    while True:
        held = environ.get(HELD, "")
        with locked(
            targets, on_wait, until=until, heeds=not run_options.refresh, held=held
        ) as turn:
            if turn.late:
                say(
                    f"running the command, and keeping nothing: another process has {turn.late} "
                    f"for longer than {run_options.wait_s} s"
                )
                return execute(run_options.command, {**environ, HELD: turn.held})
            if not turn.found:
                _remove_leftovers(targets)
                inside = {**environ, HELD: turn.held}
                status, turn.leaves = _have(run_options, targets, turn.fds, connect, inside, say)
                return status
        if turn.found == _find_mark(run_options, targets, environ, _image(connect)):
            say(f"{', '.join(targets)}: made meanwhile, without running the command here")
            return 0


def _image(connect: Connect) -> str:
    """Ask who has the store which image we are in, "" for none or unknown."""
    with suppress(_ServerLost, BootseerError, OSError), _Connection(connect()) as talk:
        talk.greet()
        return talk.image
    return ""


def _have(
    run_options: RunOptions,
    targets: Sequence[str],
    locks: Sequence[int],
    connect: Connect,
    environ: Mapping[str, str],
    say: Say,
) -> tuple[int, str]:
    """Have the result of a command; returns its status, and the mark of what others see, too."""
    try:
        talk = _Connection(connect())
    except (BootseerError, OSError) as error:
        say(f"running the command, and keeping nothing: {error}")
        mark = _find_mark(run_options, targets, environ, "")
        return _done(execute(run_options.command, environ), mark)
    mark = ""
    with talk:
        try:
            talk.greet()
            cwd = os.getcwd()
            keys = keys_of(run_options, targets, environ, cwd, talk.image)
            mark = _mark(keys.as_empty, targets, environ, cwd)
            for line in warnings(targets, keys, environ):
                say(line)
            _ask(run_options, targets, keys, locks, talk, environ)
            answer = _answer(talk, say)
            if answer.get("why"):
                raise Unavailable(str(answer["why"]))
            if answer["op"] == "restored":
                say(_restored(answer, targets))
                # Others have mounts of their own.
                return 0, "" if answer.get("how") == "mounted" else mark
        except (_ServerLost, BootseerError, OSError) as error:
            if isinstance(error, _ServerLost):
                talk.give_up()
            _remove_leftovers(targets)  # of who has been killed meanwhile
            say(f"running the command, and keeping nothing: {error}")
            mark = mark or _find_mark(run_options, targets, environ, talk.image)
            return _done(execute(run_options.command, environ), mark)
        say(f"running the command; what it makes is kept under {_key(answer)}")
        with InputRecorder(environ, targets) as record:
            return _done(_run_kept(run_options.command, keys, cwd, record, talk, say), mark)


def _done(status: int, mark: str) -> tuple[int, str]:
    return status, "" if status else mark


def tell(text: str) -> None:
    """Print a line on standard error; nothing of what is in it commands a terminal."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    try:
        print(f"bootseer: {shown}", file=sys.stderr, flush=True)
    except OSError:
        # Of a full disk, for one. Python would try again at the end, and have its own exit status.
        sys.stderr = io.StringIO()


def connect_agent(path: str) -> socket.socket:
    """Connect to the agent of a job, for one `env run`.

    Args:
        path: of its control socket.

    Raises:
        OSError: nobody listens there.
    """
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.settimeout(_SILENCE_S)
        end.connect(path)
        end.sendall(b'{"op": "env"}\n')
    except OSError:
        end.close()
        raise
    return end


def image_around(path: str) -> str:
    """Ask the agent of a job for the digest of the image that the caller is in, "" for none.

    Args:
        path: of its control socket.

    Raises:
        Unavailable: it does not answer.
    """
    try:
        with _Connection(connect_agent(path)) as talk:
            talk.greet()
            return talk.image
    except (OSError, _ServerLost) as error:
        raise Unavailable(f"the agent of the job does not answer at {path}: {error}") from error


def execute(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command as a shell would; returns its exit status."""
    processes: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        if number == signal.SIGINT:
            return  # the terminal's own goes to the command as well: it decides
        for process in processes:
            process.send_signal(number)
        if not processes:
            early.append(number)

    # Handlers, even to ignore: the command starts without them. What was ignored before (nohup) is
    # so by the command, too.
    passed = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {
        number: signal.signal(number, pass_on)
        for number in passed
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        process = subprocess.Popen(list(command), env=dict(environ))
        processes.append(process)
        for number in early:
            process.send_signal(number)
        status = process.wait()
    except FileNotFoundError:
        tell(f"{command[0]}: command not found")
        return 127
    except OSError as error:
        tell(f"{command[0]}: {error.strerror}")
        return 126
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


class _ServerLost(Exception):
    """Who has the store does not answer any more."""


class _Connection:
    """Our end of the conversation: lines of JSON.

    Attributes:
        image: that we are in, by its digest, "" for none or unknown.
    """

    def __init__(self, end: socket.socket) -> None:
        self.image = ""
        self._takes_locks = False  # other versions do not
        self._socket = end
        self._socket.settimeout(_SILENCE_S)
        self._rest = b""

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def greet(self) -> None:
        """Hear who is there."""
        hello = self.receive()
        self.image = str(hello.get("image", ""))
        self._takes_locks = hello.get("locks") is True

    def send_locks(self, fds: Sequence[int]) -> None:
        """Share the targets: should we end, nobody has them before nothing is done there."""
        if self._takes_locks and fds:
            self.send({"op": "locks"}, fds)

    def give_up(self) -> None:
        """End it, and wait until nothing is done in the targets on its account."""
        with suppress(OSError):
            if self._takes_locks:
                until = time.monotonic() + _LETS_GO_S
                self._socket.shutdown(socket.SHUT_WR)
                left_s = _LETS_GO_S
                while left_s > 0:
                    self._socket.settimeout(left_s)
                    if not self._socket.recv(65536):
                        break
                    left_s = until - time.monotonic()
        self._socket.close()

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode() + b"\n"
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self._socket.sendmsg([data], rights)
            if sent < len(data):  # or who has answered already, and closed, would be an error
                self._socket.sendall(data[sent:])
        except OSError as error:
            raise _ServerLost(f"who has the store has gone: {error}") from error

    def receive(self) -> dict[str, Any]:
        try:
            while b"\n" not in self._rest:
                part = self._socket.recv(65536)
                if not part or len(self._rest) > _MAX_LINE_BYTES:
                    raise _ServerLost("who has the store has gone")
                self._rest += part
            line, _, self._rest = self._rest.partition(b"\n")
            message = json.loads(line.decode())
        except socket.timeout as error:
            raise _ServerLost(f"no answer within {_SILENCE_S:g} s") from error
        except (OSError, ValueError, RecursionError) as error:
            raise _ServerLost(f"no answer: {error}") from error
        if not isinstance(message, dict):
            raise _ServerLost("no answer that makes sense")
        if "error" in message:
            raise _ServerLost(str(message["error"]))
        return message


def _ask(
    run_options: RunOptions,
    targets: Sequence[str],
    keys: Keys,
    locks: Sequence[int],
    talk: _Connection,
    environ: Mapping[str, str],
) -> None:
    """Ask for the result of a command.

    Raises:
        OSError: a target cannot be opened.
    """
    with ExitStack() as opened:
        fds: list[int] = []
        names = []
        for target in targets:
            folder, name = os.path.split(os.path.realpath(target))
            names.append(name)
            # The folder above need not be readable.
            for path, flags in ((folder, os.O_PATH), (os.path.join(folder, name), os.O_RDONLY)):
                fds.append(os.open(path, flags | os.O_DIRECTORY | os.O_CLOEXEC))
                opened.callback(os.close, fds[-1])
        talk.send_locks(locks)
        talk.send(
            {
                "op": "env",
                "key": env_key.to_document(keys.parts),
                "as_empty": env_key.to_document(keys.as_empty),
                "targets": targets,
                "names": names,
                "mode": run_options.mode,
                "read_only": run_options.read_only,
                "refresh": run_options.refresh,
                "captures": run_options.captures,
                "waits": run_options.waits,
                "wait_s": run_options.wait_s,
                "stays": _is_here(targets),
                "environ": {name: environ[name] for name in VARIABLES if name in environ},
            },
            fds,
        )


def _is_here(targets: Sequence[str]) -> bool:
    """Whether the working folder, probably that of the shell that has called us, is a target."""
    here = os.stat(".")
    return any(os.path.samestat(here, os.stat(target)) for target in targets)


def _run_kept(
    command: Sequence[str], keys: Keys, cwd: str, record: InputRecorder, talk: _Connection, say: Say
) -> int:
    """Run a command, tell who keeps what it makes, and hear what became of that."""
    began = time.monotonic()
    status = execute(command, record.environ)
    took_ms = int((time.monotonic() - began) * 1000)
    reads = record.not_in(keys.parts, cwd)
    if reads.variables or reads.files:
        say(_untold(reads))
    try:
        talk.send({"op": "ran", "status": status, "took_ms": took_ms, **reads._asdict()})
        if status == 0:
            _hear_end(_answer(talk, say), say)
    except _ServerLost as gone:
        say(f"what the command made is not kept: {gone}")
    return status


def _untold(reads: RecordedInputs) -> str:
    """Say what a command has read that its key does not tell."""
    options = [
        *(f'--key-extra "${name}"' for name in reads.variables),
        *(f"--key-file {shlex.quote(path)}" for path in reads.files),
    ]
    shown, others = options[:_SHOWN], len(options) - _SHOWN
    more = f" and {others} more (bootseer env show has them)" if others > 0 else ""
    return (
        "the command has read what is not in its key; if that may change, add "
        f"{' '.join(shown)}{more}"
    )


def _answer(talk: _Connection, say: Say) -> dict[str, Any]:
    """Wait for an answer; show what is said until then."""
    is_shown = False
    while True:
        message = talk.receive()
        op = message.get("op")
        if op == "say":
            say(str(message.get("text")))
        elif op == "progress" and sys.stderr.isatty():
            done, total = _number(message, "done_bytes"), _number(message, "total_bytes")
            text = f"unpacking {format_size(int(done))} of {format_size(int(total))}"
            print(f"\rbootseer: {text:<60}", end="", file=sys.stderr, flush=True)
            is_shown = True
        elif op in ("restored", "run", "seen"):
            if is_shown:
                print(file=sys.stderr)
            return message


def _hear_end(answer: dict[str, Any], say: Say) -> None:
    if answer.get("why"):
        say("what the command made is not kept: {}".format(answer["why"]))
    elif answer.get("key"):
        found = int(_number(answer, "findings"))
        findings = "1 finding" if found == 1 else f"{found} findings"
        see = f"; {findings}: bootseer env show {_key(answer)}" if found else ""
        say(f"kept as {_key(answer)}: {_size(answer)}{see}")


def _restored(answer: dict[str, Any], targets: Sequence[str]) -> str:
    how = {"mounted": "mounted", "unpacked": "unpacked", "there": "there already"}
    return "{} {} in {:.1f} s, without running the command: {}, {}".format(
        ", ".join(targets),
        how.get(str(answer.get("how")), "restored"),
        _number(answer, "took_s"),
        _key(answer),
        _size(answer),
    )


def _key(answer: dict[str, Any]) -> str:
    return str(answer.get("key", ""))[:12]


def _size(answer: dict[str, Any]) -> str:
    files, size_bytes = int(_number(answer, "files")), int(_number(answer, "bytes"))
    return f"{format_size(size_bytes)} in {files:,} files"


def _number(answer: dict[str, Any], name: str) -> float:
    """Return a number that is only shown: one that is not there is as good as 0."""
    value = answer.get(name)
    return value if isinstance(value, (int, float)) and abs(value) < 1e18 else 0


def _made_folder(target: str) -> str:
    """Make a target that is not there: what is mounted needs a place. Returns its absolute path.

    Raises:
        ConfigError: it cannot be a folder.
    """
    try:
        path = os.path.abspath(target)
        if path.strip("/") == "":
            raise ConfigError("--target / is no place for an environment")
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--target {target}: it cannot be made: {error.strerror}") from error
    return path


def _remove_leftovers(targets: Sequence[str]) -> None:
    for target in targets:
        remove_leftovers(os.path.realpath(target))


def _check_apart(targets: Sequence[str]) -> None:
    """Refuse targets of which one is in another, or the same by another name.

    Raises:
        ConfigError: they are.
    """
    folders: dict[tuple[int, int], str] = {}
    for target in targets:
        other = folders.setdefault(_number_of(target), target)
        if other is not target:
            raise ConfigError(f"--target {target} is the same folder as {other}; name it once")
    for target in targets:
        above = os.path.dirname(os.path.realpath(target))
        while above != "/":
            other = folders.get(_number_of(above), "")
            if other:
                raise ConfigError(f"--target {target} is in {other}; leave it out, or move it")
            above = os.path.dirname(above)


def _number_of(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _base(target: str) -> str:
    """Say what a target holds before the command runs."""
    try:
        tree = scan_folder(os.path.realpath(target)).tree
    except FileNotFoundError:
        return env_key.EMPTY
    except OSError as error:
        raise Unavailable(f"{target} cannot be looked at: {error}") from error
    return shape(tree) if len(tree) > 1 else env_key.EMPTY
