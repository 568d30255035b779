"""``bootseer-enroot``: what Enroot runs in place of unsquashfs, mksquashfs and enroot-mount.

Pyxis' default way is `enroot create`, which unpacks the image, `enroot start`, and for
``--container-save`` `enroot export`. Here `create` leaves a link to the image and an empty layer,
and `start` mounts them. `create` tries that first; where it does not work, the image is unpacked.

Runs as the user. All is done with the user's rights, in namespaces of the user's.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from bootseer.agent.messages.control import TellEvent
from bootseer.agent.node import control_client
from bootseer.errors import BootseerError, Unavailable
from bootseer.slurm.enroot.layers import FOLDER, IMAGE, Container, mount, run
from bootseer.slurm.hidden_program import hidden_programs

_ROOTFS_LINE = " none bind,nosuid,nodev,slave"
_NOT_EXPORTED = (".lock", ".enroot")
"""Of Enroot's own, in a container's root."""
_UNPACK_S = 3600.0


def main(arguments: Sequence[str]) -> int:
    """Run one of the programs; returns the exit code.

    Args:
        arguments: name and path of the program, path of the real one, and the arguments of the
            command line.
    """
    name, program, real, *argv = arguments
    parts: dict[str, Callable[[str, str, list[str]], int]] = {
        "unsquashfs": create,
        "enroot-mount": start,
        "mksquashfs": export,
        "try": try_layers,
        "save": save,
    }
    try:
        return parts[name](program, real, argv)
    except (BootseerError, OSError) as error:
        _say(str(error))
        return 1


def create(program: str, real: str, argv: list[str]) -> int:
    """Make a container without unpacking its image; returns 1 where it has to be unpacked.

    Args:
        program: path of this program.
        real: unused.
        argv: as Enroot runs that: options, ``-d``, the container's root folder, the image.
    """
    began_ns = time.time_ns()
    try:
        if argv[-3:-2] != ["-d"]:
            raise Unavailable("this is not the command line of enroot create")
        container, image = Container(argv[-2]), argv[-1]
        _check(container, image, program)
        _prepare(container, image, program)
    except (BootseerError, OSError) as error:
        _tell(began_ns, "fallback", f"the container is unpacked: {error}")
        return 1
    _tell(began_ns, "ok", f"{image} is mounted with a layer to write")
    return 0


def _check(container: Container, image: str, program: str) -> None:
    """Raises Unavailable if a start of the container would fail, now or later."""
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if not re.match(rf"pyxis_{job_id}[._]", os.path.basename(container.rootfs)):
        raise Unavailable("its name is not this job's, so it may outlive the image")
    named = os.environ.get("BOOTSEER_CONTAINER", "")
    served = os.path.dirname(os.environ["BOOTSEER_SOCKET"]) + "/"
    if not image.startswith(served) and not (named.startswith("/") and _is_same(named, image)):
        raise Unavailable("the image may be removed before the container ends")
    for name in ("enroot-mount", "mksquashfs"):
        found = shutil.which(name)
        if found is None or not os.path.samefile(found, program):
            raise Unavailable(f"{name} in the PATH is not bootseer-enroot")
    script = Path(os.environ.get("ENROOT_LIBRARY_PATH", ""), "runtime.sh")
    if f"${{_rootfs}} ${{_rootfs}}{_ROOTFS_LINE}" not in script.read_text(errors="replace"):
        raise Unavailable("this version of Enroot mounts containers in another way")


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _prepare(container: Container, image: str, program: str) -> None:
    """Make a container's folders, and have it mounted once.

    Raises:
        BootseerError, OSError: it cannot be, or is there already; nothing new is left.
    """
    os.makedirs(container.rootfs)
    try:
        container.make(image)
        run(_in_namespace(program, "try", [container.rootfs]))
    except (BootseerError, OSError):
        remove(container.rootfs)
        raise


def remove(rootfs: str) -> None:
    """Remove a container that has not been started."""
    with suppress(OSError):
        os.chmod(f"{rootfs}/{FOLDER}/work/work", stat.S_IRWXU)  # the kernel closes its folder
    shutil.rmtree(rootfs, ignore_errors=True)


def try_layers(program: str, real: str, argv: list[str]) -> int:
    """Mount a container's layers and look into them, in namespaces that end with this."""
    root = Container(argv[0]).mount(_squashfuse(program), real)
    os.listdir(root)
    made = f"{root}/{FOLDER}"
    os.mkdir(made)
    os.rmdir(made)
    return 0


