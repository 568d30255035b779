"""bootseer image: images in a store, to be served to jobs block by block."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from bootseer.errors import Corrupt
from bootseer.units import NS_PER_S, format_duration, format_size

if TYPE_CHECKING:
    from bootseer.config import Config
    from bootseer.image.library.upload import UploadProgress
    from bootseer.store.api.base import Store

T = TypeVar("T")

_SHORT_CHARS = 12
_json = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
_quiet = click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")


def _complete(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the names of images in a store on this machine."""
    from bootseer.cli import runner
    from bootseer.errors import BootseerError
    from bootseer.image.library.catalog import list_names

    try:
        names = runner.run(lambda: list_names(_store()))
    except BootseerError:
        return []
    return [CompletionItem(n.name) for n in names if n.name.startswith(typed)]


_image = click.argument("image", shell_complete=_complete)
_scratch = click.option(
    "--scratch",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    default="/var/tmp",
    show_default=True,
    help="Folder for images on the way.",
)


@click.group()
def image() -> None:
    """Store container images and serve them to jobs.

    Nodes get the blocks that they need. IMAGE is a name, or a digest as `bootseer image ls --json`
    prints it.

    \b
    Examples:
      bootseer image add train.sqsh --name train:v2
      srun --bootseer --bootseer-image=bootseer://train:v2 ./train.sh
    """


