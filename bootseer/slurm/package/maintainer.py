"""What the scripts of the packages do: ``python3 -m bootseer.slurm.package.maintainer STEP``.

Steps: ``put VERSION`` and ``remove`` of the package `bootseer`, ``add-line`` and ``remove-line`` of
the plugin's, and ``refuse-while-used``, which fails while an agent runs on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bootseer import config as settings
from bootseer.agent.node import registry
from bootseer.errors import BootseerError, Conflict
from bootseer.slurm.package import installed, versions
from bootseer.slurm.plugin.files import CONF, PLUGSTACK_DIR
from bootseer.slurm.plugin.include_line import ensure_include, remove_include

_RESTART = "restart slurmd here, which ends no job:  systemctl restart slurmd"


def main(argv: Sequence[str]) -> int:
    """Do one step; returns the exit code."""
    step, *rest = argv
    try:
        match step, rest:
            case "put", [version]:
                versions.put_version(installed.FOLDER, version)
                kept = versions.remove_unused(installed.FOLDER)
                for name in kept:
                    print(f"bootseer: {installed.FOLDER / name} stays, jobs use it")
            case "remove", []:
                versions.remove_all(installed.FOLDER)
            case "add-line", []:
                print(f"bootseer: {add_line(installed.LINE, PLUGSTACK_DIR)}")
            case "remove-line", []:
                if remove_line(installed.LINE, PLUGSTACK_DIR):
                    print(f"bootseer: {_RESTART}")
            case "refuse-while-used", []:
                refuse_while_used(_run_dir())
            case _:
                print(f"bootseer: no step {argv!r}", file=sys.stderr)
                return 2
    except (BootseerError, OSError) as error:
        print(f"bootseer: {error}", file=sys.stderr)
        return 1
    return 0


def add_line(line: Path, plugstack_dir: Path) -> str:
    """Let Slurm read the plugin's line; returns what is left to do.

    Args:
        line: the file with the line.
        plugstack_dir: the folder that gets a link to it. plugstack.conf beside that folder gets an
            include line if it has none.
    """
    conf = plugstack_dir / CONF
    if conf.exists() and not conf.samefile(line):
        return (
            f"{conf} is of an earlier installation, whose plugin Slurm still loads. Run that one's "
            "`bootseer plugin uninstall`, then install this package again"
        )
    if not conf.exists():
        conf.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        conf.unlink(missing_ok=True)
        conf.symlink_to(line)
    notes, steps = ensure_include(conf, add=True)
    return "\nbootseer: ".join([*notes, *steps, _RESTART])


def remove_line(line: Path, plugstack_dir: Path) -> bool:
    """Undo what `add_line` has done; returns whether there was something."""
    conf = plugstack_dir / CONF
    if not conf.is_symlink() or conf.readlink() != line:
        return False
    conf.unlink()
    remove_include(conf)
    return True


def refuse_while_used(run_dir: str) -> None:
    """Make sure that no job on this machine uses BootSeer.

    Raises:
        Conflict: some do.
    """
    jobs = [
        Path(folder.path).name
        for folder in registry.job_folders(run_dir)
        if registry.agent_pid(folder) is not None or registry.is_served(folder)
    ]
    if jobs:
        raise Conflict(
            f"not removed: jobs on this node use BootSeer ({', '.join(jobs)}). Let them end first: "
            "scontrol update NodeName=$(hostname -s) State=DRAIN Reason=bootseer"
        )


def _run_dir() -> str:
    try:
        return settings.load().node.run_dir
    except BootseerError:
        return settings.load("/dev/null").node.run_dir


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
