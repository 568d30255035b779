"""bootseer hot: the hot sets of a user's images."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import click

from bootseer.cli.options import json_option
from bootseer.cli.terminal.console import console, new_table, plain, print_json
from bootseer.cli.user_store import with_store
from bootseer.errors import BootseerError, ConfigError, Corrupt, NotFound
from bootseer.units import format_size

if TYPE_CHECKING:
    from bootseer.image.hot.hotset import HotSet
    from bootseer.image.hot.pack import HotPack
    from bootseer.store.api.base import Store

_DIGEST = re.compile(r"(sqfs|file)[0-9]+-[0-9a-z]+", re.ASCII)
_SHOWN_CHARS = 18
"""Of a digest: its kind and 12 digits."""
_USER = click.option("--user", help="Owner of the hot sets; yours by default.")


@click.group()
def hot() -> None:
    """Inspect and rebuild hot sets.

    A hot set lists the parts of an image that starts read. It is merged from traces, the recordings
    of single starts. A hot pack is a copy of these parts, for images in a store. IMAGE is the path
    of an image file, or the first digits of a digest, as `bootseer hot ls` prints them.

    \b
    Examples:
      bootseer hot ls
      bootseer hot show /images/train.sqsh
    """


@hot.command(epilog="Example:  bootseer hot ls")
@_USER
@json_option
def ls(user: str | None, as_json: bool) -> None:
    """List the images with a hot set."""

    from bootseer.image.hot.repository import read_hot_set
    from bootseer.startup.plans import image_names

    async def read(
        store: Store, _: str
    ) -> tuple[dict[str, list[str]], list[tuple[str, HotSet | None, str]]]:
        rows: list[tuple[str, HotSet | None, str]] = []
        for digest in await _recorded(store):
            try:
                rows.append((digest, await read_hot_set(store, digest), ""))
            except BootseerError as error:
                rows.append((digest, None, str(error)))
        return await image_names(store), rows

    names, rows = with_store(user, read)
    if as_json:
        print_json([_document(d, h, e) | {"names": names.get(d, [])} for d, h, e in rows])
        return
    table = new_table("size", "hot", "ranges", "runs", "digest", "image")
    for digest, hot_set, error in rows:
        if hot_set is None:
            table.add_row("", "", "", "", digest[:_SHOWN_CHARS], plain(error, "yellow"))
        else:
            table.add_row(
                format_size(hot_set.size_bytes),
                format_size(hot_set.hot_bytes),
                str(len(hot_set.ranges)),
                str(len(hot_set.runs)),
                plain(digest[:_SHOWN_CHARS]),
                plain(", ".join(names.get(digest, []))),
            )
    console().print(table if rows else "no hot set yet: run a job with --bootseer")


@hot.command(epilog="Example:  bootseer hot show /images/train.sqsh")
@click.argument("image")
@_USER
@json_option
def show(image: str, user: str | None, as_json: bool) -> None:
    """Show the hot set of IMAGE.

    It also shows whether there is a hot pack; --json lists all ranges.
    """
    from bootseer.image.hot.hotset import DOUBTS
    from bootseer.image.hot.repository import read_hot_set

    async def read(store: Store, _: str) -> tuple[str, HotSet | None, HotPack | None, str]:
        digest = await _digest(store, image)
        return digest, await read_hot_set(store, digest), *await _pack(store, digest)

    digest, hot_set, pack, error = with_store(user, read)
    if hot_set is None:
        raise _not_recorded(image)
    if as_json:
        document = _document(digest, hot_set, "")
        blocks = {"size_bytes": pack.size_bytes, "blocks": len(pack.blocks)} if pack else None
        document["pack"] = {"error": error} if error else blocks
        document["ranges"] = [r._asdict() for r in hot_set.ranges]
        print_json(document)
    else:
        share = hot_set.hot_bytes / hot_set.size_bytes
        said = f"hot pack of {format_size(pack.size_bytes)}" if pack else error or "no hot pack"
        click.echo(
            f"{digest}\n{format_size(hot_set.hot_bytes)} of {format_size(hot_set.size_bytes)} "
            f"({share:.1%}) in {len(hot_set.ranges)} ranges, from {len(hot_set.runs)} runs\n"
            f"{said}"
        )
        if not hot_set.ranges:
            click.echo("its starts read nearly all of it, as unpacking does: no hot set")
        elif hot_set.doubts:
            click.echo(
                f"its last {hot_set.doubts} starts read little of it: after {DOUBTS} in a row, "
                "earlier recordings are discarded"
            )


@hot.command("rebuild", epilog="Example:  bootseer hot rebuild /images/train.sqsh")
@click.argument("image")
@_USER
def rebuild_command(image: str, user: str | None) -> None:
    """Merge IMAGE's traces again to replace a damaged hot set."""
    from bootseer import config as settings
    from bootseer.image.hot.repository import rebuild

    runs_kept = settings.load().image.runs_kept

    async def work(store: Store, _: str) -> str:
        digest = await _digest(store, image)
        try:
            merged = await rebuild(store, digest, runs_kept)
        except NotFound as error:
            raise _not_recorded(image) from error
        return f"{merged.traces} traces, hot {format_size(merged.hot_set.hot_bytes)}"

    click.echo(with_store(user, work))


