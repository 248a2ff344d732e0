"""Point-to-point messages between stages: a JSON description and the bytes of each tensor, in one buffer.

A message is a tensor, or nested mappings and lists of tensors. The description is JSON, so received data can't run
code.
"""

from __future__ import annotations

import json
import math
from collections import deque
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from berth.errors import WireError
from berth.train.devices import hosted
from berth.train.heartbeat import waiting_for_peers
from berth.zoo.layered import tensors

_MAX_HEADER_BYTES = 1 << 24
_ALIGNMENT = 64


class StageChannel:
    """Sends messages to other ranks and receives them; counts the bytes sent."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self._in_flight: deque[tuple[Any, Tensor]] = deque()

    def send(self, receiver: int, message: Any) -> None:
        """Send without waiting for delivery: the lengths, then everything in one buffer, since every part wakes the
        receiver."""
        header = json.dumps(_describe(message)).encode()
        filled = hosted([tensor for tensor in tensors(message) if tensor.numel()])
        sizes = [tensor.numel() * tensor.element_size() for tensor in filled]
        begins = list(accumulate([_aligned(len(header)), *map(_aligned, sizes)]))
        buffer = torch.empty(begins[-1], dtype=torch.uint8)
        buffer[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        for tensor, size, begin in zip(filled, sizes, begins, strict=False):
            buffer[begin : begin + size].view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
        self._send_tensor(receiver, torch.tensor([len(header), len(buffer)]))
        self._send_tensor(receiver, buffer)

    def receive(self, sender: int) -> Any:
        """Wait for the next message of `sender`; tensors keep `requires_grad`."""
        lengths = torch.empty(2, dtype=torch.int64)
        _receive(lengths, sender)
        header_bytes, total = lengths.tolist()
        if not 0 < header_bytes <= min(_MAX_HEADER_BYTES, total):
            raise WireError(f"invalid message from rank {sender}")
        buffer = torch.empty(total, dtype=torch.uint8)
        _receive(buffer, sender)
        description = json.loads(buffer[:header_bytes].numpy().tobytes())
        return _read(description, _Reader(buffer, _aligned(header_bytes), sender))

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


class _Reader:
    """Reads the tensors of a message one after the other."""

    def __init__(self, buffer: Tensor, begin: int, sender: int) -> None:
        self._buffer, self._at, self._sender = buffer, begin, sender

    def tensor(self, shape: list[int], dtype: torch.dtype) -> Tensor:
        """Return the next tensor, which shares the memory of the message."""
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype)
        if size > len(self._buffer) - self._at:
            raise WireError(f"incomplete message from rank {self._sender}")
        part = self._buffer[self._at : self._at + size]
        self._at += _aligned(size)
        return part.view(dtype).view(shape)


def _read(description: Any, reader: _Reader) -> Any:
    if "tensor" in description:
        tensor = reader.tensor(description["shape"], getattr(torch, description["tensor"]))
        return tensor.requires_grad_(description["asks"])
    if "items" in description:
        return {key: _read(part, reader) for key, part in description["items"]}
    if "list" in description:
        return [_read(part, reader) for part in description["list"]]
    if "tuple" in description:
        return tuple(_read(part, reader) for part in description["tuple"])
    return description["value"]


def _aligned(size: int) -> int:
    """Return a size rounded up, so that tensors of every type can share one buffer."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


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
