"""Run a command with empty folders mounted over its targets, in a mount namespace of its own.

Users other than root need a user namespace for that. A process with threads cannot enter one, so a
child is started. It mounts the folders, answers with the key that the command has there, and
executes the command when it is told to.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from bootseer.env.client import key as env_key
from bootseer.env.client.command_key import keys_of
from bootseer.env.client.key import KeyPart
from bootseer.env.client.options import RunOptions
from bootseer.env.client.temporary import remove_temporary_folders, temporary_folder
from bootseer.errors import BootseerError, ConfigError, Unavailable

_BOOT = (
    "import sys; sys.path[:0] = sys.argv[2:]; from bootseer.env.admin.sandbox import main; main()"
)
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
_NOT_FOUND = 127
_CANNOT_RUN = 126
_PREFIX = "bootseer-drift-"
_END_S = 5.0
"""How long the command may take to end when it is not wanted any more."""


class _Task(NamedTuple):
    """Task of the child: fields of `RunOptions`, and more.

    Attributes:
        command, targets, extra, key_files: see `RunOptions`; targets are absolute.
        folders: folders that the command sees at its targets.
        image: digest of the image around, "" for none.
    """

    command: Sequence[str]
    targets: Sequence[str]
    extra: Sequence[str]
    key_files: Sequence[str]
    folders: Sequence[str]
    image: str


class _Answer(NamedTuple):
    """Answer of the child when its folders are mounted, or cannot be.

    Attributes:
        key: document of the command's key, None if there is none.
        error: why there is none.
        is_key: no key can tell what the command depends on.
    """

    key: object = None
    error: str = ""
    is_key: bool = False


class Sandbox:
    """A command that runs beside its targets; a context that removes its result at the end.

    Attributes:
        folders: folders that the command sees at its targets.
    """

    def __init__(self, run_options: RunOptions, image: str, scratch: str) -> None:
        """Prepare for a command; it is not started yet.

        Args:
            run_options: command and targets.
            image: digest of the image around, "" for none.
            scratch: folder for the result of the command.
        """
        self.folders: list[str] = []
        self._run_options = run_options
        self._image = image
        self._scratch = scratch
        self._opened = ExitStack()

    def __enter__(self) -> Sandbox:
        """Make the folders, and start the child."""
        with ExitStack() as opening:
            try:
                self._make_folders(opening)
            except OSError as error:
                raise Unavailable(f"cannot create a folder for the sandbox: {error}") from error
            ours, theirs = socket.socketpair()
            opening.callback(ours.close)
            self._lines = ours.makefile("rw", encoding="utf-8")
            opening.callback(self._hang_up)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-ISB", "-c", _BOOT, str(theirs.fileno()), *sys.path],
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # so that all of it can be ended
                )
            opening.callback(self._end)
            self._opened = opening.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the processes, and remove their result."""
        self._opened.close()

    def parts(self) -> tuple[KeyPart, ...]:
        """Mount the folders; returns the parts of the key that the command has there.

        Raises:
            Unavailable: it cannot be done here.
            BootseerError: no key could tell.
        """
        asked = self._run_options
        task = _Task(
            command=asked.command,
            targets=[os.path.abspath(target) for target in asked.targets],
            extra=asked.extra,
            key_files=asked.key_files,
            folders=self.folders,
            image=self._image,
        )
        self._send(json.dumps(task._asdict()))
        line = ""
        with suppress(ConnectionResetError):  # it has ended, and has not read that
            line = self._lines.readline()
        if not line:
            raise Unavailable("the process that should run the command aside has ended")
        answer = _Answer(**json.loads(line))
        if answer.key is None:
            raise (ConfigError if answer.is_key else Unavailable)(answer.error)
        return env_key.from_document(answer.key, "the key of the command")

    def run(self) -> int:
        """Run the command to its end; its output goes to standard error. Returns its status."""
        self._send("go")
        status = self._process.wait()
        return status if status >= 0 else 128 - status

    def _send(self, line: str) -> None:
        with suppress(BrokenPipeError):  # the answer that does not come tells
            self._lines.write(line + "\n")
            self._lines.flush()

    def _hang_up(self) -> None:
        with suppress(BrokenPipeError):  # the child has ended
            self._lines.close()

    def _make_folders(self, opening: ExitStack) -> None:
        """Make an empty folder for each target, and targets that are not there."""
        remove_temporary_folders(self._scratch, _PREFIX)
        scratch = opening.enter_context(temporary_folder(self._scratch, _PREFIX))
        for number, target in enumerate(map(os.path.abspath, self._run_options.targets)):
            place = Path(target)
            missing = [path for path in (place, *place.parents) if not path.exists()]
            place.mkdir(parents=True, exist_ok=True)
            for path in reversed(missing):
                opening.callback(_remove_folder, path)
            made = Path(scratch, str(number))
            made.mkdir()
            made.chmod(stat.S_IMODE(place.stat().st_mode))
            self.folders.append(str(made))

    def _end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
                return


def main() -> None:
    """Be the child: the command line names the socket."""
    with socket.socket(fileno=int(sys.argv[1])) as end:
        lines = end.makefile("rw", encoding="utf-8")
        task = _Task(**json.loads(lines.readline()))

        def send(answer: _Answer) -> None:
            lines.write(json.dumps(answer._asdict()) + "\n")
            lines.flush()

        try:
            _enter(task.targets, task.folders)
            os.chdir(os.getcwd())  # which may be below a target
        except OSError as error:
            send(_Answer(error=_refusal(error)))
            return
        try:
            send(_Answer(key=env_key.to_document(_parts(task))))
        except BootseerError as error:
            send(_Answer(error=str(error), is_key=True))
        if not lines.readline():
            return
    _execute(task.command)


def _parts(task: _Task) -> Sequence[KeyPart]:
    wanted = RunOptions(task.command, task.targets, extra=task.extra, key_files=task.key_files)
    return keys_of(wanted, wanted.targets, os.environ, os.getcwd(), task.image).parts


def _execute(command: Sequence[str]) -> None:
    os.dup2(2, 1)
    try:
        os.execvp(command[0], list(command))
    except FileNotFoundError:
        print(f"bootseer: {command[0]!a}: command not found", file=sys.stderr)
        sys.exit(_NOT_FOUND)
    except OSError as error:
        print(f"bootseer: {command[0]!a}: {error.strerror}", file=sys.stderr)
        sys.exit(_CANNOT_RUN)


def _enter(targets: Sequence[str], folders: Sequence[str]) -> None:
    """Mount folders over targets, for this process and those that it starts.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)

    uid, gid = os.geteuid(), os.getegid()
    if uid != 0 or libc.unshare(_CLONE_NEWNS) != 0:
        check(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "a user namespace")
        # As oneself: what gives the right to mount here is gone once the command is executed.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    flags = ctypes.c_ulong(_MS_REC | _MS_PRIVATE)
    check(libc.mount(b"none", b"/", None, flags, None), "/")
    for target, folder in sorted(zip(targets, folders, strict=True)):
        os.makedirs(target, exist_ok=True)  # of one in another
        place = os.path.realpath(target)
        source = os.fsencode(folder)
        bind = ctypes.c_ulong(_MS_BIND)
        check(libc.mount(source, os.fsencode(place), None, bind, None), place)


def _refusal(error: OSError) -> str:
    return (
        "cannot run the command in a sandbox, which needs its own mount namespace: "
        f"{error.filename}: {error.strerror}; be root, have user namespaces allowed (sysctl "
        "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns, "
        "user.max_user_namespaces), or do it outside of the container"
    )


def _remove_folder(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()
