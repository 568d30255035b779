"""Write the C source of bootseer-advice.so's embedded interpreter.

`bootseer plugin build` compiles the result together with advice_python.c; bootseer.so itself is
plain C and needs no generator.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cffi import FFI

FOLDER = Path(__file__).parent


def emit(target: Path) -> None:
    """Write the C source of the module ``bootseer_advice`` to ``target``."""
    ffi = FFI()
    ffi.embedding_api((FOLDER / "advice.cdef").read_text())
    ffi.set_source("bootseer_advice", "")
    ffi.embedding_init_code((FOLDER / "advice_python.py").read_text())
    ffi.emit_c_code(str(target))


if __name__ == "__main__":
    emit(Path(sys.argv[1]))
