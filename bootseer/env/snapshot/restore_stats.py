"""Whether to mount a snapshot or to unpack it: whichever is sooner, by what both took before."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bootseer.units import format_duration

MOUNT, UNPACK = "mount", "unpack"
_LEAST_BYTES = 8 << 20
"""What less than this took says little of more."""
_KEPT = 0.5
"""Of what is known, beside what was measured now: one slow time is not the rule."""


@dataclass(frozen=True, slots=True)
class RestoreStats:
    """What restoring has taken a user lately; to begin with, what it took on 2 processors.

    Attributes:
        mount_s: to mount a snapshot.
        unpack_s_per_gb: to unpack one, by its content.
        unpack_s_per_1000_files: the same by its files, beside that.
    """

    mount_s: float = 0.4
    unpack_s_per_gb: float = 1.0
    unpack_s_per_1000_files: float = 0.01

    def unpack_s(self, content_bytes: int, files: int) -> float:
        """Reckon how long it takes to unpack so much."""
        return self.unpack_s_per_gb * content_bytes / 1e9 + (
            self.unpack_s_per_1000_files * files / 1000
        )

    def with_mount(self, took_s: float) -> RestoreStats:
        """Add how long it took to mount one."""
        return replace(self, mount_s=_mixed(self.mount_s, took_s))

    def with_unpack(self, content_bytes: int, files: int, took_s: float) -> RestoreStats:
        """Add how long it took to unpack so much: both parts were as much slower, or faster."""
        if content_bytes < _LEAST_BYTES:
            return self
        factor = _mixed(1.0, took_s / self.unpack_s(content_bytes, files))
        return replace(
            self,
            unpack_s_per_gb=self.unpack_s_per_gb * factor,
            unpack_s_per_1000_files=self.unpack_s_per_1000_files * factor,
        )


def choose(figures: RestoreStats, content_bytes: int, files: int) -> tuple[str, str]:
    """Choose; returns `MOUNT` or `UNPACK`, and why, for people.

    What has been mounted is used as it is; what has been unpacked has been read and written as a
    whole, which on a mount a job mostly has no need of. So a mount may take as long.
    """
    unpack_s = figures.unpack_s(content_bytes, files)
    how = MOUNT if figures.mount_s <= unpack_s else UNPACK
    return how, (
        f"mount {format_duration(figures.mount_s)}, unpack {format_duration(unpack_s)}, by what "
        "they took before"
    )


def _mixed(known: float, measured: float) -> float:
    return _KEPT * known + (1 - _KEPT) * measured
