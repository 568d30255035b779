"""The key of a command here and now: find out its facts, and what is wrong with them."""

from __future__ import annotations

import os
import re
from typing import Mapping, NamedTuple, Sequence

from bootseer.env.client import key as env_key
from bootseer.env.client.inputs.digest import text_digest
from bootseer.env.client.inputs.facts import gather
from bootseer.env.client.inputs.recorder import without_record
from bootseer.env.client.options import RunOptions
from bootseer.env.client.scan import scan_folder, shape
from bootseer.errors import BootseerError, Unavailable

_JOB_NUMBERS = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID")


class Keys(NamedTuple):
    """The key of a command.

    Attributes:
        parts: of the key.
        as_empty: parts of the key that it would have if the targets held nothing.
        unbounded: programs of the command that read what no part tells.
    """

    parts: tuple[env_key.KeyPart, ...]
    as_empty: tuple[env_key.KeyPart, ...]
    unbounded: Sequence[str] = ()


def keys_of(
    run_options: RunOptions,
    targets: Sequence[str],
    environ: Mapping[str, str],
    cwd: str,
    image: str,
) -> Keys:
    """Find out what the result of a command depends on.

    Args:
        run_options: with the command.
        targets: absolute paths.
        environ: of the command.
        cwd: where it runs.
        image: digest of the image that it runs in, "" for none.

    Raises:
        BootseerError: no key could tell.
    """
    bases = {target: _base(target) for target in targets}
    empty = _facts_as_empty(run_options, targets, environ, cwd, image)
    facts = empty._replace(targets=bases)
    unbounded = () if run_options.key_files else facts.unbounded
    return Keys(env_key.parts_of(facts), env_key.parts_of(empty), unbounded)


def warnings(targets: Sequence[str], keys: Keys, environ: Mapping[str, str]) -> list[str]:
    """Say what is wrong with a key: that it may not change, or that it never is the same again.

    Args:
        targets: absolute paths.
        keys: of the command.
        environ: of the command.
    """
    said = []
    if keys.unbounded:
        said.append(
            f"what {' and '.join(keys.unbounded)} reads is not in the key, so that a restored "
            "result may be out of date: name the files with --key-file, or run with --force"
        )
    numbers = {environ.get(name) for name in _JOB_NUMBERS}
    for target in targets:
        if numbers.intersection(re.findall("[0-9]+", target)):
            said.append(
                f"--target {target} has the number of this job in it and is a part of the key: "
                "no other job finds the result; choose a folder that is the same in all jobs"
            )
    return said


def result_mark(
    parts: Sequence[env_key.KeyPart], targets: Sequence[str], environ: Mapping[str, str], cwd: str
) -> str:
    """Return what tells a result from others, and is the same before and after it was made.

    Pythons and files in the targets may be the command's own work. Others are found by PATH.

    Args:
        parts: of the key as if the targets held nothing.
        targets: absolute paths.
        environ: of the command.
        cwd: where it runs.
    """
    inside = tuple(os.path.join(os.path.realpath(target), "") for target in targets)

    def is_made(part: env_key.KeyPart) -> bool:
        kind, _, name = part.name.partition(" ")
        if kind in ("python", "installer", "platform"):
            return True
        path = os.path.realpath(os.path.join(cwd, name))
        return kind in ("file", "project") and path.startswith(inside)

    path = env_key.KeyPart("PATH", str(text_digest(os.fsencode(environ.get("PATH", "")))))
    return env_key.key_of([path, *(part for part in parts if not is_made(part))])


def find_result_mark(
    run_options: RunOptions, targets: Sequence[str], environ: Mapping[str, str], image: str
) -> str:
    """Return the `result_mark` of a command, "" if no key could tell; see `keys_of`."""
    try:
        cwd = os.getcwd()
        facts = _facts_as_empty(run_options, targets, environ, cwd, image)
    except (BootseerError, OSError):
        return ""
    return result_mark(env_key.parts_of(facts), targets, environ, cwd)


def _facts_as_empty(
    run_options: RunOptions,
    targets: Sequence[str],
    environ: Mapping[str, str],
    cwd: str,
    image: str,
) -> env_key.KeyFacts:
    """Find out what the result depends on, but for what the targets hold; see `keys_of`."""
    return gather(
        run_options.command,
        dict.fromkeys(targets, env_key.EMPTY),
        environ=without_record(environ),
        cwd=cwd,
        extra=run_options.extra,
        key_files=run_options.key_files,
        image_digest=image,
    )


def _base(target: str) -> str:
    """Say what a target holds before the command runs."""
    try:
        tree = scan_folder(os.path.realpath(target), xattrs=False).tree
    except FileNotFoundError:
        return env_key.EMPTY
    except OSError as error:
        raise Unavailable(f"{target} cannot be read: {error}") from error
    return shape(tree) if len(tree) > 1 else env_key.EMPTY
