"""What analysis does with checkpoints: numpy and safetensors, without PyTorch."""

import sys
from pathlib import Path

import numpy as np
import safetensors
from safetensors.numpy import load_file, save_file

STATE = {
    "weights": np.random.default_rng(1).random((1500, 1000), np.float32),
    "bytes": np.random.default_rng(2).integers(0, 256, 5_000_001, np.uint8),
}


def save(folder):
    save_file(STATE, folder / "model.safetensors")
    np.save(folder / "weights.npy", STATE["weights"])
    np.savez(folder / "all.npz", **STATE)
    changed = np.lib.format.open_memmap(folder / "mapped.npy", "w+", np.float32, (1500, 1000))
    changed[:] = 1
    changed[::7] = STATE["weights"][::7]
    changed.flush()


def load(folder):
    found = load_file(folder / "model.safetensors")
    assert found.keys() == STATE.keys()
    assert all(np.array_equal(found[name], array) for name, array in STATE.items())
    with safetensors.safe_open(folder / "model.safetensors", framework="numpy") as file:
        assert np.array_equal(file.get_slice("weights")[700:900], STATE["weights"][700:900])
    assert np.array_equal(np.load(folder / "weights.npy", mmap_mode="r"), STATE["weights"])
    with np.load(folder / "all.npz") as archive:
        assert all(np.array_equal(archive[name], array) for name, array in STATE.items())
    mapped = np.load(folder / "mapped.npy")
    assert np.array_equal(mapped[::7], STATE["weights"][::7]) and (mapped[1::7] == 1).all()


if __name__ == "__main__":
    {"save": save, "load": load}[sys.argv[1]](Path(sys.argv[2]))