@image.command(
    epilog="""\b
Examples:
  bootseer image add train.sqsh --name train:v2
  docker save -o train.tar train:v2; bootseer image add train.tar --name train:v2
"""
)
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--name", required=True, help="For the image; another that has it loses it.")
@click.option("--tag", default="", help="Which image, of an archive with several.")
@click.option(
    "--platform", default="", help="Which one, as linux/arm64.  [default: this machine's]"
)
@_scratch
@click.option("--again", is_flag=True, help="Send all of it, also what is in the store already.")
@_quiet
@_json
def add(
    path: Path,
    name: str,
    tag: str,
    platform: str,
    scratch: Path,
    again: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Put an image into the store, and give it a name.

    PATH is a squashfs file, an archive of `docker save` or `podman save`, or an OCI layout: a
    folder, or a tar of one. If it is interrupted, the same command goes on where it was.
    """
    from bootseer.cli import runner
    from bootseer.image.library import catalog, upload
    from bootseer.image.oci.convert import ConvertedImage

    progress = upload.UploadProgress()
    began = time.monotonic()
    about = upload.about_now(str(path), runner.caller().name)

    async def work(store: Store) -> tuple[upload.UploadResult, ConvertedImage | None]:
        catalog.check_name(name)
        made = upload.as_squashfs(path, scratch, tag, platform, progress)
        async with made as (squashfs, converted):
            added = await upload.add(store, squashfs, name, about, progress, again=again)
            return added, converted

    added, converted = _run(
        work,
        counted=progress,
        bar="" if quiet else "add",
        after="run the same command again to go on",
    )
    if as_json:
        document = {"name": name, "digest": added.digest, "sent_bytes": added.sent_bytes}
        document |= {"size_bytes": added.manifest.size_bytes}
        document |= {"source_digest": converted.digest if converted else ""}
        click.echo(json.dumps(document, indent=1))
    elif not quiet:
        took = format_duration(time.monotonic() - began)
        runner.print_line(
            f"{name}: {format_size(added.manifest.size_bytes)}, of which "
            f"{format_size(added.sent_bytes)} sent, in {took}; digest {added.digest}"
        )
        if converted is not None and converted.devices:
            runner.print_line(
                f"{name}: {converted.devices} device nodes of the archive were left out"
            )


@image.command(epilog="Example:  bootseer image ls")
@_json
def ls(as_json: bool) -> None:
    """List the images by name."""
    from rich.table import Table

    from bootseer.cli.console import console, plain
    from bootseer.image.library.catalog import list_names

    names = _run(list_names)
    if as_json:
        rows = [
            {
                "name": n.name,
                "digest": n.digest,
                "size_bytes": n.size_bytes,
                "named_ns": n.named_ns,
            }
            for n in names
        ]
        click.echo(json.dumps(rows, indent=1))
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("image", "size", "named", "digest"):
        table.add_column(column, overflow="fold")
    for n in names:
        table.add_row(
            plain(n.name), format_size(n.size_bytes), _when(n.named_ns), n.digest[:_SHORT_CHARS]
        )
    empty = "no image yet: bootseer image add PATH --name NAME"
    console().print(table if names else empty)


@image.command(epilog="Example:  bootseer image show train:v2")
@_image
@_json
def show(image: str, as_json: bool) -> None:
    """Show what is known of IMAGE."""
    from bootseer.cli import runner
    from bootseer.image.library import catalog

    async def read(store: Store) -> dict[str, Any]:
        digest = await catalog.resolve(store, image)
        _, manifest = await catalog.read_manifest(store, digest)
        about = await catalog.read_about(store, digest)
        names = [n.name for n in await catalog.list_names(store) if n.digest == digest]
        return {
            "digest": digest,
            "names": names,
            "size_bytes": manifest.size_bytes,
            "block_bytes": manifest.block_bytes,
            "blocks": manifest.blocks,
            "parts": manifest.parts,
            "sha256": manifest.sha256,
            "identity": manifest.identity,
            "source": about.source if about else "",
            "added_by": about.added_by if about else "",
            "added_ns": about.added_ns if about else 0,
            "optimized_from": about.optimized_from if about else "",
            "store": store.url,
        }

    found = _run(read)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    lines = {
        "names": ", ".join(found["names"]) or "none",
        "digest": found["digest"],
        "size": f"{format_size(found['size_bytes'])}, {found['blocks']} blocks of "
        f"{format_size(found['block_bytes'])} in {found['parts']} parts",
        "sha256": found["sha256"],
        "identity": found["identity"],
        "from": f"{found['source'] or 'unknown'}, added by {found['added_by'] or 'unknown'}"
        + (f" {_when(found['added_ns'])}" if found["added_ns"] else ""),
        "store": found["store"],
    }
    if found["optimized_from"]:
        lines["optimized from"] = found["optimized_from"]
    for title, text in lines.items():
        runner.print_line(f"{title:16}{text}")


@image.command(epilog="Example:  bootseer image tag train:v2 train:latest")
@_image
@click.argument("name")
def tag(image: str, name: str) -> None:
    """Give IMAGE one more name; another image that has it loses it."""
    from bootseer.cli import runner
    from bootseer.image.library import catalog

    async def give(store: Store) -> str:
        digest = await catalog.resolve(store, image)
        _, manifest = await catalog.read_manifest(store, digest)
        await catalog.give_name(store, name, digest, manifest.size_bytes)
        return digest

    runner.print_line(f"{name}: {_run(give)}")


@image.command(epilog="Example:  bootseer image get train:v2 ./train.sqsh")
@_image
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@_quiet
def get(image: str, path: Path, quiet: bool) -> None:
    """Write IMAGE to the file PATH."""
    from bootseer.cli import runner
    from bootseer.image.library import catalog, download, upload

    progress = upload.UploadProgress()

    async def work(store: Store) -> int:
        digest = await catalog.resolve(store, image)
        _, manifest = await catalog.read_manifest(store, digest)
        progress.total_bytes = manifest.size_bytes
        await download.retrieve(store, digest, manifest, path, progress.add)
        return manifest.size_bytes

    size_bytes = _run(work, counted=progress, bar="" if quiet else "get")
    if not quiet:
        runner.print_line(f"{path}: {format_size(size_bytes)}")


@image.command(
    epilog="""\b
Examples:
  bootseer image optimize train:v2 --name train:v2-fast
  bootseer image optimize /share/train.sqsh --output /share/train-fast.sqsh
"""
)
@click.argument("image", shell_complete=_complete)
@click.option("--name", default="", help="Put the new image into the store, under this name.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the new image to this file.",
)
@click.option(
    "--storing",
    type=click.Choice(["lz4", "as-they-are", "hot-uncompressed"]),
    default="lz4",
    show_default=True,
    help="How blocks are stored in it.",
)
@_scratch
@_quiet
@_json
def optimize(
    image: str,
    name: str,
    output: Path | None,
    storing: str,
    scratch: Path,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write IMAGE anew, with what starts read of it at the front.

    IMAGE is a name in the store, or the path of a squashfs file; starts of it must have been
    recorded. The new image has the same tree, which is checked, and a digest of its own; what is
    hot of it is known at once. lz4 makes it larger, and faster to read wherever it is read ahead.
    """
    from bootseer.cli import runner
    from bootseer.image.library import upload
    from bootseer.image.optimize import reorder
    from bootseer.store.connect import connect

    if bool(name) == (output is not None):
        raise click.UsageError("say where the new image is to go: --name NAME or --output PATH")
    progress = upload.UploadProgress()
    config, caller = _settings(), runner.caller()
    job = reorder.Reordering(connect(config, caller), _store(), caller.name, progress)

    async def work(store: Store) -> reorder.ReorderedImage:
        return await job.run(image, name, output, scratch, storing)

    made = _run(work, counted=progress, bar="" if quiet else "optimize")
    if as_json:
        click.echo(json.dumps(made.document(), indent=1))
    elif not quiet:
        where = name or str(output)
        runner.print_line(
            f"{where}: {format_size(made.size_bytes)}, {format_size(made.hot_bytes)} of it hot"
            + (f"; digest {made.digest}" if made.digest else "")
        )
        if made.storing != storing:
            runner.print_line(
                f"{where}: stored {made.storing}, for {storing} would not have fitted"
            )


@image.command(epilog="Example:  bootseer image rm train:v1")
@_image
@click.option("--now", is_flag=True, help="Do not keep its bytes for jobs that are reading them.")
@_quiet
def rm(image: str, now: bool, quiet: bool) -> None:
    """Take the name IMAGE away, and with its last name the image.

    Its bytes stay for a day, for jobs that are reading them.
    """
    from bootseer.cli import runner
    from bootseer.image.library import catalog

    async def remove(store: Store) -> tuple[str, bool]:
        removed = await catalog.remove(store, image, now=now)
        await catalog.sweep(store)
        return removed

    digest, gone = _run(remove)
    if not quiet:
        has = "removed" if gone else "has another name and stays"
        runner.print_line(f"{image}: the image {digest[:_SHORT_CHARS]} {has}")


@image.command(epilog="Example:  bootseer image verify train:v2")
@_image
@_quiet
@_json
def verify(image: str, quiet: bool, as_json: bool) -> None:
    """Read all of IMAGE and compare every block with its digest."""
    from bootseer.cli import runner
    from bootseer.image.library import catalog
    from bootseer.image.library.upload import UploadProgress
    from bootseer.image.library.verify import DamagedRange
    from bootseer.image.library.verify import verify as compare

    progress = UploadProgress()

    async def check(store: Store) -> list[DamagedRange]:
        digest = await catalog.resolve(store, image)
        _, manifest = await catalog.read_manifest(store, digest)
        progress.total_bytes = manifest.size_bytes
        return await compare(store, digest, manifest, progress.add)

    bar = "" if quiet else "verify"
    found = _run(check, counted=progress, bar=bar, after="not everything was read")
    if as_json:
        rows = [
            {"name": d.name, "offset": d.offset, "size_bytes": d.size_bytes, "reason": d.reason}
            for d in found
        ]
        click.echo(json.dumps({"damaged": rows, "size_bytes": progress.total_bytes}, indent=1))
    else:
        for d in found:
            runner.print_line(
                f"{d.name}: damaged at byte {d.offset}, {d.size_bytes} bytes: {d.reason}"
            )
        if found:
            runner.print_line(
                f"bootseer: {len(found)} ranges are damaged; send the image once more with "
                f"`bootseer image add PATH --name {image} --again`",
                err=True,
            )
        elif not quiet:
            runner.print_line(f"{image}: {format_size(progress.total_bytes)} are as they should be")
    if found:
        sys.exit(Corrupt.exit_code)


def _run(
    work: Callable[[Store], Awaitable[T]],
    *,
    counted: UploadProgress | None = None,
    bar: str = "",
    after: str = "nothing was changed",
) -> T:
    """Run ``work`` on the store that has the caller's images."""
    from bootseer.cli import runner

    return runner.run(lambda: work(_store()), counted=counted, bar=bar, after=after)


def _store() -> Store:
    from bootseer.cli import runner
    from bootseer.store.connect import connect_images

    return connect_images(_settings(), runner.caller())


def _settings() -> Config:
    from bootseer import config as settings

    return settings.load()


def _when(time_ns: int) -> str:
    when = datetime.fromtimestamp(time_ns / NS_PER_S, timezone.utc).astimezone()
    return f"{when:%Y-%m-%d %H:%M}"
