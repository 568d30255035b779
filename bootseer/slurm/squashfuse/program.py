"""``bootseer-squashfuse``: mounts squashfs images in the way of squashfuse, in half the time.

Container runtimes start it in place of squashfuse. What it does not support, it leaves to the real
one, so that a container starts in any case: images compressed with xz or lzma, and options that
are not of libfuse, uid, gid or offset.

Runs as the user, often in a user namespace. Imports the standard library and bootseer's C
extension only, until the image is mounted: Enroot waits for that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from bootseer.posix import check_result
from bootseer.slurm.hidden_program import hidden_programs
from bootseer.slurm.squashfuse import readahead
from bootseer.slurm.squashfuse.open_image import open_image

_REAL = "squashfuse"
_ANY = 0xFFFFFFFF
"""For C: files keep their owner."""
ABOVE = "bootseer_above"
"""Option that only the project's own programs use: a path, see `MountRequest`."""
_NUMBERS = {"uid": _ANY, "gid": _ANY, "offset": 0}


class MountRequest(NamedTuple):
    """What the command line asks for.

    Attributes:
        image, mountpoint: paths.
        is_foreground: serve in this process.
        fuse: options for libfuse.
        uid, gid: owner of all files; 2**32 - 1 keeps the image's.
        offset: where the image begins in its file, in bytes.
        above: folders to show above the image's root, for a container with a layer to write.
    """

    image: str
    mountpoint: str
    is_foreground: bool
    fuse: list[str]
    uid: int
    gid: int
    offset: int
    above: list[str]


def parse(arguments: Sequence[str]) -> MountRequest | None:
    """Parse the command line of squashfuse; None if it asks for more than is supported here.

    Args:
        arguments: without the program's name.
    """
    left = iter(arguments)
    paths, options = [], []
    is_foreground = False
    for argument in left:
        if argument == "-f":
            is_foreground = True
        elif argument == "-o":
            options += next(left, "").split(",")
        elif argument.startswith("-o"):
            options += argument[2:].split(",")
        elif argument.startswith("-"):
            return None
        else:
            paths.append(argument)
    numbers, fuse, above = dict(_NUMBERS), [], []
    for option in options:
        name, _, value = option.partition("=")
        if name == ABOVE:
            above = [folder for folder in value.split("/") if folder]
        elif name not in numbers:
            fuse.append(option)
        elif value.isascii() and value.isdigit() and int(value) < 1 << 63:
            numbers[name] = int(value)
        else:
            return None
    if len(paths) != 2 or max(numbers["uid"], numbers["gid"]) > _ANY or "" in fuse:
        return None
    return MountRequest(paths[0], paths[1], is_foreground, fuse, **numbers, above=above)


def serve(wanted: MountRequest) -> None:
    """Mount an image and serve it until it is unmounted; in the background, unless asked not to.

    Does not return: the process exits.

    Raises:
        OSError: it cannot be served here, and is not mounted.
    """
    from bootseer._squashfs import ffi, lib

    with open_image(wanted.image, wanted.offset) as opened:
        options = ["ro", f"fsname={_REAL}", f"subtype={_REAL}", *wanted.fuse]
        words = ["bootseer-squashfuse", "-o", ",".join(options)]
        kept = [ffi.new("char[]", os.fsencode(word)) for word in words]
        names = [ffi.new("char[]", os.fsencode(name)) for name in wanted.above]
        above = ffi.new("char *[]", [*names, ffi.NULL]) if names else ffi.NULL
        owner = (wanted.uid, wanted.gid)
        given = ffi.new("sq_options *", (*owner, wanted.is_foreground, above))
        mountpoint = os.fsencode(os.path.abspath(wanted.mountpoint))
        if not wanted.offset:
            readahead.start(wanted.image, wanted.mountpoint, "/".join(wanted.above))
        check_result(lib.sq_serve(opened, mountpoint, given, [*kept, ffi.NULL]))


def main(argv: Sequence[str]) -> int:
    """Run the program, or the real one in its place; returns the exit code.

    Args:
        argv: the command line; its first word is this program's path.
    """
    wanted = parse(argv[1:])
    why = "an option is not supported"
    if wanted is not None:
        try:
            serve(wanted)
        except (OSError, ImportError) as error:
            why = str(error)
    if wanted is not None and wanted.above:
        _say(f"{wanted.image}: {why}")
        return 1
    for path in hidden_programs(_REAL, argv[0]):
        if wanted is not None:
            _say(f"{wanted.image} is left to {path}: {why}")
        os.execv(path, [path, *argv[1:]])
    _say(f"there is no squashfuse to leave this to ({why}); install it")
    return 1


def _say(line: str) -> None:
    shown = "".join(c if c.isprintable() else "?" for c in line)
    print(f"bootseer-squashfuse: {shown}", file=sys.stderr, flush=True)
