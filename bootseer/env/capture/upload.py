"""Store the result of a command: its squashfs, index and manifest."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from bootseer.core import table
from bootseer.core.tree_rows import BLOCK_BYTES
from bootseer.env.capture.capture import CaptureResult
from bootseer.env.client.key import KeyPart, key_of
from bootseer.env.client.scan import tree_digest
from bootseer.env.snapshot import index as tree_index
from bootseer.env.snapshot import manifest, repository, tar_stream
from bootseer.env.snapshot.index import ContentPlace
from bootseer.env.snapshot.manifest import MAX_FINDINGS, MAX_OUTSIDE, Finding, Snapshot, shown_path
from bootseer.env.snapshot.squashfs import find_content
from bootseer.errors import BootseerError, Unavailable
from bootseer.image.library.upload import about_now, put
from bootseer.squashfs.mksquashfs import Start, start_plainly
from bootseer.squashfs.writer import PackOptions, pack
from bootseer.store.api.base import Store, publish


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a snapshot came to be.

    Attributes:
        parts: of its key.
        targets: absolute paths.
        bases: what was in each before.
        user: name of the user who ran the command.
        node: name of the node.
        command_ms: time that the command took.
    """

    parts: tuple[KeyPart, ...]
    targets: tuple[str, ...]
    bases: tuple[str, ...]
    user: str
    node: str
    command_ms: int

    @property
    def key(self) -> str:
        return key_of(self.parts)


async def publish_snapshot(
    store: Store,
    made: CaptureResult,
    provenance: Provenance,
    findings: Iterable[Finding],
    scratch: str,
    *,
    replace: bool = False,
    count: Callable[[int], None] = lambda size_bytes: None,
    mksquashfs: Start = start_plainly,
) -> Snapshot:
    """Store the result of a command; the manifest is written last.

    Args:
        store: of the user.
        made: the result; has its digests afterwards.
        provenance: how it came to be.
        findings: what may fail elsewhere.
        scratch: folder of this node for the squashfs, a file without a name.
        replace: replace a snapshot that is stored under the key.
        count: called with numbers of bytes of content that were stored.
        mksquashfs: starts it.

    Raises:
        Conflict: a file has changed meanwhile, or another process has published the same key.
        BootseerError: the result cannot be read or stored; nothing is published.

    Cancellation: as after an error, what was sent is removed, unless the manifest was being
    written: the snapshot may be there, and then it is complete.
    """
    if len(made.outside) > MAX_OUTSIDE:
        raise Unavailable(
            f"{len(made.outside):,} links point outside their targets, but a snapshot can list "
            f"only {MAX_OUTSIDE:,}: make the installer copy files instead"
        )
    key, capture = provenance.key, secrets.token_hex(8)
    folder = repository.folder_of(key, capture)
    is_closing = False
    try:
        with ExitStack() as opened:
            work = partial(_pack, made, scratch, opened, count, mksquashfs)
            image = await trio.to_thread.run_sync(work, abandon_on_cancel=True)
            content = await trio.to_thread.run_sync(find_content, image)
            about = about_now(f"environment {key}", provenance.user)
            added = await put(store, image, about, force=replace)  # it may be damaged
        index = await _store_index(store, folder, made, content)
        snapshot = Snapshot(
            key=key,
            parts=provenance.parts,
            targets=provenance.targets,
            bases=provenance.bases,
            capture=capture,
            digest=tree_digest(made.tree),
            image=added.digest,
            image_bytes=added.manifest.size_bytes,
            index=table.digest_of(index).hex(),
            files=len(made.tree) - 1,
            content_bytes=made.content_bytes,
            outside=tuple(path.hex() for path in made.outside),
            findings=tuple(_all_findings(made, provenance, findings))[:MAX_FINDINGS],
            captured_ns=time.time_ns(),
            captured_by=provenance.user,
            node=provenance.node,
            command_ms=provenance.command_ms,
        )
        name, encoded = repository.manifest_object(key), snapshot.encode()
        manifest.check(encoded, name, key)
        is_closing = True
        await publish(store, name, encoded, overwrite=replace)
    except BaseException:
        with trio.move_on_after(5, shield=True), suppress(BootseerError):
            # A commit that was cut off may have happened all the same.
            if not is_closing or (await repository.read_snapshot(store, key)).capture != capture:
                await store.delete_tree(folder)
        raise
    return snapshot


async def _store_index(
    store: Store, folder: str, made: CaptureResult, content: Mapping[bytes, ContentPlace]
) -> bytes:
    """Store and return the index of a result, from where its content is in the squashfs.

    Raises:
        Corrupt: it would be refused later.
        BootseerError: it cannot be stored.
    """
    index, name = tree_index.encode(made.tree, content, made.deleted), f"{folder}/index"
    await trio.to_thread.run_sync(partial(tree_index.decode, index, name, made.outside))
    await publish(store, name, index)
    return index


def _pack(
    made: CaptureResult,
    scratch: str,
    opened: ExitStack,
    count: Callable[[int], None],
    mksquashfs: Start,
) -> Path:
    """Read all files once, and write the squashfs.

    Returns:
        The path of the squashfs until `opened` is closed. It has no name in its folder, so that it
        is gone however this process ends.

    Raises:
        Conflict: something has changed.
        BootseerError: it cannot be read or written.
    """
    with ExitStack() as opening:
        try:
            unnamed = opening.enter_context(tempfile.TemporaryFile(dir=scratch))
        except OSError as error:
            raise Unavailable(f"no file can be made in {scratch}: {error.strerror}") from error
        image = Path(f"/proc/self/fd/{unnamed.fileno()}")
        packing = PackOptions(BLOCK_BYTES, "lz4", is_linear=True)
        with pack(image, packing, None, [unnamed.fileno()], mksquashfs) as packer:
            for piece in tar_stream.stream(made.tree, made.read):
                trio.from_thread.check_cancelled()
                packer.write(piece)
                count(len(piece))
        made.finish()
        # Moved only now: after a cancellation, the caller must not close the file while this thread
        # writes to it.
        trio.from_thread.check_cancelled()
        opened.push(opening.pop_all())
    return image


def _all_findings(
    made: CaptureResult, provenance: Provenance, findings: Iterable[Finding]
) -> Iterator[Finding]:
    for path, kind, detail in made.findings:
        yield Finding(kind, shown_path(path, provenance.targets), detail)
    yield from findings
