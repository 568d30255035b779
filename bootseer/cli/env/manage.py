"""bootseer env: name, remove, share and unpack snapshots."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from bootseer.cli.env.options import (
    KEY_CHARS,
    complete,
    complete_name,
    env_argument,
    group_option,
    user_option,
    with_env_store,
)
from bootseer.cli.options import json_option, quiet_option
from bootseer.cli.terminal.console import print_json
from bootseer.units import GIB, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bootseer.env.admin.gc import GcResult
    from bootseer.env.snapshot.manifest import Snapshot
    from bootseer.image.library.upload import UploadProgress
    from bootseer.store.api.base import Store


@click.command(epilog="Example:  bootseer env rm 3f2ac41b nightly")
@click.argument("envs", metavar="ENV...", nargs=-1, required=True, shell_complete=complete)
@click.option("--now", is_flag=True, help="Remove it even from jobs that have it mounted.")
@user_option
@group_option
@quiet_option
def rm(envs: tuple[str, ...], now: bool, user: str | None, group: str, quiet: bool) -> None:
    """Remove environments, with their names.

    Jobs that have one mounted can read it for a day.
    """
    from bootseer.cli.terminal import runner
    from bootseer.env.snapshot import repository
    from bootseer.image.library import catalog as images

    async def work(store: Store) -> None:
        keys = [await repository.resolve(store, env) for env in envs]  # all, before any is removed
        for key in dict.fromkeys(keys):
            await repository.remove(store, key, now=now)
            if not quiet:
                runner.print_line(f"removed: {key[:KEY_CHARS]}")
        await images.sweep(store)

    after = "run the same command again to remove the rest"
    with_env_store(work, user=user, group=group, after=after)


@click.command(epilog="Example:  bootseer env tag 3f2ac41b nightly")
@env_argument
@click.argument("name")
@user_option
def tag(env: str, name: str, user: str | None) -> None:
    """Give ENV one more name; the name moves if another has it."""
    from bootseer.cli.terminal import runner
    from bootseer.env.snapshot import repository

    async def give(store: Store) -> str:
        repository.check_name(name)
        snapshot = await repository.read_snapshot(store, await repository.resolve(store, env))
        await repository.give_name(store, name, snapshot.key)
        return snapshot.key

    runner.print_line(f"{name}: {with_env_store(give, user=user)}")


@click.command(epilog="Example:  bootseer env untag nightly")
@click.argument("name", shell_complete=complete_name)
@user_option
def untag(name: str, user: str | None) -> None:
    """Remove the name NAME; the environment stays."""
    from bootseer.env.snapshot import repository
    from bootseer.errors import NotFound

    async def take(store: Store) -> None:
        try:
            await repository.take_name(store, name)
        except NotFound as error:
            raise NotFound(
                f"no environment has the name {name!a}: see `bootseer env ls`"
            ) from error

    with_env_store(take, user=user)


@click.command(
    epilog="""\b
Examples:
  bootseer env restore nightly
  bootseer env restore nightly --target /tmp/look
