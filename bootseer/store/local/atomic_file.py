"""A file that has its name only once it is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from bootseer.errors import Conflict, NotFound
from bootseer.store.local.dirfd_tree import DirfdTree
from bootseer.store.local.errors import translated


@contextmanager
def new_file(target: Path, mode: int | None = None) -> Iterator[tuple[int, Path]]:
    """Give a file to write, that replaces ``target`` at the end of the block.

    Args:
        target: path of the file.
        mode: its permissions from the beginning; without, those that the umask leaves.

    Yields:
        Its descriptor, and its name until then.

    Raises:
        Conflict: ``target`` is a folder.
        NotFound: it has none.
        BootseerError: it cannot be made, or not get its name. What fails in the block is the
            caller's: see `writing`.

    Durability: ``target`` is what it was, or the whole file, also after a crash.
    """
    if target.is_dir():
        raise Conflict(f"{target} is a folder; give the name of a file")
    if not target.parent.is_dir():
        raise NotFound(f"there is no folder {target.parent}; make it first")
    tree = DirfdTree(target.parent.absolute())
    with ExitStack() as stack:
        with writing(target):
            folder = stack.enter_context(tree.folder(()))
            temporary = tree.create_temporary(folder, mode)
            stack.callback(os.close, temporary.fd)
            stack.callback(temporary.discard)
        yield temporary.fd, target.parent / temporary.name
        with writing(target):
            os.fsync(temporary.fd)
            temporary.publish(target.name, overwrite=True)


def writing(target: Path) -> AbstractContextManager[None]:
    """Turn every OSError of the block into the error of ours: ``target`` cannot be written."""
    return translated("write", target.name, str(target.parent))
