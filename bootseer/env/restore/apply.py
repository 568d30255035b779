"""Make the tree of a snapshot from its index and squashfs, in several threads.

The content is covered by the BLAKE3 of the squashfs's blocks, which is checked before a chunk is
decompressed, and its place by the index's checksum. The files' own SHA-256 is not computed again:
it was when the squashfs was written, and 2.1 GB would take 2.0 s instead of 1.4 on two processors.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeAlias

from bootseer._io import ffi, lib
from bootseer.env.restore.extract_plan import STEP_BYTES, ExtractBatch, ExtractPlan
from bootseer.env.snapshot.chunks import Chunk, Stored, content
from bootseer.errors import BootseerError, Conflict, Denied, NoSpace, OverQuota, Unavailable

Read: TypeAlias = Callable[[Chunk], Stored]
Count: TypeAlias = Callable[[int], None]
Check: TypeAlias = Callable[[], None]

_LOOK_S = 0.1
"""How often to ask whether it is cancelled."""
_ELSEWHERE = "something else makes or moves files there meanwhile; stop that and try again"
_MEANINGS: dict[int, tuple[type[BootseerError], str]] = {
    errno.ENOSPC: (NoSpace, "no space left; free some, or choose another folder"),
    errno.EDQUOT: (OverQuota, "no space left in the quota; free some, or have it raised"),
    errno.EACCES: (Denied, "permission denied; check the owner and mode of the folder"),
    errno.EPERM: (Denied, "not permitted; check the owner of the folder and its file system"),
    errno.EROFS: (Denied, "the file system is mounted read-only; choose another folder"),
    errno.EEXIST: (Conflict, _ELSEWHERE),
    errno.ENOTEMPTY: (Conflict, _ELSEWHERE),
    errno.ENOENT: (Conflict, _ELSEWHERE),
    errno.ENOTDIR: (Conflict, _ELSEWHERE),
    errno.ELOOP: (Conflict, _ELSEWHERE),
    errno.EBUSY: (Conflict, "something is mounted there; unmount it, or choose another folder"),
    errno.EXDEV: (Unavailable, "names of one file would be on several file systems"),
    errno.EOPNOTSUPP: (
        Unavailable,
        "the file system lacks what the snapshot has (extended attributes, hard links); choose "
        "a folder on another",
    ),
    errno.EILSEQ: (Unavailable, "the file system does not take such a name; choose another"),
}


def unpack_content(
    steps: ExtractPlan,
    chunks: Sequence[Chunk],
    read: Read,
    folders: Sequence[int],
    threads: int,
    count: Count,
    check_cancelled: Check,
) -> None:
    """Make the tree of a snapshot in empty folders, as the calling user, but for `finish`.

    After an error the caller removes what was made. Folders have mode 0700.

    Args:
        steps: that make the tree.
        chunks: of its content.
        read: returns the stored bytes of a chunk, which were compared with their digests; called in
            several threads, and must return in time after a cancellation.
        folders: descriptors of empty folders that no other user can write to, one for each target.
        threads: number of threads that read and unpack, each with one chunk in memory.
        count: called with numbers of bytes of content that were unpacked, in the calling thread.
        check_cancelled: called several times a second in the calling thread; raises to cancel.

    Raises:
        Corrupt: the snapshot is damaged.
        BootseerError: there is no space, or no right to write.

    Cancellation: all threads have ended. Durability: none; the tree can be made again.
    """
    with _ground(steps, folders) as ground:
        carry_out(ground, steps.before)
        _unpack_chunks(ground, steps, chunks, read, threads, count, check_cancelled)
        carry_out(ground, steps.after)


def finish(steps: ExtractPlan, folders: Sequence[int]) -> None:
    """Give all folders their attributes, modes and times."""
    with _ground(steps, folders) as ground:
        for batch in steps.last:
            carry_out(ground, batch)


def carry_out(ground: Any, batch: ExtractBatch, data: Stored | None = None) -> None:
    """Carry out steps, without the GIL.

    Raises:
        BootseerError: one failed.
    """
    done = ffi.new("size_t *")
    source = batch.content if data is None else data
    status = lib.bs_make(
        *(ground, ffi.from_buffer("bs_step[]", batch.steps), len(batch.steps) // STEP_BYTES),
        *(ffi.from_buffer("uint8_t[]", source), len(source), done),
    )
    if status < 0:
        path = ffi.string(ground.texts + batch.path_at(done[0]))
        raise meaning(OSError(-status, ""), path)


def meaning(error: OSError, path: bytes) -> BootseerError:
    """Return the `BootseerError` for an OSError with a path of a snapshot."""
    number = error.errno or 0
    kind, reason = _MEANINGS.get(number, (Unavailable, os.strerror(number)))
    return kind(f"cannot restore {os.fsdecode(path[:200])!a}: {reason}")


@contextmanager
def explained(path: bytes) -> Iterator[None]:
    """Raise the `BootseerError` for an OSError of the block, see `meaning`."""
    try:
        yield
    except OSError as error:
        raise meaning(error, path) from error


@contextmanager
def _ground(steps: ExtractPlan, folders: Sequence[int]) -> Iterator[Any]:
    """Make the C structure with which steps are carried out."""
    if len(folders) != steps.folders:
        raise Conflict(f"the snapshot has {steps.folders} folders, and not {len(folders)}")
    fds = ffi.new("int[]", list(folders))
    texts = ffi.from_buffer("char[]", steps.texts)
    has_openat2 = lib.bs_has_openat2()
    yield ffi.new("bs_ground *", (fds, len(folders), texts, len(steps.texts), not has_openat2))


def _unpack_chunks(
    ground: Any,
    steps: ExtractPlan,
    chunks: Sequence[Chunk],
    read: Read,
    threads: int,
    count: Count,
    check_cancelled: Check,
) -> None:
    """Unpack all chunks."""
    pairs = list(zip(chunks, steps.chunks, strict=True))
    # Threads far from each other: two that write the same file wait for each other.
    run = max(1, -(-len(pairs) // threads))
    wanted = iter([pair for first in range(run) for pair in pairs[first::run]])
    largest = max((chunk.size_bytes for chunk in chunks), default=0)
    buffers: SimpleQueue[bytearray] = SimpleQueue()
    for _ in range(threads):
        buffers.put(bytearray(largest))

    def unpack_chunk(chunk: Chunk, batch: ExtractBatch) -> int:
        buffer = buffers.get()
        try:
            with content(chunk, read(chunk), buffer) as data:
                carry_out(ground, batch, data)
        finally:
            buffers.put(buffer)
        return chunk.size_bytes

    pool = ThreadPoolExecutor(threads, thread_name_prefix="unpack")
    waiting: set[Future[int]] = set()
    try:
        while True:
            # One more for each, so that none waits for this thread.
            while len(waiting) < 2 * threads and (pair := next(wanted, None)) is not None:
                waiting.add(pool.submit(unpack_chunk, *pair))
            if not waiting:
                break
            done, waiting = wait(waiting, _LOOK_S, FIRST_COMPLETED)
            for future in done:
                count(future.result())
            check_cancelled()
    finally:
        pool.shutdown(cancel_futures=True)
