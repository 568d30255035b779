"""Snapshots in a store: their objects, names, and notes about their use.

env/snapshots/KEY/manifest.json           see `manifest`; written last
env/snapshots/KEY/CAPTURE/index           its tree, see `index`
env/used/KEY                              empty; its time is that of the last use
env/figures.json                          see `restore_stats`
env/names/NAME                            a name of a snapshot: its key
env/last/TARGETS.json                     the key of the last run with these targets
env/claims/KEY/NNNN.json                  the lease of its capture, see `bootseer.store.key_lease`
images/IMAGE/…                            its squashfs, an image without a name
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from urllib.parse import quote, unquote

import trio

from bootseer.core import table
from bootseer.core.tree_rows import TreeRows
from bootseer.env.client import key as env_key
from bootseer.env.client.key import KeyPart
from bootseer.env.snapshot import index as tree_index
from bootseer.env.snapshot import manifest
from bootseer.env.snapshot.index import Index
from bootseer.env.snapshot.manifest import Snapshot, is_key
from bootseer.env.snapshot.restore_stats import RestoreStats
from bootseer.errors import BootseerError, ConfigError, Conflict, Corrupt, NotFound
from bootseer.image.library import catalog as images
from bootseer.store.api.base import Store, publish, read_all
from bootseer.units import MIB, NS_PER_S

_STATS = "env/figures.json"
_MAX_STATS_BYTES = 4096
_MAX_FIGURE_S = 1e6
_MAX_FILE_BYTES = 16 * MIB
_USED_S = 3600.0
"""How old the note of the last use may get before it is written again."""
FOLDER = "env/snapshots"
_NAME = re.compile(r"[A-Za-z0-9_@+][A-Za-z0-9._@+-]{0,127}", re.ASCII)
_BEGINNING = re.compile(r"[0-9a-f]{8,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListedSnapshot:
    """A snapshot in a store.

    Attributes:
        key: of the snapshot.
        snapshot: its manifest; None if that is damaged, or there is none (yet).
        problem: why there is no manifest, for the user.
        used_ns: time of its last use, nanoseconds since 1970.
        names: its names.
    """

    key: str
    snapshot: Snapshot | None
    problem: str
    used_ns: int
    names: tuple[str, ...] = ()


def manifest_object(key: str) -> str:
    """Return the name of the object with the manifest of a snapshot."""
    return f"{FOLDER}/{key}/manifest.json"


def folder_of(key: str, capture: str = "") -> str:
    """Return the name of the folder of a snapshot, or of one capture of it."""
    return f"{FOLDER}/{key}/{capture}" if capture else f"{FOLDER}/{key}"


def lease_folder(key: str) -> str:
    """Return the name of the folder of the lease of a snapshot's capture."""
    return f"env/claims/{key}"


async def read_snapshot(store: Store, key: str) -> Snapshot:
    """Read the manifest of a snapshot.

    Raises:
        NotFound: there is none.
        Corrupt: it is damaged, or another key's.
    """
    name = manifest_object(key)
    data = await read_all(store, name, manifest.MAX_BYTES)
    return manifest.decode(data, f"{name} in {store.url}", key)


async def read_index(store: Store, snapshot: Snapshot) -> Index:
    """Read the tree of a snapshot.

    Raises:
        NotFound: it was removed.
        Corrupt: it is damaged or hostile.
    """
    name, data = await _index(store, snapshot)
    index = tree_index.decode(data, name, snapshot.outside_paths)
    if sum(1 for path in index.tree if path and b"/" not in path) != len(snapshot.targets):
        raise Corrupt(f"{name}: it has another number of targets than its manifest")
    return index


async def read_rows(store: Store, snapshot: Snapshot) -> TreeRows:
    """Read the tree of a snapshot to mount it.

    Raises:
        NotFound: it was removed.
        Corrupt: it is damaged.
    """
    name, data = await _index(store, snapshot)
    return tree_index.open_rows(data, name)


async def note_use(store: Store, key: str) -> None:
    """Note that a snapshot is used now; errors are ignored."""
    name = f"env/used/{key}"
    with suppress(BootseerError):
        with suppress(NotFound):
            if time.time_ns() - (await store.stat(name)).mtime_ns < _USED_S * NS_PER_S:
                return
        await publish(store, name, b"")


async def list_snapshots(store: Store) -> list[ListedSnapshot]:
    """List all snapshots, those that were used last first."""
    names: dict[str, list[str]] = {}
    for name, key in (await list_names(store)).items():
        names.setdefault(key, []).append(name)
    found = []
    for folder in await store.list(FOLDER):
        key = folder.name.rpartition("/")[2]
        if not is_key(key):
            continue
        snapshot, problem, used_ns = None, "", folder.mtime_ns
        try:
            snapshot = await read_snapshot(store, key)
            used_ns = snapshot.captured_ns
        except NotFound:
            problem = "its capture is running or was interrupted"
        except BootseerError as error:
            problem = str(error)
        with suppress(NotFound):
            used_ns = max(used_ns, (await store.stat(f"env/used/{key}")).mtime_ns)
        found.append(
            ListedSnapshot(key, snapshot, problem, used_ns, tuple(sorted(names.get(key, ()))))
        )
    return sorted(found, key=lambda listed: -listed.used_ns)


# The last run.


async def note_run(store: Store, targets: Sequence[str], parts: Sequence[KeyPart]) -> None:
    """Note the key of a run, so that `env explain` can compare the next one."""
    document = json.dumps(env_key.to_document(parts)).encode() + b"\n"
    await publish(store, _last_object(targets), document)


