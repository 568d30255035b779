"""bootseer ckpt: checkpoints in a store."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from bootseer.cli.options import json_option, quiet_option
from bootseer.units import parse_age, parse_size

if TYPE_CHECKING:
    from bootseer.checkpoint.admin.progress import BatchProgress
    from bootseer.checkpoint.files.entries import FileEntry
    from bootseer.checkpoint.files.tree import CheckpointTree
    from bootseer.checkpoint.write.options import WriteOptions
    from bootseer.store.api.base import Unlisted

F = TypeVar("F", bound=Callable[..., Any])


def _complete(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete local paths; other stores are not searched."""
    return [CompletionItem(typed, type="file")] if typed.startswith("/") else []


def _parsed(parse: Callable[[str], Any]) -> Callable[..., Any]:
    """Make a callback that parses an option's text."""

    def parsed(ctx: click.Context, param: click.Parameter, value: str) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return parsed


def _unit(text: str) -> int:
    from bootseer.checkpoint.files.stripe_manifest import check_unit_bytes

    return check_unit_bytes(parse_size(text))


_url = click.argument("url", shell_complete=_complete)
_checksum = click.option(
    "--checksum", is_flag=True, help="Compare contents of existing files, not only times."
)


def _write_options(command: F) -> F:
    """Add the options for striping files."""
    for option in reversed(
        (
            click.option(
                "--unit",
                metavar="SIZE",
                callback=_parsed(_unit),
                default="4MiB",
                show_default=True,
                help="Stripe unit, a power of two.",
            ),
            click.option(
                "--width",
                type=click.IntRange(1, 256),
                metavar="N",
                default=16,
                show_default=True,
                help="Parts of a file written in parallel.",
            ),
            click.option(
                "--replication",
                type=click.IntRange(1, 512),
                metavar="N",
                help="Copies of each part.  [default: the file system's]",
            ),
        )
    ):
        command = option(command)
    return command


@click.group()
def ckpt() -> None:
    """Inspect, check and move checkpoints in HDFS and other stores.

    URL names a file or a folder: hdfs://NAMENODE/path, file:///path, s3://BUCKET/path, or a path.

    \b
    Examples:
      bootseer ckpt import ./run42 hdfs://nn/user/alice/run42
      bootseer ckpt ls -l hdfs://nn/user/alice/run42
      bootseer ckpt verify -R hdfs://nn/user/alice/run42
    """


@ckpt.command(epilog="Example:  bootseer ckpt ls -lR hdfs://nn/user/alice/run42")
@_url
@click.option("-l", "long", is_flag=True, help="Show mode, size, time and form.")
@click.option("-R", "recursive", is_flag=True, help="Include all folders below.")
@json_option
def ls(url: str, long: bool, recursive: bool, as_json: bool) -> None:
    """List a folder, or show a file; damaged files are marked."""
    from bootseer.checkpoint.admin.progress import walk
    from bootseer.cli.ckpt import output, run

    unlisted: list[Unlisted] = []

    async def read(tree: CheckpointTree, name: str) -> tuple[str, Sequence[FileEntry]]:
        top = await tree.stat(name)
        if not top.is_folder:
            return name.rpartition("/")[0], [top]
        if recursive:
            return name, (await walk(tree, name, unlisted))[1:]
        return name, await tree.list(name, unlisted)

    above, entries = run.run(url, read)
    output.listing(entries, above, long=long, as_json=as_json)
    output.unlisted(unlisted)


@ckpt.command(epilog="Example:  bootseer ckpt show hdfs://nn/user/alice/run42/model.bin")
@_url
@json_option
def show(url: str, as_json: bool) -> None:
    """Show details of a file: form, parts and their places, digest.

    The content is not read; `bootseer ckpt verify` does that.
    """
    from bootseer.checkpoint.admin.describe import describe
    from bootseer.cli.ckpt import output, run

    output.description(run.run(url, describe), as_json=as_json)


