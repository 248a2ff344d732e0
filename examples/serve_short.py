"""Predict with a model that `berth export` wrote, in 30 lines; a key without a row reads as zeros."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

folder = Path(sys.argv[1])
manifest = json.loads((folder / "manifest.json").read_text())
find_keys, compute = (torch.export.load(folder / name).module() for name in ("keys.pt2", "dense.pt2"))
tables = {}
for name, one in manifest["tables"].items():
    tables[name] = [np.load(folder / one[part], mmap_mode="r") for part in ("keys", "weights")]


def rows(table: str, keys: np.ndarray) -> torch.Tensor:
    """The rows of keys, found by binary search in the mapped file."""
    known, weights = tables[table]
    places = np.searchsorted(known, keys).clip(max=len(known) - 1)
    return torch.from_numpy(weights[places] * (known[places] == keys)[..., None])


def predict(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The output of the model for a batch of inputs."""
    keys = zip(manifest["lookups"], find_keys(inputs), strict=True)
    return compute(inputs, tuple(rows(table, part.numpy()) for table, part in keys))


with torch.no_grad():
    inputs = {name: torch.from_numpy(value) for name, value in np.load(sys.argv[2]).items()}
    output, started = predict(inputs), time.perf_counter()
    predict(inputs)
print(json.dumps(output.tolist()))
print(f"{len(output)} examples in {(time.perf_counter() - started) * 1e3:.2f} ms")
