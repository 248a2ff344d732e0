"""One connection: frames over a non-blocking socket, payloads in shared memory where both ends are on one machine.

Both sides use the same `Channel`. The shared memory is an anonymous file (memfd) passed over the Unix socket, with one
ring per direction and no name that could be left behind. The sender allocates ring space in order; the receiver reports
in its next header how far it has read. Positions only grow, so neither side writes what the other is reading. An empty
ring restarts at offset 0, which is still in the CPU caches. A payload that does not fit goes through the socket.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import secrets
import socket
import ssl
import struct
import sys
from collections import deque
from dataclasses import asdict, dataclass
from threading import Lock

import numpy as np

from berth.errors import InputError, WireError
from berth.train.servers.protocol import (
    ALIGNMENT,
    HEADER,
    MAX_HANDSHAKE_BYTES,
    Bytes,
    Flag,
    Frame,
    Header,
    Kind,
    checksum_of,
    read_header,
)


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one server."""

    host: str
    port: int
    local: str = ""  # abstract Unix socket name, which vanishes with the process; empty if there is none

    def to_json(self) -> str:
        """Return the address as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Address:
        """Parse the line that `to_json` wrote."""
        try:
            facts = json.loads(text)
            return cls(str(facts["host"]), int(facts["port"]), str(facts["local"]))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError("not a server address", where=text[:80]) from error

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def listen_tcp(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket; port 0 picks a free port."""
    try:
        return socket.create_server((host, port), backlog=64)
    except OSError as error:
        raise InputError(f"can't listen: {error.strerror}", where=f"{host}:{port}") from error


def listen_local() -> tuple[socket.socket | None, str]:
    """Return a listening abstract Unix socket and its name; (None, "") where the system has none."""
    if sys.platform != "linux":
        return None, ""
    name = f"berth-{secrets.token_hex(16)}"
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    local.bind("\0" + name)
    local.listen(64)
    return local, name


def peer_user(local: socket.socket) -> int:
    """Return the user id of the peer of a Unix socket."""
    raw = local.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1])


RING_BYTES = 32 << 20  # per direction; untouched pages take no memory


