"""bootseer importer: what Pyxis' `importer=` runs, to try it by hand."""

from __future__ import annotations

import json
import os

import click

from bootseer.cli.options import json_option
from bootseer.slurm import importer as pyxis


@click.group()
def importer() -> None:
    """Get the image of a container for Pyxis.

    Pyxis itself runs `bootseer-importer`, which `bootseer plugin install` installs. With these
    commands you can try it in a job.

    \b
    Example:
      srun --bootseer bootseer importer get bootseer://train:v2
    """


@importer.command(
    epilog="Example, in a job with --bootseer:  bootseer importer get bootseer://train:v2"
)
@click.argument("uri")
@json_option
def get(uri: str, as_json: bool) -> None:
    """Print the path of a squashfs with the image URI.

    The job's agent serves the image from the store. Enroot imports one that is not there, and it is
    stored for the next job. The path is valid until `release` or the end of the job.
    """
    path = pyxis.get(uri, os.environ)
    click.echo(json.dumps({"path": path}, indent=1) if as_json else path)


@importer.command(epilog="Example:  bootseer importer release")
def release() -> None:
    """Remove what `get` has imported in this step, if anything."""
    pyxis.release(os.environ)
