"""Tensors on their way from one stage to the next: a short description, then the bytes of each.

What passes between layers is a tensor or a nest of mappings and lists of them. The description is JSON, so that
nothing that arrives can be more than data.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from berth.errors import WireError
from berth.train.watch import among_others
from berth.zoo.layered import tensors

_MOST_WORDS = 1 << 24  # bytes of a description


class Post:
    """What this process sends to others and gets from them; counts the bytes."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self._under_way: deque[tuple[Any, Tensor]] = deque()

    def send(self, to: int, what: Any) -> None:
        """Sends without waiting until it has arrived."""
        words = json.dumps(_described(what)).encode()
        self._post(to, torch.tensor([len(words)]))
        self._post(to, torch.frombuffer(bytearray(words), dtype=torch.uint8))
        for tensor in tensors(what):
            if tensor.numel():
                self._post(to, tensor.detach().contiguous())

    def receive(self, sender: int) -> Any:
        """Waits for the next that `sender` sends; what asked for a gradient there asks here."""
        size = torch.empty(1, dtype=torch.int64)
        _receive(size, sender)
        if not 0 < int(size) <= _MOST_WORDS:
            raise WireError(f"rank {sender} sent what is not a parcel")
        words = torch.empty(int(size), dtype=torch.uint8)
        _receive(words, sender)
        return self._filled(json.loads(words.numpy().tobytes()), sender)

    def flush(self) -> None:
        """Waits until all has arrived."""
        with among_others():
            while self._under_way:
                self._under_way.popleft()[0].wait()

    def _post(self, to: int, tensor: Tensor) -> None:
        self.sent_bytes += tensor.numel() * tensor.element_size()
        with among_others():
            self._under_way.append((dist.isend(tensor, to), tensor))
        while len(self._under_way) > 1 and self._under_way[0][0].is_completed():
            self._under_way.popleft()

    def _filled(self, told: Any, sender: int) -> Any:
        if "tensor" in told:
            dtype = getattr(torch, told["tensor"])
            tensor = torch.empty(told["shape"], dtype=dtype)
            if tensor.numel():
                _receive(tensor, sender)
            return tensor.requires_grad_(told["asks"])
        if "items" in told:
            return {key: self._filled(part, sender) for key, part in told["items"]}
        if "list" in told:
            return [self._filled(part, sender) for part in told["list"]]
        if "tuple" in told:
            return tuple(self._filled(part, sender) for part in told["tuple"])
        return told["value"]


def _receive(tensor: Tensor, sender: int) -> None:
    with among_others():
        dist.recv(tensor, sender)


def _described(what: Any) -> Any:
    if isinstance(what, Tensor):
        dtype = str(what.dtype).removeprefix("torch.")
        return {"tensor": dtype, "shape": list(what.shape), "asks": what.requires_grad}
    if isinstance(what, dict):
        return {"items": [[key, _described(part)] for key, part in what.items()]}
    if isinstance(what, tuple | list):
        return {type(what).__name__: [_described(part) for part in what]}
    return {"value": what}
