"""The page of messages has an entry for each that users and administrators can see."""

import re
from pathlib import Path

import pytest
from bootseer_dev.documentation.messages import literals_of_c, of_c, of_python

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/messages.md"
C_FILES = sorted((ROOT / "spank").glob("*.c"))
PYTHON_FILES = [
    *(
        ROOT / f"bootseer/slurm/{name}.py"
        for name in (
            "accounts",
            "advise",
            "epilog",
            "hook",
            "importer",
            "options",
            "plugin/build",
            "plugin/files",
            "plugin/include_line",
            "plugin/install",
            "plugin/program_link",
            "prolog",
        )
    ),
    *(ROOT / f"bootseer/agent/node/{name}.py" for name in ("account", "control_client")),
    *(ROOT / f"bootseer/config/{name}.py" for name in ("file", "setting")),
    *(ROOT / f"bootseer/store/local/{name}.py" for name in ("access", "errors", "owner_rules")),
    *(ROOT / f"bootseer/store/{name}.py" for name in ("from_settings", "from_url", "outages")),
    ROOT / "bootseer/agent/messages/control.py",
    ROOT / "bootseer/agent/supervisor/images/import_waits.py",
    ROOT / "bootseer/cli/send_mark.py",
    ROOT / "bootseer/image/identity.py",
    ROOT / "bootseer/image/library/import_lease.py",
    ROOT / "bootseer/slurm/enroot/program.py",
    ROOT / "bootseer/slurm/squashfuse/program.py",
]
SAID = ROOT / "bootseer/cli/plugin.py"
"""Of the command's file only what it prints: the rest is its help."""
PARTS = {
    # Of a line of advice that has an entry.
    "… of …",
    "none with …",
    "within … s",
    "without an image",
    # Of messages on a list's items, which have one.
    "absolute paths",
    "digests of images",
    "ways: copy, file",
    # Lines of plugstack.conf.
    "# The next line was added by `bootseer plugin install --include`, and goes with `uninstall`.",
    "… include …",
    "……… include …",
    "The line before it had no end.",
    "………… include …",
    "…include …",
    # Of what Enroot's programs and the interpreter read.
    "none bind,nosuid,nodev,slave",
    "import sys; sys.path[:0] = …; from bootseer.slurm.enroot.program import main; "
    "sys.exit(main(sys.argv[1:]))",
    # To whoever writes code.
    "… is only read",
}


def sources() -> list[Path]:
    return [*C_FILES, *PYTHON_FILES, SAID]


def said(path: Path) -> set[str]:
    text = path.read_text()
    if path.suffix == ".c":
        return of_c(text) | (literals_of_c(text) if path.name == "options.c" else set())
    if path == SAID:
        lines = "\n".join(re.findall(r"^ +(click\.echo\(.*\)|python = .*)$", text, re.MULTILINE))
        return of_python(re.sub(r"^ +", "", lines, flags=re.MULTILINE))
    return of_python(text) - PARTS


def entries() -> list[str]:
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| [`(]", line)]
    codes = [re.match(r"\| (`+)(.+?)\1 \|", row) for row in rows]
    assert None not in codes
    return [code[2].strip().replace(r"\|", "|") for code in codes if code]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_message_has_an_entry(path):
    assert said(path) - set(entries()) == set()


def test_every_entry_is_a_message():
    assert set(entries()) - set().union(*map(said, sources())) == set()


def test_no_message_has_two_entries():
    found = entries()
    assert sorted(found) == sorted(set(found))


def test_every_entry_says_the_cause():
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| [`(]", line)]
    causes = [re.split(r"(?<!\\) *\| *", row)[2] for row in rows]
    assert all(causes)


def test_a_new_message_is_found():
    source = 'slurm_error("bootseer: %s is new: %m",\n   path);\nslurm_debug("not for users");'
    assert of_c(source) == {"… is new: …"}
    assert of_c('step_fallback(b, spank, "a.b", "the %s (x, y) is "\n "late", name);') == {
        "the … (x, y) is late"
    }
    source = '"""A docstring of words."""\nraise ConfigError(f"{name} is new: " f"run {x!r} again")'
    assert of_python(source) == {"… is new: run … again"}


def test_all_files_of_the_plugin_are_looked_at():
    assert {"options.c", "exec.c", "mounts.c", "step.c"} <= {path.name for path in C_FILES}
    assert all(map(said, (ROOT / "spank/exec.c", SAID, ROOT / "bootseer/slurm/advise.py")))
