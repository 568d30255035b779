"""Small changes of the code that a test should notice: Cosmic Ray's, and two kinds of our own.

https://cosmic-ray.readthedocs.io: an operator knows the places in a syntax tree (parso's) that it
can change, and how. Cosmic Ray itself makes every change in every place, which would take weeks
here; `draw` makes some of them.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import parso
from cosmic_ray import plugins
from cosmic_ray.ast import get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

REMOVED = "remove-statement"
OTHER_ERROR = "catch-another-error"
_PAIRS = (
    *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt"),
    *("Add_Sub", "Sub_Add", "Mul_FloorDiv", "FloorDiv_Mul", "Div_Mul", "Mod_FloorDiv"),
    *("BitAnd_BitOr", "BitOr_BitAnd", "LShift_RShift", "RShift_LShift"),
)
"""Of the operators that one can take the place of, the one that makes a likely mistake."""
_OTHERS = (
    *("AddNot", "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub"),
    *("ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
    *("NumberReplacer", "RemoveDecorator"),
)


class RemoveStatement(Operator):
    """Leaves out a call, or what is done to an attribute, an item or a sum."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        """Yield where the node is, if it is such a statement."""
        if node.parent is not None and node.parent.type == "simple_stmt" and _has_effect(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return what takes its place."""
        passing = parso.parse("pass").children[0]
        passing.prefix = node.get_first_leaf().prefix
        return passing

    @classmethod
    def examples(cls) -> Any:
        """Return none: Cosmic Ray asks its own for them."""
        return ()


class CatchAnotherError(Operator):
    """Catches what is never raised: Cosmic Ray's own knows no names with dots."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        """Yield where each error is that the node catches."""
        for error in _caught(node):
            yield error.start_pos, error.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the node with another error."""
        error = _caught(node)[index]
        other = parso.parse("NeverRaised").children[0]
        other.prefix, other.parent = error.get_first_leaf().prefix, error.parent
        siblings = error.parent.children
        siblings[siblings.index(error)] = other
        return node

    @classmethod
    def examples(cls) -> Any:
        """Return none: Cosmic Ray asks its own for them."""
        return ()


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        path: of the file, from the root of the checkout.
        operator: that makes it.
        occurrence: which one of those that the operator could make in the file.
        first_line: of what changes; from 1.
        last_line: the same.
        is_in_function: it runs when a function does, not once when the module is imported.
    """

    path: str
    operator: str
    occurrence: int
    first_line: int
    last_line: int
    is_in_function: bool

    def code(self, source: str) -> str:
        """Return the file's text with the change."""
        changed: str | None = mutate_code(source, _operators()[self.operator], self.occurrence)
        if changed is None:
            raise ValueError(f"{self.path} has changed: {self.operator} {self.occurrence}")
        return changed


def draw(root: Path, folders: list[str], count: int, seed: int) -> list[Mutant]:
    """Draw changes by chance: each place as likely as another, and there each change."""
    chance = random.Random(seed)
    paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    places = {path: list(_places(str(path.relative_to(root)), path.read_text())) for path in paths}
    drawn = chance.sample([place for found in places.values() for place in found], count)
    return [chance.choice(place) for place in drawn]


def _places(path: str, source: str) -> Iterator[list[Mutant]]:
    """Yield what can be changed in a file, each with all changes of one kind."""
    found: dict[tuple[Any, str], list[Mutant]] = {}
    occurrences: dict[str, int] = {}
    for node in _nodes(get_ast(source)):
        for name, operator in _operators().items():
            for start, end in operator.mutation_positions(node):
                number = occurrences.get(name, 0)
                mutant = Mutant(path, name, number, start[0], end[0], _is_in_function(node))
                occurrences[name] = number + 1
                if not _is_declaration(node) and not _is_constant(node):
                    kind = name.split("_")[0]
                    found.setdefault((start, kind), []).append(mutant)
    yield from found.values()


def _is_in_function(node: Any) -> bool:
    """Whether it is a function's body; decorators and defaults are not."""
    child, parent = node, node.parent
    while parent is not None:
        if parent.type == "funcdef" and child is parent.children[-1]:
            return True
        child, parent = parent, parent.parent
    return False


def _nodes(node: Any) -> Iterator[Any]:
    """Yield a tree's nodes in the order of Cosmic Ray, by which it counts occurrences."""
    yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


def _has_effect(node: Any) -> bool:
    if node.type in ("atom_expr", "power", "await"):
        return True
    if node.type != "expr_stmt":
        return False
    target, second = node.children[0], node.children[1]
    return target.type in ("atom_expr", "power") or (second.type == "operator" and second != "=")


def _caught(node: Any) -> list[Any]:
    """List the errors of an except clause."""
    if node.type != "except_clause":
        return []
    errors = node.children[1]
    if errors.type == "atom":
        errors = errors.children[1]
    return errors.children[::2] if errors.type == "testlist_comp" else [errors]


def _is_declaration(node: Any) -> bool:
    """Whether it is part of a declaration, a decorator, an assertion or a constant of the module.

    Annotations, protocols and assertions are for mypy or say what is so anyway, as `zip`'s `strict`
    does, and of a decorator it is enough to leave it out. A constant is one of many values that are
    as good; which is best is for benches to say.
    """
    child, parent = node, node.parent
    while parent is not None:
        if parent.type in ("decorator", "annassign", "tfpdef") and child in _declared(parent):
            return True
        if parent.type in ("param", "funcdef") and child is parent.annotation:
            return True
        if parent.type == "assert_stmt" or _is_for_types(child) or _is_for_types(parent):
            return True
        if parent.type == "argument" and parent.children[0].get_code(False) == "strict":
            return True
        if parent.type == "expr_stmt" and parent.parent.parent.type == "file_input":
            return True
        child, parent = parent, parent.parent
    return False


def _is_for_types(node: Any) -> bool:
    """Whether it is the class of a protocol, or what is imported for types only."""
    if node.type == "classdef":
        bases = node.get_super_arglist()
        return bases is not None and "Protocol" in bases.get_code()
    return node.type == "if_stmt" and node.children[1].get_code(False) == "TYPE_CHECKING"


def _declared(parent: Any) -> list[Any]:
    """List what only declares, of a decorator or of a name with its type: not its value."""
    children: list[Any] = parent.children
    return children if parent.type == "decorator" else children[:3][-2:]


def _is_constant(node: Any) -> bool:
    """Whether it is a number that is as good as others, as constants of a module are."""
    return node.type == "number" and node.value not in ("0", "1", "2", "0.0", "1.0")


@cache
def _operators() -> dict[str, Operator]:
    kinds = ("ReplaceComparisonOperator", "ReplaceBinaryOperator")
    known = set(plugins.operator_names())
    names = {f"core/{kind}_{pair}" for kind in kinds for pair in _PAIRS} & known
    names.update(f"core/{name}" for name in _OTHERS)
    assert len(names) == len(_PAIRS) + len(_OTHERS)
    return {name: plugins.get_operator(name)() for name in sorted(names)} | {
        REMOVED: RemoveStatement(),
        OTHER_ERROR: CatchAnotherError(),
    }
