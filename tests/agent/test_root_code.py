"""How much code has root's rights while jobs run: what the broker imports, and nothing else."""

import ast
import io
import json
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import bootseer

ROOT = Path(bootseer.__file__).parents[1]
MOST_LINES = 1600
"""Of all that is imported."""

IMPORTED = """
import json, sys
before = set(sys.modules)
sys.path[:0] = [sys.argv[1]]
import bootseer.agent.broker.__main__
import bootseer.agent.broker.startup
import bootseer.agent.broker.mount_squashfs
print(json.dumps(sorted(set(sys.modules) - before)))
"""
EXTENSION = {"bootseer._io", "bootseer._io.lib", "_cffi_backend"}
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


@pytest.fixture(scope="module")
def imported():
    argv = [sys.executable, "-ISB", "-c", IMPORTED, str(ROOT)]
    answer = subprocess.run(argv, capture_output=True, text=True, check=True, env={})
    return set(json.loads(answer.stdout))


def own(imported):
    """Return the files of our modules, by name."""
    names = {n for n in imported - EXTENSION if n.partition(".")[0] == "bootseer"}
    files = {}
    for name in names:
        path = ROOT.joinpath(*name.split("."))
        files[name] = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return files


def lines_of_code(text):
    """Count lines that are not blank, and have more than a comment or a docstring."""
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                docstrings |= set(range(node.lineno, node.end_lineno + 1))
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def test_lines_are_counted_as_they_should_be():
    text = '"""One."""\n\nimport os  # used\n# not\nX = 1\n"""Of X."""\n\ndef f(\n    a,\n):\n'
    text += '    """Do.\n\n    More.\n    """\n    return """a\n    b"""\n'
    assert lines_of_code(text) == 2 + 3 + 2


def test_root_imports_only_the_standard_library_and_bootseer(imported):
    strangers = {n for n in imported if n.partition(".")[0] not in sys.stdlib_module_names}
    # tomllib came with Python 3.11; before, tomli is in its place.
    strangers = {n for n in strangers if n.partition(".")[0] != "tomli"}
    assert strangers - own(imported).keys() == EXTENSION


def test_root_has_nothing_of_supervisor_workers_stores_or_block_cache(imported):
    processes = ("supervisor", "workers", "lender")
    foreign = (
        *(f"agent.{name}" for name in processes),
        "checkpoint",
        "cache",
        "env",
        "store",
        "startup",
    )
    names = tuple(f"bootseer.{name}" for name in foreign)
    assert not [name for name in imported if name.startswith(names)]


def test_roots_code_does_not_grow(imported):
    counts = {name: lines_of_code(path.read_text()) for name, path in own(imported).items()}
    told = "\n".join(f"{count:5} {name}" for name, count in sorted(counts.items()))
    total = sum(counts.values())
    assert total <= MOST_LINES, f"{total} lines of code are imported as root:\n{told}"