def start(program: str, real: str, argv: list[str]) -> int:
    """Mount a container's root, in the namespaces of its start.

    Args:
        program: path of this program.
        real: path of the real enroot-mount.
        argv: what it would read: a line for the root folder, as the last one.
    """
    began_ns = time.time_ns()
    *before, line = argv[0].split("\n")
    container = Container(line.split(" ", 1)[0])
    root = container.rootfs
    try:
        mount(before, real)
        try:
            root = container.mount(_squashfuse(program), real)
        except (BootseerError, OSError) as error:
            if container.is_changed():
                raise
            _tell(began_ns, "fallback", f"the container is unpacked at its start: {error}")
            _unpack(container, program)
        mount([f"{root} {container.rootfs}{_ROOTFS_LINE}"], real)
    except (BootseerError, OSError) as error:
        raise Unavailable(f"{container.rootfs} cannot be mounted: {error}") from error
    return 0


def _unpack(container: Container, program: str) -> None:
    """Unpack the image into a container that has not been written to.

    Raises:
        Unavailable: it cannot be unpacked.
    """
    unsquashfs = next(hidden_programs("unsquashfs", program), None)
    if unsquashfs is None:
        raise Unavailable("there is no unsquashfs in the PATH")
    options = ["-no-progress", "-user-xattrs", "-f", "-d", container.rootfs]
    run([unsquashfs, *options, container.image], timeout_s=_UNPACK_S)
    os.unlink(f"{container.rootfs}/{FOLDER}/{IMAGE}")


def export(program: str, real: str, argv: list[str]) -> int:
    """Make an image of a container, its layers mounted.

    Args:
        program: path of this program.
        real: path of the real mksquashfs.
        argv: its arguments: the container's root folder, the image, options, and at last ``-e``
            with what is not to be in it.
    """
    words = _in_namespace(program, "save", [real, *argv])
    os.execv(words[0], words)


def save(program: str, real: str, argv: list[str]) -> int:
    """Mount a container's layers at its root folder, and run mksquashfs there."""
    mksquashfs, rootfs, *options = argv
    container = Container(rootfs)
    left_out = _mount_points(container)
    root = container.mount(_squashfuse(program), real)
    mount([f"{root} {rootfs}{_ROOTFS_LINE}"], real)
    if "-e" in options:
        options = options[: options.index("-e")]
    own = [f"{rootfs}/{name}" for name in _NOT_EXPORTED]
    left_out += [path for path in own if os.path.lexists(path)]
    with suppress(FileNotFoundError):
        left_out += [entry.path for entry in os.scandir(f"{rootfs}/dev")]
    excluded = ["-e", *left_out] if left_out else []
    return subprocess.run([mksquashfs, rootfs, *options, *excluded]).returncode


def _mount_points(container: Container) -> list[str]:
    """List what Enroot has made in a container to mount at, which nobody may open."""
    own, found = container.written, []
    for folder, names, files in os.walk(own):
        for name in [*names, *files]:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            is_empty_file = stat.S_ISREG(info.st_mode) and info.st_size == 0
            is_closed = stat.S_IMODE(info.st_mode) == 0
            if is_closed and (stat.S_ISDIR(info.st_mode) or is_empty_file):
                found.append(container.rootfs + path[len(own) :])
    return found


def _in_namespace(program: str, name: str, argv: list[str]) -> list[str]:
    """Return the command line that runs a part of this program in namespaces of its own."""
    nsenter = shutil.which("enroot-nsenter")
    enroot_mount = next(hidden_programs("enroot-mount", program), None)
    if nsenter is None or enroot_mount is None:
        raise Unavailable("Enroot's programs are not in the PATH")
    code = (
        f"import sys; sys.path[:0] = {[p for p in sys.path if os.path.isabs(p)]!r}; "
        "from bootseer.slurm.enroot.program import main; sys.exit(main(sys.argv[1:]))"
    )
    ours = ["env", "-u", "BOOTSEER_SOCKET"]  # nothing is to be read ahead there
    ours += [sys.executable, "-IS", "-c", code, name, program, enroot_mount, *argv]
    return [nsenter, "--user", "--mount", "--remap-root", *ours]


def _squashfuse(program: str) -> str:
    return os.path.join(os.path.dirname(os.path.realpath(program)), "bootseer-squashfuse")


def _tell(began_ns: int, status: str, detail: str) -> None:
    if status != "ok":
        _say(detail)
    event = TellEvent("image.create", began_ns, time.time_ns(), status=status, detail=detail[:500])
    with suppress(BootseerError, KeyError):
        control_client.tell(os.environ["BOOTSEER_SOCKET"], event)


def _say(line: str) -> None:
    shown = "".join(c if c.isprintable() else "?" for c in line)
    print(f"bootseer-enroot: {shown}", file=sys.stderr, flush=True)
