"""Every block of code in the pages says whether a test runs it, and if not, why."""

from pathlib import Path

import pytest
from bootseer_dev.documentation.code_blocks import CodeBlock, code_blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PARAGRAPH = "A line.\n\n"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_is_marked(path):
    unmarked = [block for block in code_blocks(path.read_text()) if not block.mark]
    assert unmarked == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_test_that_runs_a_block_knows_its_page(path):
    for test in {block.own_test for block in code_blocks(path.read_text())} - {""}:
        assert path.name in (ROOT / test).read_text()


def test_blocks_are_found_with_their_marks():
    page = (
        f"{PARAGRAPH}<!-- run -->\n\n    a \\\n        b\n\n    c\n\nText.\n\n    d\n\n"
        "<!-- not run: why -->\n```sh\ne\n```\n> Quoted.\n>\n> <!-- run as root -->\n>\n>     f\n"
        "```\ng\n```\n<!-- run by tests/a.py -->\n\n    h\n"
    )
    assert list(code_blocks(page)) == [
        CodeBlock(5, "a \\\n    b\n\nc", "run"),
        CodeBlock(12, "d", ""),
        CodeBlock(15, "e", "not run: why"),
        CodeBlock(22, "f", "run as root"),
        CodeBlock(23, "g", ""),
        CodeBlock(28, "h", "run by tests/a.py"),
    ]
    assert [block.is_run for block in code_blocks(page)] == [True, False, False, True, False, False]
    assert [block.own_test for block in code_blocks(page)] == [*[""] * 5, "tests/a.py"]


def test_a_reason_is_needed_and_a_mark_is_for_the_next_block_only():
    assert [b.mark for b in code_blocks(f"{PARAGRAPH}<!-- not run: -->\n\n    a\n")] == [""]
    assert [b.mark for b in code_blocks("<!-- run -->\nText.\n\n    a\n")] == [""]


def test_a_second_line_of_text_that_is_indented_is_no_block():
    assert list(code_blocks("1. One,\n    continued.\n")) == []
