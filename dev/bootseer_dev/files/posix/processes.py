"""Several processes, and tools of the shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bootseer_dev.files.posix.expectation import equal, expect, open_fd


@expect
def processes_create_one_file_once(folder: Path) -> None:
    script = (
        "import os, sys\n"
        "try: os.open(sys.argv[1], os.O_CREAT | os.O_EXCL | os.O_WRONLY)\n"
        "except FileExistsError: sys.exit(3)\n"
    )
    command = [sys.executable, "-P", "-c", script, str(folder / "file")]
    processes = [subprocess.Popen(command) for _ in range(8)]
    equal(sorted(process.wait() for process in processes), [0] + [3] * 7)


@expect
def a_process_that_is_killed_leaves_what_it_wrote(folder: Path) -> None:
    script = "import os, sys; os.write(1, b'content'); os.kill(os.getpid(), 9)"
    with open_fd(folder / "file", os.O_WRONLY | os.O_CREAT) as file:
        subprocess.run([sys.executable, "-P", "-c", script], stdout=file)
    equal((folder / "file").read_bytes(), b"content")


@expect
def the_shell_s_tools_work(folder: Path) -> None:
    script = """
        mkdir -p tree/a/b && echo one > tree/a/file && echo two >> tree/a/file
        cp -r tree copy && diff -r tree copy
        tar cf tree.tar tree && mkdir out && tar xf tree.tar -C out && diff -r tree out/tree
        dd if=/dev/zero of=zeros bs=64k count=20 status=none && test $(stat -c %s zeros) = 1310720
        mv tree/a moved && test ! -e tree/a && test "$(tail -n1 moved/file)" = two
        rm -r copy out moved tree
    """
    done = subprocess.run(["sh", "-ec", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    equal(sorted(os.listdir(folder)), ["tree.tar", "zeros"])
