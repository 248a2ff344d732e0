"""One replica's part of a step: its part of every micro-batch in 1F1B order, then one update.

Gradients are those of the mean loss over the global batch; micro-batches are weighted by their number of examples.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from berth.errors import InputError
from berth.plan.objective.order import one_forward_one_backward
from berth.train.data.batch import Batch
from berth.train.devices import CPU, autocast, naming_layers, to_device
from berth.train.embedding import embeddings_of
from berth.train.learner import Learner, Loss, Scores
from berth.train.optimisers import MakeOptimiser
from berth.train.process_group import ProcessGroup
from berth.train.sparse import SparseStore
from berth.train.stages.cut import StageCut
from berth.train.stages.exchange import MicroBatch, StageExchange
from berth.zoo.layered import LayeredModel, map_tensors, tensors
from berth.zoo.products import onednn_products


class StageLearner(Learner):
    """A `Learner` of some layers of a model; replicas of the first stage get the batches."""

    def __init__(
        self,
        model: LayeredModel,
        store: SparseStore,
        process_group: ProcessGroup,
        cut: StageCut,
        *,
        micro_batches: int = 4,
        optimiser: MakeOptimiser | None = None,
        loss: Loss | None = None,
        device: torch.device = CPU,
        bf16: bool = False,
    ) -> None:
        self.whole, self.process_group, self.cut, self.micro_batches = (
            model,
            process_group,
            cut,
            micro_batches,
        )
        part = model.stage(cut.first, cut.last + 1)
        self.layers = model.names[cut.first : cut.last + 1]
        self.prefixes = [f"chain.{name}." for name in self.layers]
        tables = [layer.spec for layer in embeddings_of(model)]
        if process_group.stage == 0 or embeddings_of(part):
            store.open(tables)  # those of all stages: rank 0 saves them
        super().__init__(
            part,
            store,
            optimiser=optimiser,
            loss=loss or model.loss,
            workers=process_group.layout.readers,
            all_reduce=process_group.all_reduce,
            device=device,
            bf16=bf16,
            slowdown=cut.slowdown,
        )
        if micro_batches > 1 and any(layer.counts_clicks for layer in self.embeddings):
            raise InputError("tables with a decay policy count clicks per batch", hint="use --micro 1")
        self.is_first, self.is_last = (
            process_group.stage == 0,
            process_group.stage == process_group.layout.stages - 1,
        )
        self._exchange = StageExchange(
            process_group.channel, process_group.layout, process_group.stage, process_group.replica, device
        )
        self._in_flight: deque[tuple[Any, list[Tensor]]] = deque()  # inputs and roots of the backward pass
        self._outputs: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._clicked: list[Tensor] = []  # labels, for tables that count clicks
        self._loss_sum = 0.0

    def step(self, number: int, batch: Batch) -> tuple[float, Scores]:
        """Run the step of the first stage; loss and scores come from the last."""
        parts = list(self._parts(batch))
        self._run_micro_batches(number, parts)
        if self.is_last:
            return self._step_result()
        result = self._exchange.receive_result()
        scores: Scores = (
            (result["scores"].numpy(), result["labels"].numpy()) if "scores" in result else (None, None)
        )
        return float(result["loss"]), scores

    def follow(self, number: int) -> None:
        """Run the step of a later stage."""
        self._run_micro_batches(number, None)
        if self.is_last:
            loss, (scores, labels) = self._step_result()
            result: dict[str, Any] = {"loss": loss}
            if scores is not None and labels is not None:
                result |= {"scores": torch.from_numpy(scores), "labels": torch.from_numpy(labels)}
            self._exchange.send_result(result)

    def _run_micro_batches(self, number: int, parts: list[MicroBatch] | None) -> None:
        work = self._start_work()
        waiting = deque(parts) if parts is not None else None
        for ahead in one_forward_one_backward(
            self.micro_batches, self.process_group.stage, self.process_group.layout.stages
        ):
            if ahead:
                self._forward(waiting.popleft() if waiting is not None else None)
            else:
                self._backward()
        self.process_group.channel.flush()
        self._update(number, self._clicked.pop() if self._clicked else None, None, self._loss_sum)
        self._end_work(work)

    def _parts(self, batch: Batch) -> Iterator[MicroBatch]:
        """Yield this replica's part of each micro-batch; at the end of the data some may be empty."""
        if batch.weights is not None:
            raise InputError(
                "examples with weights can't be trained in stages",
                hint="drop `weight`, or --plan and --stages",
            )
        part = batch.part(self._workers)
        bounds = [batch.examples * part // self.micro_batches for part in range(self.micro_batches + 1)]
        for begin, end in pairwise(bounds):
            yield MicroBatch(
                _examples(batch.inputs, begin, end),
                _examples(batch.labels, begin, end),
                part * (end - begin) / max(batch.examples, 1),
                end - begin,
            )

    def _forward(self, part: MicroBatch | None) -> None:
        state = to_device(part.state, self.device) if part is not None else None
        part = part or self._exchange.receive()
        state = part.state if state is None else state
        labels, weight = part.labels, part.weight
        self.micro_batches_done += 1
        self.examples_done += part.examples
        if any(layer.counts_clicks for layer in self.embeddings):
            self._clicked.append(labels)
        started = time.thread_time()
        with (
            naming_layers(self.whole, self.device),
            autocast(self.device, self._bf16),
            onednn_products(self._onednn_layers),
        ):
            after = self.model(state)
            loss = self._loss(after, to_device(labels, self.device)) if self.is_last else None
        roots = [tensor for tensor in tensors(after) if tensor.requires_grad]
        if loss is not None:
            self._loss_sum += float(loss.detach()) * weight if weight else 0.0
            self._outputs.append(after.detach() if isinstance(after, Tensor) else after)
            self._labels.append(labels)
            roots = [loss * weight]
        self._emulate_slowdown(started)
        self._in_flight.append((state, roots))
        if not self.is_last:
            self._exchange.send(MicroBatch(after, labels, weight, part.examples))

    def _backward(self) -> None:
        state, roots = self._in_flight.popleft()
        gradients: list[Any] = [None]
        if not self.is_last:
            gradients = self._exchange.receive_gradients(roots)
        started = time.thread_time()
        pairs = [
            (root, gradient)
            for root, gradient in zip(roots, gradients, strict=True)
            if self.is_last or gradient is not None
        ]
        if pairs:
            torch.autograd.backward([root for root, _ in pairs], [gradient for _, gradient in pairs])
        self._emulate_slowdown(started)
        if not self.is_first:
            self._exchange.send_gradients([tensor.grad for tensor in tensors(state) if tensor.requires_grad])

    @property
    def boundary_copies(self) -> dict[str, dict[str, int]]:
        """Return the copies of activations and their gradients between host and device, in both directions."""
        return self._exchange.copies

    def _step_result(self) -> tuple[float, Scores]:
        loss, outputs, labels = self._loss_sum, self._outputs, self._labels
        self._loss_sum, self._outputs, self._labels = 0.0, [], []
        if not all(isinstance(part, Tensor) for part in (*outputs, *labels)):
            return loss, (None, None)
        return loss, self._scores(torch.cat(outputs), torch.cat(labels))


def _examples(state: Any, begin: int, end: int) -> Any:
    """Return some examples of a batch."""
    return map_tensors(state, lambda tensor: tensor[begin:end])
