"""Manual pages made from the command line's help."""

import click
from bootseer_dev.packages.man_pages import man_pages, page


@click.command(epilog="\b\nExamples:\n  .try --this\n  \\b")
@click.option("--size", metavar="MB", help="Of the file.")
@click.argument("name")
def sample(size, name):
    """Do a thing.

    More of it, in a line that
    is wrapped.
    """


def test_a_page_has_its_sections_and_nothing_that_roff_takes_for_a_request():
    lines = page(click.Context(sample, info_name="sample")).split("\n")
    assert lines[:3] == ['.TH "SAMPLE" 1 "" "BootSeer 0.1.0"', ".SH NAME", "sample \\- Do a thing"]
    assert "More of it, in a line that is wrapped." in lines
    assert lines[lines.index(".B \\-\\-size MB") + 1] == "Of the file."
    assert "  .try \\-\\-this" in lines and "  \\eb" in lines


def test_every_command_that_is_installed_has_a_page():
    pages = man_pages()
    assert {"bootseer.1", "bootseer-image.1", "bootseer-plugin-install.1"} <= set(pages)
    assert not any(name.startswith("bootseer-dev") for name in pages)
    for name, text in pages.items():
        for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"):
            assert f"\n.SH {section}\n" in text, name