def make_memory(ring_bytes: int) -> int:
    """Return an anonymous file for two rings, sealed against resizing."""
    handle = os.memfd_create("berth-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(handle, 2 * ring_bytes)
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return handle


def map_memory(handle: int) -> tuple[Bytes, Bytes]:
    """Map the two rings of an anonymous file, client to server and back; closes the descriptor."""
    try:
        size = os.fstat(handle).st_size
        memory = np.frombuffer(mmap.mmap(handle, size), np.uint8)
    finally:
        os.close(handle)
    return memory[: size // 2], memory[size // 2 :]


class Outbox:
    """The sender's end of a ring."""

    def __init__(self, memory: Bytes) -> None:
        self.memory = memory
        self.head = 0  # the next free position
        self.tail = 0  # everything before is free

    def take(self, length: int) -> tuple[int, Bytes] | None:
        """Allocate space; returns position and memory, or None if the ring is too full."""
        size, wanted = len(self.memory), padded(length)
        at = self.head % size
        wrap = at > 0 and (self.head == self.tail or at + wanted > size)
        start = self.head + size - at if wrap else self.head
        tail = start if self.head == self.tail else self.tail
        if wanted > size or start + wanted - tail > size:
            return None
        self.head, self.tail = start + wanted, tail
        return start, self.memory[start % size :][:length]

    def free(self, position: int) -> None:
        """Free everything before a position."""
        if position > self.head:
            raise WireError("the peer acknowledged data that was never sent")
        self.tail = max(self.tail, position)


class Inbox:
    """The receiver's end of a ring; payloads may be released in any order."""

    def __init__(self, memory: Bytes) -> None:
        self.memory = memory
        self.released = 0
        self._ends: deque[int] = deque()
        self._done: set[int] = set()

    def read(self, position: int, length: int) -> tuple[Bytes, int]:
        """Return the payload at a position, and its end position."""
        size = len(self.memory)
        at, end = position % size, position + padded(length)
        if at + length > size or (self._ends and position < self._ends[-1]) or position < self.released:
            raise WireError(f"no payload of {length} bytes at ring position {position}")
        self._ends.append(end)
        return self.memory[at : at + length], end

    def release(self, end: int) -> None:
        """Release a payload."""
        self._done.add(end)
        while self._ends and self._ends[0] in self._done:
            self.released = self._ends.popleft()
            self._done.remove(self.released)


def padded(length: int) -> int:
    """Return the space that a payload takes; at least one unit, so that ends differ."""
    return max(-(-length // ALIGNMENT), 1) * ALIGNMENT


_STAGE_BYTES = 1 << 16
_RECORD_BYTES = 1 << 14  # of TLS
_IN_SOCKET_BYTES = 1024  # smaller payloads are faster through the socket
_SPARE_BUFFERS = 8
_SPARE_BYTES = 1 << 15  # smaller buffers are cheap to allocate
_WAITING = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_NOTHING = np.empty(0, np.uint8)


@dataclass(slots=True)
class PayloadBuffer:
    """Memory for an outgoing payload."""

    payload: Bytes
    ring_offset: int | None = None  # None: not in the ring


class Channel:
    """A bidirectional connection that sends and receives frames."""

    def __init__(self, peer: socket.socket, *, checked: bool = False) -> None:
        peer.setblocking(False)
        self.socket = peer
        self.checked = checked  # payloads through the socket carry a checksum
        self.max_bytes = MAX_HANDSHAKE_BYTES
        self.bytes_in = 0
        self.bytes_out = 0
        self._outbox: Outbox | None = None
        self._inbox: Inbox | None = None
        self._outgoing: deque[memoryview] = deque()
        self._lock = Lock()  # the client's flusher thread sends too
        self._is_tls = isinstance(peer, ssl.SSLSocket)
        self._staging = np.empty(_STAGE_BYTES, np.uint8)
        self._staged = 0
        self._header: Header | None = None  # of the payload being received
        self._filling = _NOTHING
        self._filled = 0
        self._spare: list[Bytes] = []

    def attach(self, outbox: Bytes, inbox: Bytes) -> None:
        """Enable shared memory for payloads."""
        self._outbox, self._inbox = Outbox(outbox), Inbox(inbox)

    @property
    def in_memory(self) -> bool:
        """Whether shared memory is attached."""
        return self._outbox is not None

    @property
    def has_outgoing(self) -> bool:
        """Whether data waits to be sent."""
        return bool(self._outgoing)

    def fileno(self) -> int:
        """Return the file descriptor, for selectors."""
        return self.socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def reserve(self, length: int) -> PayloadBuffer:
        """Return memory for a payload, in the ring if it has space."""
        if self._outbox is not None and length > _IN_SOCKET_BYTES:
            taken = self._outbox.take(length)
            if taken is not None:
                return PayloadBuffer(taken[1], taken[0])
        return PayloadBuffer(self._buffer(length))

    def send(
        self,
        kind: Kind,
        request: int,
        buffer: PayloadBuffer | None = None,
        *,
        flags: int = Flag.NONE,
        step: int = 0,
        more: bool = False,
    ) -> None:
        """Queue a frame and, unless more follows, send as much as the socket accepts."""
        payload = buffer.payload if buffer else _NOTHING
        released = self._inbox.released if self._inbox else 0
        header = Header(kind, flags, step, 0, request, len(payload), 0, released)
        inline = len(payload) > 0
        if buffer and buffer.ring_offset is not None:
            header.flags |= Flag.IN_RING
            header.ring_offset, inline = buffer.ring_offset, False
        elif self.checked and inline:
            header.flags |= Flag.CHECKED
            header.checksum = checksum_of(payload)
        self.bytes_out += HEADER.size + len(payload)
        with self._lock:
            self._outgoing.append(memoryview(header.pack()))
            if inline:
                self._outgoing.append(memoryview(payload.data))
        if not more:
            self.flush()

    def flush(self) -> bool:
        """Send as much as the socket accepts; returns whether everything is sent."""
        with self._lock:
            while self._outgoing:
                try:
                    sent = self._send_some()
                except _WAITING:
                    return False
                while sent:
                    first = self._outgoing[0]
                    if sent < len(first):
                        self._outgoing[0] = first[sent:]
                        break
                    sent -= len(first)
                    self._outgoing.popleft()
            return True

    def receive(self) -> list[Frame]:
        """Return all complete frames; raises `ConnectionError` if the peer has closed."""
        frames: list[Frame] = []
        try:
            while self._read_some(frames):
                pass
        except OSError:
            if not frames:  # deliver what arrived first; the next call raises again
                raise
        return frames

    def release(self, frame: Frame) -> None:
        """Release the payload of a frame for reuse."""
        if frame.ring_end and self._inbox is not None:
            self._inbox.release(frame.ring_end)
        else:
            self.recycle(frame.payload)

    def recycle(self, payload: Bytes) -> None:
        """Keep a buffer of `reserve` for reuse; its data must have been sent."""
        whole: Bytes = payload if payload.base is None else payload.base
        if (
            isinstance(whole, np.ndarray)
            and whole.nbytes >= _SPARE_BYTES
            and len(self._spare) < _SPARE_BUFFERS
        ):
            self._spare.append(whole)

    def _buffer(self, length: int) -> Bytes:
        for number, spare in enumerate(self._spare):
            if length <= len(spare) <= 4 * length + _SPARE_BYTES:
                return self._spare.pop(number)[:length]
        return np.empty(length, np.uint8)

    def _send_some(self) -> int:
        if self._is_tls:  # a record for header and payload; larger payloads follow without a copy
            first = self._outgoing[0]
            if len(first) <= HEADER.size and len(self._outgoing) > 1:
                return self.socket.send(b"".join((first, self._outgoing[1][: _RECORD_BYTES - len(first)])))
            return self.socket.send(first)
        return self.socket.sendmsg([self._outgoing[number] for number in range(min(len(self._outgoing), 16))])

    def _read_some(self, frames: list[Frame]) -> bool:
        """Read once; returns whether there may be more."""
        target = self._filling[self._filled :] if self._header else self._staging[self._staged :]
        try:
            if self._is_tls:
                with self._lock:  # an SSL object must not be read and written at the same time
                    count = self.socket.recv_into(target.data)
            else:
                count = self.socket.recv_into(target.data)
        except _WAITING:
            return False
        if count == 0:
            raise ConnectionResetError("the peer closed the connection")
        self.bytes_in += count
        if self._header:
            self._filled += count
            if self._filled == len(self._filling):
                self._complete(self._header, self._filling, frames)
                self._header = None
        else:
            self._staged += count
            self._parse(frames)
        return count == len(target) or self._header is not None or self._is_tls

    def _parse(self, frames: list[Frame]) -> None:
        """Split the staged bytes into frames; an incomplete payload continues in its own buffer."""
        at, stage = 0, self._staging
        while self._staged - at >= HEADER.size:
            header = read_header(stage[at : at + HEADER.size].data, self.max_bytes)
            at += HEADER.size
            if self._outbox is not None:
                self._outbox.free(header.released)
            if header.flags & Flag.IN_RING:
                self._ring_frame(header, frames)
                continue
            payload = self._buffer(header.length)
            here = min(header.length, self._staged - at)
            payload[:here] = stage[at : at + here]
            at += here
            if here < header.length:
                self._header, self._filling, self._filled = header, payload, here
                break
            self._complete(header, payload, frames)
        left = self._staged - at
        if at and left:
            stage[:left] = stage[at : at + left].copy()
        self._staged = left

    def _ring_frame(self, header: Header, frames: list[Frame]) -> None:
        if self._inbox is None:
            raise WireError("frame refers to shared memory, which is not attached")
        payload, end = self._inbox.read(header.ring_offset, header.length)
        self.bytes_in += header.length
        frames.append(Frame(header.kind, header.flags, header.step, header.request, payload, end))

    def _complete(self, header: Header, payload: Bytes, frames: list[Frame]) -> None:
        if header.flags & Flag.CHECKED and checksum_of(payload) != header.checksum:
            raise WireError("payload checksum mismatch")
        frames.append(Frame(header.kind, header.flags, header.step, header.request, payload))
