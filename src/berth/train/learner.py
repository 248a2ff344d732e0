"""One training step: forward, backward, push of rows, update of dense weights."""

from __future__ import annotations

import inspect
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from berth.errors import InputError
from berth.train.data.batch import Batch
from berth.train.data.rows import PADDING
from berth.train.dense_weights import DenseWeights
from berth.train.devices import CPU, autocast, naming_layers, reporting_memory, to_device
from berth.train.embedding import Embedding, embeddings_of
from berth.train.optimisers import MakeOptimiser, optimiser_for
from berth.train.sparse import DenseStore, SparseStore
from berth.train.timing import PUSH, UPDATE, LayerClock
from berth.zoo.products import onednn_layers, onednn_products

Loss = Callable[..., Tensor]  # of output and labels, and of weights if examples have them
Scores = tuple[NDArray[np.float32], NDArray[Any]] | tuple[None, None]
_TIMED_STEPS = 1000  # the last ones


class Learner:
    """A model, the optimiser of its dense weights, and the store of its rows."""

    def __init__(
        self,
        model: nn.Module,
        store: SparseStore,
        *,
        optimiser: torch.optim.Optimizer | MakeOptimiser | None = None,
        loss: Loss | None = None,
        workers: int = 1,
        all_reduce: Callable[[nn.Module, float], None] | None = None,
        device: torch.device = CPU,  # of the dense part
        bf16: bool = False,
        slowdown: float = 1.0,  # emulates a device that is slower than a core of this machine
        dense_on_servers: bool = False,  # servers update the dense weights
    ) -> None:
        self.device, self._bf16 = device, bf16
        self.slowdown = slowdown
        self.busy_s = 0.0  # forward and backward passes
        self.micro_batches_done = 0
        self.examples_done = 0
        self.work_s: deque[float] = deque(maxlen=_TIMED_STEPS)  # time of a step without waiting for others
        self._slept_s = 0.0
        with reporting_memory(device):
            self.model = model.to(device).train()
        self._onednn_layers = onednn_layers(model, device)
        self.store = store
        self.embeddings: list[Embedding] = embeddings_of(model)
        self.optimiser = optimiser_for(model, optimiser)
        self.dense_weights: DenseWeights | None = None
        if dense_on_servers and self.optimiser is not None:
            self.dense_weights = DenseWeights(model, self.optimiser, cast("DenseStore", store))
        dense = [self.dense_weights.spec] if self.dense_weights is not None else []
        store.open([*(layer.spec for layer in self.embeddings), *dense])
        for layer in self.embeddings:
            layer.connect(store)
        self._has_next = False  # whether the next batch is known
        self._loss: Loss = loss or getattr(model, "loss", None) or click_loss
        own = getattr(model, "_loss", self._loss) if loss is None else loss  # `_loss`: of a chain
        self._takes_weights, self._requires_weights = _takes_weights(own), requires_weights(own)
        self._workers = workers
        self.clock: LayerClock | None = None
        self.tables_without_prefetch: list[str] = []  # tables whose keys are not among the inputs
        self.input_shapes: dict[str, list[int]] | None = None  # of an example; known after the first step
        self._key_inputs: list[tuple[Embedding, str, bool]] | None = None  # known after the first step
        self._all_reduce = all_reduce  # of dense gradients and the loss, over workers

    def step(self, number: int, batch: Batch) -> tuple[float, Scores]:
        """Train on a batch; returns its part of the global mean loss and its scores, from before the update."""
        clock = self.clock if self.clock is not None and self.clock.should_sample() else None
        work, started = self._start_work(), time.thread_time()
        if self.dense_weights is not None:
            self._pull_dense(self.dense_weights)
        inputs, labels = to_device((batch.inputs, batch.labels), self.device)
        with (
            naming_layers(self.model, self.device),
            autocast(self.device, self._bf16),
            onednn_products(self._onednn_layers),
        ):
            output = clock.forward(inputs) if clock else self.model(inputs)
            loss = self._weighted_loss(output, labels, batch)
        if self._key_inputs is None:
            self._key_inputs = self._find_key_inputs(batch.inputs)
            self.input_shapes = input_shapes(batch.inputs)
            found = {layer.spec_name for layer, *_ in self._key_inputs}
            self.tables_without_prefetch = [
                layer.spec_name for layer in self.embeddings if layer.spec_name not in found
            ]
        part = batch.part(self._workers)
        (loss * part).backward()  # with a gradient as argument torch would import sympy
        if clock:
            clock.backward_done()
        self._emulate_slowdown(started)
        self.micro_batches_done += 1
        self.examples_done += batch.examples
        value = part * float(loss.detach()) if batch.examples else 0.0
        self._update(number, batch.labels, clock, value)
        self._end_work(work)
        return value, self._scores(output, batch.labels)

    def prefetch(self, batch: Batch) -> None:
        """Announce the keys of the next batch to the store, where they are among the inputs."""
        self._has_next = True
        for layer, name, with_padding in self._key_inputs or []:
            keys = batch.inputs[name]
            layer.prefetch(keys if with_padding else _without_padding(keys))

    def _pull_dense(self, weights: DenseWeights) -> None:
        """Copy the weights of the servers to the model; those of the next step are requested when this one ends."""
        weights.pull()
        if self._has_next:
            weights.announce()
            self._has_next = False

    def _start_work(self) -> float:
        self._slept_s = 0.0
        return time.thread_time()

    def _end_work(self, started: float) -> None:
        """Record the CPU time of a step, and the sleep of an emulated device."""
        self.work_s.append(time.thread_time() - started + self._slept_s)

    def _emulate_slowdown(self, started: float) -> None:
        """Emulate a slower device by sleeping."""
        took = time.thread_time() - started
        self.busy_s += took * self.slowdown
        if self.slowdown > 1.0:
            self._slept_s += took * (self.slowdown - 1.0)
            time.sleep(took * (self.slowdown - 1.0))

    def _scores(self, output: Any, labels: Any) -> Scores:
        return scores_of(output, labels)

    def _weighted_loss(self, output: Any, labels: Any, batch: Batch) -> Tensor:
        weights = batch.weights
        if weights is None and not self._requires_weights:
            return self._loss(output, labels)
        if not self._takes_weights:
            raise InputError(
                "the loss of this model does not take weights of examples",
                hint="define loss(output, labels, weights), or drop `weight` from the columns",
            )
        weights = torch.ones(batch.examples) if weights is None else weights
        return self._loss(output, labels, weights.to(self.device))

    def _find_key_inputs(self, inputs: Any) -> list[tuple[Embedding, str, bool]]:
        """Return the entries of the inputs that layers used as keys, as they are or as int64, in the order of their
        look-ups, and whether that includes padding: pooling layers look up real keys only."""
        named = inputs.items() if isinstance(inputs, dict) else ()
        found: list[tuple[Embedding, str, bool]] = []
        for layer in self.embeddings:
            used: list[tuple[int, str, bool]] = []
            for name, value in named:
                if not isinstance(value, Tensor) or value.is_floating_point():
                    continue
                padding = value == PADDING
                for keys, with_padding in ((value, bool(padding.any())), (value[~padding], False)):
                    place = layer.lookup_of(keys)
                    if place is not None:
                        used.append((place, name, with_padding))
                        break
            found += [(layer, name, with_padding) for _, name, with_padding in sorted(used)]
        return found

    def _update(self, number: int, labels: Any, clock: LayerClock | None, loss: float = 0.0) -> None:
        """Push gradients of rows and step the dense optimiser."""
        for layer in self.embeddings:
            layer.push(labels if layer.counts_clicks else None)
        if self.dense_weights is not None:
            self.dense_weights.push()
        self.store.end_step(number)  # servers update rows while the dense part is updated
        if clock:
            clock.done(PUSH)
        if self._all_reduce is not None:
            self._all_reduce(self.model, loss)
        if self.optimiser is not None and self.dense_weights is None:
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
        if clock:
            clock.done(UPDATE)
            clock.finish()


