"""Collect garbage: environments that are not used any more, and remains of captures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from bootseer.env.snapshot import repository
from bootseer.env.snapshot.manifest import is_key
from bootseer.env.snapshot.repository import ListedSnapshot
from bootseer.errors import Conflict, Corrupt, NotFound, UnknownVersion
from bootseer.image.library import catalog as images
from bootseer.store import key_lease
from bootseer.store.api.base import ObjectInfo, Store
from bootseer.units import NS_PER_S, format_size

DAY_NS = 86_400 * NS_PER_S
IN_USE_NS = 2 * 3600 * NS_PER_S
"""What was used so lately may be being restored now, on many nodes, and stays whatever the quota: a
use is noted to the hour."""
_CLAIM_NS = 3600 * NS_PER_S
"""Time after a lease's end when it is removed: clocks differ, and its holder may still renew it."""
_CAPTURE = re.compile(r"[0-9a-f]{16}", re.ASCII)
_SOURCE = "environment "


@dataclass(frozen=True, slots=True)
class Removed:
    """An object that was removed, or would be.

    Attributes:
        kind: "environment", "capture", "claim", "note" or "image".
        name: the key of an environment, the digest of an image, or of an object.
        reason: why, for the user.
        size_bytes: bytes that this frees, as far as they are known; those of an environment's
            squashfs a day later.
    """

    kind: str
    name: str
    reason: str
    size_bytes: int = 0


@dataclass(slots=True)
class GcResult:
    """Result of a collection.

    Attributes:
        gone: what was removed, in this order.
        kept: number of environments that stay.
        kept_bytes: their size in the store.
        problems: with objects that could not be read, and stay.
    """

    gone: list[Removed] = field(default_factory=list)
    kept: int = 0
    kept_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def freed_bytes(self) -> int:
        return sum(gone.size_bytes for gone in self.gone)


async def collect(
    store: Store, keep_days: float, quota_bytes: int, now_ns: int, dry_run: bool
) -> GcResult:
    """Remove old, excess and left-over objects from a user's store.

    Environments without a name are removed if they were not used for `keep_days`. If the others
    take more than the quota, the least recently used are removed first, and those with names last.
    An environment that was used within `IN_USE_NS` stays. An environment is removed with its names.
    Its squashfs follows a day later, for jobs that have it mounted. Objects that cannot be read
    stay, such as manifests of another version.

    Args:
        store: of the user.
        keep_days: days since the last use; 0 for ever.
        quota_bytes: most that all environments may take up; 0 for any.
        now_ns: nanoseconds since 1970.
        dry_run: only report what would be removed.

    Raises:
        BootseerError: the store does not answer.

    Concurrency: captures, restores and other collections may go on. Cancellation: removed
    objects stay removed; the next collection removes the rest.
    """
    return await _Collector(store, keep_days, quota_bytes, now_ns, dry_run).run()


