"""A mount that root makes and a process of a user's serves, as on a node.

    python -m bootseer_dev.files.served MOUNTPOINT USER READ_AHEAD_KIB PROGRAM...

does it until its input ends; it prints the server's process id when the mount can be used.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bootseer.errors import Unavailable
from bootseer.fuse.root_mounts import MountOptions, attach, detach, set_read_ahead

MODULE = "bootseer_dev.files.served"
_END_S = 20


@contextmanager
def served(
    program: Sequence[str],
    mountpoint: Path,
    user: str,
    options: MountOptions | None = None,
    read_ahead_kib: int | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Mount for a user, and detach at the end, whatever has become of the server.

    Args:
        program: what follows ``python``: a script or ``-m`` and a module, and arguments for it. It
            is also given the descriptor and ``--user=NAME``, and prints a line when it serves.
        mountpoint: an existing folder.
        user: whose mount it is.
        options: how to mount.
        read_ahead_kib: as for `set_read_ahead`.

    Yields:
        The server's process.

    Raises:
        Unavailable: it cannot be mounted, or the server does not serve.
    """
    who = pwd.getpwnam(user)
    connection = attach(mountpoint, who.pw_uid, who.pw_gid, options or MountOptions())
    try:
        server = subprocess.Popen(
            [sys.executable, *program, str(connection), f"--user={user}"],
            pass_fds=[connection],
            cwd="/",
            stdout=subprocess.PIPE,
            text=True,
        )
    except BaseException:
        detach(mountpoint)
        raise
    finally:
        os.close(connection)
    try:
        assert server.stdout is not None
        if not server.stdout.readline():
            raise Unavailable(f"{program[-1]} does not serve {mountpoint}; its output says why")
        if read_ahead_kib is not None:
            set_read_ahead(mountpoint, read_ahead_kib)
        yield server
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(_END_S)
        detach(mountpoint)
        try:
            server.wait(_END_S)
        finally:
            server.kill()
            server.communicate()


def main() -> None:
    """Serve until the input ends."""
    mountpoint, user, read_ahead_kib, *program = sys.argv[1:]
    options = MountOptions(checks_modes=False)  # what is served so is a checkpoint tree
    with served(program, Path(mountpoint), user, options, int(read_ahead_kib)) as server:
        print(server.pid, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
