"""Manual pages, made from the help of the commands: one page a command."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from bootseer import __version__
from bootseer.cli.main import cli

_NOT_INSTALLED = "dev"
_AS_IT_STANDS = "\b"
"""Before a paragraph whose lines click leaves as they are."""


def man_pages() -> dict[str, str]:
    """Return all manual pages, by their names: ``bootseer.1``, ``bootseer-image-add.1``."""
    root = click.Context(cli, info_name="bootseer")
    return {f"{_name(context)}.1": page(context) for context in _contexts(root)}


def page(context: click.Context) -> str:
    """Return the manual page of a command, in the language of man(7)."""
    command = context.command
    lines = [f'.TH "{_name(context).upper()}" 1 "" "BootSeer {__version__}"', ".SH NAME"]
    summary = command.get_short_help_str(limit=200).rstrip(".")
    lines.append(f"{_quoted(_name(context))} \\- {_quoted(summary)}")
    usage = " ".join(command.collect_usage_pieces(context))
    lines += [".SH SYNOPSIS", f".B {_quoted(context.command_path)}", _quoted(usage)]
    lines += [".SH DESCRIPTION", *_paragraphs(command.help or "")]
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    lines += [".SH OPTIONS", *_table([record for record in records if record and record[1]])]
    below = _commands(context)
    if below:
        rows = [(child.info_name or "", child.command.get_short_help_str(200)) for child in below]
        lines += [".SH COMMANDS", *_table(rows)]
    if command.epilog:
        lines += [".SH NOTES", *_paragraphs(command.epilog)]
    related = [*([context.parent] if context.parent else []), *below]
    if related:
        lines += [".SH SEE ALSO", ", ".join(f"\\fB{_quoted(_name(c))}\\fR(1)" for c in related)]
    return "\n".join(lines) + "\n"


def _contexts(context: click.Context) -> Iterator[click.Context]:
    yield context
    for child in _commands(context):
        yield from _contexts(child)


def _commands(context: click.Context) -> list[click.Context]:
    group = context.command
    if not isinstance(group, click.Group):
        return []
    named = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    return [
        click.Context(command, parent=context, info_name=name)
        for name, command in named
        if command is not None and not command.hidden and name != _NOT_INSTALLED
    ]


def _name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _paragraphs(text: str) -> Iterator[str]:
    """Yield lines of roff for a text of click's."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if paragraph.startswith(_AS_IT_STANDS):
            yield from (".PP", ".nf")
            yield from map(_quoted, paragraph.removeprefix(_AS_IT_STANDS).strip("\n").split("\n"))
            yield ".fi"
        else:
            yield from (".PP", _quoted(" ".join(paragraph.split())))


def _table(rows: list[tuple[str, str]]) -> Iterator[str]:
    for term, text in rows:
        yield from (".TP", f".B {_quoted(term)}", _quoted(" ".join(text.split())))


def _quoted(text: str) -> str:
    """Return a text of which roff takes nothing for a request."""
    quoted = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{quoted}" if quoted.startswith((".", "'")) else quoted