async def read_run(store: Store, targets: Sequence[str]) -> tuple[KeyPart, ...]:
    """Return the parts of the key of the last run with these targets.

    Raises:
        NotFound: there was none.
        Corrupt: what was noted is damaged.
    """
    name = _last_object(targets)
    data = await read_all(store, name, manifest.MAX_BYTES)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{name}: not JSON") from error
    return env_key.from_document(document, name)


def _last_object(targets: Sequence[str]) -> str:
    paths = b"\n".join(map(os.fsencode, targets))
    return f"env/last/{hashlib.sha256(paths).hexdigest()[:32]}.json"


# What restoring took.


async def read_stats(store: Store) -> RestoreStats:
    """Read how long restores took lately; defaults if that is not known."""
    with suppress(BootseerError, ValueError, TypeError, OverflowError, RecursionError):
        found = json.loads(await read_all(store, _STATS, _MAX_STATS_BYTES))
        values = {name: float(found[name]) for name in RestoreStats.__slots__ if name in found}
        if all(0 < value < _MAX_FIGURE_S for value in values.values()):
            return RestoreStats(**values)
    return RestoreStats()


async def write_stats(store: Store, stats: RestoreStats) -> None:
    """Write how long restores took; errors are ignored."""
    with suppress(BootseerError):
        await publish(store, _STATS, json.dumps(asdict(stats)).encode() + b"\n")


# Names.


def check_name(name: str) -> str:
    """Check that a text can be the name of a snapshot, as --bootseer-env takes it.

    Raises:
        ConfigError: it cannot.
    """
    if not _NAME.fullmatch(name) or is_key(name):
        raise ConfigError(
            f"{name[:100]!a} cannot be the name of an environment: up to 128 letters, digits and "
            "._@+-, of which the first is none of .-; and not 64 digits of hexadecimal"
        )
    return name


async def list_names(store: Store) -> dict[str, str]:
    """Return the keys of all names."""
    found = {}
    for info in await store.list("env/names"):
        name = unquote(info.name.rpartition("/")[2])
        with suppress(BootseerError):
            found[name] = await _read_name(store, name)
    return found


async def give_name(store: Store, name: str, key: str) -> None:
    """Give a snapshot a name; the name moves if another has it."""
    await publish(store, _name_object(check_name(name)), key.encode() + b"\n")


async def take_name(store: Store, name: str) -> None:
    """Remove a name; raises NotFound if there is none."""
    await store.delete(_name_object(check_name(name)))


async def resolve(store: Store, reference: str) -> str:
    """Return the key of a snapshot.

    Args:
        store: that has it.
        reference: its name, its key, or the beginning of its key, eight digits at least; or the
            absolute path of a file with the key, as `bootseer env key --json` prints it.

    Raises:
        NotFound: there is no such snapshot.
        Conflict: the keys of several begin so.
        ConfigError: it cannot be a name.
    """
    if is_key(reference):
        return reference
    if reference.startswith("/"):
        return await trio.to_thread.run_sync(_key_in, reference, abandon_on_cancel=True)
    try:
        return await _read_name(store, check_name(reference))
    except NotFound:
        pass
    keys = []
    if _BEGINNING.fullmatch(reference):
        keys = [info.name.rpartition("/")[2] for info in await store.list(FOLDER)]
        keys = [key for key in keys if key.startswith(reference)]
    if len(keys) > 1:
        raise Conflict(f"{len(keys)} environments begin with {reference}: give more of the key")
    if not keys:
        raise NotFound(
            f"there is no environment {reference!a} in {store.url}: see `bootseer env ls`"
        )
    return keys[0]


def _key_in(path: str) -> str:
    try:
        # A pipe at that path must not make this wait.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError(f"{path} is no regular file, and names no environment")
            document = json.loads(file.read(_MAX_FILE_BYTES))
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON, and names no environment") from error
    key = document.get("key") if isinstance(document, dict) else None
    if not isinstance(key, str) or not is_key(key):
        raise ConfigError(
            f"{path} has no key of an environment: make it with `bootseer env key --json --target "
            "DIR -- COMMAND > FILE`"
        )
    return key


async def _read_name(store: Store, name: str) -> str:
    data = await read_all(store, _name_object(name), 128)
    key = data.decode("ascii", "replace").strip()
    if not is_key(key):
        raise Corrupt(f"the name {name} of an environment is damaged; give it again")
    return key


def _name_object(name: str) -> str:
    return f"env/names/{quote(name, safe='')}"


# Going.


async def remove(store: Store, key: str, *, now: bool = False) -> None:
    """Remove a snapshot with its names; its squashfs is removed a day later, for running jobs.

    Args:
        store: that has it.
        key: of the snapshot.
        now: remove the squashfs now; jobs that have it mounted fail.

    Raises:
        NotFound: there is none.
    """
    image = ""
    with suppress(Corrupt, NotFound):
        image = (await read_snapshot(store, key)).image
    with suppress(NotFound):
        await store.delete(manifest_object(key))  # first, for the rest is nothing without it
    await store.delete_tree(folder_of(key))
    for name, named in (await list_names(store)).items():
        if named == key:
            with suppress(NotFound):
                await take_name(store, name)
    with suppress(NotFound):
        await store.delete(f"env/used/{key}")
    if image and not await _is_used(store, image):
        with suppress(NotFound):
            await images.remove(store, image, now=now)


async def _is_used(store: Store, image: str) -> bool:
    listed = await list_snapshots(store)
    return any(other.snapshot is not None and other.snapshot.image == image for other in listed)


async def _index(store: Store, snapshot: Snapshot) -> tuple[str, bytes]:
    name = f"{folder_of(snapshot.key, snapshot.capture)}/index"
    data = await read_all(store, name, tree_index.MAX_BYTES)
    if table.digest_of(data).hex() != snapshot.index:
        raise Corrupt(f"{name} in {store.url} does not match the manifest: capture it again")
    return name, data