@hot.command(epilog="Example:  bootseer hot rm /images/train.sqsh")
@click.argument("image")
@_USER
def rm(image: str, user: str | None) -> None:
    """Delete the hot set, traces and hot pack of IMAGE.

    The next start is recorded like the first.
    """
    from bootseer.image.hot import pack_store
    from bootseer.image.hot.repository import hot_set_name

    async def work(store: Store, _: str) -> str:
        digest = await _digest(store, image)
        for info in await store.list(f"traces/{digest}"):
            await store.delete(info.name)
        is_packed = await pack_store.remove(store, digest)
        try:
            await store.delete(hot_set_name(digest))
        except NotFound as error:
            if not is_packed:
                raise _not_recorded(image) from error
        return digest

    click.echo(f"forgotten: {with_store(user, work)}")


async def _digest(store: Store, image: str) -> str:
    """Return the digest of an image that is named by a path or the first digits of its digest.

    A path is opened with the rights of the user whom it is about.

    Raises:
        ConfigError: several digests begin so.
    """
    from bootseer.image.identity import identify, open_image

    if _DIGEST.fullmatch(image):
        found = [digest for digest in await _recorded(store) if digest.startswith(image)]
        if len(found) > 1:
            raise ConfigError(f"{image} begins {len(found)} digests: give more of it")
        return found[0] if found else image
    opened = open_image(os.path.abspath(image))
    try:
        return identify(opened).digest
    finally:
        os.close(opened.fd)


async def _recorded(store: Store) -> list[str]:
    """List the digests of the images that have a hot set."""
    infos = await store.list("hot")
    return [info.name.rpartition("/")[2].removesuffix(".hotset") for info in infos]


def _not_recorded(image: str) -> NotFound:
    return NotFound(
        f"no start from the image {image} was recorded: see `bootseer hot ls`, or run a job with "
        "--bootseer"
    )


async def _pack(store: Store, digest: str) -> tuple[HotPack | None, str]:
    """Read the hot pack of an image; returns it, or the error."""
    from bootseer.image.hot import pack_store

    try:
        stored = await pack_store.read_index(store, digest)
    except Corrupt as error:
        return None, str(error)
    return (stored.pack, "") if stored is not None else (None, "")


def _document(digest: str, hot_set: HotSet | None, error: str) -> dict[str, object]:
    if hot_set is None:
        return {"digest": digest, "error": error}
    return {
        "digest": digest,
        "size_bytes": hot_set.size_bytes,
        "hot_bytes": hot_set.hot_bytes,
        "range_count": len(hot_set.ranges),
        "runs": list(hot_set.runs),
        "doubts": hot_set.doubts,
    }
