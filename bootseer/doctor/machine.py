"""The machine as checks see it: its files, programs, settings and user."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast

from bootseer.config import Config, User
from bootseer.doctor.check import Role
from bootseer.errors import Denied

T = TypeVar("T")

COMMAND_S = 4.0
"""Longest that a program may take: less than a check, so that the finding names the program."""
_PASSED = {"SLURM_CONF", "HOME", "USER", "KRB5CCNAME"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def set_mode(path: Path, mode: int) -> None:
    """Change the mode of the caller's file or device; links are not followed.

    Raises:
        Denied: it is another user's.
        OSError: it cannot be changed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise Denied(f"{path} is not yours")
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


class _Identity(TypedDict, total=False):
    """Arguments of `subprocess.Popen`."""

    user: int
    group: int
    extra_groups: list[int]


class NoAnswer(Exception):
    """A program is missing, or did not end in time; the text says which."""


class Machine:
    """This machine.

    Concurrency: checks use it from several threads.

    Attributes:
        config: effective settings.
        config_error: why the settings file cannot be used; "" if it can. The settings are the
            defaults then.
        user: with whose rights stores are used.
        is_root: whether the caller is root.
        role: what the machine is for.
    """

    def __init__(
        self,
        config: Config,
        user: User,
        *,
        root: Path = Path("/"),
        search_path: str = "",
        config_error: str = "",
        is_root: bool | None = None,
    ) -> None:
        """Describe a machine; nothing is read yet.

        Args:
            config, user, config_error: as the attributes.
            root: below which all files are.
            search_path: folders of programs; empty for PATH and the usual ones.
            is_root: None to ask the kernel.
        """
        self.config = config
        self.config_error = config_error
        self.user = user
        self.is_root = os.geteuid() == 0 if is_root is None else is_root
        self.role = Role.SUBMIT
        self._root = root
        self._search_path = search_path or f"{os.environ.get('PATH', '')}:{_PATH}"
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._made: dict[str, Any] = {}  # of every type: what `once` has made

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what ``make`` returns, which is called once for each name.

        Raises:
            Exception: what ``make`` raises; it is called again by the next.
        """
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            if name not in self._made:
                self._made[name] = make()
            return cast(T, self._made[name])

    # Files.

    def path(self, name: str) -> Path:
        """Return where a file of the machine is."""
        return self._root / name.lstrip("/")

    def read(self, name: str, limit_bytes: int = 1 << 20) -> str:
        """Read a file.

        Raises:
            OSError: it cannot be read.
        """
        with open(self.path(name), "rb") as file:
            return file.read(limit_bytes).decode(errors="replace")

    def closed_to_users(self, name: str) -> str:
        """Say which part of a path keeps users away from a file or folder; "" if none does.

        Access lists are not read: a part that has one counts as open.

        Raises:
            OSError: the path cannot be looked at.
        """
        path = self.path(name)
        parts = [part for part in reversed(path.parents) if part != self._root]
        for part in parts:
            if self._root in part.parents and not self._opens(part, stat.S_IXOTH):
                return f"/{part.relative_to(self._root)}"
        needed = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
        return "" if self._opens(path, needed) else name

    @staticmethod
    def _opens(path: Path, needed: int) -> bool:
        if path.stat().st_mode & needed == needed:
            return True
        with suppress(OSError):
            return "system.posix_acl_access" in os.listxattr(path)
        return False

    def nearest(self, name: str) -> Path:
        """Return a path, or the nearest folder above it that exists."""
        path = self.path(name)
        return next(p for p in (path, *path.parents) if p.exists())

    # Programs.

    def find_program(self, *names: str) -> str:
        """Return the path of the first of some programs that is installed; "" if none is."""
        for name in names:
            found = shutil.which(name, path=self._search_path)
            if found:
                return found
        return ""

    def run(
        self,
        argv: Sequence[str],
        *,
        input: str = "",  # noqa: A002 - subprocess.run's name for it
        timeout_s: float = COMMAND_S,
        keep_environment: bool = False,
        as_user: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program and return its exit code and output.

        Args:
            argv: the program, and its arguments.
            input: for its standard input.
            timeout_s: longest that it may take, in seconds.
            keep_environment: pass all of the caller's variables on.
            as_user: run it with the rights of `user`, for what belongs to that user.

        Raises:
            NoAnswer: it is not installed, or did not end in time; it is killed then.
        """
        program = self.find_program(argv[0]) if "/" not in argv[0] else argv[0]
        if not program:
            raise NoAnswer(f"{argv[0]} is not installed")
        passed = os.environ if keep_environment else _PASSED & os.environ.keys()
        environment = {name: os.environ[name] for name in passed}
        identity = self._identity() if as_user and self.is_root and self.user.uid else {}
        if identity:
            environment |= {"HOME": self.user.home, "USER": self.user.name}
            environment.pop("KRB5CCNAME", None)
        environment.setdefault("USER", self.user.name)  # ch-run does nothing without
        environment |= {"PATH": self._search_path, "LANG": "C.UTF-8"}
        try:
            process = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=environment,
                start_new_session=True,
                **identity,
            )
        except OSError as error:
            raise NoAnswer(f"{program} cannot be run: {error.strerror}") from error
        with process:
            try:
                output, errors = process.communicate(input, timeout_s)
            except subprocess.TimeoutExpired:
                with suppress(OSError):  # with its children, which may hold the pipes
                    os.killpg(process.pid, signal.SIGKILL)
                raise NoAnswer(f"{program} did not end within {timeout_s:g} s") from None
        return subprocess.CompletedProcess(list(argv), process.returncode, output, errors)

    def _identity(self) -> _Identity:
        group = pwd.getpwnam(self.user.name).pw_gid
        groups = os.getgrouplist(self.user.name, group)
        return {"user": self.user.uid, "group": group, "extra_groups": groups}
