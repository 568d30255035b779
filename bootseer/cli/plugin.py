"""bootseer plugin: build, install and remove the Slurm plugin."""

from __future__ import annotations

from pathlib import Path

import click

from bootseer import config as settings
from bootseer.cli.terminal.console import print_json
from bootseer.slurm.accounts import make_accounts
from bootseer.slurm.plugin import build as plugin_build
from bootseer.slurm.plugin import install as plugin_install
from bootseer.slurm.plugin import program_link
from bootseer.slurm.plugin.files import PLUGSTACK_DIR, PREFIX

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_FOLDER = click.Path(file_okay=False, path_type=Path)
_LINK = click.Path(dir_okay=False, path_type=Path)
_SLURM_INCLUDE = click.option(
    "--slurm-include",
    type=_FOLDER,
    metavar="DIR",
    help="Folder with slurm/spank.h. Default: found near srun or in /usr/include.",
)
_ADVICE = click.option(
    "--advice/--no-advice",
    default=True,
    help="Build the library that gives advice at submit; it needs libpython where jobs are "
    "submitted, not on the nodes.",
)
_PREFIX = click.option(
    "--prefix",
    type=_FOLDER,
    metavar="DIR",
    default=PREFIX,
    show_default=True,
    help="Folder for the libraries and the entry scripts.",
)
_PLUGSTACK_DIR = click.option(
    "--plugstack-dir",
    type=_FOLDER,
    metavar="DIR",
    default=PLUGSTACK_DIR,
    show_default=True,
    help="Folder whose *.conf files plugstack.conf includes.",
)


@click.group()
def plugin() -> None:
    """Build and install the Slurm plugin.

    It gives srun, sbatch and salloc the options --bootseer..., and runs BootSeer's prolog and
    epilog for jobs that use them.

    \b
    Examples:
      bootseer plugin install --include --link
      bootseer plugin uninstall
    """


@plugin.command(
    epilog="\b\nExamples:\n"
    "  bootseer plugin build\n"
    "  bootseer plugin build --slurm-include /opt/slurm/include --output dist"
)
@_SLURM_INCLUDE
@click.option(
    "--output",
    type=_FOLDER,
    metavar="DIR",
    default=Path("bootseer-plugin"),
    show_default=True,
    help="Folder for the libraries.",
)
@_ADVICE
@_AS_JSON
def build(slurm_include: Path | None, output: Path, advice: bool, as_json: bool) -> None:
    """Compile the plugin against this site's Slurm headers."""
    built = plugin_build.build(output, slurm_include, advice=advice)
    if as_json:
        result = {
            "files": [str(path) for path in built.files],
            "slurm_version": built.slurm_version,
            "python": built.python,
        }
        print_json(result)
        return
    python = f", Python {built.python}" if built.python else ", without advice at submit"
    click.echo(f"built for Slurm {built.slurm_version}{python}:")
    for path in built.files:
        click.echo(f"  {path}")
    click.echo(f"next: bootseer plugin install --from {output}")


@plugin.command(
    epilog="\b\nExamples:\n"
    "  bootseer plugin install --include --link\n"
    "  bootseer plugin install --from bootseer-plugin -- max_wait=120\n"
    "  bootseer plugin install --prolog-only\n"
    "\b\nARGUMENTS of the plugin (none keeps those of an earlier install):\n"
    "  max_wait=SECONDS        longest a user's --bootseer-wait can hold a job [60]\n"
    "  epilog_timeout=SECONDS  longest the epilog may take [20]\n"
    "  advice_timeout=SECONDS  longest srun waits for advice, 0 for none [1.5]\n"
    "  run_dir=DIR             as node.run_dir in bootseer.toml [/run/bootseer]\n"
    "  libexec=DIR             folder of the entry scripts [where bootseer.so is]"
)
@_PREFIX
@_PLUGSTACK_DIR
@click.option(
    "--from",
    "built",
    type=_FOLDER,
    metavar="DIR",
    help="Folder that `bootseer plugin build` has filled. Default: build now.",
)
@_SLURM_INCLUDE
@_ADVICE
@click.option(
    "--prolog-only",
    is_flag=True,
    help="Only the entry scripts, for slurm.conf's Prolog= and Epilog=.",
)
@click.option(
    "--include",
    is_flag=True,
    help="Have plugstack.conf include the plugin's line, if it does not do so already.",
)
@click.option(
    "--link",
    is_flag=False,
    flag_value=str(program_link.LINK),
    type=_LINK,
    metavar="[FILE]",
    help=f"Make a link to this program for users' PATH.  [FILE: {program_link.LINK}]",
)
@click.option(
    "--no-accounts",
    is_flag=True,
    help="Do not make the accounts that node.service_user and node.cache_user name.",
)
@_AS_JSON
@click.argument("arguments", nargs=-1)
def install(
    prefix: Path,
    plugstack_dir: Path,
    built: Path | None,
    slurm_include: Path | None,
    advice: bool,
    prolog_only: bool,
    include: bool,
    link: Path | None,
    no_accounts: bool,
    as_json: bool,
    arguments: tuple[str, ...],
) -> None:
    """Install the plugin, entry scripts and plugstack line.

    Run it as root, on every node. It also makes the accounts that node.service_user and
    node.cache_user name, unless they are there. Files are replaced as a whole, so this can be
    repeated while jobs run.
    """
    installed = plugin_install.install(
        prefix.absolute(),
        plugstack_dir.absolute(),
        built=built,
        slurm_include=slurm_include,
        advice=advice,
        prolog_only=prolog_only,
        include=include,
        link=link.absolute() if link else None,
        arguments=arguments,
    )
    made = [] if no_accounts else make_accounts(settings.load())
    if as_json:
        result = {
            "files": [str(path) for path in installed.files],
            "accounts_made": made,
            "notes": list(installed.notes),
            "next_steps": list(installed.next_steps),
        }
        print_json(result)
        return
    for name in made:
        click.echo(f"made the account {name}")
    for path in installed.files:
        click.echo(f"installed {path}")
    for note in installed.notes:
        click.echo(note)
    for step in installed.next_steps:
        click.echo(f"next: {step}")


@plugin.command(epilog="Example:  bootseer plugin uninstall")
@_PREFIX
@_PLUGSTACK_DIR
@click.option(
    "--link",
    type=_LINK,
    metavar="FILE",
    default=program_link.LINK,
    show_default=True,
    help="Link that `install --link` made.",
)
@_AS_JSON
def uninstall(prefix: Path, plugstack_dir: Path, link: Path, as_json: bool) -> None:
    """Remove what `install` installed, and nothing else."""
    removed = plugin_install.uninstall(
        prefix.absolute(), plugstack_dir.absolute(), link=link.absolute()
    )
    if as_json:
        files, changed = map(str, removed.files), map(str, removed.changed)
        print_json({"removed": list(files), "changed": list(changed)})
        return
    for path in removed.files:
        click.echo(f"removed {path}")
    for path in removed.changed:
        click.echo(f"removed the include line from {path}")
    click.echo("next: restart slurmd on the nodes" if removed.files else "nothing was installed")
