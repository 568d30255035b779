"""The warm plan: what a job's start needs, written by its epilog and read by its next prolog.

A plan belongs to one user and one key. It is not trusted: every object it names is checked again.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace

from bootseer.core.fields import Fields, open_document
from bootseer.core.speed import UNKNOWN, Speed
from bootseer.errors import Corrupt
from bootseer.units import NS_PER_S

VERSION = 1
PLANS = "plans"
"""Folder of the store."""
MAX_BYTES = 256 * 1024
MAX_RUNS = 20
MAX_IMAGES = 8
MAX_NAMES = 32
_FORMAT = "bootseer warm plan"
_URI = re.compile(r"[a-z][a-z0-9+.-]{0,15}://", re.ASCII)
SAME_START_NS = 60 * NS_PER_S
"""Nodes of one start begin within this time; a later begin means a requeued job."""


@dataclass(frozen=True, slots=True)
class PlannedImage:
    """An image the job used last time.

    Attributes:
        path: absolute path or URI, as given.
        digest: identity digest it had.
        size_bytes: length of the image.
        hot_bytes: size of its hot set when the plan was written, 0 for none.
        touched_bytes: bytes that a start read of a served image, 0 if unknown.
        touched_reads: number of those reads.
        store: speed of the store that it was served from.
        file: speed of the file that it was added from.
    """

    path: str
    digest: str
    size_bytes: int
    hot_bytes: int
    touched_bytes: int = 0
    touched_reads: int = 0
    store: Speed = UNKNOWN
    file: Speed = UNKNOWN

    def with_known(self, before: PlannedImage) -> PlannedImage:
        """Return the image with unknown values taken from an earlier run."""
        touched = self if self.touched_bytes else before
        return replace(
            self,
            touched_bytes=touched.touched_bytes,
            touched_reads=touched.touched_reads,
            store=self.store.or_else(before.store),
            file=self.file.or_else(before.file),
        )

    def with_hot(self, other: PlannedImage) -> PlannedImage:
        """Return the image with the hot set's size of another node, if unknown here."""
        return replace(self, hot_bytes=self.hot_bytes or other.hot_bytes)


@dataclass(frozen=True, slots=True)
class PlannedName:
    """The image that a name of a served image led to, in the newest run that used it.

    Attributes:
        path: URI, as the job named it.
        digest: digest of the image in the store.
    """

    path: str
    digest: str


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """An earlier run under this key.

    Attributes:
        run: its name, also the name of its events' folder.
        job: Slurm's job id.
        kind: "cold" if it only recorded, "warm" if it had a prefetch.
        started_ns: nanoseconds since the epoch.
    """

    run: str
    job: int
    kind: str
    started_ns: int


