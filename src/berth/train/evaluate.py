"""Score held-out data: AUC, log loss and calibration; and the best evaluation of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from berth.errors import InputError
from berth.train.data import Batch, BatchSource, Share
from berth.train.devices import CPU, autocast, naming_layers, to_device
from berth.train.learner import Loss, Scores, click_loss, requires_weights, scores_of
from berth.train.metrics import auc, first_task, log_loss, task_metrics
from berth.train.options import Metric
from berth.zoo.layered import map_tensors

_HELD_OUT = 1 << 40  # examples of a generated stream before those that are held out
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics of held-out examples. Those of clicks are NaN if labels are not 0 or 1, or scores not one logit each."""

    examples: int
    loss: float  # mean of the model's loss
    auc: float = NAN
    log_loss: float = NAN
    mean_prediction: float = NAN
    click_rate: float = NAN  # observed
    step: int = 0  # after which the model was evaluated
    tasks: list[dict[str, float]] = field(default_factory=list)  # AUC and log loss of each of several labels

    @property
    def calibration(self) -> float:
        """Return the mean prediction over the observed rate of clicks: 1 is right, more is too optimistic."""
        return self.mean_prediction / self.click_rate if self.click_rate else NAN

    def __str__(self) -> str:
        if math.isnan(self.auc):
            return f"held-out loss {self.loss:.4f}"
        calibration = f", calibration {self.calibration:.3f}" if math.isfinite(self.calibration) else ""
        others = "".join(
            f"; task {number} AUC {one['auc']:.4f}" for number, one in enumerate(self.tasks[1:], 2)
        )
        return f"held-out AUC {self.auc:.4f}, log loss {self.log_loss:.4f}{calibration}{others}"

    def to_json(self) -> dict[str, Any]:
        """Return the metrics as JSON values; NaN is null."""
        values = {**asdict(self), "calibration": self.calibration}
        return {**_nulls(values), "tasks": [_nulls(task) for task in self.tasks]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Evaluation:
        """Return what `to_json` wrote."""
        values = _numbers(document)
        del values["calibration"]
        return cls(**{**values, "tasks": [_numbers(task) for task in document.get("tasks", ())]})


def _nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in values.items()}


def _numbers(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: NAN if value is None else value for name, value in document.items()}


@dataclass(slots=True)
class ScoredExamples:
    """Scores, labels and losses of the examples of some batches."""

    scores: list[NDArray[np.float32]] = field(default_factory=list)
    labels: list[NDArray[Any]] = field(default_factory=list)
    loss_sum: float = 0.0
    examples: int = 0

    def add(self, scores: Scores, loss: float, examples: int) -> None:
        """Add a batch."""
        if scores[0] is not None and scores[1] is not None:
            self.scores.append(scores[0])
            self.labels.append(scores[1])
        self.loss_sum += loss * examples
        self.examples += examples

    def join(self, other: ScoredExamples) -> None:
        """Add the examples that another process scored."""
        self.scores += other.scores
        self.labels += other.labels
        self.loss_sum += other.loss_sum
        self.examples += other.examples

    def message(self) -> dict[str, Any]:
        """Return the contents for another process."""
        scores, labels = _joined(self.scores), _joined(self.labels)
        arrays = {"scores": torch.from_numpy(scores), "labels": torch.from_numpy(labels)}
        return {**arrays, "loss_sum": self.loss_sum, "examples": self.examples}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> ScoredExamples:
        """Return the contents of a message."""
        scores, labels = message["scores"].numpy(), message["labels"].numpy()
        return cls([scores], [labels], float(message["loss_sum"]), int(message["examples"]))

    def evaluation(self, step: int = 0) -> Evaluation:
        """Return the metrics."""
        if not self.examples:
            raise InputError("the data to evaluate on has no examples")
        loss = self.loss_sum / self.examples
        scores, labels = _joined(self.scores), _joined(self.labels)
        if not len(scores) or not ((labels == 0) | (labels == 1)).all():
            return Evaluation(self.examples, loss, step=step)
        tasks = task_metrics(scores, labels)
        scores, labels = first_task(scores), first_task(labels)
        return Evaluation(
            self.examples,
            loss,
            auc(scores, labels),
            log_loss(scores, labels),
            float(probabilities(scores).mean()),
            float(labels.mean(dtype=np.float64)),
            step,
            tasks,
        )


