"""Lines and progress on standard error."""

from __future__ import annotations

import io
import sys

from bootseer.units import format_size


def tell(text: str) -> None:
    """Print a line on standard error, without characters that command a terminal."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    try:
        print(f"bootseer: {shown}", file=sys.stderr, flush=True)
    except OSError:
        # Of a full disk, for one. Python would try again at the end, and have its own exit status.
        sys.stderr = io.StringIO()


class ProgressLine:
    """A line on a terminal that shows how much is unpacked; a context that ends the line."""

    def __init__(self) -> None:
        self._is_shown = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_shown:
            print(file=sys.stderr)

    def show(self, done_bytes: int, total_bytes: int) -> None:
        """Show progress, if standard error is a terminal."""
        if sys.stderr.isatty():
            text = f"unpacking {format_size(done_bytes)} of {format_size(total_bytes)}"
            print(f"\rbootseer: {text:<60}", end="", file=sys.stderr, flush=True)
            self._is_shown = True