@dataclass(frozen=True, slots=True)
class WarmPlan:
    """The recorded images and runs of one key."""

    user: str
    key: str
    images: tuple[PlannedImage, ...] = ()
    runs: tuple[PlannedRun, ...] = ()
    names: tuple[PlannedName, ...] = ()

    def encode(self) -> bytes:
        document: dict[str, object] = {"format": _FORMAT, "version": VERSION}
        document.update(asdict(self))
        return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"

    def with_run(
        self,
        run: PlannedRun,
        images: tuple[PlannedImage, ...],
        names: tuple[PlannedName, ...] = (),
    ) -> WarmPlan:
        """Return the plan with a node's report on a run; the same plan if nothing is new.

        The plan holds the images of the newest run that used any. A name is kept until a newer run
        uses it, so that a run with a refused image changes nothing.

        Nodes of a start may report slightly different values. The first node's values are kept and
        others add only missing images; otherwise they would overwrite each other. For a requeued
        job, the last start counts.
        """
        known = next((r for r in self.runs if r.run == run.run), None)
        later_ns = run.started_ns - known.started_ns if known else 0
        if later_ns < -SAME_START_NS:
            return self
        is_known = known is not None and later_ns <= SAME_START_NS
        runs = {r.run: r for r in self.runs} | ({} if is_known else {run.run: run})
        newest = sorted(runs.values(), key=lambda r: (r.started_ns, r.run))[-MAX_RUNS:]
        if newest[-1].run != run.run:
            return replace(self, runs=tuple(newest))
        are_known = is_known and set(names[-MAX_NAMES:]) <= set(self.names)
        return replace(
            self,
            images=self._with_images(images[:MAX_IMAGES], is_known),
            runs=tuple(newest),
            names=self.names if are_known else self._with_names(names),
        )

    def _with_images(
        self, images: tuple[PlannedImage, ...], is_known: bool
    ) -> tuple[PlannedImage, ...]:
        """Return a node's images, completed by known values, or added to those of its run."""
        mine = {(image.path, image.digest): image for image in images}
        if not is_known:
            before = {(image.path, image.digest): image for image in self.images}
            return tuple(i.with_known(before.get(key, i)) for key, i in mine.items()) or self.images
        told = tuple(i.with_hot(mine.get((i.path, i.digest), i)) for i in self.images)
        joined = mine | {(image.path, image.digest): image for image in told}
        has_more = len(told) < len(joined) <= MAX_IMAGES
        return tuple(joined.values()) if has_more else told

    def _with_names(self, names: tuple[PlannedName, ...]) -> tuple[PlannedName, ...]:
        used = {name.path for name in names}
        return (*(name for name in self.names if name.path not in used), *names)[-MAX_NAMES:]

    def retagged(self, path: str, digest: str) -> str:
        """Return the digest that an image's name led to last, if it differs, else "".

        Args:
            path: URI, as the job names it.
            digest: digest of the image that has the name now.
        """
        known = next((name.digest for name in self.names if name.path == path), digest)
        return known if known != digest else ""


def is_file_path(path: str) -> bool:
    """Return whether an image is named by an absolute path, without parent components."""
    return path.startswith("/") and ".." not in path.split("/")


def object_name(key: str) -> str:
    """Return the store object's name for a key: readable, and safe for any key."""
    return f"{PLANS}/{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def decode(data: bytes, name: str) -> WarmPlan:
    """Decode a plan; the caller checks whose it is.

    Raises:
        UnknownVersion: the plan has another version.
        Corrupt: it is damaged.
    """
    fields = open_document(data, name, _FORMAT, VERSION)
    return WarmPlan(
        user=fields.text("user", 256),
        key=fields.text("key", 256),
        images=tuple(
            PlannedImage(
                path=_path(image.text("path"), name),
                digest=image.text("digest", 200),
                size_bytes=image.count("size_bytes"),
                hot_bytes=image.count("hot_bytes"),
                touched_bytes=_optional(image, "touched_bytes"),
                touched_reads=_optional(image, "touched_reads"),
                store=_speed(image, "store"),
                file=_speed(image, "file"),
            )
            for image in fields.objects("images", MAX_IMAGES)
        ),
        runs=tuple(
            PlannedRun(
                run=run.text("run", 200),
                job=run.count("job"),
                kind=run.text("kind", 20),
                started_ns=run.count("started_ns"),
            )
            for run in fields.objects("runs", MAX_RUNS)
        ),
        names=tuple(
            PlannedName(_path(named.text("path"), name), named.text("digest", 64))
            for named in (fields.objects("names", MAX_NAMES) if fields.has("names") else ())
        ),
    )


def _optional(fields: Fields, name: str) -> int:
    return fields.count(name) if fields.has(name) else 0


def _speed(fields: Fields, name: str) -> Speed:
    return Speed.of(fields.part(name)) if fields.has(name) else UNKNOWN


def _path(path: str, name: str) -> str:
    if not is_file_path(path) and not _URI.match(path):
        raise Corrupt(f"{name}: {path!r} is neither an absolute path nor a URI")
    return path
