"""Quality and speed of a run.

Progressive validation: every batch is scored before the model trains on it, so in the first epoch the metrics are
those of unseen examples. From the second epoch on they are training metrics.
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
WINDOW = 1 << 16  # examples of the AUC


def auc(scores: NDArray[np.floating[Any]], labels: NDArray[Any]) -> float:
    """Return the probability that a click scores above a non-click, ties counted half; NaN without both."""
    clicked = labels > 0.5
    order = np.argsort(scores)  # ties need no order: they share a rank
    ordered = scores[order]
    # ranks of equal scores are shared
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) + 1
    starts = np.append(0, ends[:-1])
    ranks = np.repeat((starts + ends + 1) / 2, ends - starts)
    positives = int(clicked.sum())
    negatives = len(scores) - positives
    if not positives or not negatives:
        return float("nan")
    above = float(ranks[clicked[order]].sum()) - positives * (positives + 1) / 2
    return above / (positives * negatives)


def best_auc(probabilities: NDArray[np.float64]) -> float:
    """Return the expected AUC of the true probabilities, the best possible."""
    ordered = np.sort(probabilities)
    below = np.cumsum(1.0 - ordered) - (1.0 - ordered)  # expected non-clicks of lower probability
    pairs = ordered.sum() * (1.0 - ordered).sum() - (ordered * (1.0 - ordered)).sum()
    return float((ordered * below).sum() / pairs)


def task_metrics(scores: NDArray[Any], labels: NDArray[Any]) -> list[dict[str, float]]:
    """Return AUC and log loss of each task, from logits and labels of shape [example, task]; none for one task."""
    if scores.ndim == 1:
        return []
    return [
        {"auc": auc(logits, clicked), "log_loss": log_loss(logits, clicked)}
        for logits, clicked in zip(scores.T, labels.T, strict=True)
    ]


def log_loss(logits: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the mean negative log-likelihood of labels; NaN without examples."""
    if not len(logits):
        return float("nan")
    exact = logits.astype(np.float64)
    return float((np.logaddexp(0.0, exact) - labels * exact).mean())


def first_task(values: NDArray[Any]) -> NDArray[Any]:
    """Return the scores or labels of the first task."""
    return values if values.ndim == 1 else values[:, 0]


class Window:
    """The last `size` scores and labels, with a column for each of several tasks."""

    def __init__(self, size: int = WINDOW) -> None:
        self.scores = np.empty(size, np.float32)
        self.labels = np.empty(size, np.float32)
        self._next = 0
        self._held = 0

    def add(self, scores: Floats, labels: NDArray[Any]) -> None:
        """Add scores; the newest overwrite the oldest."""
        size = len(self.scores)
        if scores.ndim > self.scores.ndim:
            self.scores, self.labels = np.empty((2, size, scores.shape[1]), np.float32)
        scores, labels = scores[-size:], labels[-size:]
        first = min(len(scores), size - self._next)
        for ring, new in ((self.scores, scores), (self.labels, labels)):
            ring[self._next : self._next + first] = new[:first]
            ring[: len(new) - first] = new[first:]
        self._next = (self._next + len(scores)) % size
        self._held = min(size, self._held + len(scores))

    def auc(self) -> float:
        """Return the AUC of the window, that of the first task."""
        return auc(first_task(self.scores[: self._held]), first_task(self.labels[: self._held]))

    def tasks(self) -> list[dict[str, float]]:
        """Return AUC and log loss of each of several tasks."""
        return task_metrics(self.scores[: self._held], self.labels[: self._held])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the contents, oldest first, for a checkpoint."""
        at = self._next if self._held == len(self.scores) else 0
        order = np.roll(np.arange(len(self.scores)), -at)[: self._held]
        return {"scores": self.scores[order], "labels": self.labels[order]}

    def load(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore the result of `arrays`."""
        self._next = self._held = 0
        self.add(arrays["scores"], arrays["labels"])


