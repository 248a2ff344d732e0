"""How well a model does on the examples it is shown, and how quickly it goes.

Progressive: every batch is scored before the model learns from it, so in the first pass over the data the figures are
those of unseen examples. From the second pass on they are not, and are called training figures.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
WINDOW = 1 << 16  # examples of which the AUC is told


def auc(scores: NDArray[np.floating[Any]], labels: NDArray[Any]) -> float:
    """The chance that a click scores above a non-click, ties counted half; not a number without both."""
    clicked = labels > 0.5
    order = np.argsort(scores)  # ties need no order: they share their ranks
    ordered = scores[order]
    ends = (
        np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) + 1
    )  # ranks of equal scores are shared
    starts = np.append(0, ends[:-1])
    ranks = np.repeat((starts + ends + 1) / 2, ends - starts)
    positives = int(clicked.sum())
    negatives = len(scores) - positives
    if not positives or not negatives:
        return float("nan")
    above = float(ranks[clicked[order]].sum()) - positives * (positives + 1) / 2
    return above / (positives * negatives)


def best_auc(chances: NDArray[np.float64]) -> float:
    """The expected AUC of the true probabilities themselves: no model can do better."""
    ordered = np.sort(chances)
    below = np.cumsum(1.0 - ordered) - (1.0 - ordered)  # expected non-clicks with less chance
    pairs = ordered.sum() * (1.0 - ordered).sum() - (ordered * (1.0 - ordered)).sum()
    return float((ordered * below).sum() / pairs)


class Window:
    """The last `size` scores with their labels."""

    def __init__(self, size: int = WINDOW) -> None:
        self.scores = np.empty(size, np.float32)
        self.labels = np.empty(size, np.float32)
        self._next = 0
        self._held = 0

    def add(self, scores: Floats, labels: NDArray[Any]) -> None:
        """The newest overwrite the oldest."""
        size = len(self.scores)
        scores, labels = scores[-size:], labels[-size:]
        first = min(len(scores), size - self._next)
        for ring, new in ((self.scores, scores), (self.labels, labels)):
            ring[self._next : self._next + first] = new[:first]
            ring[: len(new) - first] = new[first:]
        self._next = (self._next + len(scores)) % size
        self._held = min(size, self._held + len(scores))

    def auc(self) -> float:
        """Of what the window holds."""
        return auc(self.scores[: self._held], self.labels[: self._held])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it, oldest first: to be kept in a checkpoint."""
        at = self._next if self._held == len(self.scores) else 0
        order = np.roll(np.arange(len(self.scores)), -at)[: self._held]
        return {"scores": self.scores[order], "labels": self.labels[order]}

    def load(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Takes what `arrays` gave."""
        self._next = self._held = 0
        self.add(arrays["scores"], arrays["labels"])


def join_windows(windows: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Windows of several workers, one after the other, and how many examples each has."""
    names = ("scores", "labels")
    together = {name: np.concatenate([window[name] for window in windows]) for name in names}
    return {**together, "lanes": np.array([len(window["scores"]) for window in windows])}


def divide_windows(together: Mapping[str, NDArray[Any]], lanes: int) -> list[dict[str, NDArray[Any]]]:
    """Returns a window per worker: the windows that were joined or, for another number N, every Nth example."""
    counts = together["lanes"] if "lanes" in together else np.array([len(together["scores"])])
    order = np.arange(len(together["scores"]))
    starts = np.cumsum(counts) - counts
    if len(counts) == lanes:
        parts = [order[start : start + count] for start, count in zip(starts, counts, strict=True)]
    else:
        age = np.concatenate([np.arange(count, 0, -1) for count in counts])  # the newest of each is 1
        oldest_first = np.argsort(-age, kind="stable")
        parts = [oldest_first[lane::lanes] for lane in range(lanes)]
    return [{name: together[name][part] for name in ("scores", "labels")} for part in parts]


@dataclass(slots=True)
class Progress:
    """Where a training is, and how it does."""

    step: int = 0
    examples: int = 0
    loss: float = float("nan")  # mean of the last 50 steps
    window: Window = field(default_factory=Window)
    first_pass: int | None = None  # examples after which they come again
    shared_auc: float | None = None  # of all workers, where there are several
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    _began: float = field(default_factory=time.perf_counter)
    _began_cpu: float = field(default_factory=time.process_time)
    _examples_before: int = 0  # the clock began

    def begin(self) -> None:
        """Rates count from here."""
        self._examples_before = self.examples
        self._began, self._began_cpu = time.perf_counter(), time.process_time()

    def add(self, loss: float, examples: int, scores: Floats | None, labels: NDArray[Any] | None) -> None:
        """One step more."""
        self.step += 1
        self.examples += examples
        self._losses.append(loss)
        self.loss = sum(self._losses) / len(self._losses)
        if scores is not None and labels is not None:
            self.window.add(scores, labels)

    def resumed(self, step: int, examples: int, losses: list[float]) -> None:
        """Goes on from there."""
        self.step, self.examples = step, examples
        self._losses.extend(losses)
        self.loss = sum(self._losses) / len(self._losses) if self._losses else float("nan")

    @property
    def losses(self) -> list[float]:
        """Those of the last steps."""
        return list(self._losses)

    @property
    def repeats(self) -> bool:
        """Whether the last examples were learned from before."""
        return self.first_pass is not None and self.examples > self.first_pass

    @property
    def auc(self) -> float:
        """Of the last examples, each scored before it was learned from; not a number after the first pass over the
        data, or where nothing is scored."""
        return float("nan") if self.repeats else self._ranked()

    @property
    def training_auc(self) -> float:
        """Of the last examples after the first pass over the data; not a number in the first."""
        return self._ranked() if self.repeats else float("nan")

    def _ranked(self) -> float:
        return self.window.auc() if self.shared_auc is None else self.shared_auc

    @property
    def wall_s(self) -> float:
        """Since the clock began."""
        return time.perf_counter() - self._began

    @property
    def examples_per_s(self) -> float:
        """Of this run."""
        return (self.examples - self._examples_before) / max(self.wall_s, 1e-9)

    @property
    def cpu_ms_per_1000(self) -> float:
        """CPU time of all threads of this process for a thousand examples."""
        done = max(self.examples - self._examples_before, 1)
        return (time.process_time() - self._began_cpu) * 1e6 / done
