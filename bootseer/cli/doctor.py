"""bootseer doctor: is this node ready, and which settings are in force?"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bootseer import config as settings
from bootseer.cli.console import console, new_table, print_json
from bootseer.errors import BootseerError
from bootseer.units import format_size

if TYPE_CHECKING:
    from bootseer.store.api.base import Store

_LISTED = ("file:", "hdfs:")
"""Stores that report owners of files."""
_LOOK_S = 5.0
_SHARED = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "ceph", "cifs", "smb3"}
_IN_MEMORY = {"tmpfs", "ramfs"}


@click.command(epilog="Example:  bootseer doctor --json")
@click.option("--json", "as_json", is_flag=True, help="Print checks and settings as JSON.")
def doctor(as_json: bool) -> None:
    """Check this node and print its settings.

    Every setting is printed with its effective value and where that comes from.
    """

    config = settings.load()
    checks = {name: check() for name, check in CHECKS.items()} | _stores(config)
    if as_json:
        document = {
            "checks": {name: {"ok": ok, "detail": detail} for name, (ok, detail) in checks.items()},
            "settings": {
                name: {"value": config.values[name], "from": _origin(config, name)}
                for name in settings.SETTINGS
            },
        }
        print_json(document)
        return
    table = new_table("setting", "value", "from", "what it is for", overflow="ellipsis")
    for name, setting in settings.SETTINGS.items():
        table.add_row(
            name, str(config.values[name]), _origin(config, name), f"[dim]{setting.purpose}[/]"
        )
    shown = console()
    for name, (ok, detail) in checks.items():
        shown.print(f"{'[green]ok  [/]' if ok else '[yellow]look[/]'} {name}: {detail}")
    shown.print()
    shown.print(table)


def _origin(config: settings.Config, name: str) -> str:
    return config.path if name in config.from_file else "default"


def _plugin() -> tuple[bool, str]:
    from bootseer.slurm.plugin import CONF, PLUGSTACK_DIR, plugstack_of
    from bootseer.slurm.plugstack import lines_that_include

    conf = PLUGSTACK_DIR / CONF
    try:
        if not conf.exists():
            return False, f"{conf} is missing: run `bootseer plugin install`"
        found = lines_that_include(plugstack_of(conf), conf)
    except PermissionError as error:
        return False, f"{error.filename} cannot be read by you, and srun reads it with your rights"
    if not found:
        return False, f"{plugstack_of(conf)} lacks this line: include {conf}"
    if len(found) > 1:
        lines = ";  ".join(map(str, found))
        return False, f"srun warns of each option: keep one of these lines:  {lines}"
    return True, f"{conf} is included by {plugstack_of(conf)}"


def _accounts() -> tuple[bool, str]:
    from bootseer.agent.node.account import broker_settings

    try:
        found = broker_settings(settings.load())
    except BootseerError as error:
        return False, str(error)
    supervisor, cache = found.account, found.cache_account
    return True, (
        f"the supervisor runs as {supervisor.name}, uid {supervisor.uid}; "
        f"the block cache is {cache.name}'s, uid {cache.uid}"
    )


def _fuse() -> tuple[bool, str]:
    if os.access("/dev/fuse", os.R_OK | os.W_OK):
        return True, "/dev/fuse can be opened"
    return False, "/dev/fuse cannot be opened by you: container runtimes need mode 0666"


def _cache() -> tuple[bool, str]:
    """Check that the cache folder, or the folder that it will be made in, is on a local disk."""
    import psutil

    folder = Path(settings.load().node.cache_dir)
    found = Path(os.path.realpath(next(p for p in (folder, *folder.parents) if os.path.exists(p))))
    kinds = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    kind = next((kinds[p] for p in (found, *found.parents) if p in kinds), "unknown file system")
    detail = f"{folder} is on {kind}, {format_size(psutil.disk_usage(str(found)).free)} free"
    if kind in _SHARED:
        return False, f"{detail}: set node.cache_dir to a folder on a local disk"
    if kind in _IN_MEMORY:
        return False, f"{detail}: cached blocks take memory from jobs; set node.cache_dir to a disk"
    return True, detail


def _residency() -> tuple[bool, str]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if found and (int(found[1]), int(found[2])) >= (6, 5):
        return True, "the kernel has cachestat"
    return True, "no cachestat before Linux 6.5: sampling a large image costs some ms each time"


def _stores(config: settings.Config) -> dict[str, tuple[bool, str]]:
    """Check each configured store; returns its state and error."""
    from bootseer.cli.runner import caller
    from bootseer.env.snapshot.group_store import is_member, shared_urls
    from bootseer.store.from_settings import connect, connect_images, connect_shared

    user = caller()
    stores: dict[str, Callable[[], Store]] = {"store.url": lambda: connect(config, user)}
    if config.image.store_url:
        stores["image.store_url"] = lambda: connect_images(config, user)
    for group, url in shared_urls(config).items():
        if user.uid != 0 and not is_member(group):
            continue
        stores[f"env.shared {group}"] = partial(connect_shared, url, group, config, user)
    return {name: _store(opened) for name, opened in stores.items()}


def _store(opened: Callable[[], Store]) -> tuple[bool, str]:
    import trio

    async def look() -> str:
        store = opened()
        if store.url.startswith(_LISTED):
            with trio.move_on_after(_LOOK_S):
                await store.list()
                return f"{store.url}: only trusted users can write there"
            return f"{store.url}: no answer within {_LOOK_S:g} s"
        return f"{store.url}: its bucket's policy says who can write there"

    try:
        return True, trio.run(look)
    except BootseerError as error:
        return False, str(error)


CHECKS: dict[str, Callable[[], tuple[bool, str]]] = {
    "plugin": _plugin,
    "accounts": _accounts,
    "FUSE": _fuse,
    "cache": _cache,
    "residency": _residency,
}
