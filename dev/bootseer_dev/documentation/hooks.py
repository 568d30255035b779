"""What mkdocs does to the pages of docs/ besides rendering them; mkdocs.yml names this file."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import click

from bootseer.cli.main import cli

COMMANDS_HERE = "<!-- commands -->"
"""Replaced by the reference of all commands."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Complete a page's text: the reference of commands, and bars in tables' code.

    GitHub wants a bar in a table's code to be escaped, mkdocs shows the escape.
    """
    markdown = markdown.replace(COMMANDS_HERE, reference())
    return re.sub(
        r"`[^`\n]*`",
        lambda code: code[0].replace(r"\|", "|") if r"\|" in code[0] else code[0],
        markdown,
    )


def reference() -> str:
    """Describe all commands, in Markdown, as their --help does."""
    root = click.Context(cli, info_name="bootseer")
    return "\n\n".join(_command(context) for context in _walk(root))


def _walk(context: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of all commands below a group but those for developers."""
    assert isinstance(context.command, click.Group)
    for name in context.command.list_commands(context):
        command = context.command.get_command(context, name)
        if command is None or command.hidden or name == "dev":
            continue
        below = click.Context(command, info_name=name, parent=context)
        yield below
        if isinstance(command, click.Group):
            yield from _walk(below)


def _command(context: click.Context) -> str:
    command = context.command
    is_top = context.parent is not None and context.parent.parent is None
    parts = [f"{'##' if is_top else '###'} {context.command_path}", _prose(command.help or "")]
    if not isinstance(command, click.Group):
        usage = " ".join(command.collect_usage_pieces(context))
        parts.append(f"    {context.command_path} {usage}")
    records = [parameter.get_help_record(context) for parameter in command.params]
    # Arguments that have no text of their own are in the usage.
    named = [record for record in records if record and record[1]]
    rows = [f"| `{_cell(name)}` | {_cell(text)} |" for name, text in named]
    if rows:
        parts.append("\n".join(["| option | |", "|---|---|", *rows]))
    return "\n\n".join([*parts, _prose(command.epilog or "")]).rstrip()


def _prose(text: str) -> str:
    """Turn a help text into Markdown: examples, which click does not wrap, become code."""
    return "\n\n".join(map(_block, re.split(r"\n\n|\n(?=\x08\n)", inspect.cleandoc(text))))


def _block(text: str) -> str:
    text = re.sub(r"^(Examples?.*:)  (?=\S)", "\b\n\\1\n", text)
    if not text.startswith("\b\n"):
        return text
    title, *code = text.removeprefix("\b\n").splitlines()
    lines = textwrap.dedent("\n".join(code)).replace("   ·   ", "\n")
    return f"{title}\n\n{textwrap.indent(lines, '    ')}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