class _Collector:
    def __init__(
        self, store: Store, keep_days: float, quota_bytes: int, now_ns: int, dry_run: bool
    ) -> None:
        self._store = store
        self._keep_ns = int(keep_days * DAY_NS)
        self._quota_bytes = quota_bytes
        self._now_ns = now_ns
        self._dry_run = dry_run
        self._done = GcResult()
        self._is_judged = True  # that every manifest could be read

    async def run(self) -> GcResult:
        listed = await repository.list_snapshots(self._store)
        whole = [found for found in listed if found.snapshot is not None]
        for found in listed:
            if found.snapshot is None:
                await self._judge(found)
        going = self._choose(whole)
        for found, reason in going:
            await self._remove(found, reason)
        gone = {found.key for found, _ in going}
        kept = [found for found in whole if found.key not in gone]
        self._done.kept = len(kept)
        self._done.kept_bytes = sum(map(_stored_bytes, kept))
        for found in kept:
            assert found.snapshot is not None
            await self._leftovers(found.key, found.snapshot.capture)
        await self._claims()
        await self._notes({found.key for found in listed})
        await self._images(kept)
        return self._done

    def _choose(self, whole: Sequence[ListedSnapshot]) -> list[tuple[ListedSnapshot, str]]:
        """Choose the environments to remove, with reasons."""
        going = []
        staying = []
        for found in whole:
            age_ns = self._now_ns - found.used_ns
            if self._keep_ns and age_ns > self._keep_ns and not found.names:
                going.append((found, f"not used for {age_ns // DAY_NS} days"))
            else:
                staying.append(found)
        total_bytes = sum(map(_stored_bytes, staying))
        for found in sorted(staying, key=lambda found: (bool(found.names), found.used_ns)):
            if not self._quota_bytes or total_bytes <= self._quota_bytes:
                break
            if self._now_ns - found.used_ns > IN_USE_NS:
                quota = format_size(self._quota_bytes)
                going.append((found, f"{format_size(total_bytes)} are more than {quota}"))
                total_bytes -= _stored_bytes(found)
        return going

    async def _judge(self, found: ListedSnapshot) -> None:
        """Remove a snapshot that has no manifest, or a damaged one, if it is old."""
        try:
            snapshot = await repository.read_snapshot(self._store, found.key)
        except NotFound:
            await self._leftovers(found.key, "")
        except UnknownVersion as error:
            self._leave(str(error))
        except Corrupt as error:
            if self._keep_ns and self._now_ns - found.used_ns > self._keep_ns:
                await self._remove(found, str(error))
            else:
                self._leave(f"{error}; remove it with `bootseer env rm {found.key[:12]}`")
        else:  # it has come meanwhile
            self._leave(f"{snapshot.key[:12]} is new")

    def _leave(self, problem: str) -> None:
        self._is_judged = False
        self._done.problems.append(problem)

    async def _remove(self, found: ListedSnapshot, reason: str) -> None:
        if not self._dry_run:
            with suppress(NotFound):
                await repository.remove(self._store, found.key)
        self._done.gone.append(Removed("environment", found.key, reason, _stored_bytes(found)))

    async def _leftovers(self, key: str, capture: str) -> None:
        """Remove captures of a snapshot that its manifest does not name."""
        held = await key_lease.read_lease(self._store, repository.lease_folder(key))
        if held is not None and self._now_ns < held.until_ns:
            return
        for info in await self._store.list(repository.folder_of(key)):
            name = info.name.rpartition("/")[2]
            if not info.is_folder or name == capture or not _CAPTURE.fullmatch(name):
                continue
            inside = await self._store.list(info.name)
            if not self._is_old(info, *inside):
                continue
            size_bytes = sum(one.size_bytes for one in inside)
            reason = "left by a capture that was interrupted or replaced"
            await self._delete(Removed("capture", info.name, reason, size_bytes), is_folder=True)
        if not capture and not self._dry_run:
            with suppress(Conflict, NotFound):  # something is in it, or there was nothing
                await self._store.delete(repository.folder_of(key))

    async def _claims(self) -> None:
        for folder in await self._store.list("env/claims"):
            key = folder.name.rpartition("/")[2]
            if not is_key(key):
                continue
            held = await key_lease.read_lease(self._store, repository.lease_folder(key))
            if held is None or self._now_ns - held.until_ns < _CLAIM_NS:
                continue
            for info in await self._store.list(folder.name):
                await self._delete(
                    Removed("claim", info.name, f"of {held.holder or 'nobody'}, run out")
                )
            if not self._dry_run:
                with suppress(Conflict, NotFound):
                    await self._store.delete(folder.name)

    async def _notes(self, keys: set[str]) -> None:
        for info in await self._store.list("env/used"):
            if info.name.rpartition("/")[2] not in keys and self._is_old(info):
                await self._delete(Removed("note", info.name, "of an environment that is gone"))
        for info in await self._store.list("env/last"):
            if self._keep_ns and self._now_ns - info.mtime_ns > self._keep_ns:
                await self._delete(Removed("note", info.name, "of a run long ago"))
        for info in await self._store.list("env/jobs"):
            inside = await self._store.list(info.name) if info.is_folder else ()
            if self._is_old(info, *inside):
                gone = Removed("note", info.name, "of a job long ago")
                await self._delete(gone, is_folder=info.is_folder)

    async def _images(self, kept: Sequence[ListedSnapshot]) -> None:
        """Remove images that captures have stored and that belong to no environment."""
        used = {found.snapshot.image for found in kept if found.snapshot is not None}
        named = {image.digest for image in await images.list_names(self._store)}
        for digest in set(await images.list_removed(self._store)) - used - named:
            if self._dry_run or await images.drop(self._store, digest):
                self._done.gone.append(Removed("image", f"images/{digest}", "removed a day ago"))
        if not self._is_judged:
            return  # it is not known which images belong to it
        for folder in await self._store.list("images"):
            digest = folder.name.rpartition("/")[2]
            about = await images.read_about(self._store, digest)
            if about is None or not about.source.startswith(_SOURCE) or digest in used | named:
                continue
            inside = await self._store.list(folder.name)
            is_removed = any(info.name.endswith("/removed") for info in inside)
            if not is_removed and self._is_old(*inside):
                if not self._dry_run:
                    with suppress(NotFound):
                        await images.remove(self._store, digest)
                reason = "no environment uses it; its data is deleted in a day"
                self._done.gone.append(Removed("image", folder.name, reason))

    async def _delete(self, gone: Removed, is_folder: bool = False) -> None:
        if not self._dry_run:
            with suppress(NotFound):
                if is_folder:
                    await self._store.delete_tree(gone.name)
                else:
                    await self._store.delete(gone.name)
        self._done.gone.append(gone)

    def _is_old(self, *infos: ObjectInfo) -> bool:
        return all(self._now_ns - info.mtime_ns > DAY_NS for info in infos)


def _stored_bytes(found: ListedSnapshot) -> int:
    snapshot = found.snapshot
    return snapshot.image_bytes if snapshot is not None else 0
