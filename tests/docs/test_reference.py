"""The pages of reference have an entry for each stage, option and command."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from bootseer_dev.documentation import hooks

from bootseer.cli.main import cli

ROOT = Path(__file__).parents[2]
STAGES = ROOT / "docs/formats/event.md"
OPTIONS = ROOT / "docs/reference/options.md"

_NOUNS = "agent|checkpoint|env|hotset|image|node|options|peers|plan|store|trace"
_NAME = re.compile(rf'"((?:{_NOUNS})(?:\.[a-z]+)+)"')
NOT_STAGES = {"agent.sock", "agent.state", "image.sqsh", "node.cleanup", "options.h"}
"""Names of files and of a module."""


def stages_in_sources() -> set[str]:
    found = set()
    folders = ("agent", "slurm", "startup", "env/server")
    for path in [
        *(path for folder in folders for path in (ROOT / "bootseer" / folder).rglob("*.py")),
        *(ROOT / "spank").glob("*.c"),
    ]:
        found |= {name for name in _NAME.findall(path.read_text()) if "." in name}
        # Names of one word, and those that the plugin puts together.
        one = r'(?:stage\(|fall_back\(|Event\(|_tell\(folder,|spank,|step->stage =) ?"([a-z]+)"'
        for name in re.findall(one, path.read_text()):
            found |= {name, f"{name}.start"} if path.name == "step.c" else {name}
    return found - NOT_STAGES


def stages_on_the_page() -> set[str]:
    table = STAGES.read_text().partition("## Stages of this version")[2]
    cells = re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([a-z.]+)`", cell)}


def test_every_stage_has_an_entry():
    assert stages_in_sources() - stages_on_the_page() == set()


def test_every_entry_is_a_stage():
    assert stages_on_the_page() - stages_in_sources() == set()


def test_every_option_of_jobs_has_an_entry():
    source = (ROOT / "spank/bootseer.c").read_text()
    options = set(re.findall(r'\{"(bootseer[a-z-]*)", "', source))
    assert len(options) >= 5
    rows = re.findall(r"^\| `--(bootseer[a-z-]*)[=`]", OPTIONS.read_text(), re.MULTILINE)
    assert set(rows) == options


def commands(
    group: click.Group = cli, path: tuple[str, ...] = ("bootseer",)
) -> list[tuple[str, click.Command]]:
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden or name == "dev":
            continue
        found.append((" ".join((*path, name)), command))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


@pytest.mark.parametrize(("path", "command"), commands(), ids=lambda value: str(value))
def test_every_command_and_option_has_an_entry(path, command):
    reference = hooks.reference()
    section = re.search(rf"^###? {path}\n(.*?)(?=^###? |\Z)", reference, re.MULTILINE | re.DOTALL)
    assert section is not None
    assert command.help.split(".")[0].split("\n")[0] in section[1]
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", section[1], re.MULTILINE)
    names = {name for row, _ in rows for name in re.findall(r"(?<![\w-])--?[A-Za-z-]+", row)}
    options = [o for o in command.params if isinstance(o, click.Option)]
    assert names == {name for option in options for name in (*option.opts, *option.secondary_opts)}


def test_examples_of_help_become_code():
    text = "Do it.\n\n\b\nExamples:\n  a --b \\\n    c\n  d   ·   e"
    assert hooks._prose(text) == "Do it.\n\nExamples:\n\n    a --b \\\n      c\n    d\n    e"
    assert hooks._prose("Example:  a b") == "Example:\n\n    a b"


def test_bars_in_the_code_of_tables_are_shown_without_their_escape():
    assert hooks.on_page_markdown(r"| `a\|b` | c \| d |") == r"| `a|b` | c \| d |"


# The site.


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    # Without byte code: in the checkout it is new, and all of it would be installed again.
    argv = [sys.executable, "-IB", "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, env={"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_every_page(site):
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    named = {
        page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html")
        for page in pages
    }
    built = {path.relative_to(site) for path in site.rglob("*.html")}
    assert named == built - {Path("404.html")}
    assert (site / "search/search_index.json").stat().st_size > 100_000


def test_the_site_loads_nothing_from_elsewhere(site):
    """Links that a reader follows are his choice; scripts, styles and images are not."""
    loads = r"""<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=["']?([^"' >]+)"""
    for path in site.rglob("*.html"):
        found = re.findall(loads, path.read_text())
        assert found
        assert [url for url in found if re.match(r"(https?:)?//", url)] == []
    for path in site.rglob("*.css"):
        assert re.findall(r"url\(['\"]?(?:https?:)?//", path.read_text()) == []


def test_the_page_of_commands_is_complete(site):
    page = (site / "reference/commands.html").read_text()
    for path, _ in commands():
        assert f">{path}<" in page
    assert hooks.COMMANDS_HERE not in page
