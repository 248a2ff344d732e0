"""The exchange of micro-batches between the replicas of two stages, whose numbers may differ.

Both sides divide a micro-batch into as many equal shares as the least common multiple of their numbers. Each sender
and each receiver has consecutive shares; where they overlap, that piece of the sender's examples is one message. Which
replicas exchange messages depends on the numbers only. With equal numbers nothing is cut or joined.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from berth.errors import InputError
from berth.train.devices import CPU, crossing_bytes, to_device_at_once
from berth.train.stages.cut import Layout
from berth.train.stages.p2p import StageChannel
from berth.zoo.layered import map_tensors, tensors

Gradients = list[Tensor | None]


@dataclass(frozen=True, slots=True)
class Piece:
    """The examples that one sender has for one receiver: shares `first` to `after` (excluded) of the sender's `of`."""

    sender: int
    receiver: int
    first: int = 0
    after: int = 1
    of: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether the sender has nothing for other receivers."""
        return self.after - self.first == self.of

    def rows(self, examples: int) -> slice:
        """Return the rows of the piece in the sender's examples."""
        return slice(examples * self.first // self.of, examples * self.after // self.of)


def pieces(senders: int, receivers: int) -> list[Piece]:
    """Return the messages from some replicas to others, by sender and receiver."""
    shares = math.lcm(senders, receivers)
    each, wanted = shares // senders, shares // receivers
    found = []
    for sender in range(senders):
        for receiver in range(receivers):
            low = max(sender * each, receiver * wanted)
            high = min((sender + 1) * each, (receiver + 1) * wanted)
            if low < high:
                found.append(Piece(sender, receiver, low - sender * each, high - sender * each, each))
    return found


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A part of a micro-batch: what the next layer takes, labels, and the weight in the mean over the global batch."""

    state: Any
    labels: Any
    weight: float
    examples: int

    def part(self, piece: Piece) -> MicroBatch:
        """Return the examples of a piece."""
        if piece.is_whole:
            return self
        rows = piece.rows(self.examples)
        count = rows.stop - rows.start
        for tensor in (*tensors(self.state), *tensors(self.labels)):
            if not tensor.ndim or tensor.shape[0] != self.examples:
                raise InputError(
                    f"a tensor of shape {tuple(tensor.shape)} between two stages has no row for each of"
                    f" {self.examples} examples, so it can't be divided among replicas",
                    hint="give both stages the same number of replicas, or split the model elsewhere",
                )
        state, labels = (map_tensors(one, lambda tensor: tensor[rows]) for one in (self.state, self.labels))
        return MicroBatch(state, labels, self.weight * count / max(self.examples, 1), count)


class StageExchange:
    """What one replica sends to the neighbouring stages, and receives from them."""

    def __init__(
        self,
        channel: StageChannel,
        layout: Layout,
        stage: int,
        replica: int,
        device: torch.device = CPU,
    ) -> None:
        self._channel, self._layout, self._stage, self._device = channel, layout, stage, device
        self.copies = {name: {"count": 0, "bytes": 0} for name in ("to_device", "to_host")}
        self._replica = replica
        counts = layout.replicas
        self._incoming = _of_receiver(pieces(counts[stage - 1], counts[stage]), replica) if stage else []
        last = stage + 1 == layout.stages
        self._outgoing = [] if last else _of_sender(pieces(counts[stage], counts[stage + 1]), replica)
        # examples of each incoming piece, by micro-batch in flight
        self._received: deque[list[int]] = deque()
        self._sent: deque[int] = deque()  # examples, by micro-batch in flight

    def send(self, batch: MicroBatch) -> None:
        """Send a micro-batch to the next stage."""
        self._sent.append(batch.examples)
        for piece in self._outgoing:
            part = batch.part(piece)
            self._count("to_host", crossing_bytes((part.state, part.labels)))
            self._channel.send(
                self._layout.rank(self._stage + 1, piece.receiver),
                {
                    "state": part.state,
                    "labels": part.labels,
                    "weight": part.weight,
                    "examples": part.examples,
                },
            )

    def receive(self) -> MicroBatch:
        """Return the next micro-batch of the stage before."""
        parts = [
            self._arrived(
                MicroBatch(**self._channel.receive(self._layout.rank(self._stage - 1, piece.sender)))
            )
            for piece in self._incoming
        ]
        self._received.append([part.examples for part in parts])
        if len(parts) == 1:
            return parts[0]
        state, labels = (_join([getattr(part, name) for part in parts]) for name in ("state", "labels"))
        return MicroBatch(
            state, labels, sum(part.weight for part in parts), sum(part.examples for part in parts)
        )

    def send_gradients(self, gradients: Gradients) -> None:
        """Send the gradients of the oldest received micro-batch to the stage before."""
        begin, counts = 0, self._received.popleft()
        for piece, count in zip(self._incoming, counts, strict=True):
            part = (
                gradients
                if len(counts) == 1
                else [None if one is None else one[begin : begin + count] for one in gradients]
            )
            self._count("to_host", crossing_bytes(part))
            self._channel.send(self._layout.rank(self._stage - 1, piece.sender), part)
            begin += count

    def receive_gradients(self, roots: Sequence[Tensor]) -> Gradients:
        """Return the gradients of the oldest sent micro-batch; `roots` are its tensors that need one."""
        examples = self._sent.popleft()
        parts: list[Gradients] = [
            self._moved(self._channel.receive(self._layout.rank(self._stage + 1, piece.receiver)))
            for piece in self._outgoing
        ]
        if len(parts) == 1:
            return parts[0]
        return [
            _join_gradients(root, [part[number] for part in parts], self._outgoing, examples)
            for number, root in enumerate(roots)
        ]

    def send_result(self, result: dict[str, Any]) -> None:
        """Send loss and scores from the last stage to the first; the loss goes to one replica only."""
        for number, piece in enumerate(_of_sender(self._result_pieces(), self._replica)):
            message: dict[str, Any] = {"loss": 0.0 if number else result["loss"]}
            for name in ("scores", "labels"):
                if name in result:
                    message[name] = result[name][piece.rows(len(result[name]))]
            self._channel.send(self._layout.rank(0, piece.receiver), message)

    def receive_result(self) -> dict[str, Any]:
        """Return this replica's part of loss and scores."""
        results = [
            self._channel.receive(self._layout.rank(self._layout.stages - 1, piece.sender))
            for piece in _of_receiver(self._result_pieces(), self._replica)
        ]
        joined: dict[str, Any] = {"loss": sum(result["loss"] for result in results)}
        if all("scores" in result for result in results):
            for name in ("scores", "labels"):
                joined[name] = torch.cat([result[name] for result in results])
        return joined

    def _arrived(self, part: MicroBatch) -> MicroBatch:
        """Return a received part with its state on the device; labels stay in host memory."""
        return replace(part, state=self._moved(part.state))

    def _moved(self, state: Any) -> Any:
        if self._device.type != "cpu":
            self._count("to_device", sum(part.numel() * part.element_size() for part in tensors(state)))
        return to_device_at_once(state, self._device)

    def _count(self, direction: str, size: int) -> None:
        """Count a copy between host and device, if there is one."""
        self.copies[direction]["count"] += size > 0
        self.copies[direction]["bytes"] += size

    def _result_pieces(self) -> list[Piece]:
        return pieces(self._layout.replicas[-1], self._layout.replicas[0])


def _of_sender(found: list[Piece], replica: int) -> list[Piece]:
    return [piece for piece in found if piece.sender == replica]


def _of_receiver(found: list[Piece], replica: int) -> list[Piece]:
    return [piece for piece in found if piece.receiver == replica]


def _join(parts: list[Any]) -> Any:
    """Return received parts as one: tensors are joined by examples, other values are those of the first part."""
    matching = zip(*(tensors(part) for part in parts), strict=True)
    return map_tensors(parts[0], lambda _: _concatenate(next(matching)))


def _concatenate(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach() for part in parts]).requires_grad_(parts[0].requires_grad)


def _join_gradients(
    root: Tensor, parts: Sequence[Tensor | None], outgoing: Sequence[Piece], examples: int
) -> Tensor | None:
    """Return the gradient of a tensor from those of its pieces; a piece that was not used has zeros."""
    if all(part is None for part in parts):
        return None
    return torch.cat(
        [
            torch.zeros_like(root[piece.rows(examples)]) if part is None else part
            for part, piece in zip(parts, outgoing, strict=True)
        ]
    )
