"""The files in which DataNodes keep a file's blocks: where they are, and damage done to them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootseer.errors import NotFound
from bootseer_dev.cluster.machines import Machines
from bootseer_dev.cluster.spec import address


@dataclass(frozen=True, slots=True)
class Replica:
    """One DataNode's copy of one block of a file.

    Attributes:
        machine: the DataNode's.
        start: where the block begins in the file, in bytes.
        size_bytes: the block's length.
        path: of the copy, on the host.
    """

    machine: str
    start: int
    size_bytes: int
    path: Path

    def damage(self, offset: int = 0, size_bytes: int = 1) -> None:
        """Flip all bits of some bytes, in place, as a failing disk would: checksums stay.

        Args:
            offset: of the first, from the block's start.
            size_bytes: how many.

        Raises:
            ValueError: the block is not that long.
        """
        if not 0 <= offset < offset + size_bytes <= self.size_bytes:
            raise ValueError(f"{offset}+{size_bytes} is not in a block of {self.size_bytes}")
        with self.path.open("r+b") as file:
            file.seek(offset)
            data = file.read(size_bytes)
            file.seek(offset)
            file.write(bytes(byte ^ 0xFF for byte in data))


def find(machines: Machines, located: dict[str, Any]) -> list[Replica]:
    """Find the replicas on the DataNodes' disks, ordered by block and then by machine.

    Args:
        machines: the cluster.
        located: what WebHDFS answers to ``GET_BLOCK_LOCATIONS``; the file is closed.

    Raises:
        NotFound: a DataNode lacks the file of a block.
    """
    by_address = {address(name): name for name in machines.spec.datanode_names}
    found = []
    for block in located["LocatedBlocks"]["locatedBlocks"]:
        for name in sorted(by_address[place["ipAddr"]] for place in block["locations"]):
            data = machines.state_dir / "machines" / name / "hdfs"
            file_name = f"blk_{block['block']['blockId']}"
            path = next(data.rglob(file_name), None)
            if path is None:
                raise NotFound(f"there is no {file_name} in {data}")
            found.append(Replica(name, block["startOffset"], block["block"]["numBytes"], path))
    return found