def join_windows(windows: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return the concatenated windows of several workers, and their lengths."""
    names = ("scores", "labels")
    filled = [window for window in windows if len(window["scores"])] or windows[:1]
    together = {name: np.concatenate([window[name] for window in filled]) for name in names}
    return {**together, "lanes": np.array([len(window["scores"]) for window in windows])}


def divide_windows(together: Mapping[str, NDArray[Any]], workers: int) -> list[dict[str, NDArray[Any]]]:
    """Returns a window per worker: the windows that were joined or, for another number N, every Nth example."""
    counts = together["lanes"] if "lanes" in together else np.array([len(together["scores"])])
    order = np.arange(len(together["scores"]))
    starts = np.cumsum(counts) - counts
    if len(counts) == workers:
        parts = [order[start : start + count] for start, count in zip(starts, counts, strict=True)]
    else:
        age = np.concatenate([np.arange(count, 0, -1) for count in counts])  # the newest of each is 1
        oldest_first = np.argsort(-age, kind="stable")
        parts = [oldest_first[worker::workers] for worker in range(workers)]
    return [{name: together[name][part] for name in ("scores", "labels")} for part in parts]


@dataclass(slots=True)
class Progress:
    """Position and metrics of a run."""

    step: int = 0
    examples: int = 0
    loss: float = float("nan")  # mean of the last 50 steps
    window: Window = field(default_factory=Window)
    first_pass: int | None = None  # examples of the first epoch
    global_auc: float | None = None  # over all workers
    global_loss: float | None = None  # over all workers, if they do not share every step
    global_tasks: list[dict[str, float]] | None = None
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    _started: float = field(default_factory=time.perf_counter)
    _started_cpu: float = field(default_factory=time.process_time)
    _examples_before: int = 0  # when timing started

    def begin(self) -> None:
        """Start timing."""
        self._examples_before = self.examples
        self._started, self._started_cpu = time.perf_counter(), time.process_time()

    def add(self, loss: float, examples: int, scores: Floats | None, labels: NDArray[Any] | None) -> None:
        """Count a step."""
        self.step += 1
        self.examples += examples
        self._losses.append(loss)
        self.loss = sum(self._losses) / len(self._losses)
        if self.global_loss is not None:
            self.loss = self.global_loss
        if scores is not None and labels is not None:
            self.window.add(scores, labels)

    def resumed(self, step: int, examples: int, losses: list[float]) -> None:
        """Continue from a checkpoint."""
        self.step, self.examples = step, examples
        self._losses.extend(losses)
        self.loss = sum(self._losses) / len(self._losses) if self._losses else float("nan")

    @property
    def losses(self) -> list[float]:
        """Return the last losses."""
        return list(self._losses)

    @property
    def repeats(self) -> bool:
        """Whether the last examples were trained on before."""
        return self.first_pass is not None and self.examples > self.first_pass

    @property
    def auc(self) -> float:
        """Return the AUC of the last examples, scored before training on them; NaN after the first epoch."""
        return float("nan") if self.repeats else self._window_auc()

    @property
    def training_auc(self) -> float:
        """Return the AUC of the last examples after the first epoch; NaN in the first."""
        return self._window_auc() if self.repeats else float("nan")

    def add_global(self, scores: NDArray[Any], labels: NDArray[Any]) -> None:
        """Record the last scores of all workers."""
        self.global_auc = auc(first_task(scores), first_task(labels))
        self.global_tasks = task_metrics(scores, labels)

    @property
    def tasks(self) -> list[dict[str, float]]:
        """Return AUC and log loss of each of several tasks, of the last examples."""
        return self.window.tasks() if self.global_tasks is None else self.global_tasks

    def _window_auc(self) -> float:
        return self.window.auc() if self.global_auc is None else self.global_auc

    @property
    def wall_s(self) -> float:
        """Return the seconds since timing started."""
        return time.perf_counter() - self._started

    @property
    def examples_here(self) -> int:
        """Return the examples since timing started."""
        return self.examples - self._examples_before

    @property
    def examples_per_s(self) -> float:
        """Return the throughput of this process's run."""
        return (self.examples - self._examples_before) / max(self.wall_s, 1e-9)

    @property
    def cpu_ms_per_1000(self) -> float:
        """Return the CPU time of this process per 1,000 examples."""
        done = max(self.examples - self._examples_before, 1)
        return (time.process_time() - self._started_cpu) * 1e6 / done
