"""All-reduce of gradients over the processes of one machine, through shared memory.

Each process writes its gradients to its own part, waits for the others, and sums all parts in rank order, so all get
the same bits. Two sets of parts alternate: before a part is written again, every process has passed a barrier since
it was read.

Rank 0 creates the memory, an anonymous file, and a socket per pair, and passes them over a Unix socket to processes
of the same user. Nothing has a name that could be left behind; a process that dies closes its sockets, which the
others notice.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from berth.errors import InputError, ServerError
from berth.train.rendezvous import TIMEOUT_S
from berth.train.servers.transport import listen_local, peer_user

MAX_PROCESSES = 8  # each process reads all parts, so a ring is cheaper beyond this
_HANDSHAKE_S = 30.0
_HEADER = 16  # numbers before the gradients; one cache line
_DIGEST = _HEADER - 1  # index of the digest of which weights have gradients


class ShmAllReduce:
    """The parts of all processes, as mapped by one of them."""

    def __init__(self, rank: int, peers: dict[int, socket.socket], memory_fd: int) -> None:
        self._rank = rank
        self._peers = peers
        memory = torch.from_numpy(
            np.frombuffer(mmap.mmap(memory_fd, os.fstat(memory_fd).st_size), np.float32)
        )
        self._parts = memory.view(2, len(peers) + 1, -1)
        self._turn = 0
        for peer in peers.values():
            peer.settimeout(TIMEOUT_S)

    def all_reduce(
        self, gradients: Sequence[Tensor], numbers_in: Sequence[float], weights: str = ""
    ) -> list[float]:
        """Replace each gradient by its sum over all processes; returns the sums of the numbers.

        `weights` identifies the weights of the gradients; it must be equal in all processes.
        """
        self._turn = 1 - self._turn
        parts = self._parts[self._turn]
        mine = parts[self._rank]
        mine[: len(numbers_in)] = torch.tensor(numbers_in)
        digests = parts.view(torch.int32)[:, _DIGEST]
        digests[self._rank] = _digest(gradients, weights)
        for gradient, begin in zip(gradients, _offsets(gradients), strict=True):
            mine[begin : begin + gradient.numel()].view_as(gradient).copy_(gradient)
        self._barrier()
        if bool((digests != digests[self._rank]).any()):
            raise InputError(
                "workers have gradients for different weights, which can't be summed",
                hint="make every step use every layer, whatever the batch contains",
            )
        for gradient, begin in zip(gradients, _offsets(gradients), strict=True):
            first, second, *others = (
                part.view_as(gradient) for part in parts[:, begin : begin + gradient.numel()]
            )
            torch.add(first, second, out=gradient)
            for other in others:
                gradient.add_(other)
        sums: list[float] = parts[:, : len(numbers_in)].sum(0).tolist()
        return sums

    def close(self) -> None:
        """Close the sockets."""
        for peer in self._peers.values():
            peer.close()

    def _barrier(self) -> None:
        """Wait for all processes; the last to arrive does not sleep."""
        try:
            for peer in self._peers.values():
                peer.sendall(b"\0")
            for rank, peer in self._peers.items():
                if not peer.recv(1):
                    raise ServerError(f"worker {rank} has ended")
        except OSError as error:
            raise ServerError(f"another worker does not respond: {error}") from error


def is_supported(gradient: Tensor) -> bool:
    """Return whether a gradient can be summed here: float32 on the CPU."""
    return gradient.device.type == "cpu" and gradient.dtype == torch.float32


def connect_shm_allreduce(store: Any, name: str, rank: int, count: int, numbers: int) -> ShmAllReduce | None:
    """Connect to the other processes by a key-value store; None if that is not possible.

    `numbers` is the maximum number of values. All ranks must call this, and then agree on whether all succeeded.
    """
    if not 1 < count <= MAX_PROCESSES:
        return None
    store.set(f"{name}/machine/{rank}", _machine())
    if len({bytes(store.get(f"{name}/machine/{other}")) for other in range(count)}) > 1:
        return None
    try:
        return _serve(store, name, count, numbers) if rank == 0 else _connect(store, name, rank, count)
    except OSError:
        return None


def _machine() -> str:
    """Return an id that is equal for processes that can connect by an abstract Unix socket."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')} {os.getuid()}"
    except OSError:
        return secrets.token_hex(16)


def _serve(store: Any, name: str, count: int, numbers: int) -> ShmAllReduce | None:
    listener, address = listen_local()
    token = secrets.token_bytes(16)
    store.set(name, f"{address} {token.hex()}")
    if listener is None:
        return None
    with ExitStack() as opened:
        opened.enter_context(listener)
        memory_fd = os.memfd_create("berth-sums", os.MFD_CLOEXEC)
        opened.callback(os.close, memory_fd)
        os.ftruncate(memory_fd, 2 * count * 4 * (-(-(numbers + _HEADER) // 16) * 16))
        sockets: list[dict[int, socket.socket]] = [{} for _ in range(count)]
        for one in range(count):
            for other in range(one):
                sockets[one][other], sockets[other][one] = socket.socketpair()
        for end in (end for each in sockets for end in each.values()):
            opened.enter_context(end)
        listener.settimeout(_HANDSHAKE_S)
        missing = set(range(1, count))
        while missing:
            peer_socket, _ = listener.accept()
            with peer_socket:
                peer_socket.settimeout(_HANDSHAKE_S)
                rank = _peer_rank(peer_socket, token)
                if rank in missing:
                    descriptors = [
                        memory_fd,
                        *(sockets[rank][other].fileno() for other in sorted(sockets[rank])),
                    ]
                    socket.send_fds(peer_socket, [b"\0"], descriptors)
                    missing.remove(rank)
        mine = {other: socket.socket(fileno=end.detach()) for other, end in sockets[0].items()}
        return ShmAllReduce(0, mine, memory_fd)


def _peer_rank(peer_socket: socket.socket, token: bytes) -> int:
    """Return the rank of a peer of the same user that knows the token, or -1."""
    if peer_user(peer_socket) != os.getuid():  # socket names are public on a machine
        return -1
    received = peer_socket.recv(len(token) + 1)
    known = len(received) == len(token) + 1 and secrets.compare_digest(received[:-1], token)
    return received[-1] if known else -1


def _connect(store: Any, name: str, rank: int, count: int) -> ShmAllReduce | None:
    address, _, token = bytes(store.get(name)).decode().partition(" ")
    if not address:
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.settimeout(_HANDSHAKE_S)
        server.connect("\0" + address)
        server.sendall(bytes.fromhex(token) + bytes([rank]))
        _, descriptors, _, _ = socket.recv_fds(server, 1, count)
    if not descriptors:
        return None
    others = [other for other in range(count) if other != rank]
    memory, *sockets = descriptors
    try:
        return ShmAllReduce(
            rank,
            {other: socket.socket(fileno=end) for other, end in zip(others, sockets, strict=True)},
            memory,
        )
    finally:
        os.close(memory)


def _digest(gradients: Sequence[Tensor], weights: str) -> int:
    """Return a signed 32-bit digest of the weights with gradients and their shapes."""
    text = f"{weights} {[tuple(gradient.shape) for gradient in gradients]}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little", signed=True)


def _offsets(gradients: Sequence[Tensor]) -> list[int]:
    """Return the offset of each gradient in a part."""
    begins = [_HEADER]
    for gradient in gradients[:-1]:
        begins.append(begins[-1] + gradient.numel())
    return begins[: len(gradients)]
