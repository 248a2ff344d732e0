"""Predict with a model that `berth export` wrote: torch and numpy only, berth is not needed.

python serve.py served/ compares the model with the examples of the export, and prints its latency.
"""

import json
import re
import sys
import time
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch

GOLDEN, ADMISSION = 0x9E3779B97F4A7C15, 0xAD01


class Served:
    """A folder of `berth export`; rows stay in files, which the system maps into memory."""

    def __init__(self, folder):
        folder = Path(folder)
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.keys, self.dense = (
            torch.export.load(folder / f"{name}.pt2").module() for name in ("keys", "dense")
        )
        self.tables = {}
        for name, one in self.manifest["tables"].items():
            keys, weights = (np.load(folder / one[part], mmap_mode="r") for part in ("keys", "weights"))
            self.tables[name] = keys, weights, one["unknown"]

    def predict(self, inputs):
        """The output of the model for a batch of inputs."""
        with torch.no_grad():
            keys = zip(self.manifest["lookups"], self.keys(inputs), strict=True)
            return self.dense(inputs, tuple(self.rows(table, part) for table, part in keys))

    def rows(self, table, keys):
        """The rows of keys, (...) -> (..., dim)."""
        known, weights, unknown = self.tables[table]
        wanted, inverse = np.unique(keys.numpy(), return_inverse=True)
        places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        rows, missing = weights[places], known[places] != wanted
        rows[missing] = initial(wanted[missing].view(np.uint64), rows.shape[1], **unknown)
        return torch.from_numpy(rows[inverse.reshape(-1)].reshape(*keys.shape, -1))


def initial(keys, dim, kind, scale, seed, share):
    """What training reads for keys without a row: numbers drawn from a hash of the key."""
    words = mix(salted(keys, seed)[:, None] + np.arange(dim, dtype=np.uint64) * np.uint64(GOLDEN))
    drawn = 2.0 * unit(words) - 1.0
    if kind == "normal":
        drawn = np.sqrt(-2.0 * np.log(1.0 - unit(words))) * np.cos(2.0 * np.pi * unit(mix(~words)))
    drawn[unit(salted(keys, ADMISSION)) >= share] = 0.0
    return (scale * drawn).astype(np.float32)


def salted(keys, salt):
    """SplitMix64 of keys; different salts are independent."""
    return mix(mix(keys) ^ np.uint64((salt + 1) * GOLDEN % 2**64))


def mix(words):
    """The finaliser of SplitMix64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def unit(words):
    """Numbers in [0, 1)."""
    return (words >> np.uint64(40)) * 2.0**-24


def number(text):
    """The number of an id that is text: hexadecimal below 2**32 as it is, else a hash."""
    if re.fullmatch(r"\+?[0-9a-fA-F]+", text) and int(text, 16) < 2**32:
        return int(text, 16)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def encode(columns, rows):
    """Inputs of a model from raw rows, dictionaries by column, as berth reads them from files; None is missing."""
    slots = [name for group in columns["slots"].values() for name in group]
    numbers = {name: number + 1 for number, name in enumerate([*slots, *columns["multi"]])}
    shift = 56 if len(numbers) < 254 else 48

    def key(name, value):
        value = number(str(value)) if columns.get("text") or isinstance(value, str) else value
        return (numbers[name] << shift) + (value & ((1 << (shift - 1)) - 1)) + 1

    def slot(name, value):
        missing = value is None or (value == "" and columns.get("text"))
        return numbers[name] << shift if missing else key(name, value)

    def several(name, value):
        value = value.split(columns["separator"]) if isinstance(value, str) and value else value or ()
        return [key(name, one) for one in value if one is not None][: columns["max_ids"]]

    def feature(value):
        value = float(value) if value not in (None, "") else 0.0
        value = 0.0 if np.isnan(value) else value
        return np.copysign(np.log1p(abs(value)), value) if columns["scale"] == "log" else value

    inputs = {}
    for group, names in columns["slots"].items():
        ids = [[slot(name, row.get(name)) for name in names] for row in rows]
        inputs[group] = torch.tensor(ids, dtype=torch.int64)[:, :, None]
    for group, names in columns["dense"].items():
        inputs[group] = torch.tensor([[feature(row.get(name)) for name in names] for row in rows]).float()
    for name in columns["multi"]:
        lists = [several(name, row.get(name)) for row in rows]
        longest = max(1, *map(len, lists))
        inputs[name] = torch.tensor([one + [-1] * (longest - len(one)) for one in lists])
    return inputs


def latency_ms(served, inputs, examples, repeats=200):
    """Median and 99th percentile of a prediction for this many examples."""
    times = []
    batch = {name: value[torch.arange(examples) % len(value)] for name, value in inputs.items()}
    for _ in range(repeats):
        started = time.perf_counter()
        served.predict(batch)
        times.append((time.perf_counter() - started) * 1e3)
    return np.percentile(times[repeats // 10 :], [50, 99])


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    torch.set_num_threads(1)
    served = Served(sys.argv[1])
    stored = np.load(Path(sys.argv[1]) / "check.npz")
    inputs = {name[7:]: torch.from_numpy(stored[name]) for name in stored.files if name.startswith("inputs/")}
    worst = np.abs(served.predict(inputs).numpy() - stored["output"]).max()
    print(f"{served.manifest['model']} after step {served.manifest['step']}: largest difference {worst:.1e}")
    for examples in (1, 256):
        print(
            "batch of {}: p50 {:.2f} ms, p99 {:.2f} ms".format(
                examples, *latency_ms(served, inputs, examples)
            )
        )
