"""The blocks of code in a page, and the mark of each that says whether a test runs it.

A mark is a comment in the line before the block, which readers do not see::

    <!-- run -->                by a user, in the home, where jobs are submitted
    <!-- run in a job -->       by a task of a job with BootSeer
    <!-- run as root -->        on a node
    <!-- run by TEST -->        by a test of its own, which has what the page begins with
    <!-- not run: REASON -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

RUN, IN_A_JOB, AS_ROOT = "run", "run in a job", "run as root"
_MARK = re.compile(r"<!-- (run|run in a job|run as root|run by tests/\S+\.py|not run: .*\S) -->")
_QUOTE = re.compile(r"^> ?")


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A block of code.

    Attributes:
        line: of the page at which it begins, from 1.
        code: its lines, without their common indentation.
        mark: "" if it has none.
    """

    line: int
    code: str
    mark: str

    @property
    def is_run(self) -> bool:
        """Whether `tests/slurm/test_docs_commands.py` runs it."""
        return self.mark in (RUN, IN_A_JOB, AS_ROOT)

    @property
    def own_test(self) -> str:
        """The test of its own that runs it, as a path from the checkout's top; "" for none."""
        return self.mark.removeprefix("run by ") if self.mark.startswith("run by ") else ""


def code_blocks(page: str) -> Iterator[CodeBlock]:
    """Yield the blocks of a Markdown page: fenced ones, and those indented by four blanks."""
    lines = [_QUOTE.sub("", line, count=1) for line in page.splitlines()]
    at, mark = 0, ""
    while at < len(lines):
        begin, line = at, lines[at]
        at += 1
        if line.startswith("```"):
            while lines[at] != "```":
                at += 1
            yield CodeBlock(begin + 1, "\n".join(lines[begin + 1 : at]), mark)
            at += 1
        elif line.startswith("    ") and not lines[begin - 1].strip():
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            code = "\n".join(text[4:] for text in lines[begin:at])
            yield CodeBlock(begin + 1, code.rstrip(), mark)
        elif not line.strip():
            continue  # between a mark and an indented block
        found = _MARK.fullmatch(line)
        mark = found[1] if found else ""
