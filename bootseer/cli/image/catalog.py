"""bootseer image ls, show, tag, untag, rm: which images there are, and their names."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from bootseer.cli.image.options import (
    SHORT_CHARS,
    complete_image,
    image_argument,
    on_images,
)
from bootseer.cli.options import json_option, quiet_option
from bootseer.cli.terminal.console import local_time, new_table, print_json
from bootseer.core.reference import SCHEME
from bootseer.units import format_size

if TYPE_CHECKING:
    from bootseer.store.api.base import Store

_NOW = click.option("--now", is_flag=True, help="Delete its bytes now, even if jobs read them.")


@dataclass(frozen=True, slots=True)
class _Description:
    """What `show` prints, under the names that --json has."""

    digest: str
    names: list[str]
    size_bytes: int
    block_bytes: int
    blocks: int
    parts: int
    sha256: str
    identity: str
    source: str
    added_by: str
    added_ns: int
    store: str


@click.command(epilog="Example:  bootseer image ls")
@json_option
def ls(as_json: bool) -> None:
    """List the images by name."""

    from bootseer.cli.terminal.console import console, plain
    from bootseer.image.library.catalog import list_names

    names = on_images(list_names)
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
        print_json(rows)
        return
    table = new_table("image", "size", "named", "digest")
    for n in names:
        table.add_row(
            plain(n.name), format_size(n.size_bytes), local_time(n.named_ns), n.digest[:SHORT_CHARS]
        )
    empty = "no image yet: bootseer image import PATH --name NAME"
    console().print(table if names else empty)


@click.command(epilog="Example:  bootseer image show train:v2")
@image_argument
@json_option
def show(image: str, as_json: bool) -> None:
    """Show details of IMAGE."""
    from bootseer.cli.terminal import runner
    from bootseer.image.library import catalog

    async def read(store: Store) -> _Description:
        digest = await catalog.resolve(store, image)
        _, manifest = await catalog.read_manifest(store, digest)
        about = await catalog.read_about(store, digest)
        return _Description(
            digest=digest,
            names=[n.name for n in await catalog.list_names(store) if n.digest == digest],
            size_bytes=manifest.size_bytes,
            block_bytes=manifest.block_bytes,
            blocks=manifest.blocks,
            parts=manifest.parts,
            sha256=manifest.sha256,
            identity=manifest.identity,
            source=about.source if about else "",
            added_by=about.added_by if about else "",
            added_ns=about.added_ns if about else 0,
            store=store.url,
        )

    found = on_images(read)
    if as_json:
        print_json(asdict(found))
        return
    lines = {
        "names": ", ".join(found.names) or "none",
        "digest": found.digest,
        "size": f"{format_size(found.size_bytes)}, {found.blocks} blocks of "
        f"{format_size(found.block_bytes)} in {found.parts} parts",
        "sha256": found.sha256,
        "identity": found.identity,
        "from": f"{found.source or 'unknown'}, added by {found.added_by or 'unknown'}"
        + (f" {local_time(found.added_ns)}" if found.added_ns else ""),
        "store": found.store,
    }
    for title, text in lines.items():
        runner.print_line(f"{title:16}{text}")


@click.command(epilog="Example:  bootseer image tag train:v2 train:latest")
@image_argument
@click.argument("name")
def tag(image: str, name: str) -> None:
    """Give IMAGE another name, which is moved if it is in use."""
    from bootseer.cli.terminal import runner
    from bootseer.image.library import catalog

    async def give(store: Store) -> str:
        catalog.check_name(name)
        digest = await catalog.resolve(store, image)
        _, manifest = await catalog.read_manifest(store, digest)
        await catalog.give_name(store, name, digest, manifest.size_bytes)
        return digest

    runner.print_line(f"{name}: {on_images(give)}")


@click.command(epilog="Example:  bootseer image untag train:v1")
@click.argument("name", shell_complete=complete_image)
@_NOW
@quiet_option
def untag(name: str, now: bool, quiet: bool) -> None:
    """Remove the name NAME; an image without names is removed."""
    from bootseer.image.library import catalog

    if catalog.is_digest(name.removeprefix(SCHEME)):
        raise click.UsageError("NAME is a digest: remove the image with `bootseer image rm`")
    _remove(name, with_names=False, now=now, quiet=quiet)


@click.command(epilog="Example:  bootseer image rm train:v1")
@image_argument
@_NOW
@quiet_option
def rm(image: str, now: bool, quiet: bool) -> None:
    """Remove IMAGE, with all its names.

    The image's bytes stay for a day, for jobs that are reading them.
    """
    _remove(image, with_names=True, now=now, quiet=quiet)


def _remove(image: str, *, with_names: bool, now: bool, quiet: bool) -> None:
    from bootseer.cli.terminal import runner
    from bootseer.image.library import catalog

    async def remove(store: Store) -> tuple[str, bool]:
        going = await catalog.resolve(store, image) if with_names else image
        removed = await catalog.remove(store, going, now=now)
        await catalog.sweep(store)
        return removed

    digest, gone = on_images(remove)
    if not quiet:
        has = "removed" if gone else "is kept: it has another name"
        runner.print_line(f"{image}: the image {digest[:SHORT_CHARS]} {has}")


COMMANDS = (ls, show, tag, untag, rm)