@ckpt.command(epilog="Example:  bootseer ckpt verify -R hdfs://nn/user/alice/run42")
@_url
@click.option("-R", "recursive", is_flag=True, help="Include all folders below.")
@click.option(
    "--repair",
    is_flag=True,
    help="Complete interrupted moves and remove parts of abandoned writes.",
)
@json_option
@quiet_option
def verify(url: str, recursive: bool, repair: bool, as_json: bool, quiet: bool) -> None:
    """Check every byte of a file or a folder against its checksums.

    Each problem is printed on a line, and the exit code is 4. If one copy is damaged, another is
    read. Bytes that are damaged in all copies cannot be repaired.
    """
    from bootseer.checkpoint.admin.verify import VerifyResult
    from bootseer.checkpoint.admin.verify import verify as work
    from bootseer.cli.ckpt import output, run
    from bootseer.cli.terminal import runner
    from bootseer.errors import Corrupt

    findings = VerifyResult()

    async def check(tree: CheckpointTree, name: str) -> None:
        await work(tree, name, findings, deep=recursive, repair=repair)

    began = time.monotonic()
    bar = "" if quiet or as_json else "verify"
    try:
        run.run(url, check, progress=findings.progress, bar=bar, after="not everything was read")
    finally:
        output.findings(findings, as_json=as_json)
    if not quiet and not as_json:
        runner.print_line(run.summary("verified", findings.progress, began))
    if findings.problems:
        sys.exit(Corrupt.exit_code)


@ckpt.command(
    "import",
    epilog="Example:  bootseer ckpt import ./run42 hdfs://nn/user/alice/run42",
)
@click.argument("source", metavar="FILE|DIR", type=click.Path(exists=True))
@_url
@_write_options
@click.option("--plain", is_flag=True, help="Write each file as one object, not striped.")
@_checksum
@quiet_option
def import_command(
    source: str,
    url: str,
    unit: int,
    width: int,
    replication: int | None,
    plain: bool,
    checksum: bool,
    quiet: bool,
) -> None:
    """Copy a local file or folder to URL.

    DIR becomes URL itself; FILE goes into URL if that is a folder. Files longer than a unit are
    striped. Existing files are skipped, so repeat an interrupted command to continue. Times and
    modes are kept; links are skipped.
    """
    from bootseer.checkpoint.admin.file_import import ImportOptions, import_files
    from bootseer.cli.ckpt import run

    async def work(tree: CheckpointTree, name: str, progress: BatchProgress) -> None:
        if not os.path.isdir(source):
            there = await tree.find(name)
            if url.partition("?")[0].endswith("/") or (there is not None and there.is_folder):
                name = f"{name}/{os.path.basename(source)}".lstrip("/")
        options = ImportOptions(
            plain=plain or not tree.store.capabilities.append, checksum=checksum
        )
        write = _options(unit, width, replication)
        await import_files(source, tree, name, write, options, progress)

    run.move(url, work, "import", quiet=quiet)


@ckpt.command(epilog="Example:  bootseer ckpt export hdfs://nn/user/alice/run42 ./run42")
@_url
@click.argument("target", metavar="FILE|DIR", type=click.Path())
@_checksum
@quiet_option
def export(url: str, target: str, checksum: bool, quiet: bool) -> None:
    """Copy a file or folder from URL to this machine.

    A folder becomes DIR itself; a file is copied into DIR if that is a folder. Files already copied
    are skipped, and interrupted large files are resumed: run the same command again. Checksums are
    verified; times and modes are kept.
    """
    from bootseer.checkpoint.admin.file_export import export_files
    from bootseer.cli.ckpt import run

    async def work(tree: CheckpointTree, name: str, progress: BatchProgress) -> None:
        path = target.rstrip("/") or "/"
        if not (await tree.stat(name)).is_folder and (
            os.path.isdir(target) or target.endswith("/")
        ):
            path = os.path.join(target, name.rpartition("/")[2])
        await export_files(tree, name, path, progress, checksum=checksum)

    run.move(url, work, "export", quiet=quiet)


@ckpt.command(epilog="Example:  bootseer ckpt rm -r hdfs://nn/user/alice/run41")
@_url
@click.option("-r", "recursive", is_flag=True, help="Remove a folder and all below it.")
@quiet_option
def rm(url: str, recursive: bool, quiet: bool) -> None:
    """Remove a file with its parts, or with -r a folder."""
    from bootseer.checkpoint.files.namespace import Namespace
    from bootseer.cli.ckpt import run
    from bootseer.cli.terminal import runner
    from bootseer.errors import ConfigError, Conflict

    async def work(tree: CheckpointTree, name: str) -> str:
        if not name:
            raise ConfigError(f"{url} is all of a store; name a folder in it")
        if (await tree.stat(name)).is_folder and not recursive:
            raise Conflict(f"{url} is a folder: remove it with -r")
        await Namespace(tree).remove_tree(name)
        return name

    removed = run.run(url, work, after="run the same command again to remove the rest")
    if not quiet:
        runner.print_line(f"removed: {removed}")