"""
)
@env_argument
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="DIR",
    help="Folder to unpack to; one for each target.  [default: where it was captured]",
)
@click.option("--over", is_flag=True, help="Unpack into folders that are not empty, too.")
@group_option
@quiet_option
def restore(env: str, targets: tuple[str, ...], over: bool, group: str, quiet: bool) -> None:
    """Unpack ENV, to where it was captured or elsewhere.

    With --over, files of the environment replace files of the same names. Scripts and settings of
    an environment name its folder, so that it may not work elsewhere.
    """
    from bootseer.cli.terminal import runner
    from bootseer.env.snapshot import repository
    from bootseer.image.library.upload import UploadProgress

    progress = UploadProgress()
    began = time.monotonic()

    async def work(store: Store) -> tuple[Snapshot, list[str]]:
        snapshot = await repository.read_snapshot(store, await repository.resolve(store, env))
        paths = _places(snapshot, targets, over)
        if paths != list(snapshot.targets):
            runner.print_line(
                f"bootseer: {env} was captured in {', '.join(snapshot.targets)}, and may not work "
                "elsewhere: scripts and settings in it can name that place",
                err=True,
            )
        await _unpack(store, snapshot, paths, progress)
        if not group:
            await repository.note_use(store, snapshot.key)
        return snapshot, paths

    bar = "" if quiet else "restore"
    snapshot, paths = with_env_store(work, group=group, counted=progress, bar=bar)
    if not quiet:
        size, took = format_size(snapshot.content_bytes), format_duration(time.monotonic() - began)
        runner.print_line(f"{', '.join(paths)}: {size} in {snapshot.files:,} files, in {took}")


@click.command(epilog="Example:  bootseer env gc --dry-run")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@user_option
@quiet_option
@json_option
def gc(dry_run: bool, user: str | None, quiet: bool, as_json: bool) -> None:
    """Remove old environments and leftovers of captures.

    Environments without a name are removed if they were not used for `env.keep_days`. If the others
    take more than `env.quota_gib`, the least recently used are removed, too, those with names last.
    `bootseer config show env` shows these settings of the administrator.
    """
    from bootseer import config as settings
    from bootseer.cli.terminal import runner
    from bootseer.env.admin.gc import collect

    config = settings.load()
    quota_bytes = int(config.env.quota_gib * GIB)

    async def work(store: Store) -> GcResult:
        return await collect(store, config.env.keep_days, quota_bytes, time.time_ns(), dry_run)

    found = with_env_store(work, user=user, after="run the same command again for the rest")
    if as_json:
        document = {
            "gone": [
                {"kind": g.kind, "name": g.name, "reason": g.reason, "size_bytes": g.size_bytes}
                for g in found.gone
            ],
            "kept": found.kept,
            "kept_bytes": found.kept_bytes,
            "freed_bytes": found.freed_bytes,
            "problems": found.problems,
            "dry_run": dry_run,
        }
        print_json(document)
        return
    for gone in found.gone:
        name = gone.name[:KEY_CHARS] if gone.kind == "environment" else gone.name
        runner.print_line(f"{gone.kind} {name}: {gone.reason}")
    for problem in found.problems:
        runner.print_line(f"bootseer: not removed: {problem}", err=True)
    if not quiet:
        done = "would be freed" if dry_run else "freed"
        kept = f"{found.kept} stay, {format_size(found.kept_bytes)}"
        runner.print_line(f"{format_size(found.freed_bytes)} {done}; {kept}")


@click.command(epilog="Example:  bootseer env share nightly --group ml")
@env_argument
@click.option("--group", required=True, metavar="NAME", help="Unix group that you are in.")
@quiet_option
def share(env: str, group: str, quiet: bool) -> None:
    """Copy ENV to the store that a Unix group shares.

    `bootseer env run` of the group's members finds it there. The administrator lists such stores in
    `env.shared`. All content is checked on the way.
    """
    from bootseer import config as settings
    from bootseer.cli.terminal import runner
    from bootseer.env.snapshot import repository
    from bootseer.env.snapshot.group_store import copy_snapshot, group_store
    from bootseer.image.library.upload import UploadProgress

    progress = UploadProgress()

    async def work(store: Store) -> tuple[Snapshot, bool]:
        target = group_store(settings.load(), runner.caller(), group)
        snapshot = await repository.read_snapshot(store, await repository.resolve(store, env))
        progress.total_bytes = snapshot.image_bytes
        return snapshot, await copy_snapshot(store, target, snapshot, progress.add)

    bar = "" if quiet else "share"
    snapshot, is_new = with_env_store(work, counted=progress, bar=bar)
    if not quiet:
        done = "shared" if is_new else "there already"
        runner.print_line(f"{snapshot.key[:KEY_CHARS]}: {done} with the group {group}")


COMMANDS = (rm, tag, untag, restore, gc, share)


def _places(snapshot: Snapshot, targets: Sequence[str], over: bool) -> list[str]:
    """Return the path to which each target of a snapshot is unpacked.

    Raises:
        ConfigError: there are too few, or too many.
        Conflict: one is not empty.
    """
    from bootseer.errors import ConfigError, Conflict

    paths = [os.path.abspath(target) for target in targets] or list(snapshot.targets)
    if len(paths) != len(snapshot.targets):
        recorded = ", ".join(snapshot.targets)
        raise ConfigError(f"it has {len(snapshot.targets)} targets, {recorded}: name one for each")
    if "/" in paths:
        raise ConfigError("--target / is not allowed: choose a folder below it")
    for path in paths:
        if snapshot.is_whole and not over and os.path.isdir(path) and os.listdir(path):
            raise Conflict(f"{path} is not empty: remove it, or unpack over it with --over")
    return paths


async def _unpack(
    store: Store, snapshot: Snapshot, paths: Sequence[str], progress: UploadProgress
) -> None:
    """Unpack a snapshot.

    Raises:
        BootseerError: it is damaged, or cannot be written.
    """
    from bootseer.env.restore.download import opened_places, unpack

    progress.total_bytes = snapshot.content_bytes
    with opened_places(paths) as places:
        await unpack(store, snapshot, places, progress.add)
