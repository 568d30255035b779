"""`bootseer env run`: restore the known result of an install command, or run it and capture that.

The server is asked over a socket (`bootseer.env.client.connection`). If there is none, or anything
goes wrong, the command runs as it would without.
"""

from __future__ import annotations

import os
import shlex
import time
from contextlib import suppress
from typing import Mapping, Sequence

from bootseer.env.client.command import execute
from bootseer.env.client.command_key import (
    Keys,
    find_result_mark,
    keys_of,
    result_mark,
    warnings,
)
from bootseer.env.client.connection import ClientConnection, Connect, Say, ServerLost
from bootseer.env.client.inputs.recorder import InputRecorder, RecordedInputs
from bootseer.env.client.messages import (
    VARIABLES,
    CaptureDone,
    CommandEnded,
    Request,
    Restored,
    RunCommand,
)
from bootseer.env.client.options import RunOptions
from bootseer.env.client.target_lock import HELD, locked
from bootseer.env.client.targets import (
    clean_targets,
    has_working_folder,
    make_targets,
    open_targets,
)
from bootseer.errors import BootseerError, Unavailable
from bootseer.units import format_size

_SHOWN = 5
"""Names of what a command has read, in one line."""
_KEY_CHARS = 12


def run(run_options: RunOptions, connect: Connect, environ: Mapping[str, str], say: Say) -> int:
    """Restore the result of a command, or run it; returns its exit status.

    Args:
        run_options: what to do.
        connect: to the server.
        environ: of the command.
        say: takes lines for the user.
    """
    targets = make_targets(run_options.targets)

    def on_wait(target: str) -> None:
        say(f"waiting for another process that installs to {target}")

    until = time.monotonic() + run_options.wait_s
    while True:
        held = environ.get(HELD, "")
        with locked(targets, on_wait, until=until, heeds=not run_options.force, held=held) as turn:
            if turn.late:
                say(
                    "running the command without capturing it: another process has used "
                    f"{turn.late} for more than {run_options.wait_s} s"
                )
                return execute(run_options.command, {**environ, HELD: turn.held})
            if not turn.found:
                clean_targets(targets)
                inside = {**environ, HELD: turn.held}
                status, turn.leaves = _restore_or_run(
                    run_options, targets, turn.fds, connect, inside, say
                )
                return status
        image = _ask_for_image(connect)
        if turn.found == find_result_mark(run_options, targets, environ, image):
            say(f"{', '.join(targets)}: made by another process, without running the command here")
            return 0


def _ask_for_image(connect: Connect) -> str:
    """Ask the server for the digest of the client's image, "" for none or unknown."""
    with suppress(ServerLost, BootseerError, OSError), ClientConnection(connect()) as connection:
        connection.greet()
        return connection.image
    return ""


def _restore_or_run(
    run_options: RunOptions,
    targets: Sequence[str],
    locks: Sequence[int],
    connect: Connect,
    environ: Mapping[str, str],
    say: Say,
) -> tuple[int, str]:
    """Restore the result of a command, or run it.

    Returns:
        Its exit status, and the `result_mark` of what others see, too, "" if they see nothing.
    """
    command = run_options.command
    try:
        connection = ClientConnection(connect())
    except (BootseerError, OSError) as error:
        say(f"running the command without capturing it: {error}")
        mark = find_result_mark(run_options, targets, environ, "")
        return _with_mark(execute(command, environ), mark)
    mark = ""
    with connection:
        try:
            connection.greet()
            cwd = os.getcwd()
            keys = keys_of(run_options, targets, environ, cwd, connection.image)
            mark = result_mark(keys.as_empty, targets, environ, cwd)
            for line in warnings(targets, keys, environ):
                say(line)
            answer = _ask(connection, run_options, targets, keys, locks, environ, say)
        except (ServerLost, BootseerError, OSError) as error:
            if isinstance(error, ServerLost):
                connection.give_up()
            clean_targets(targets)  # of a server that was killed meanwhile
            say(f"running the command without capturing it: {error}")
            mark = mark or find_result_mark(run_options, targets, environ, connection.image)
            return _with_mark(execute(command, environ), mark)
        if isinstance(answer, Restored):
            say(_restore_summary(answer, targets))
            # Others have mounts of their own.
            return 0, "" if answer.how == "mounted" else mark
        say(f"running the command, and capturing its result: {answer.key[:_KEY_CHARS]}")
        with InputRecorder(environ, targets) as record:
            return _with_mark(_run_captured(command, keys, cwd, record, connection, say), mark)


