"""What a training job does with its checkpoints: PyTorch and safetensors, in one process or two.

An AssertionError says what is not as it was saved.
"""

import os
import sys
from pathlib import Path

import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp


def state(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "weights": torch.randn(1500, 1000, generator=generator),
        "half": torch.randn(3000, 1000, generator=generator).to(torch.bfloat16),
        "bytes": torch.randint(0, 256, (3_000_001,), generator=generator, dtype=torch.uint8),
        "none": torch.empty(0),
    }


def save(folder):
    torch.manual_seed(7)
    torch.save(state(1), folder / "model.pt")
    torch.save({"step": 7, "random": torch.get_rng_state()}, folder / "small.pt")
    # An older one is replaced by a shorter.
    torch.save({"older": state(2), "and": state(3)}, folder / "over.pt")
    torch.save(state(1), folder / "over.pt")
    # Written whole, then given its name.
    torch.save(state(2), folder / "latest.pt")
    with (folder / "latest.pt.tmp").open("wb") as file:
        torch.save(state(1), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "latest.pt.tmp", folder / "latest.pt")
    safetensors.torch.save_file(state(1), folder / "model.safetensors", {"format": "pt"})
    many = {f"layer{number}": torch.full((64,), number) for number in range(100)}
    (folder / "many").mkdir()
    for name, tensor in many.items():
        torch.save(tensor, folder / "many" / name)


def check(found):
    expected = state(1)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def load(folder):
    for name in ("model.pt", "over.pt", "latest.pt"):
        check(torch.load(folder / name, weights_only=False))
        check(torch.load(folder / name, weights_only=True))
        check(torch.load(folder / name, mmap=True))
    assert torch.load(folder / "small.pt")["step"] == 7
    check(safetensors.torch.load_file(folder / "model.safetensors"))
    with safetensors.safe_open(folder / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        check({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        rows = file.get_slice("weights")[700:900, 10:20]
        assert torch.equal(rows, state(1)["weights"][700:900, 10:20])
    for number in range(100):
        assert torch.equal(
            torch.load(folder / "many" / f"layer{number}"), torch.full((64,), number)
        )


def ranks(folder):
    """Two processes save one checkpoint, at once and in the background, and load it again."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    mine = {f"{name}{rank}": tensor for name, tensor in state(10 + rank).items() if len(tensor)}
    common = {"common": state(1)["weights"]}
    dcp.save({**mine, **common}, checkpoint_id=folder / "dcp")
    dcp.async_save({**mine, **common}, checkpoint_id=folder / "background").result()
    torch.distributed.barrier()
    for name in ("dcp", "background"):
        into = {key: torch.zeros_like(tensor) for key, tensor in {**mine, **common}.items()}
        dcp.load(into, checkpoint_id=folder / name)
        for key, tensor in {**mine, **common}.items():
            assert torch.equal(into[key], tensor), (name, key)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    {"save": save, "load": load, "ranks": ranks}[sys.argv[1]](Path(sys.argv[2]))
