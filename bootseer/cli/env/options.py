"""Options of several commands of ``bootseer env``, and their access to the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from bootseer.env.client.options import MAX_WAIT_S, MODES, OPTIONS, Option, RunOptions

if TYPE_CHECKING:
    from bootseer.cli.terminal.runner import CountedWork
    from bootseer.env.admin.diff import PathDiff
    from bootseer.store.api.base import Store

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

KEY_CHARS = 12
"""Of a key, where people read it."""

group_option = click.option(
    "--group", default="", metavar="NAME", help="Use the store of this Unix group."
)
user_option = click.option("--user", help="Owner; you by default.")


def install_command(*, runs: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds an install command and its options to a click command.

    Args:
        runs: also add the options for running the command.

    Returns:
        A decorator for a function with a `RunOptions` as its first argument.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        options = [option for option in OPTIONS if runs or not option.is_for_run]

        @wraps(function)
        def command(command: tuple[str, ...], **others: Any) -> None:
            values = {option.field: others.pop(option.field) for option in options}
            function(RunOptions(command=command, **values), **others)

        found = click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)(command)
        for option in reversed(options):
            found = _click_option(option)(found)
        return found

    return decorate


def _click_option(option: Option) -> Callable[[F], F]:
    name, field, text, default = option.name, option.field, option.help, option.default
    if isinstance(default, bool):
        return click.option(name, field, is_flag=True, help=text)
    if isinstance(default, int):
        seconds = click.IntRange(0, MAX_WAIT_S)
        return click.option(
            name,
            field,
            type=seconds,
            default=default,
            show_default=True,
            metavar=option.metavar,
            help=text,
        )
    if isinstance(default, str):
        mode = click.Choice(MODES)
        return click.option(name, field, type=mode, default=default, show_default=True, help=text)
    return click.option(
        name,
        field,
        multiple=True,
        required=option.is_required,
        metavar=option.metavar,
        help=text,
    )


def complete(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete names and keys of the caller's environments."""
    from bootseer.env.snapshot import repository
    from bootseer.errors import BootseerError

    async def read(store: Store) -> list[str]:
        folders = await store.list(repository.FOLDER)
        keys = [info.name.rpartition("/")[2] for info in folders]
        names = await repository.list_names(store)
        return [*names, *(key[:KEY_CHARS] if len(typed) < KEY_CHARS else key for key in keys)]

    try:
        return [CompletionItem(n) for n in with_env_store(read) if n.startswith(typed)]
    except (BootseerError, SystemExit):
        return []


def complete_name(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete names of the caller's environments."""
    from bootseer.env.snapshot import repository
    from bootseer.errors import BootseerError

    try:
        names = with_env_store(repository.list_names)
    except (BootseerError, SystemExit):
        return []
    return [CompletionItem(name) for name in sorted(names) if name.startswith(typed)]


env_argument = click.argument("env", shell_complete=complete)


def with_env_store(
    work: Callable[[Store], Awaitable[T]],
    *,
    user: str | None = None,
    group: str = "",
    counted: CountedWork | None = None,
    bar: str = "",
    after: str = "no changes made",
) -> T:
    """Run ``work`` on the store that has a user's environments, or a group's.

    Args:
        work: takes the store.
        user: owner of the store, see `bootseer.cli.user_store`; the caller if None.
        group: open the store that this group shares instead.
        counted, bar, after: see `bootseer.cli.terminal.runner.run`.
    """
    from bootseer import config as settings
    from bootseer.cli import user_store
    from bootseer.cli.terminal import runner
    from bootseer.env.snapshot.group_store import group_store
    from bootseer.store.from_settings import connect

    owner = user_store.take_on(user)
    config = settings.load()

    async def main() -> T:
        store = group_store(config, owner, group) if group else connect(config, owner)
        return await work(store)

    return runner.run(main, counted=counted, bar=bar, after=after)


def document_of(
    deltas: Sequence[PathDiff], targets: Sequence[str]
) -> dict[str, list[dict[str, object]]]:
    """Return differences for JSON."""
    from bootseer.env.snapshot.manifest import shown_path

    found: dict[str, list[dict[str, object]]] = {"added": [], "changed": [], "deleted": []}
    for delta in deltas:
        row: dict[str, object] = {"path": shown_path(delta.path, targets)}
        if delta.before is not None and delta.after is not None:
            row["before_bytes"] = delta.before.size_bytes
            row["size_bytes"] = delta.after.size_bytes
            found["changed"].append(row)
        elif delta.after is not None:
            found["added"].append(row | {"size_bytes": delta.after.size_bytes})
        elif delta.before is not None:
            found["deleted"].append(row | {"size_bytes": delta.before.size_bytes})
    return found


def say_deltas(deltas: Sequence[PathDiff], targets: Sequence[str]) -> None:
    """Print differences, a line each."""
    from bootseer.cli.terminal import runner
    from bootseer.env.snapshot.manifest import shown_path
    from bootseer.units import format_size

    for delta in deltas:
        path, before, after = shown_path(delta.path, targets), delta.before, delta.after
        if before is not None and after is not None:
            sizes = f"{format_size(before.size_bytes)} -> {format_size(after.size_bytes)}"
            runner.print_line(f"~ {path}  {sizes}")
        elif after is not None:
            runner.print_line(f"+ {path}  {format_size(after.size_bytes)}")
        elif before is not None:
            runner.print_line(f"- {path}  {format_size(before.size_bytes)}")


def counts(deltas: Sequence[PathDiff]) -> str:
    """Format the numbers of paths that differ."""
    added = sum(1 for delta in deltas if delta.before is None)
    deleted = sum(1 for delta in deltas if delta.after is None)
    return f"{added:,} added, {len(deltas) - added - deleted:,} changed, {deleted:,} deleted"
