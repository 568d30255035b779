"""Who takes part in the race.

A start has three parts: image, environment and checkpoint. A contestant is a way for each part;
the rest of the job is the same for all.

**Today**: the image is copied to the node, pip installs the environment from the index, and
`hadoop fs -cat` reads the shard, one after the other.

**By hand**: what an expert gets from today's tools. Two combinations run, and the faster counts.
*Mounted* copies as little as possible: the image's squashfs and one of the environment, made
beforehand, are mounted from the share, while the shard comes in parallel streams beside. *Copied*
has all three come at the same time, each in parallel streams, for those who do not trust mounts.
Left out, because they cannot win here: sbcast, whose first node would send the image three times
through a link of half the storage's rate; the kernel's squashfs, slower from a cold share than
squashfuse (it decompresses with one thread) and not to be had without root; uv, whose cache no new
node has, and which installs from the index slower than unsquashfs unpacks.

**BootSeer**: image and checkpoint are in its store in HDFS, and the command is today's pip, behind
`bootseer env run`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bootseer_dev.jobs import site
from bootseer_dev.race.fetch_shard import MODULE as FETCH_SHARD
from bootseer_dev.race.storage import SHARE

LOCAL = "/local/race"
"""Folder of each node for the job's copies; new for each start."""
TARGET = f"{LOCAL}/env"
KEY = "race"
FLOOR = "local_memory"
USES_BOOTSEER = "--bootseer"
_PARTS = ("image", "environment", "checkpoint")


@dataclass(frozen=True, slots=True)
class Way:
    """How a job has one part of what it needs.

    Attributes:
        command: shell lines that set IMAGE, ENVIRONMENT or CHECKPOINT, the latter with %r for the
            rank. What they start in the background and add to WAIT must be over before the
            container starts.
        option: of srun.
    """

    command: str
    option: str = ""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to start the job.

    Attributes:
        name: in figures.
        what: it is, for people.
        image, environment, checkpoint: the ways of its parts.
        is_first: BootSeer knows nothing of this job yet.
        is_alone: only one part is BootSeer's.
        is_in_memory: nothing is dropped from memory before the start.
    """

    name: str
    what: str
    image: Way
    environment: Way
    checkpoint: Way
    is_first: bool = False
    is_alone: bool = False
    is_in_memory: bool = False

    @property
    def way_options(self) -> set[str]:
        """The options of its ways; none without BootSeer."""
        return {way.option for way in (self.image, self.environment, self.checkpoint)} - {""}

    @property
    def key(self) -> str:
        """The key of its warm plan; empty without BootSeer."""
        if not self.way_options:
            return ""
        return self.name if self.is_alone else KEY

    @property
    def options(self) -> list[str]:
        """BootSeer's options for its srun."""
        if not self.key:
            return []
        return [f"{USES_BOOTSEER}={self.key}", *sorted(self.way_options - {USES_BOOTSEER})]


@dataclass(frozen=True, slots=True)
class Places:
    """What the job's script names.

    Attributes:
        pip: the command that installs the environment's packages, without a target.
        hadoop_cat: the command line of ``hadoop fs -cat``.
        python: of this project.
        plain, striped: folders of the checkpoint in HDFS, of ordinary and of striped files.
        image: name of the image in BootSeer's store.
        local: folder with copies of everything, that all nodes see.
        containers: folder that the container runtime mounts images on.
        modules: what the training program imports of the environment.
    """

    pip: str
    hadoop_cat: str
    python: str
    plain: str
    striped: str
    image: str
    local: str
    containers: str
    modules: tuple[str, ...]


