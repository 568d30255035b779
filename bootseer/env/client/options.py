"""What `env run` is asked to do, and the options with which a command line says so.

`bootseer env` and `bootseer-env` declare their options from `OPTIONS`, the one for click and the
other for argparse.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

MODES = ("auto", "mount", "unpack")
MAX_WAIT_S = 86_400


class RunOptions(NamedTuple):
    """What `env run` is asked to do.

    Attributes:
        command: that installs.
        targets: folders that it installs to.
        mode: how to restore, one of `MODES`.
        read_only: nothing needs to be written to the targets afterwards.
        force: run the command even if there is a snapshot, and capture its result.
        no_capture: do not capture the result if the command runs.
        waits: end only when the result is stored.
        wait_s: longest wait for another node that runs the same command, and for another process
            that has a target.
        extra: what else the result depends on.
        key_files: files that it depends on.
    """

    command: Sequence[str]
    targets: Sequence[str]
    mode: str = "auto"
    read_only: bool = False
    force: bool = False
    no_capture: bool = False
    waits: bool = False
    wait_s: int = 600
    extra: Sequence[str] = ()
    key_files: Sequence[str] = ()


class Option(NamedTuple):
    """An option of the command line; the default of its field says which values it takes.

    Attributes:
        name: on the command line.
        field: of `RunOptions` that it sets.
        help: for people.
        metavar: what the help calls its value; None if it has none, or `MODES` for it.
        is_for_run: it says how to run the command; the others say what the result depends on.
    """

    name: str
    field: str
    help: str
    metavar: str | None = None
    is_for_run: bool = True

    @property
    def default(self) -> object:
        """Value of the field without the option; a tuple if it may be given several times."""
        return RunOptions._field_defaults.get(self.field, ())

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.field not in RunOptions._field_defaults


OPTIONS = (
    Option(
        "--target",
        "targets",
        "Folder that the command installs to; may be given several times.",
        "DIR",
        is_for_run=False,
    ),
    Option("--mode", "mode", "How to restore."),
    Option("--read-only", "read_only", "The targets will only be read afterwards."),
    Option(
        "--force",
        "force",
        "Ignore an existing snapshot: run the command, and capture its result.",
    ),
    Option("--no-capture", "no_capture", "Do not capture the result."),
    Option("--wait", "waits", "Return only when the result is stored."),
    Option(
        "--wait-seconds",
        "wait_s",
        "Longest wait for another process that runs the command, or installs to a target.",
        "SECONDS",
    ),
    Option(
        "--key-extra", "extra", "Text that the result depends on, too.", "TEXT", is_for_run=False
    ),
    Option(
        "--key-file", "key_files", "File that the result depends on, too.", "FILE", is_for_run=False
    ),
)
