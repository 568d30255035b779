"""bootseer image: images in a store, to be served to jobs block by block."""

from __future__ import annotations

import click

from bootseer.cli.image import catalog, transfer


@click.group()
def image() -> None:
    """Store container images and serve them to jobs.

    Nodes fetch blocks on demand. IMAGE is a name, or a digest as `bootseer image ls --json` prints
    it.

    \b
    Examples:
      bootseer image import train.sqsh --name train:v2
      srun --bootseer --bootseer-image=bootseer://train:v2 ./train.sh
    """


for _command in (*transfer.COMMANDS, *catalog.COMMANDS):
    image.add_command(_command)
