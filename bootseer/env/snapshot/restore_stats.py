"""Choose to mount or to unpack a snapshot: what takes less time, by past restores."""

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
    """Times of a user's past restores; the defaults were measured on 2 processors.

    Attributes:
        mount_s: time to mount a snapshot.
        unpack_s_per_gb: time to unpack one, for its content.
        unpack_s_per_1000_files: time to unpack one, for its files; both are added.
    """

    mount_s: float = 0.4
    unpack_s_per_gb: float = 1.0
    unpack_s_per_1000_files: float = 0.01

    @property
    def has_both(self) -> bool:
        """Return whether both ways were measured."""
        default = RestoreStats()
        is_unpacked = replace(self, mount_s=default.mount_s) != default
        return self.mount_s != default.mount_s and is_unpacked

    def unpack_s(self, content_bytes: int, files: int) -> float:
        """Estimate the time to unpack so many bytes and files."""
        return self.unpack_s_per_gb * content_bytes / 1e9 + (
            self.unpack_s_per_1000_files * files / 1000
        )

    def with_mount(self, took_s: float) -> RestoreStats:
        """Add the time of a mount."""
        return replace(self, mount_s=_mixed(self.mount_s, took_s))

    def with_unpack(self, content_bytes: int, files: int, took_s: float) -> RestoreStats:
        """Add the time of an unpack; both rates are changed by the same factor."""
        if content_bytes < _LEAST_BYTES:
            return self
        factor = _mixed(1.0, took_s / self.unpack_s(content_bytes, files))
        return replace(
            self,
            unpack_s_per_gb=self.unpack_s_per_gb * factor,
            unpack_s_per_1000_files=self.unpack_s_per_1000_files * factor,
        )


def choose(stats: RestoreStats, content_bytes: int, files: int) -> tuple[str, str]:
    """Return `MOUNT` or `UNPACK`, and the reason, for the user.

    Unpacking reads and writes all files, most of which a job never opens. So if both take as long,
    the snapshot is mounted.

    A measured time is not compared with a default: a store or machine that was slow for one way is
    slow for the other.
    """
    known, by = (stats, "what they took before") if stats.has_both else (RestoreStats(), "default")
    unpack_s = known.unpack_s(content_bytes, files)
    how = MOUNT if known.mount_s <= unpack_s else UNPACK
    return (
        how,
        f"mount {format_duration(known.mount_s)}, unpack {format_duration(unpack_s)}, by {by}",
    )


def _mixed(known: float, measured: float) -> float:
    return _KEPT * known + (1 - _KEPT) * measured
