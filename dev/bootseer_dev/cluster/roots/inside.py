"""Run a command in a Debian root, with the host's network and devices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bootseer.errors import Unavailable
from bootseer_dev.cluster.namespaces.enter import PATH
from bootseer_dev.cluster.roots.root import Root, checkout

PRIVATELY = (
    *("setpriv", "--pdeathsig=KILL", "--"),
    *("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"),
    *("--mount-proc", "--"),
)
"""Before a command: it, its processes and what it mounts end with the caller."""
# What the host's network needs to be of use: names, certificates, the settings of pip.
_FROM_HOST = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf")
_CERTIFICATES = "/etc/ssl/certs"
_FOLDERS = ("/dev", "/sys")
_SCRIPT = """
root=$1; shift
while [ "$1" != -- ]; do
    if [ -d "$2" ]; then mkdir -p "$root$3"; else [ -e "$root$3" ] || : >"$root$3"; fi
    mount --rbind "$2" "$root$3"
    [ "$1" = rw ] || mount -o remount,bind,ro "$root$3"
    shift 3
done
shift
exec chroot "$root" "$@"
"""


def run(
    root: Root,
    argv: Sequence[str],
    log: Path,
    *,
    cwd: str = "/",
    certificates: bool = True,
    checkout_too: bool = False,
) -> None:
    """Run a command as root in mounts of its own, which end with it.

    What is the host's own can only be read.

    Args:
        root: where.
        argv: the command.
        log: gets what the command writes, at its end.
        cwd: the working folder.
        certificates: show the host's in place of the root's; packages are to write the root's.
        checkout_too: have the checkout and the root's Python environment at the host's paths, where
            the command may write.

    Raises:
        Unavailable: it failed; the text has the end of the log.
    """
    read = (*_FROM_HOST, *([_CERTIFICATES] if certificates else []))
    # Of this command's own processes.
    binds = [("rw", "/proc", "/proc")]
    binds += [("ro", path, path) for path in (*_FOLDERS, *read) if os.path.exists(path)]
    if checkout_too:
        binds.append(("rw", str(checkout()), str(checkout())))
    if checkout_too and root.environment.exists():
        binds.append(("rw", str(root.environment), sys.prefix))
    pip = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    proxies = {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
    env = {"HOME": "/root", "LANG": "C.UTF-8", "PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"}
    command = [
        *(*PRIVATELY, "sh", "-ec", _SCRIPT, "sh"),
        *(str(root.folder), *(word for bind in binds for word in bind), "--"),
        *("env", f"--chdir={cwd}", *argv),
    ]
    with log.open("a") as output:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**env, **pip, **proxies},
            check=False,
        )
    if done.returncode:
        raise failure(f"`{' '.join(argv[:3])} ...`", log)


def failure(what: str, log: Path) -> Unavailable:
    """Word the failure of something that has a log."""
    end = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    return Unavailable(f"{what} failed; the end of {log}:\n{end}")
