"""bootseer env: list, show, compare and verify snapshots."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from bootseer.cli.env.options import (
    KEY_CHARS,
    complete,
    counts,
    document_of,
    env_argument,
    group_option,
    say_deltas,
    user_option,
    with_env_store,
)
from bootseer.cli.options import json_option, quiet_option
from bootseer.cli.terminal.console import local_time, new_table, print_json
from bootseer.units import NS_PER_MS, NS_PER_S, format_age, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bootseer.env.admin.diff import PathDiff
    from bootseer.env.admin.verify import SnapshotProblem
    from bootseer.env.client.scan import TreeNode
    from bootseer.env.snapshot.manifest import Snapshot
    from bootseer.env.snapshot.repository import ListedSnapshot
    from bootseer.store.api.base import Store


@click.command(epilog="Example:  bootseer env ls")
@user_option
@group_option
@json_option
def ls(user: str | None, group: str, as_json: bool) -> None:
    """List the environments, most recently used first."""

    from bootseer.cli.terminal.console import console, plain
    from bootseer.env.snapshot.repository import list_snapshots

    listed = with_env_store(list_snapshots, user=user, group=group)
    if as_json:
        print_json([_row(found) for found in listed])
        return
    now_ns = time.time_ns()
    table = new_table("env", "names", "content", "stored", "captured", "used", "targets")
    for found in listed:
        snapshot, names = found.snapshot, plain(" ".join(found.names))
        used = format_age((now_ns - found.used_ns) / NS_PER_S)
        if snapshot is None:
            problem = plain(found.problem, "yellow")
            table.add_row(found.key[:KEY_CHARS], names, "", "", "", used, problem)
            continue
        table.add_row(
            found.key[:KEY_CHARS],
            names,
            format_size(snapshot.content_bytes),
            format_size(snapshot.image_bytes),
            format_age((now_ns - snapshot.captured_ns) / NS_PER_S),
            used,
            plain(" ".join(snapshot.targets)),
        )
    console().print(table if listed else "no environment yet: bootseer env run --help")


@click.command(epilog="Example:  bootseer env show 3f2ac41b")
@env_argument
@user_option
@group_option
@json_option
def show(env: str, user: str | None, group: str, as_json: bool) -> None:
    """Show the manifest of ENV, with its inputs and findings.

    The key is computed from the inputs. Findings are problems that it may have on other nodes.
    """
    from bootseer.env.snapshot import repository

    async def read(store: Store) -> tuple[Snapshot, list[str], str]:
        found = await repository.read_snapshot(store, await repository.resolve(store, env))
        names = await repository.list_names(store)
        return found, sorted(n for n, k in names.items() if k == found.key), store.url

    snapshot, names, url = with_env_store(read, user=user, group=group)
    if as_json:
        document = json.loads(snapshot.encode()) | {"names": names, "store": url}
        print_json(document)
        return
    _say_snapshot(snapshot, names, url)


@click.command(
    epilog="""\b
Examples:
  bootseer env diff 3f2ac41b nightly
  bootseer env diff nightly                    what its targets hold now
  bootseer env diff nightly --folder /tmp/env
"""
)
@env_argument
@click.argument("other", metavar="[ENV]", required=False, shell_complete=complete)
@click.option(
    "--folder",
    "folders",
    multiple=True,
    metavar="DIR",
    help="Compare with this folder instead of the target; one for each target.",
)
@user_option
@json_option
@quiet_option
def diff(
    env: str,
    other: str | None,
    folders: tuple[str, ...],
    user: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare ENV with another environment or with its targets.

    Times are not compared. The exit code is 0 if they are equal, 1 if they are not.
    """
    import trio

    from bootseer.cli.terminal import runner
    from bootseer.env.admin import diff as compare
    from bootseer.env.snapshot import repository
    from bootseer.errors import ConfigError, Unavailable
    from bootseer.image.library.upload import UploadProgress

    if other and folders:
        raise click.UsageError("compare with another environment, or with --folder")
    progress = UploadProgress()

    async def work(store: Store) -> tuple[Snapshot, Sequence[PathDiff]]:
        snapshot = await repository.read_snapshot(store, await repository.resolve(store, env))
        index = await repository.read_index(store, snapshot)
        if other:
            second = await repository.read_snapshot(store, await repository.resolve(store, other))
            tree = (await repository.read_index(store, second)).tree
            return snapshot, compare.contrast(index.tree, tree)
        if folders and len(folders) != len(snapshot.targets):
            raise ConfigError(f"{env} has {len(snapshot.targets)} targets: a --folder for each")
        progress.total_bytes = snapshot.content_bytes

        def scan() -> Mapping[bytes, TreeNode]:
            return compare.scan_now(folders or snapshot.targets, progress.add)

        try:
            now = await trio.to_thread.run_sync(scan, abandon_on_cancel=True)
        except OSError as error:
            raise Unavailable(f"a target cannot be read: {error}") from error
        return snapshot, compare.against_folders(snapshot, index.tree, index.deleted, now)

    bar = "" if quiet or as_json else "diff"
    snapshot, deltas = with_env_store(work, user=user, counted=progress, bar=bar)
    shown_at = folders or snapshot.targets
    if as_json:
        print_json(document_of(deltas, shown_at))
    else:
        say_deltas(deltas, shown_at)
        if not quiet:
            runner.print_line(counts(deltas) if deltas else "equal")
    if deltas:
        sys.exit(1)