@dataclass(slots=True)
class Evaluations:
    """When a run is evaluated, its best evaluation, and how many were not better since."""

    data: BatchSource
    every: int | None = None  # steps; None: at the end only
    metric: Metric | None = None  # of the best; None: the AUC, or the loss if there is none
    patience: int | None = None
    keeps_best: bool = False  # a checkpoint is kept for the best
    last: Evaluation | None = None
    best: Evaluation | None = None
    worse: int = 0  # evaluations since the best

    def due(self, step: int) -> bool:
        """Return whether the run is evaluated after this step, other than at its end."""
        return self.every is not None and step % self.every == 0

    def add(self, found: Evaluation) -> bool:
        """Record an evaluation; returns whether it is the best. One at the end of the run uses up no patience."""
        self.last = found
        if self.best is None or self._value(found) > self._value(self.best):
            self.best, self.worse = found, 0
            return True
        self.worse += self.due(found.step)
        return False

    @property
    def is_exhausted(self) -> bool:
        """Whether the run should stop early."""
        return self.patience is not None and self.worse >= self.patience

    @property
    def protected_step(self) -> int | None:
        """Return the step whose checkpoint is kept because it is the best."""
        return self.best.step if self.keeps_best and self.best is not None else None

    def to_json(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        last, best = (one and one.to_json() for one in (self.last, self.best))
        return {"last": last, "best": best, "worse": self.worse, "kept": self.protected_step}

    def load(self, document: Mapping[str, Any]) -> None:
        """Restore the state."""
        self.last, self.best = (
            Evaluation.from_json(document[name]) if document[name] else None for name in ("last", "best")
        )
        self.worse = int(document["worse"])

    def _value(self, one: Evaluation) -> float:
        by_auc = self.metric == "auc" or (self.metric is None and not math.isnan(one.auc))
        if self.metric == "auc" and math.isnan(one.auc):
            raise InputError(
                "the held-out data has no AUC: it needs one logit per example, clicks and non-clicks",
                hint="use the loss: --best loss",
            )
        return one.auc if by_auc else -one.loss


class HeldOut:
    """The first examples of a generated stream that no run trains on: those after the first 2 ** 40."""

    def __init__(self, source: BatchSource, examples: int) -> None:
        self.source, self.examples = source, examples

    def describe(self) -> Mapping[str, Any]:
        """Return the stream and the number of examples."""
        return {"kind": "held out", "of": dict(self.source.describe()), "examples": self.examples}

    def batches(self, batch: int, step: int, share: Share, seed: int) -> Iterator[Batch]:
        """Yield batches; the last may be smaller."""
        stream = self.source.batches(batch, _HELD_OUT // batch + step, share, seed)
        for begin in range(step * batch, self.examples, batch):
            yield _first_rows(next(stream), share, min(batch, self.examples - begin))

    def position(self, step: int) -> Mapping[str, Any]:
        """Return nothing: any step can be generated."""
        return {}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Do nothing."""


def score(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    loss: Loss | None = None,
    device: torch.device = CPU,
    bf16: bool = False,
) -> ScoredExamples:
    """Score batches without changing the model, its rows or the random state; examples have equal weights."""
    found = ScoredExamples()
    measured: Loss = loss or getattr(model, "loss", None) or click_loss
    weighted = requires_weights(getattr(model, "_loss", measured) if loss is None else loss)
    with evaluating(model):
        for batch in batches:
            if batch.examples:
                output, labels = forward(model, batch, device, bf16)
                ones = [torch.ones(batch.examples, device=device)] if weighted else []
                value = float(measured(output, labels, *ones))
                found.add(scores_of(output, batch.labels), value, batch.examples)
    return found


def forward(
    model: nn.Module, batch: Batch, device: torch.device = CPU, bf16: bool = False
) -> tuple[Any, Any]:
    """Return the model's output for a batch, and the labels on its device."""
    inputs, labels = to_device((batch.inputs, batch.labels), device)
    with naming_layers(model, device), autocast(device, bf16):
        return model(inputs), labels


def predict(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    raw: bool = False,
    device: torch.device = CPU,
    bf16: bool = False,
) -> Iterator[tuple[Batch, NDArray[Any]]]:
    """Yield each batch with the probability of a click for its examples; with `raw`, with the model's output.

    Several labels have a probability each, (batch, tasks).
    """
    for batch in batches:
        with evaluating(model):
            output = forward(model, batch, device, bf16)[0]
        if not isinstance(output, torch.Tensor):
            raise InputError(f"the model returns a {type(output).__name__}, which is not a prediction")
        values = output.float().cpu().numpy()
        if not raw:
            tasks = getattr(batch.labels, "shape", ())[1:]
            values = values.reshape(-1, *tasks) if values.shape[1:] == tasks else _logits(values)
        yield batch, values if raw else probabilities(values)


def _logits(output: NDArray[Any]) -> NDArray[Any]:
    if output.ndim > 1 and output.shape[-1] == 2:
        return np.asarray(output[..., 1] - output[..., 0])
    if output.ndim == 1 or (output.ndim == 2 and output.shape[1] == 1):
        return output.reshape(-1)
    raise InputError(
        f"the model returns {list(output.shape[1:])} numbers per example, not a logit",
        hint="in Python, predict(data, raw=True) returns them",
    )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode without gradients, and restore the mode of every layer and the random state."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def probabilities(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return the probability of a click for each logit."""
    return np.exp(-np.logaddexp(0.0, -logits.astype(np.float64)))


def _first_rows(batch: Batch, share: Share, whole: int) -> Batch:
    rows = share.of(whole)
    inputs, labels = (
        map_tensors(part, lambda tensor: tensor[:rows]) for part in (batch.inputs, batch.labels)
    )
    return Batch(inputs, labels, rows, whole)


def _joined(parts: list[NDArray[Any]]) -> NDArray[np.float32]:
    filled = [part for part in parts if len(part)]
    return np.concatenate(filled).astype(np.float32) if filled else np.empty(0, np.float32)
