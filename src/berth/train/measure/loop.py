"""Measures the loop around a model, and reading examples from files."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from berth.plan.profile.layer_profile import short
from berth.train.data import Batch, ClickStream, Share
from berth.train.data.files import FileStream
from berth.train.options import TrainOptions
from berth.train.session import Session
from berth.zoo.layered import tensors

_SIZES = (64, 16_384)  # examples of a batch
_STEPS, _ROUNDS = 40, 5


def loop_s() -> tuple[float, float]:
    """Return the CPU seconds per step and per example of a training without a model to speak of."""
    sessions = [Session(_Line(), _Ready(), TrainOptions(batch=size)) for size in _SIZES]
    running = [session.steps() for session in sessions]
    taken: list[list[float]] = [[] for _ in _SIZES]
    for turn in range(1 + _ROUNDS):
        for steps, seconds in zip(running, taken, strict=True):
            started = time.process_time()
            for _ in islice(steps, _STEPS):
                pass
            if turn:  # the first round is a warm-up
                seconds.append((time.process_time() - started) / _STEPS)
    for steps, session in zip(running, sessions, strict=True):
        steps.close()
        session.close()
    small, large = map(statistics.median, taken)
    example = max(0.0, (large - small) / (_SIZES[1] - _SIZES[0]))
    return max(0.0, small - example * _SIZES[0]), example


def decode_bytes_per_s(examples: int = 32_768, batch: int = 4_096) -> dict[str, float]:
    """Return the bytes of tensors that a core reads from click logs per second, by format."""
    import polars as pl

    keys, dense, _, labels = ClickStream().draw(0, examples)
    columns: dict[str, Any] = {"label": labels}
    columns |= {
        f"I{number + 1}": np.abs(column * 50).astype(np.int64) for number, column in enumerate(dense.T)
    }
    ids = {f"C{number + 1}": column for number, column in enumerate(keys.T)}
    rates = {}
    with tempfile.TemporaryDirectory() as folder:
        frame = pl.DataFrame(columns | ids)
        frame.write_parquet(Path(folder, "clicks.parquet"))
        text = [
            pl.Series(name, [f"{one & 0xFFFFFFFF:08x}" for one in column]) for name, column in ids.items()
        ]
        frame.with_columns(text).write_csv(Path(folder, "clicks.tsv"), separator="\t", include_header=False)
        for name in ("parquet", "tsv"):
            stream = FileStream(str(Path(folder, f"clicks.{name}")), epochs=None)
            batches = stream.batches(batch, 0, Share(), 0)
            size = sum(_nbytes(one) for one in islice(batches, examples // batch))
            taken = []
            for _ in range(3):
                started = time.process_time()
                for _ in islice(batches, examples // batch):
                    pass
                taken.append(time.process_time() - started)
            rates[name] = short(size / statistics.median(taken))
    return rates


def _nbytes(batch: Batch) -> int:
    return sum(part.numel() * part.element_size() for part in tensors((batch.inputs, batch.labels)))


class _Line(nn.Module):
    """The smallest model with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(1, 1)

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        scores: torch.Tensor = self.weight(inputs["x"])
        return scores


class _Ready:
    """A source whose batches are ready."""

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "ready"}

    def batches(self, batch: int, step: int, share: Share, seed: int) -> Iterator[Batch]:
        inputs, labels = {"x": torch.zeros(batch, 1)}, torch.zeros(batch, dtype=torch.int64)
        while True:
            yield Batch(inputs, labels, batch)

    def position(self, step: int) -> Mapping[str, Any]:
        return {}

    def seek(self, position: Mapping[str, Any]) -> None:
        pass
