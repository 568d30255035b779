"""The programs that the race's job runs in its image: with PyTorch, and with NumPy alone.

The training program says when each part of the start was over, by lines ``mark NAME NODE NS``. It
waits for its shard if that is still on its way, as jobs do that fetch in the background.
"""

from __future__ import annotations

_FIRST_LINES = """\
import importlib
import os
import sys
import time


def mark(name):
    print("mark", name, os.environ["SLURMD_NODENAME"], time.time_ns(), flush=True)


mark("container")
path, *modules = sys.argv[1:]
"""

_WAIT = """\
for module in modules:
    importlib.import_module(module)
mark("imports")
path = path.replace("%r", os.environ["SLURM_PROCID"])
for _ in range(60_000):
    if os.path.exists(path):
        break
    time.sleep(0.01)
"""

TRAIN_TORCH = f"""{_FIRST_LINES}
import torch
{_WAIT}
weights = torch.load(path, map_location="cpu", weights_only=True)
mark("load")
layers = [torch.nn.Parameter(weight) for weight in weights.values()]
optimizer = torch.optim.SGD(layers, lr=1e-3)
x = torch.ones(4, layers[0].shape[0])
for layer in layers:
    x = torch.tanh(x @ layer)
x.square().mean().backward()
optimizer.step()
mark("step")
"""

SHARDS_TORCH = """\
import sys
import torch

folder, ranks, layers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for rank in range(ranks):
    torch.manual_seed(rank)
    weights = {f"layer{n}": torch.randn(4096, 4096) / 64 for n in range(layers)}
    torch.save(weights, f"{folder}/rank_{rank}.pt")
"""
"""Writes shards of as many layers of 64 MiB each."""

TRAIN_NUMPY = f"""{_FIRST_LINES}
import numpy as np
import pandas
import scipy.optimize
import sklearn.linear_model
{_WAIT}
weights = np.load(path)
mark("load")
x = np.ones(weights.shape[1], dtype=weights.dtype)
for layer in weights:
    error = np.tanh(x @ layer)
    layer -= 1e-3 * np.outer(x, error)
mark("step")
"""

SHARDS_NUMPY = """\
import sys
import numpy as np

folder, ranks, layers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for rank in range(ranks):
    made = np.random.default_rng(rank).normal(size=(layers, 4096, 4096)).astype("f4") / 64
    with open(f"{folder}/rank_{rank}.pt", "wb") as file:
        np.save(file, made)
"""
