"""One connection: frames over a socket that never blocks, payloads beside it in shared memory where there is one.

Both sides of a connection use the same class. A frame whose payload does not fit the ring goes through the
socket, so a full ring slows nobody down for ever.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from dataclasses import dataclass
from threading import Lock

import numpy as np

from berth.errors import WireError
from berth.train.servers.ring import Inbox, Outbox
from berth.train.servers.wire import (
    HEADER,
    MOST_GREETING_BYTES,
    Bytes,
    Flag,
    Frame,
    Header,
    Kind,
    checksum_of,
    read_header,
)

_STAGE_BYTES = 1 << 16
_IN_SOCKET_BYTES = 1024  # so little is quicker sent than placed
_SPARE_BUFFERS = 8
_SPARE_BYTES = 1 << 15  # smaller ones are cheap to make
_WAITING = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_NOTHING = np.empty(0, np.uint8)


@dataclass(slots=True)
class Room:
    """Memory for a payload that is about to be sent."""

    payload: Bytes
    place: int | None = None  # in the ring


class Channel:
    """Frames in and out."""

    def __init__(self, peer: socket.socket, *, checked: bool = False) -> None:
        peer.setblocking(False)
        self.socket = peer
        self.checked = checked  # whether payloads in the socket carry a checksum
        self.most_bytes = MOST_GREETING_BYTES
        self.bytes_in = 0
        self.bytes_out = 0
        self._outbox: Outbox | None = None
        self._inbox: Inbox | None = None
        self._outgoing: deque[memoryview] = deque()
        self._lock = Lock()  # a client's flusher sends too
        self._stage = np.empty(_STAGE_BYTES, np.uint8)
        self._staged = 0
        self._header: Header | None = None  # of the payload that is arriving
        self._filling = _NOTHING
        self._filled = 0
        self._spare: list[Bytes] = []

    def attach(self, outbox: Bytes, inbox: Bytes) -> None:
        """From now on, payloads may stand in shared memory."""
        self._outbox, self._inbox = Outbox(outbox), Inbox(inbox)

    @property
    def in_memory(self) -> bool:
        """Whether there is shared memory."""
        return self._outbox is not None

    @property
    def has_outgoing(self) -> bool:
        """Whether something waits for the socket."""
        return bool(self._outgoing)

    def fileno(self) -> int:
        """For selectors."""
        return self.socket.fileno()

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def reserve(self, length: int) -> Room:
        """Memory for a payload of so many bytes: in the ring if it has room."""
        if self._outbox is not None and length > _IN_SOCKET_BYTES:
            taken = self._outbox.take(length)
            if taken is not None:
                return Room(taken[1], taken[0])
        return Room(self._buffer(length))

    def send(
        self,
        kind: Kind,
        request: int,
        room: Room | None = None,
        *,
        flags: int = Flag.NONE,
        step: int = 0,
        more: bool = False,
    ) -> None:
        """Queue a frame, and send what the socket takes, unless more is about to follow."""
        payload = room.payload if room else _NOTHING
        released = self._inbox.released if self._inbox else 0
        header = Header(kind, flags, step, 0, request, len(payload), 0, released)
        inline = len(payload) > 0
        if room and room.place is not None:
            header.flags |= Flag.IN_RING
            header.place, inline = room.place, False
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
        """Send what the socket takes; whether nothing is left."""
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
        """All frames that have arrived; ConnectionError when the other side is gone."""
        frames: list[Frame] = []
        try:
            while self._read_some(frames):
                pass
        except OSError:
            if not frames:  # else they come first, and the next call finds the end again
                raise
        return frames

    def release(self, frame: Frame) -> None:
        """The payload of a frame is no longer needed: its memory is used again."""
        if frame.ring_end and self._inbox is not None:
            self._inbox.release(frame.ring_end)
        else:
            self.recycle(frame.payload)

    def recycle(self, payload: Bytes) -> None:
        """Keep a buffer that `reserve` gave, for the next one; what waits to be sent must be sent."""
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
        if isinstance(self.socket, ssl.SSLSocket):
            return self.socket.send(self._outgoing[0])
        return self.socket.sendmsg([self._outgoing[number] for number in range(min(len(self._outgoing), 16))])

    def _read_some(self, frames: list[Frame]) -> bool:
        """One read; whether more may be there."""
        target = self._filling[self._filled :] if self._header else self._stage[self._staged :]
        try:
            count = self.socket.recv_into(target.data)
        except _WAITING:
            return False
        if count == 0:
            raise ConnectionResetError("the other side has closed the connection")
        self.bytes_in += count
        if self._header:
            self._filled += count
            if self._filled == len(self._filling):
                self._arrived(self._header, self._filling, frames)
                self._header = None
        else:
            self._staged += count
            self._parse(frames)
        return count == len(target) or self._header is not None or isinstance(self.socket, ssl.SSLSocket)

    def _parse(self, frames: list[Frame]) -> None:
        """Cut what is staged into frames; a payload that is not whole goes on in a buffer of its own."""
        at, stage = 0, self._stage
        while self._staged - at >= HEADER.size:
            header = read_header(stage[at : at + HEADER.size].data, self.most_bytes)
            at += HEADER.size
            if self._outbox is not None:
                self._outbox.free(header.released)
            if header.flags & Flag.IN_RING:
                self._in_ring(header, frames)
                continue
            payload = self._buffer(header.length)
            here = min(header.length, self._staged - at)
            payload[:here] = stage[at : at + here]
            at += here
            if here < header.length:
                self._header, self._filling, self._filled = header, payload, here
                break
            self._arrived(header, payload, frames)
        left = self._staged - at
        if at and left:
            stage[:left] = stage[at : at + left].copy()
        self._staged = left

    def _in_ring(self, header: Header, frames: list[Frame]) -> None:
        if self._inbox is None:
            raise WireError("a payload is said to stand in shared memory, and there is none")
        payload, end = self._inbox.look(header.place, header.length)
        self.bytes_in += header.length
        frames.append(Frame(header.kind, header.flags, header.step, header.request, payload, end))

    def _arrived(self, header: Header, payload: Bytes, frames: list[Frame]) -> None:
        if header.flags & Flag.CHECKED and checksum_of(payload) != header.checksum:
            raise WireError("a payload was damaged on its way: its checksum is wrong")
        frames.append(Frame(header.kind, header.flags, header.step, header.request, payload))
