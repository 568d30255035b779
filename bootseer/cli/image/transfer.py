"""bootseer image import, export, verify: what reads or writes all of an image."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bootseer.cli.image.options import (
    image_argument,
    on_images,
)
from bootseer.cli.options import json_option, quiet_option
from bootseer.cli.terminal.console import print_json
from bootseer.errors import Corrupt
from bootseer.units import format_duration, format_size

if TYPE_CHECKING:
    from bootseer.store.api.base import Store


@click.command(
    "import",
    epilog="""\b
Examples:
  bootseer image import train.sqsh --name train:v2
  docker save -o train.tar train:v2
  bootseer image import train.tar --name train:v2
""",
)
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--name", required=True, help="Name of the image; moved if it is in use.")
@click.option("--tag", default="", help="Tag of the image in an archive that has several.")
@click.option(
    "--platform", default="", help="Platform, such as linux/arm64.  [default: this machine's]"
)
@click.option(
    "--scratch",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    default="/var/tmp",
    show_default=True,
    help="Folder for temporary images.",
)
@click.option("--force", is_flag=True, help="Upload all blocks, even those in the store.")
@quiet_option
@json_option
def import_command(
    path: Path,
    name: str,
    tag: str,
    platform: str,
    scratch: Path,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Upload an image and name it.

    PATH is a squashfs file, an archive of `docker save` or `podman save`, or an OCI layout: a
    folder, or a tar of one. After an interruption, run the same command to resume.
    """
    from bootseer.cli.terminal import runner
    from bootseer.image.library import catalog, upload
    from bootseer.image.oci.convert import ConvertedImage

    progress = upload.UploadProgress()
    began = time.monotonic()
    about = upload.about_now(str(path), runner.caller().name)

    async def work(store: Store) -> tuple[upload.UploadResult, ConvertedImage | None]:
        catalog.check_name(name)
        made = upload.as_squashfs(path, scratch, tag, platform, progress)
        async with made as (squashfs, converted):
            added = await upload.add(store, squashfs, name, about, progress, force=force)
            return added, converted

    added, converted = on_images(
        work,
        counted=progress,
        bar="" if quiet else "import",
        after="run the same command again to continue",
    )
    if as_json:
        document = {"name": name, "digest": added.digest, "sent_bytes": added.sent_bytes}
        document |= {"size_bytes": added.manifest.size_bytes}
        document |= {"source_digest": converted.digest if converted else ""}
        print_json(document)
    elif not quiet:
        took = format_duration(time.monotonic() - began)
        runner.print_line(
            f"{name}: {format_size(added.manifest.size_bytes)}, {format_size(added.sent_bytes)} "
            f"uploaded, in {took}; digest {added.digest}"
        )
        if converted is not None and converted.devices:
            runner.print_line(
                f"{name}: {converted.devices} device nodes of the archive were left out"
            )


@click.command(epilog="Example:  bootseer image export train:v2 ./train.sqsh")
@image_argument
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@quiet_option
def export(image: str, path: Path, quiet: bool) -> None:
    """Write IMAGE to the file PATH."""
    from bootseer.cli.terminal import runner
    from bootseer.image.library import catalog, download, upload

    progress = upload.UploadProgress()

    async def work(store: Store) -> int:
        digest = await catalog.resolve(store, image)
        _, manifest = await catalog.read_manifest(store, digest)
        progress.total_bytes = manifest.size_bytes
        await download.retrieve(store, digest, manifest, path, progress.add)
        return manifest.size_bytes

    size_bytes = on_images(work, counted=progress, bar="" if quiet else "export")
    if not quiet:
        runner.print_line(f"{path}: {format_size(size_bytes)}")


@click.command(epilog="Example:  bootseer image verify train:v2")
@image_argument
@quiet_option
@json_option
def verify(image: str, quiet: bool, as_json: bool) -> None:
    """Check every block of IMAGE against its digest.

    Damage is listed, a line for each range, and the exit code is 4.
    """
    from bootseer.cli.terminal import runner
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
    found = on_images(check, counted=progress, bar=bar, after="not everything was read")
    if as_json:
        rows = [
            {"name": d.name, "offset": d.offset, "size_bytes": d.size_bytes, "reason": d.reason}
            for d in found
        ]
        print_json({"damaged": rows, "size_bytes": progress.total_bytes})
    else:
        for d in found:
            runner.print_line(
                f"{d.name}: damaged at byte {d.offset}, {d.size_bytes} bytes: {d.reason}"
            )
        if found:
            runner.print_line(
                f"bootseer: {len(found)} ranges are damaged; upload the image again with "
                f"`bootseer image import PATH --name {image} --force`",
                err=True,
            )
        elif not quiet:
            runner.print_line(f"{image}: {format_size(progress.total_bytes)} checked, no damage")
    if found:
        sys.exit(Corrupt.exit_code)


COMMANDS = (import_command, export, verify)