@ckpt.command(epilog="Example:  bootseer ckpt gc --dry-run hdfs://nn/user/alice")
@_url
@click.option(
    "--older-than",
    "age_s",
    metavar="AGE",
    callback=_parsed(parse_age),
    default="2d",
    show_default=True,
    help="Minimum age of the newest part: 12h, 2d.",
)
@click.option("--dry-run", is_flag=True, help="List what would be removed.")
@click.option(
    "--ignore",
    metavar="NAME",
    multiple=True,
    help="Name below URL of a damaged file that has no parts or whose parts may be removed.",
)
@quiet_option
def gc(url: str, age_s: float, dry_run: bool, ignore: tuple[str, ...], quiet: bool) -> None:
    """Remove parts that belong to no file.

    They come from abandoned writes and lost names. Name the whole tree in which files are written
    and moved: parts of files elsewhere count as lost. Nothing is removed while a manifest below URL
    cannot be read.
    """
    from bootseer.checkpoint.admin.gc import find_orphans, remove_orphans
    from bootseer.cli.ckpt import run
    from bootseer.cli.terminal import runner

    async def work(tree: CheckpointTree, name: str) -> tuple[int, int]:
        judged = [f"{name}/{one}".lstrip("/") for one in ignore]
        orphans = await find_orphans(tree, name, age_s, judged)
        for info in orphans.abandoned:
            runner.print_line(f"{info.name}: parts of a write that was given up")
        for info in orphans.unused:
            runner.print_line(f"{info.name}: parts that no file names")
        for info in orphans.stale_marks:
            runner.print_line(f"{info.name}: length of a file that was replaced or removed")
        count = len(orphans.abandoned) + len(orphans.unused) + len(orphans.stale_marks)
        removed = 0 if dry_run else await remove_orphans(tree, name, orphans, judged)
        if not dry_run:
            # Objects in the making are not listed by any store.
            await tree.store.reap_temporaries(age_s, name)
        if orphans.problem is not None:
            raise orphans.problem
        return count, removed

    found, removed = run.run(url, work, after="run the same command again to remove the rest")
    if not quiet:
        done = "nothing was removed" if dry_run else f"{removed} removed"
        runner.print_line(f"{found} folders of parts belong to no file; {done}")


@ckpt.command(epilog="Example:  bootseer ckpt bench --size 8GiB hdfs://nn/user/alice")
@_url
@click.option(
    "--size",
    metavar="SIZE",
    callback=_parsed(parse_size),
    default="1GiB",
    show_default=True,
    help="Size of the file.",
)
@click.option(
    "--rounds",
    "--repeats",  # as it was called first
    type=click.IntRange(1, 100),
    metavar="N",
    default=3,
    show_default=True,
    help="How often all is measured.",
)
@_write_options
@json_option
@quiet_option
def bench(
    url: str,
    size: int,
    rounds: int,
    unit: int,
    width: int,
    replication: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure how fast a file below URL is written and read.

    It is written plain and striped; both are read by one stream and by many. The file is removed at
    the end. Reads may come from the memory of servers.
    """
    from bootseer.checkpoint.admin import bench as measure
    from bootseer.checkpoint.admin.progress import BatchProgress
    from bootseer.cli.ckpt import output, run

    progress = BatchProgress()
    write = _options(unit, width, replication)

    async def work(tree: CheckpointTree, name: str) -> Sequence[measure.Row]:
        return await measure.bench(tree, name, size, rounds, write, progress)

    bar = "" if quiet or as_json else "bench"
    after = "its test files are removed"
    rows = run.run(url, work, progress=progress, bar=bar, after=after, is_new=True)
    output.rates(rows, size, as_json=as_json)


def _options(unit_bytes: int, width: int, replication: int | None) -> WriteOptions:
    from bootseer.checkpoint.write.options import WriteOptions

    return WriteOptions(
        unit_bytes=unit_bytes, width=width, streams=max(32, width), replication=replication
    )