def contestants(places: Places, *, alone: bool = True) -> list[Contestant]:
    """List all contestants in the order of a round.

    Args:
        places: of what they read.
        alone: with each technique by itself, too.
    """
    pip = f"{places.pip} --target {TARGET}"
    shard = f"{LOCAL}/rank_%r.pt"
    rank = "rank_$SLURM_PROCID.pt"
    fetch = f"{places.python} -m {FETCH_SHARD} {places.plain}/{rank} {LOCAL}/{rank} &"
    today = Contestant(
        "today",
        "today: image copied, pip, one stream of HDFS",
        Way(f"cp {SHARE}/image.sqsh {LOCAL}/; IMAGE={LOCAL}/image.sqsh"),
        Way(f"{pip}; ENVIRONMENT={TARGET}"),
        Way(f"{places.hadoop_cat} {places.plain}/{rank} >{LOCAL}/{rank}; CHECKPOINT={shard}"),
    )
    mounted = Contestant(
        "by_hand_mounted",
        "by hand: squashfs mounted from the share, HDFS in parallel beside",
        Way(f"IMAGE={SHARE}/image.sqsh"),
        Way(f"mkdir -p {TARGET}; squashfuse_ll {SHARE}/env.sqsh {TARGET}; ENVIRONMENT={TARGET}"),
        Way(f"{fetch}\nCHECKPOINT={shard}"),
    )
    copied = Contestant(
        "by_hand_copied",
        "by hand: everything copied, in parallel and at once",
        Way(f"{_parallel_copy('image.sqsh')}\nIMAGE={LOCAL}/image.sqsh"),
        Way(
            f'unsquashfs -q -n -d {TARGET} {SHARE}/env.sqsh & WAIT="$WAIT $!"\nENVIRONMENT={TARGET}'
        ),
        mounted.checkpoint,
    )
    warm = Contestant(
        "bootseer_warm",
        "BootSeer, second start, on nodes that have nothing",
        Way('IMAGE="${BOOTSEER_IMAGE:?}"', f"--bootseer-image=bootseer://{places.image}"),
        Way(
            f"{site.bootseer()} env run -q --target {TARGET} -- {pip}; ENVIRONMENT={TARGET}",
            USES_BOOTSEER,
        ),
        Way('CHECKPOINT="${BOOTSEER_CKPT:?}/rank_%r.pt"', f"--bootseer-ckpt={places.striped}:ro"),
    )
    local = Contestant(
        FLOOR,
        "everything on the node, in memory",
        Way(f"IMAGE={places.local}/image.sqsh"),
        Way(f"ENVIRONMENT={places.local}/env"),
        Way(f"CHECKPOINT={places.local}/rank_%r.pt"),
        is_in_memory=True,
    )
    return [
        today,
        mounted,
        copied,
        replace(warm, name="bootseer_cold", what="BootSeer, first start, recorded", is_first=True),
        warm,
        *(_only(part, today, warm) for part in _PARTS if alone),
        replace(local, name="local_disk", what="everything on the node's disk", is_in_memory=False),
        local,
    ]


def _only(part: str, today: Contestant, warm: Contestant) -> Contestant:
    """Return today's start with one part by BootSeer."""
    ways = {part: getattr(warm, part)}
    what = f"BootSeer's {part} alone, the rest as today"
    return replace(today, name=f"only_{part}", what=what, is_alone=True, **ways)


def on_local_copies(contestant: Contestant, places: Places) -> Contestant:
    """Return a contestant whose parts that are not BootSeer's are on the node: it records soon."""
    local = contestants(places, alone=False)[-1]
    ways = {part: getattr(local, part) for part in _PARTS if not getattr(contestant, part).option}
    return replace(contestant, **ways)


def _parallel_copy(name: str, streams: int = 4) -> str:
    """Return shell lines that copy a file of the share in several streams, in the background."""
    source, target = f"{SHARE}/{name}", f"{LOCAL}/{name}"
    return (
        f"part=$((($(stat -c %s {source}) / {streams} >> 22) + 1))\n"
        f"for n in $(seq 0 {streams - 1}); do\n"
        f"  dd if={source} of={target} bs=4M skip=$((n * part)) seek=$((n * part)) count=$part"
        " conv=notrunc status=none &\n"
        '  WAIT="$WAIT $!"\n'
        "done"
    )
