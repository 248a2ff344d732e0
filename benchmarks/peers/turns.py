"""A process that trains on request: how `benchmarks/train_peers.py` controls each peer.

All peers read the same example files. A line on standard input names the first and the last batch of a round, the
response is its CPU and wall-clock time. When the input ends it prints the AUC, each batch scored before training on it.
It needs numpy only: berth is not installed in a peer's environment.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Step = Callable[[Array, Array, Array], Array]  # ids or keys, dense features, labels -> scores

SLOTS, DENSE, DIM, ROWS = 26, 13, 16, 1_000_000
HIDDEN = (400, 400, 400)


def take_turns(make: Callable[[], Step], ids: str = "ids") -> None:
    """Until the input ends; `ids` are folded onto a million rows, `keys` are as they came."""
    folder, size = Path(sys.argv[1]), int(sys.argv[2])
    keys, dense, labels = (np.load(folder / f"{name}.npy") for name in (ids, "dense", "labels"))
    step, scores = make(), np.zeros(len(labels), np.float32)
    reply({"ready": True})
    for line in sys.stdin:
        first, last = (int(word) for word in line.split())
        wall, cpu = time.perf_counter(), time.process_time()
        for number in range(first, last):
            part = slice(number * size, (number + 1) * size)
            scores[part] = step(keys[part], dense[part], labels[part]).reshape(-1)
        reply({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu})
    end = last * size
    late = slice(end - end // 4, end)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    reply({"auc": auc(scores[late], labels[late]), "resident_mib": resident})


def reply(facts: dict[str, Any]) -> None:
    """One line of JSON."""
    print(json.dumps(facts), flush=True)


def auc(scores: Array, labels: Array) -> float:
    """The chance that a click scores above a non-click; ties are too few to matter."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    clicks = int(labels.sum())
    return float((ranks[labels > 0].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(labels) - clicks)))