def _with_mark(status: int, mark: str) -> tuple[int, str]:
    """Return a command's exit status, and the mark if it has succeeded."""
    return status, "" if status else mark


def _ask(
    connection: ClientConnection,
    run_options: RunOptions,
    targets: Sequence[str],
    keys: Keys,
    locks: Sequence[int],
    environ: Mapping[str, str],
    say: Say,
) -> Restored | RunCommand:
    """Ask for the result of a command; returns the answer.

    Raises:
        OSError: a target cannot be opened.
        ServerLost: the server does not answer.
        Unavailable: the result would not be captured.
    """
    with open_targets(targets) as opened:
        request = Request(
            key=keys.parts,
            as_empty=keys.as_empty,
            targets=tuple(targets),
            names=opened.names,
            mode=run_options.mode,
            read_only=run_options.read_only,
            force=run_options.force,
            captures=not run_options.no_capture,
            waits=run_options.waits,
            wait_s=run_options.wait_s,
            stays=has_working_folder(targets),
            environ={name: environ[name] for name in VARIABLES if name in environ},
        )
        connection.ask(request, opened.fds, locks)
    answer = connection.wait_for_answer(say)
    if isinstance(answer, RunCommand) and answer.why:
        raise Unavailable(answer.why)
    return answer


def _run_captured(
    command: Sequence[str],
    keys: Keys,
    cwd: str,
    record: InputRecorder,
    connection: ClientConnection,
    say: Say,
) -> int:
    """Run a command, report its end to the server, and say what was captured."""
    began = time.monotonic()
    status = execute(command, record.environ)
    took_ms = int((time.monotonic() - began) * 1000)
    reads = record.not_in(keys.parts, cwd)
    if reads.variables or reads.files:
        say(_key_advice(reads))
    ended = CommandEnded(status, took_ms, reads.variables, reads.files)
    try:
        captured = connection.report(ended, say)
    except ServerLost as lost:
        say(f"the result is not stored: {lost}")
        return status
    if captured is not None:
        _say_captured(captured, say)
    return status


def _key_advice(reads: RecordedInputs) -> str:
    """Say which options put what a command has read into its key."""
    options = [
        *(f'--key-extra "${name}"' for name in reads.variables),
        *(f"--key-file {shlex.quote(path)}" for path in reads.files),
    ]
    shown, others = options[:_SHOWN], len(options) - _SHOWN
    more = f" and {others} more (bootseer env show has them)" if others > 0 else ""
    return (
        "the command has read inputs that are not in its key; if they can change, add "
        f"{' '.join(shown)}{more}"
    )


def _say_captured(captured: CaptureDone, say: Say) -> None:
    if captured.why:
        say(f"the result is not stored: {captured.why}")
    elif captured.key:
        key = captured.key[:_KEY_CHARS]
        found = "1 finding" if captured.findings == 1 else f"{captured.findings} findings"
        see = f"; {found}: bootseer env show {key}" if captured.findings else ""
        say(f"stored as {key}: {_size(captured.bytes, captured.files)}{see}")


def _restore_summary(restored: Restored, targets: Sequence[str]) -> str:
    how = "there already" if restored.how == "there" else restored.how
    return (
        f"{', '.join(targets)} {how} in {restored.took_s:.1f} s, without running the command: "
        f"{restored.key[:_KEY_CHARS]}, {_size(restored.bytes, restored.files)}"
    )


def _size(content_bytes: int, files: int) -> str:
    return f"{format_size(content_bytes)} in {files:,} files"
