"""What is raced, and how large it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bootseer.units import GIB, MIB
from bootseer_dev.material.images import DebianImage, demo_image

STORE_MBIT = 800
"""Of all storage together, each way, in Mbit/s."""
NODE_MBIT = 400
DATANODES = 4
COPIES = 2
"""Of each block in HDFS."""
SMALL_PACKAGE = "race-package"
_LAYER_MIB = 64
_PACKAGES = (
    *("transformers", "datasets", "scikit-learn", "polars", "opencv-python-headless", "numba"),
    "matplotlib",
)
_MODULES = ("transformers", "pyarrow.parquet", "pandas", "scipy.optimize", "sklearn.linear_model")


@dataclass(frozen=True, slots=True)
class RaceSpec:
    """What is raced.

    Attributes:
        rounds: how often each contestant starts.
        is_small: for a try: the demo's image without PyTorch, a made-up package of 64 MB, shards
            of 64 MiB and two nodes.
        alone: with each of BootSeer's techniques alone, too.
        build_dir: for images, wheels, Hadoop's jars and the figures.
    """

    rounds: int = 5
    is_small: bool = False
    alone: bool = True
    build_dir: Path = Path("build")

    @property
    def nodes(self) -> int:
        """Compute nodes, each with a task."""
        return 2 if self.is_small else 4

    @property
    def recipe(self) -> DebianImage:
        """The image."""
        return demo_image(torch=not self.is_small)

    @property
    def packages(self) -> tuple[str, ...]:
        """What pip is asked for."""
        return (SMALL_PACKAGE,) if self.is_small else _PACKAGES

    @property
    def modules(self) -> tuple[str, ...]:
        """What the job imports of the environment."""
        return ("race_package",) if self.is_small else _MODULES

    @property
    def image_bytes(self) -> int:
        """About how large the image is."""
        return (1 if self.is_small else 3) * GIB

    @property
    def environment_bytes(self) -> int:
        """About how large the environment is."""
        return (64 if self.is_small else 1400) * MIB

    @property
    def shard_bytes(self) -> int:
        """Length of each node's part of the checkpoint."""
        return self.layers * _LAYER_MIB * MIB

    @property
    def layers(self) -> int:
        """Of the model that the job trains."""
        return 1 if self.is_small else 8

    @property
    def disk_bytes(self) -> int:
        """About how much disk the race needs, with the copies in HDFS."""
        per_node = self.image_bytes + self.environment_bytes + self.shard_bytes
        checkpoint = self.nodes * self.shard_bytes
        in_hdfs = COPIES * (self.image_bytes + self.environment_bytes + 2 * checkpoint)
        return in_hdfs + self.nodes * per_node + checkpoint + 3 * self.environment_bytes
