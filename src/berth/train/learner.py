"""One step of a model: forward, backward, rows pushed, dense weights moved.

All that a worker does to a batch, whoever gives it the batch and wherever the rows live.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from berth.train.data.batch import Batch
from berth.train.embedding import Embedding, embeddings_of
from berth.train.sparse import SparseStore
from berth.train.timing import PUSH, UPDATE, LayerClock

Loss = Callable[[Any, Any], Tensor]
Scores = tuple[NDArray[np.float32], NDArray[Any]] | tuple[None, None]


class Learner:
    """A model, the optimiser of its dense weights, and the store of its rows."""

    def __init__(
        self,
        model: nn.Module,
        store: SparseStore,
        *,
        optimiser: torch.optim.Optimizer | None = None,
        loss: Loss | None = None,
        workers: int = 1,
        exchange: Callable[[nn.Module, float], None] | None = None,
    ) -> None:
        self.model = model.train()
        self.store = store
        self.embeddings: list[Embedding] = embeddings_of(model)
        store.open([layer.spec for layer in self.embeddings])
        for layer in self.embeddings:
            layer.connect(store)
        self.optimiser = optimiser if optimiser is not None else adam(model)
        self._loss: Loss = loss or getattr(model, "loss", None) or click_loss
        self._workers = workers
        self.clock: LayerClock | None = None
        self.unannounced: list[str] = []  # tables whose keys the inputs do not show
        self._keys_in: list[tuple[Embedding, str]] | None = None  # not known before the first step
        self._exchange = (
            exchange  # sums dense gradients over the workers; is told this one's part of the loss
        )

    def step(self, number: int, batch: Batch) -> tuple[float, Scores]:
        """Learns from a batch; its part of the whole batch's mean loss, and its scores, are those from before."""
        clock = self.clock if self.clock is not None and self.clock.wants() else None
        output = clock.forward(batch.inputs) if clock else self.model(batch.inputs)
        loss = self._loss(output, batch.labels)
        if self._keys_in is None:
            self._keys_in = self._found(batch.inputs)
            found = {layer.spec_name for layer, _ in self._keys_in}
            self.unannounced = [layer.spec_name for layer in self.embeddings if layer.spec_name not in found]
        part = batch.part(self._workers)
        loss.backward(torch.tensor(part))
        if clock:
            clock.backward_done()
        value = part * float(loss.detach()) if batch.examples else 0.0
        self._update(number, batch.labels, clock, value)
        return value, scores_of(output, batch.labels)

    def announce(self, batch: Batch) -> None:
        """Tells the store the keys of the batch after this one, where the inputs show which they are."""
        for layer, name in self._keys_in or []:
            layer.prefetch(batch.inputs[name])

    def _found(self, inputs: Any) -> list[tuple[Embedding, str]]:
        """Which entries of the inputs are keys: those that a layer was asked with, as they are or as int64."""
        named = inputs.items() if isinstance(inputs, dict) else ()
        return [
            (layer, name)
            for layer in self.embeddings
            for name, value in named
            if isinstance(value, Tensor) and layer.asked_for(value)
        ]

    def _update(self, number: int, labels: Any, clock: LayerClock | None, loss: float = 0.0) -> None:
        """Gradients become pushes and a step of the dense optimiser."""
        for layer in self.embeddings:
            layer.push(labels if layer.counts_clicks else None)
        self.store.end_step(number)  # servers learn while the dense part does
        if clock:
            clock.done(PUSH)
        if self._exchange is not None:
            self._exchange(self.model, loss)
        if self.optimiser is not None:
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
        if clock:
            clock.done(UPDATE)
            clock.finish()


def adam(model: nn.Module, learning_rate: float = 1e-3) -> torch.optim.Optimizer | None:
    """Torch's Adam in one pass over the weights; None for a model whose weights are all rows."""
    parameters = [weights for weights in model.parameters() if weights.requires_grad]
    return torch.optim.Adam(parameters, lr=learning_rate, fused=True) if parameters else None


def click_loss(output: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of a logit for each example, or of a row of them."""
    if output.ndim == 2 and output.shape[1] > 1 and not labels.is_floating_point():
        return nn.functional.cross_entropy(output, labels)
    logits = output.view(-1) if labels.ndim == 1 else output
    return nn.functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))


def scores_of(output: Any, labels: Any) -> Scores:
    """What ranks examples by their chance of a click, where the output says so."""
    if not isinstance(output, Tensor) or not isinstance(labels, Tensor):
        return None, None
    output = output.detach()
    if output.numel() == labels.numel():
        return output.reshape(-1).numpy(), labels.reshape(-1).numpy()
    if output.ndim == 2 and output.shape[1] == 2 and labels.ndim == 1:
        return (output[:, 1] - output[:, 0]).numpy(), labels.numpy()
    return None, None
