"""Made-up examples for a layout of columns, and files in Criteo's format with a known best AUC."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from berth.errors import InputError
from berth.train.data.clicks import ClickStream
from berth.train.data.columns import Layout
from berth.train.data.criteo import DENSE, SLOTS
from berth.train.data.files import batch_inputs
from berth.train.data.rows import Examples, Floats, Ints, Ragged, slot_bases
from berth.train.metrics import best_auc
from berth.zoo.slots import hashed

_IDS = 1000
_LONGEST = 4
_BLOCK = 1 << 14
_SPREAD = 2.0  # of a dense feature: the reader's logarithm of the written number is about this many times it
_MISSING = 0.05
_DENSE_WEIGHT = 0.12  # of a dense feature in the logit of `ClickStream`


def layout_examples(layout: Layout, examples: int, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Return inputs and labels with the shapes of a layout, drawn at random."""
    random = np.random.default_rng(seed)
    bases = slot_bases(layout.slot_count)
    slots, count = len(layout.slot_columns), len(layout.labels)
    lists = []
    for base in bases[slots:]:
        counts = random.integers(0, _LONGEST, examples)
        counts[:1] = _LONGEST  # the longest has several, so that its length is not taken for fixed
        values = base + random.integers(1, _IDS, int(counts.sum()))
        lists.append(Ragged(values, np.append(0, np.cumsum(counts))))
    drawn = Examples(
        bases[:slots] + random.integers(1, _IDS, (examples, slots)),
        random.standard_normal((examples, len(layout.dense_columns))).astype(np.float32),
        random.integers(0, 2, (examples, count) if count > 1 else examples),
        None,
        tuple(lists),
    )
    return batch_inputs(drawn, layout), torch.from_numpy(drawn.labels)


def write_criteo(path: str | Path, rows: int, seed: int = 0) -> float:
    """Write a file in Criteo's format; returns the best possible AUC on it.

    Ids and features are those of the built-in clicks: numbers are rounded to integers, and one in twenty is missing.
    Labels are drawn from the probabilities that follow from what is written.
    """
    stream, random = ClickStream(seed), np.random.default_rng([seed, rows])
    probabilities = []
    try:
        with Path(path).open("w", encoding="ascii") as file:
            for first in range(0, rows, _BLOCK):
                keys, dense, chances, _ = stream.draw(first, min(_BLOCK, rows - first))
                numbers = np.rint(np.copysign(np.expm1(_SPREAD * np.abs(dense)), dense)).astype(np.int64)
                missing = random.random(numbers.shape) < _MISSING
                chances = _as_written(chances, dense, numbers, missing)
                labels = random.random(len(chances)) < chances
                file.writelines(_lines(labels, numbers, missing, keys))
                probabilities.append(chances)
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror}", where=str(path)) from None
    return best_auc(np.concatenate(probabilities))


def _as_written(chances: np.ndarray, dense: Floats, numbers: Ints, missing: np.ndarray) -> np.ndarray:
    """Return the probabilities of clicks with the features that a reader sees."""
    read = np.where(missing, 0.0, np.copysign(np.log1p(np.abs(numbers)), numbers) / _SPREAD)
    signs = np.where(np.arange(DENSE) % 2, _DENSE_WEIGHT, -_DENSE_WEIGHT)
    logit = np.log(chances / (1 - chances)) + (read - dense) @ signs
    return 1.0 / (1.0 + np.exp(-logit))


def _lines(labels: np.ndarray, numbers: Ints, missing: np.ndarray, keys: Ints) -> list[str]:
    ids = hashed(keys).astype(np.uint32)  # eight hexadecimal digits, as in Criteo's files
    assert ids.shape[1] == SLOTS
    return [
        "\t".join(
            [
                "1" if label else "0",
                *("" if absent else str(number) for number, absent in zip(row, gone, strict=True)),
                *(f"{one:08x}" for one in slots),
            ]
        )
        + "\n"
        for label, row, gone, slots in zip(
            labels.tolist(), numbers.tolist(), missing.tolist(), ids.tolist(), strict=True
        )
    ]
