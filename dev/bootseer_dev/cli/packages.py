"""``bootseer dev packages``: build packages for Debian and for systems with RPM."""

from __future__ import annotations

from pathlib import Path

import click

from bootseer_dev.packages.targets import TARGETS, target


@click.command()
@click.argument("systems", nargs=-1, metavar="[SYSTEM]...")
@click.option(
    "--revision",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Of the packages; a higher one upgrades a lower one of the same version.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    default=Path("build/packages"),
    show_default=True,
    help="Folder for the packages.",
)
def packages(systems: tuple[str, ...], revision: int, output: Path) -> None:
    """Build packages of this checkout.

    SYSTEM is debian12, debian13 or rpm; without any, packages for all are built. It needs root, and
    the network: the first build makes a Debian root in the build folder.

    \b
    Examples:
      bootseer dev packages
      bootseer dev packages debian12 --revision 2
    """
    from bootseer_dev.packages.build import build_packages
    from bootseer_dev.packages.content import Build

    for name in systems or TARGETS:
        built = build_packages(Build(target(name), revision), output.absolute(), click.echo)
        for path in built:
            click.echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
