"""Messages in the sources, with "…" for each part that varies."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

VARIES = "…"
_C_CALLS = {  # which argument is the format
    "slurm_error": 0,
    "slurm_info": 0,
    "slurm_spank_log": 0,
    "slurm_verbose": 0,
    "step_fallback": 3,
    "line": 0,
}
_CALL = re.compile(rf"\b({'|'.join(_C_CALLS)})\(")
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
_CONVERSION = re.compile(r"%[-0-9.*]*(?:zu|lu|[a-z])")


def of_c(source: str) -> set[str]:
    """Return the formats that a C file gives to Slurm's log and to the user."""
    found = set()
    for call in _CALL.finditer(source):
        arguments = list(_arguments(source, call.end()))
        literals = _LITERAL.findall(arguments[_C_CALLS[call[1]]])
        found.add(_tidy(_CONVERSION.sub(VARIES, "".join(literals)).replace('\\"', '"')))
    return {text for text in found if _is_prose(text)}


def literals_of_c(source: str) -> set[str]:
    """Return the texts of a C file whose functions return them."""
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    groups = re.findall(r'"(?:[^"\\]|\\.)*"(?:\s*"(?:[^"\\]|\\.)*")*', source)
    found = {_tidy("".join(_LITERAL.findall(group))) for group in groups}
    return {text for text in found if _is_prose(text)}


def of_python(source: str) -> set[str]:
    """Return the texts of a Python file, without docstrings and comments."""
    tree = ast.parse(source)
    skipped = {id(part) for node in ast.walk(tree) for part in _no_text(node)}
    found = set()
    for node in ast.walk(tree):
        if id(node) not in skipped and isinstance(node, ast.JoinedStr | ast.Constant):
            found.add(_tidy(_text(node)))
    return {text for text in found if _is_prose(text)}


def _no_text(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is part of a text, or no text for people: docstrings, parts of f-strings."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield from node.values


def _text(node: ast.JoinedStr | ast.Constant) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(_text(v) if isinstance(v, ast.Constant) else VARIES for v in node.values)


def _tidy(text: str) -> str:
    return " ".join(text.replace("\\n", " ").removeprefix("bootseer: ").split())


def _is_prose(text: str) -> bool:
    """Tell whether people read it: two words, not a pattern or a piece of a command line."""
    return re.search(r"[A-Za-z]{2,}[,:;]? [A-Za-z…`(]|… [A-Za-z]{2,}", text) is not None


def _arguments(source: str, start: int) -> Iterator[str]:
    """Yield the arguments of a call whose bracket opens before `start`."""
    depth, at, begin = 1, start, start
    while depth:
        literal = _LITERAL.match(source, at)
        if literal:
            at = literal.end()
            continue
        depth += (source[at] == "(") - (source[at] == ")")
        if (source[at] == "," and depth == 1) or not depth:
            yield source[begin:at]
            begin = at + 1
        at += 1
