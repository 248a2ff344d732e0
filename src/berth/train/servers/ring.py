"""Payloads in shared memory: a ring for each direction, without a name that could be left behind.

The memory is an anonymous file (memfd) that travels over the Unix socket. The sender takes places in order; the
receiver says in its next header up to where it has read. Positions only grow, so neither side ever writes
what the other reads. When all is free the sender begins at the start of the memory again, where it is still
in the processor's caches.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import deque

import numpy as np

from berth.errors import WireError
from berth.train.servers.wire import ALIGNMENT, Bytes

RING_BYTES = 32 << 20  # of each direction; pages that are never used take no memory


def make_memory(ring_bytes: int) -> int:
    """An anonymous file for two rings, whose size nobody can change any more."""
    handle = os.memfd_create("berth-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(handle, 2 * ring_bytes)
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return handle


def map_memory(handle: int) -> tuple[Bytes, Bytes]:
    """The two rings of an anonymous file: from client to server, and back. Closes the handle."""
    try:
        size = os.fstat(handle).st_size
        memory = np.frombuffer(mmap.mmap(handle, size), np.uint8)
    finally:
        os.close(handle)
    return memory[: size // 2], memory[size // 2 :]


class Outbox:
    """The sender's side of a ring."""

    def __init__(self, memory: Bytes) -> None:
        self.memory = memory
        self.head = 0  # the next free position
        self.tail = 0  # what stands before is free again

    def take(self, length: int) -> tuple[int, Bytes] | None:
        """A position and its memory; none if the ring is too full."""
        size, wanted = len(self.memory), padded(length)
        at = self.head % size
        anew = at > 0 and (self.head == self.tail or at + wanted > size)
        start = self.head + size - at if anew else self.head
        tail = start if self.head == self.tail else self.tail
        if wanted > size or start + wanted - tail > size:
            return None
        self.head, self.tail = start + wanted, tail
        return start, self.memory[start % size :][:length]

    def free(self, position: int) -> None:
        """The receiver has read all before a position."""
        if position > self.head:
            raise WireError("the other side says it has read what was never sent")
        self.tail = max(self.tail, position)


class Inbox:
    """The receiver's side of a ring: messages may be let go in any order."""

    def __init__(self, memory: Bytes) -> None:
        self.memory = memory
        self.released = 0
        self._ends: deque[int] = deque()
        self._done: set[int] = set()

    def look(self, position: int, length: int) -> tuple[Bytes, int]:
        """The payload at a position, and the position where it ends."""
        size = len(self.memory)
        at, end = position % size, position + padded(length)
        if at + length > size or (self._ends and position < self._ends[-1]) or position < self.released:
            raise WireError(f"a payload of {length} bytes does not stand at {position} of the ring")
        self._ends.append(end)
        return self.memory[at : at + length], end

    def release(self, end: int) -> None:
        """A payload is no longer needed."""
        self._done.add(end)
        while self._ends and self._ends[0] in self._done:
            self.released = self._ends.popleft()
            self._done.remove(self.released)


def padded(length: int) -> int:
    """The room a payload takes; never none, so that ends differ."""
    return max(-(-length // ALIGNMENT), 1) * ALIGNMENT
