"""What a writer is allowed to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bootseer.errors import Closed


class WriteSequence:
    """Let the steps of one writer through, one at a time and none after a failed one.

    The gate is shut while a step is on its way and opens again when it has worked. A step that
    fails or is cancelled leaves it shut: nobody knows how much of the data arrived.
    """

    def __init__(self, name: str) -> None:
        """Guard the writer of the object `name`."""
        self._name = name
        self._open = True

    @contextmanager
    def step(self, *, last: bool = False) -> Iterator[None]:
        """Do one step inside the block; after the `last` one the gate stays shut.

        Raises:
            Closed: the gate is shut.
        """
        if not self._open:
            raise Closed(
                f"{self._name!r} takes no more data: it was committed or left, or a write failed "
                "or is still on its way; create it again"
            )
        self._open = False
        yield
        self._open = not last

    def shut(self) -> None:
        """Let nothing through any more."""
        self._open = False