def _without_padding(keys: Tensor) -> Tensor:
    padding = keys == PADDING
    return keys[~padding] if bool(padding.any()) else keys


def input_shapes(inputs: Any) -> dict[str, list[int]]:
    """Return the shape of an example, by input."""
    named = inputs.items() if isinstance(inputs, dict) else ()
    return {name: list(value.shape[1:]) for name, value in named if isinstance(value, Tensor)}


def click_loss(output: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the cross-entropy of one logit per example, or of a row of logits; that of several labels is summed.

    With weights it is their product with that of each example, over the number of examples.
    """
    kind = "mean" if weights is None and labels.ndim == 1 else "none"
    if output.ndim == 2 and output.shape[1] > 1 and labels.ndim == 1 and not labels.is_floating_point():
        losses = nn.functional.cross_entropy(output, labels, reduction=kind)
    else:
        logits = output.reshape(labels.shape)
        losses = nn.functional.binary_cross_entropy_with_logits(
            logits, labels.to(logits.dtype), reduction=kind
        )
    if losses.ndim > 1:
        losses = losses.mean(dim=1) if labels.is_floating_point() else losses.sum(dim=1)
    return (losses if weights is None else losses * weights).mean()


def _takes_weights(loss: Loss) -> bool:
    parameters = _parameters(loss)
    return len(parameters) > 2 or any(one.kind is one.VAR_POSITIONAL for one in parameters)


def requires_weights(loss: Loss) -> bool:
    """Return whether a loss has a third argument without a default."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in positional and one.default is one.empty for one in _parameters(loss)) > 2


def _parameters(loss: Loss) -> list[inspect.Parameter]:
    try:
        return list(
            inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters.values()
        )
    except ValueError:  # of a function in C
        return []


def scores_of(output: Any, labels: Any) -> Scores:
    """Return scores and labels for the AUC, if the output is a binary score; integer labels of (batch, tasks) keep
    their shape."""
    if not isinstance(output, Tensor) or not isinstance(labels, Tensor):
        return None, None
    output = output.detach()
    if labels.ndim == 2 and labels.shape[1] > 1 and not labels.is_floating_point():
        if output.shape == (*labels.shape, 2):
            output = output[..., 1] - output[..., 0]
        if output.shape != labels.shape:
            return None, None
        return output.float().cpu().numpy(), labels.numpy()
    if output.numel() == labels.numel():
        return output.reshape(-1).float().cpu().numpy(), labels.reshape(-1).numpy()
    if output.ndim == 2 and output.shape[1] == 2 and labels.ndim == 1:
        return (output[:, 1] - output[:, 0]).float().cpu().numpy(), labels.numpy()
    return None, None
