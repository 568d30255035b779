"""The job that all contestants start: its script, and the parts of a start."""

from __future__ import annotations

from bootseer_dev.jobs import site
from bootseer_dev.race.contestants import LOCAL, Contestant, Places

OVER = "/shared/race-over"
"""The job stays until this file is there, as a training goes on after its first step."""
PHASES = (
    "submit",
    "image",
    "environment",
    "checkpoint",
    "copies",
    "container",
    "imports",
    "load",
    "step",
)
"""Parts of a start, in order, each by the mark at its end."""


def script(contestant: Contestant, places: Places) -> str:
    """Return the job's script."""
    container = (
        f'ch-run --set-env -m {places.containers} -b "$ENVIRONMENT:/srv" '
        '-b "$(dirname "$CHECKPOINT"):/mnt" -b /shared/race:/media "$IMAGE" -- '
        'python3 /media/train.py "/mnt/$(basename "$CHECKPOINT")" '
    )
    lines = [
        "#!/bin/sh -e",
        'mark() { echo "mark $1 $SLURMD_NODENAME $(date +%s%N)"; }',
        f"mkdir -p {LOCAL}",
        "mark submit",
        contestant.image.command,
        "mark image",
        contestant.environment.command,
        "mark environment",
        contestant.checkpoint.command,
        "mark checkpoint",
        'for copy in $WAIT; do wait "$copy"; done',
        "mark copies",
        f"PYTHONPATH=/srv {container}{' '.join(places.modules)}",
        f'[ -z "$BOOTSEER_SOCKET" ] || {site.bootseer()} mark first-step',
        f"while [ ! -e {OVER} ]; do sleep 0.1; done",
    ]
    return "\n".join(lines) + "\n"
