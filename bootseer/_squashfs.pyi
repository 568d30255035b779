"""Types of the C extension that cffi builds from c_ext/squashfs/."""

from typing import Any

ffi: Any
lib: Any
