"""One stage's part of a step: micro-batches through its layers in the order of 1F1B, then one update.

Gradients are those of the mean loss of the batch that all lanes share, as if it had gone through in one piece: each
micro-batch weighs as much as it has examples of it.
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
from berth.train.learner import Learner, Loss, Scores, scores_of
from berth.train.sparse import SparseStore
from berth.train.stages.cut import StageCut
from berth.train.team import Team
from berth.zoo.layered import LayeredModel, map_tensors, tensors


class StageLearner(Learner):
    """A `Learner` of some layers of a model; the first stage of a lane is given the batches."""

    def __init__(
        self,
        model: LayeredModel,
        store: SparseStore,
        team: Team,
        cut: StageCut,
        *,
        micro: int = 4,
        optimiser: torch.optim.Optimizer | None = None,
        loss: Loss | None = None,
    ) -> None:
        self.whole, self.team, self.cut, self.micro = model, team, cut, micro
        part = model.stage(cut.first, cut.last + 1)
        self.layers = model.names[cut.first : cut.last + 1]
        self.prefixes = [f"chain.{name}." for name in self.layers]
        super().__init__(
            part,
            store,
            optimiser=optimiser,
            loss=loss or model.loss,
            workers=team.layout.lanes,
            exchange=team.exchange,
        )
        if micro > 1 and any(layer.counts_clicks for layer in self.embeddings):
            raise InputError("rows with a life cycle count clicks by the batch", hint="use --micro 1")
        self.is_first, self.is_last = team.stage == 0, team.stage == team.layout.stages - 1
        self._before, self._after = team.seat.rank - 1, team.seat.rank + 1
        self._kept: deque[tuple[Any, list[Tensor]]] = deque()  # inputs, and what a backward starts from
        self._outputs: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._clicked: list[Tensor] = []  # labels, for rows that count clicks
        self._loss_sum = 0.0
        self.busy_s = 0.0

    def step(self, number: int, batch: Batch) -> tuple[float, Scores]:
        """The first stage's step; loss and scores come back from the last."""
        parts = list(self._parts(batch))
        self._pass(number, parts)
        if self.is_last:
            return self._told()
        told = self.team.post.receive(self.team.layout.rank(self.team.lane, self.team.layout.stages - 1))
        scores: Scores = (
            (told["scores"].numpy(), told["labels"].numpy()) if "scores" in told else (None, None)
        )
        return float(told["loss"]), scores

    def follow(self, number: int) -> None:
        """A later stage's part of the same step."""
        self._pass(number, None)
        if self.is_last:
            loss, (scores, labels) = self._told()
            told: dict[str, Any] = {"loss": loss}
            if scores is not None and labels is not None:
                told |= {"scores": torch.from_numpy(scores), "labels": torch.from_numpy(labels)}
            self.team.post.send(self.team.layout.rank(self.team.lane, 0), told)

    def _pass(self, number: int, parts: list[tuple[Any, Any, float]] | None) -> None:
        waiting = deque(parts) if parts is not None else None
        for ahead in one_forward_one_backward(self.micro, self.team.stage, self.team.layout.stages):
            if ahead:
                self._forward(waiting.popleft() if waiting is not None else None)
            else:
                self._backward()
        self.team.post.flush()
        self._update(number, self._clicked.pop() if self._clicked else None, None, self._loss_sum)

    def _parts(self, batch: Batch) -> Iterator[tuple[Any, Any, float]]:
        """(inputs, labels, weight) of the micro-batches; at the end of the data some may be empty."""
        part = batch.part(self._workers)
        bounds = [batch.examples * part // self.micro for part in range(self.micro + 1)]
        for begin, end in pairwise(bounds):
            yield (
                _examples(batch.inputs, begin, end),
                _examples(batch.labels, begin, end),
                part * (end - begin) / max(batch.examples, 1),
            )

    def _forward(self, part: tuple[Any, Any, float] | None) -> None:
        if part is None:
            parcel = self.team.post.receive(self._before)
            state, labels, weight = parcel["state"], parcel["labels"], parcel["weight"]
        else:
            state, labels, weight = part
        if any(layer.counts_clicks for layer in self.embeddings):
            self._clicked.append(labels)
        begun = time.thread_time()
        after = self.model(state)
        roots = [tensor for tensor in tensors(after) if tensor.requires_grad]
        if self.is_last:
            loss = self._loss(after, labels)
            self._loss_sum += float(loss.detach()) * weight if weight else 0.0
            self._outputs.append(after.detach() if isinstance(after, Tensor) else after)
            self._labels.append(labels)
            roots = [loss * weight]
        self._work_slowly(begun)
        self._kept.append((state, roots))
        if not self.is_last:
            self.team.post.send(self._after, {"state": after, "labels": labels, "weight": weight})

    def _backward(self) -> None:
        state, roots = self._kept.popleft()
        gradients: list[Any] = [None]
        if not self.is_last:
            gradients = self.team.post.receive(self._after)
        begun = time.thread_time()
        pairs = [
            (root, slope)
            for root, slope in zip(roots, gradients, strict=True)
            if self.is_last or slope is not None
        ]
        if pairs:
            torch.autograd.backward([root for root, _ in pairs], [slope for _, slope in pairs])
        self._work_slowly(begun)
        if not self.is_first:
            self.team.post.send(
                self._before, [tensor.grad for tensor in tensors(state) if tensor.requires_grad]
            )

    def _work_slowly(self, begun: float) -> None:
        """An emulated device takes so many times as long as this machine's core."""
        took = time.thread_time() - begun
        self.busy_s += took * self.cut.slow_down
        if self.cut.slow_down > 1.0:
            time.sleep(took * (self.cut.slow_down - 1.0))

    def _told(self) -> tuple[float, Scores]:
        loss, outputs, labels = self._loss_sum, self._outputs, self._labels
        self._loss_sum, self._outputs, self._labels = 0.0, [], []
        if not all(isinstance(part, Tensor) for part in (*outputs, *labels)):
            return loss, (None, None)
        return loss, scores_of(torch.cat(outputs), torch.cat(labels))


def _examples(state: Any, begin: int, end: int) -> Any:
    """Some of the examples of a batch."""
    return map_tensors(state, lambda tensor: tensor[begin:end])
