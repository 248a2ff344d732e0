"""Point-to-point messages between stages: a JSON description, then the bytes of each tensor.

A message is a tensor, or nested mappings and lists of tensors. The description is JSON, so received data can't run
code.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from berth.errors import WireError
from berth.train.heartbeat import waiting_for_peers
from berth.zoo.layered import tensors

_MAX_HEADER_BYTES = 1 << 24


class StageChannel:
    """Sends messages to other ranks and receives them; counts the bytes sent."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self._in_flight: deque[tuple[Any, Tensor]] = deque()

    def send(self, receiver: int, message: Any) -> None:
        """Send without waiting for delivery."""
        header = json.dumps(_describe(message)).encode()
        self._send_tensor(receiver, torch.tensor([len(header)]))
        self._send_tensor(receiver, torch.frombuffer(bytearray(header), dtype=torch.uint8))
        for tensor in tensors(message):
            if tensor.numel():
                self._send_tensor(receiver, tensor.detach().contiguous())

    def receive(self, sender: int) -> Any:
        """Wait for the next message of `sender`; tensors keep `requires_grad`."""
        size = torch.empty(1, dtype=torch.int64)
        _receive(size, sender)
        if not 0 < int(size) <= _MAX_HEADER_BYTES:
            raise WireError(f"invalid message from rank {sender}")
        header = torch.empty(int(size), dtype=torch.uint8)
        _receive(header, sender)
        return self._receive_value(json.loads(header.numpy().tobytes()), sender)

    def flush(self) -> None:
        """Wait until all messages are delivered."""
        with waiting_for_peers():
            while self._in_flight:
                self._in_flight.popleft()[0].wait()

    def _send_tensor(self, receiver: int, tensor: Tensor) -> None:
        self.sent_bytes += tensor.numel() * tensor.element_size()
        with waiting_for_peers():
            self._in_flight.append((dist.isend(tensor, receiver), tensor))
        while len(self._in_flight) > 1 and self._in_flight[0][0].is_completed():
            self._in_flight.popleft()

    def _receive_value(self, description: Any, sender: int) -> Any:
        if "tensor" in description:
            dtype = getattr(torch, description["tensor"])
            tensor = torch.empty(description["shape"], dtype=dtype)
            if tensor.numel():
                _receive(tensor, sender)
            return tensor.requires_grad_(description["asks"])
        if "items" in description:
            return {key: self._receive_value(part, sender) for key, part in description["items"]}
        if "list" in description:
            return [self._receive_value(part, sender) for part in description["list"]]
        if "tuple" in description:
            return tuple(self._receive_value(part, sender) for part in description["tuple"])
        return description["value"]


def _receive(tensor: Tensor, sender: int) -> None:
    with waiting_for_peers():
        dist.recv(tensor, sender)


def _describe(message: Any) -> Any:
    if isinstance(message, Tensor):
        dtype = str(message.dtype).removeprefix("torch.")
        return {"tensor": dtype, "shape": list(message.shape), "asks": message.requires_grad}
    if isinstance(message, dict):
        return {"items": [[key, _describe(part)] for key, part in message.items()]}
    if isinstance(message, tuple | list):
        return {type(message).__name__: [_describe(part) for part in message]}
    return {"value": message}