@click.command(epilog="Example:  bootseer env verify --all")
@click.argument("env", required=False, shell_complete=complete)
@click.option("--all", "is_all", is_flag=True, help="All environments.")
@user_option
@group_option
@quiet_option
@json_option
def verify(
    env: str | None, is_all: bool, user: str | None, group: str, quiet: bool, as_json: bool
) -> None:
    """Read all objects of ENV, and check their digests.

    Damage is listed, a line for each object, and the exit code is 4.
    """
    from bootseer.cli.terminal import runner
    from bootseer.env.admin.verify import verify as check
    from bootseer.env.snapshot import repository
    from bootseer.errors import Corrupt, NotFound
    from bootseer.image.library.upload import UploadProgress

    if is_all == bool(env):
        raise click.UsageError("no environment given: name ENV or use --all")
    progress = UploadProgress()

    async def work(store: Store) -> dict[str, list[SnapshotProblem]]:
        if env:
            name = await repository.resolve(store, env)
            return {name: await check(store, name, progress)}
        found = {}
        for listed in await repository.list_snapshots(store):
            with suppress(NotFound):  # it is being captured, or has gone meanwhile
                found[listed.key] = await check(store, listed.key, progress)
        return found

    bar = "" if quiet or as_json else "verify"
    found = with_env_store(
        work, user=user, group=group, counted=progress, bar=bar, after="not everything was read"
    )
    damaged = [name for name, problems in found.items() if problems]
    if as_json:
        rows = [
            {"key": name, "problems": [{"name": p.name, "reason": p.reason} for p in problems]}
            for name, problems in found.items()
        ]
        print_json(rows)
    else:
        for name, problems in found.items():
            for problem in problems:
                runner.print_line(f"{name[:KEY_CHARS]}: {problem.name}: {problem.reason}")
        if not quiet and not damaged:
            size = format_size(progress.done_bytes)
            runner.print_line(f"{len(found)} checked, {size}, no damage")
    for name in damaged:
        short = name[:KEY_CHARS]
        text = f"{short} is damaged: remove it with `bootseer env rm {short}`, and run its command"
        runner.print_line(f"bootseer: {text} again with `bootseer env run`", err=True)
    if damaged:
        sys.exit(Corrupt.exit_code)


COMMANDS = (ls, show, diff, verify)


def _row(found: ListedSnapshot) -> dict[str, object]:
    row: dict[str, object] = {
        "key": found.key,
        "names": list(found.names),
        "used_ns": found.used_ns,
    }
    snapshot = found.snapshot
    if snapshot is None:
        return row | {"problem": found.problem}
    return row | {
        "targets": list(snapshot.targets),
        "content_bytes": snapshot.content_bytes,
        "stored_bytes": snapshot.image_bytes,
        "files": snapshot.files,
        "captured_ns": snapshot.captured_ns,
        "captured_by": snapshot.captured_by,
        "node": snapshot.node,
        "findings": len(snapshot.findings),
        "problem": "",
    }


def _say_snapshot(snapshot: Snapshot, names: Sequence[str], url: str) -> None:
    from bootseer.cli.terminal.runner import print_line

    took = format_duration(snapshot.command_ms * NS_PER_MS / NS_PER_S)
    captured = f"{local_time(snapshot.captured_ns)} by {snapshot.captured_by} on {snapshot.node}"
    rows = {
        "key": snapshot.key,
        "names": ", ".join(names) or "none",
        "captured": f"{captured}, the command took {took}",
        "content": f"{format_size(snapshot.content_bytes)} in {snapshot.files:,} files, folders "
        f"and links; tree {snapshot.digest}",
        "squashfs": f"{format_size(snapshot.image_bytes)}, image {snapshot.image}",
        "index": f"{snapshot.index}, capture {snapshot.capture}",
        "store": url,
    }
    for title, text in rows.items():
        print_line(f"{title:<10}{text}")
    for target, base in zip(snapshot.targets, snapshot.bases, strict=True):
        print_line(f"{'target':<10}{target}, before: {base}")
    print_line("depends on")
    for part in snapshot.parts:
        print_line(f"  {part.name}: {part.value}")
    for path in snapshot.outside_paths:
        print_line(f"  leads out of its target: {os.fsdecode(path)}")
    if snapshot.findings:
        print_line("findings")
    for found in snapshot.findings:
        print_line(f"  {found.kind}: {found.path}: {found.detail}")
