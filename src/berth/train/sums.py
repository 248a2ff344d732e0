"""Sums of gradients over processes of one machine, through memory that all of them see.

Each writes what it has into its own part, tells the others, waits for them, and adds up all parts in the order of
ranks: so all get the same bits. A second set of parts takes turns with the first: whoever comes to write into a part
again has met everybody since it was last read.

The first of them makes the memory, an anonymous file, and a socket for each pair, and hands them out over a Unix
socket, to its own user alone. Nothing has a name that could be left behind; a process that dies closes its sockets,
and the others know at once.
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
from berth.train.rendezvous import PATIENCE_S
from berth.train.servers.address import listen_local, peer_user

MOST = 8  # processes: each reads what all have written, so beyond some a ring of messages costs less
_HANDSHAKE_S = 30.0
_TOLD = 16  # numbers beside the gradients, which then begin at a cache line
_LEARNED = _TOLD - 1  # the last of them: a digest of which weights have gradients


class SharedSums:
    """One process's access to the parts of all."""

    def __init__(self, place: int, peers: dict[int, socket.socket], handle: int) -> None:
        self._place = place
        self._peers = peers
        memory = torch.from_numpy(np.frombuffer(mmap.mmap(handle, os.fstat(handle).st_size), np.float32))
        self._parts = memory.view(2, len(peers) + 1, -1)
        self._turn = 0
        for peer in peers.values():
            peer.settimeout(PATIENCE_S)

    def add(self, gradients: Sequence[Tensor], told: Sequence[float], weights: str = "") -> list[float]:
        """Replaces each gradient by the sum over all processes, and returns the sums of the numbers.

        `weights` says which weights the gradients belong to; processes that differ in it get an error.
        """
        self._turn = 1 - self._turn
        parts = self._parts[self._turn]
        mine = parts[self._place]
        mine[: len(told)] = torch.tensor(told)
        digests = parts.view(torch.int32)[:, _LEARNED]
        digests[self._place] = _digest(gradients, weights)
        for gradient, begin in zip(gradients, _places(gradients), strict=True):
            mine[begin : begin + gradient.numel()].view_as(gradient).copy_(gradient)
        self._meet()
        if bool((digests != digests[self._place]).any()):
            raise InputError(
                "workers have gradients of different weights, which can't be summed",
                hint="let every step use every layer, whatever the batch holds",
            )
        for gradient, begin in zip(gradients, _places(gradients), strict=True):
            first, second, *others = (
                part.view_as(gradient) for part in parts[:, begin : begin + gradient.numel()]
            )
            torch.add(first, second, out=gradient)
            for other in others:
                gradient.add_(other)
        sums: list[float] = parts[:, : len(told)].sum(0).tolist()
        return sums

    def close(self) -> None:
        """Parts from the others."""
        for peer in self._peers.values():
            peer.close()

    def _meet(self) -> None:
        """Nobody leaves before all have come. Whoever comes last finds every word there, and need not sleep."""
        try:
            for peer in self._peers.values():
                peer.sendall(b"\0")
            for place, peer in self._peers.items():
                if not peer.recv(1):
                    raise ServerError(f"worker {place} is gone")
        except OSError as error:
            raise ServerError(f"another worker does not answer: {error}") from error


def fits(gradient: Tensor) -> bool:
    """Whether a sum in small floats, in the memory of the machine, is the same as anywhere else."""
    return gradient.device.type == "cpu" and gradient.dtype == torch.float32


def shared_sums(store: Any, name: str, place: int, count: int, numbers: int) -> SharedSums | None:
    """Meets the others of `count` by a store in which small facts are left; None where that is not possible.

    `numbers` is how many are added up at most. All have to ask, and then to agree on whether all got it.
    """
    if not 1 < count <= MOST:
        return None
    store.set(f"{name}/machine/{place}", _machine())
    if len({bytes(store.get(f"{name}/machine/{other}")) for other in range(count)}) > 1:
        return None
    try:
        return _hand_out(store, name, count, numbers) if place == 0 else _take(store, name, place, count)
    except OSError:
        return None


def _machine() -> str:
    """The same for processes that can reach each other by a Unix socket without a file."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')} {os.getuid()}"
    except OSError:
        return secrets.token_hex(16)


def _hand_out(store: Any, name: str, count: int, numbers: int) -> SharedSums | None:
    listener, address = listen_local()
    word = secrets.token_bytes(16)
    store.set(name, f"{address} {word.hex()}")
    if listener is None:
        return None
    with ExitStack() as opened:
        opened.enter_context(listener)
        handle = os.memfd_create("berth-sums", os.MFD_CLOEXEC)
        opened.callback(os.close, handle)
        os.ftruncate(handle, 2 * count * 4 * (-(-(numbers + _TOLD) // 16) * 16))
        ends: list[dict[int, socket.socket]] = [{} for _ in range(count)]
        for one in range(count):
            for other in range(one):
                ends[one][other], ends[other][one] = socket.socketpair()
        for end in (end for each in ends for end in each.values()):
            opened.enter_context(end)
        listener.settimeout(_HANDSHAKE_S)
        waited = set(range(1, count))
        while waited:
            guest, _ = listener.accept()
            with guest:
                guest.settimeout(_HANDSHAKE_S)
                place = _place_of(guest, word)
                if place in waited:
                    handed = [handle, *(ends[place][other].fileno() for other in sorted(ends[place]))]
                    socket.send_fds(guest, [b"\0"], handed)
                    waited.remove(place)
        mine = {other: socket.socket(fileno=end.detach()) for other, end in ends[0].items()}
        return SharedSums(0, mine, handle)


def _place_of(guest: socket.socket, word: bytes) -> int:
    """Of somebody of the same user who knows the word; others have none."""
    if peer_user(guest) != os.getuid():  # names of such sockets are no secret on a machine
        return -1
    said = guest.recv(len(word) + 1)
    known = len(said) == len(word) + 1 and secrets.compare_digest(said[:-1], word)
    return said[-1] if known else -1


def _take(store: Any, name: str, place: int, count: int) -> SharedSums | None:
    address, _, word = bytes(store.get(name)).decode().partition(" ")
    if not address:
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lead:
        lead.settimeout(_HANDSHAKE_S)
        lead.connect("\0" + address)
        lead.sendall(bytes.fromhex(word) + bytes([place]))
        _, handles, _, _ = socket.recv_fds(lead, 1, count)
    if not handles:
        return None
    others = [other for other in range(count) if other != place]
    memory, *ends = handles
    try:
        return SharedSums(
            place, {other: socket.socket(fileno=end) for other, end in zip(others, ends, strict=True)}, memory
        )
    finally:
        os.close(memory)


def _digest(gradients: Sequence[Tensor], weights: str) -> int:
    """32 bits, signed, of which weights have gradients and of the gradients' shapes."""
    text = f"{weights} {[tuple(gradient.shape) for gradient in gradients]}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little", signed=True)


def _places(gradients: Sequence[Tensor]) -> list[int]:
    """Where each begins in a part."""
    begins = [_TOLD]
    for gradient in gradients[:-1]:
        begins.append(begins[-1] + gradient.numel())
    return begins[: len(gradients)]
