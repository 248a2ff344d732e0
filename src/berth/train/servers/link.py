"""A worker's connection to one server: requests are numbered, and none is lost or done twice.

Over TCP every request is kept until it is answered; when the connection breaks it is made anew and they are sent
again. On the same machine a broken connection means that the server is gone: its tables are, too.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from berth.errors import BerthError, RefusedError, ServerError, WireError
from berth.train.servers.address import Address, tune
from berth.train.servers.channel import Channel, Room
from berth.train.servers.greet import Greeting, greet
from berth.train.servers.messages import SILENT, error_of
from berth.train.servers.ring import map_memory
from berth.train.servers.secret import Secret
from berth.train.servers.wire import MOST_BYTES, Array, Flag, Frame, Kind, Layout, read_json

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_SOCKET_BYTES = 4 << 20
_MOST_FRUITLESS = 16


@dataclass(frozen=True, slots=True)
class Manners:
    """How a worker deals with its servers."""

    shared: bool = True  # shared memory where the server is on this machine
    patience_s: float = 20.0  # for a server that is not heard of, beyond what it may itself wait for others
    in_flight: int = 8  # pushes that are not yet confirmed
    tls: ssl.SSLContext | None = None


@dataclass(slots=True)
class Sent:
    """A request without an answer."""

    kind: Kind
    flags: int
    step: int
    room: Room | None


class Link:
    """Requests to one server, and its answers."""

    def __init__(self, address: Address, greeting: Greeting, secret: Secret, manners: Manners) -> None:
        self.address = address
        self.greeting = greeting
        self.name = f"server {greeting.index} ({address})"
        self.unanswered: dict[int, Sent] = {}
        self.answers: dict[int, Frame] = {}
        self.retries = 0
        self._secret = secret
        self._manners = manners
        self._last = 0  # request
        self._bytes = (0, 0)  # of connections that broke
        self._fruitless = 0  # connections since the last answer
        self._held: int | None = None  # a push that is not sent yet
        self._told: BerthError | None = None  # by the server, about a push
        self.facts: dict[str, object] = {}
        self.channel = self._connect(time.monotonic() + manners.patience_s)

    def fileno(self) -> int:
        """For select."""
        return self.channel.fileno()

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Received and sent."""
        return self._bytes[0] + self.channel.bytes_in, self._bytes[1] + self.channel.bytes_out

    @property
    def pushes_in_flight(self) -> int:
        """How many pushes the server has not confirmed."""
        return sum(sent.kind in SILENT for sent in self.unanswered.values())

    def ask(
        self,
        kind: Kind,
        layout: Layout | None = None,
        fill: Callable[[list[Array]], None] | None = None,
        *,
        flags: int = Flag.NONE,
        step: int = 0,
    ) -> int:
        """Send a request whose arrays `fill` writes in place; its number."""
        self._raise_if_told()
        room = None
        if layout is not None and fill is not None:
            room = self.channel.reserve(layout.length)
            fill(layout.views(room.payload))
        self._last += 1
        if kind in SILENT and 2 * (self.pushes_in_flight + 1) >= self._manners.in_flight:
            flags |= Flag.CONFIRM
        held, self._held = self._held, None
        self.unanswered[self._last] = Sent(kind, flags, step, room)
        in_ring = room is not None and room.place is not None
        if kind == Kind.PUSH and in_ring and not flags & Flag.END_STEP:
            self._held = self._last  # its header alone is to be sent: perhaps with the end of the step
        self._send(held, self._last if self._held is None else None)
        return self._last

    def end_step(self, step: int, *, more: bool = False) -> None:
        """Say that this worker's step is over: with the last push, if it is still here, and what follows it."""
        if self._held is None:
            self.ask(Kind.PUSH, flags=Flag.END_STEP, step=step)
            return
        self.unanswered[self._held].flags |= Flag.END_STEP
        if not more:
            self.send_held()

    def send_held(self) -> None:
        """Send what is held back."""
        held, self._held = self._held, None
        self._send(held)

    def _send(self, *numbers: int | None) -> None:
        """Send requests in one go."""
        wanted = [number for number in numbers if number is not None]
        try:
            for number in wanted:
                sent, more = self.unanswered[number], number != wanted[-1]
                self.channel.send(sent.kind, number, sent.room, flags=sent.flags, step=sent.step, more=more)
        except OSError as error:
            self._mend(error)

    def read(self) -> None:
        """Take what has arrived."""
        try:
            self.channel.flush()
            frames = self.channel.receive()
        except (OSError, WireError) as error:
            self._mend(error)
            return
        for frame in frames:
            self._sort(frame)

    def take(self, number: int) -> Frame:
        """The answer to a request, which has arrived."""
        frame = self.answers.pop(number)
        if frame.kind == Kind.ERROR:
            raise self._named(read_json(frame.arrays()[0]))
        return frame

    def release(self, frame: Frame) -> None:
        """An answer has been read."""
        self.channel.release(frame)

    def close(self) -> None:
        """Hang up."""
        self.channel.close()

    def _sort(self, frame: Frame) -> None:
        if frame.request == 0 and frame.kind == Kind.ERROR:
            self._hung_up(self._named(read_json(frame.arrays()[0])))
            return
        self._fruitless = 0
        self._confirmed(frame.request)
        sent = self.unanswered.pop(frame.request, None)
        if sent is None:
            self.release(frame)  # it was answered before, over the connection that broke
            return
        self._recycle(sent)
        if sent.kind in SILENT:
            if frame.kind == Kind.ERROR:
                self._told = self._named(read_json(frame.arrays()[0]))
            self.release(frame)
        else:
            self.answers[frame.request] = frame

    def _confirmed(self, request: int) -> None:
        """Requests are done in order: an answer tells that all pushes before it are done."""
        done = [
            number for number, sent in self.unanswered.items() if number < request and sent.kind in SILENT
        ]
        for number in done:
            self._recycle(self.unanswered.pop(number))

    def _recycle(self, sent: Sent) -> None:
        if sent.room is not None and sent.room.place is None:
            self.channel.recycle(sent.room.payload)

    def _raise_if_told(self) -> None:
        if self._told is not None:
            told, self._told = self._told, None
            raise told

    def _named(self, facts: dict[str, str]) -> BerthError:
        return error_of({**facts, "what": f"{self.name}: {facts.get('what')}"})

    def _hung_up(self, error: BerthError) -> None:
        """The server has said why it hangs up: bytes that were damaged are sent again."""
        if not isinstance(error, WireError):
            raise error
        self._mend(error)

    def _mend(self, error: Exception) -> None:
        """Connect anew and send again what was not answered."""
        if self.channel.in_memory or self.channel.socket.family == socket.AF_UNIX:
            raise ServerError(f"{self.name} is gone, and its rows with it: {_reason(error)}") from error
        instance = self.facts["instance"]
        while not self._is_mended(instance):
            self._fruitless += 1
            if self._fruitless > _MOST_FRUITLESS:
                raise ServerError(
                    f"{self.name}: connections break again and again: {_reason(error)}"
                ) from error

    def _is_mended(self, instance: object) -> bool:
        self._bytes, self.retries = self.bytes_moved, self.retries + 1
        self.channel.close()
        self.channel = self._connect(time.monotonic() + self._manners.patience_s)
        if self.facts["instance"] != instance:
            raise ServerError(f"{self.name} has started anew, and has lost its rows")
        try:
            for number, sent in self.unanswered.items():
                self.channel.send(sent.kind, number, sent.room, flags=sent.flags | Flag.AGAIN, step=sent.step)
        except OSError:
            return False
        return True

    def _connect(self, deadline_s: float) -> Channel:
        """Try until the deadline, with pauses that grow; nobody listening there is an answer."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return self._try(deadline_s)
            except ConnectionRefusedError as error:
                raise ServerError(f"{self.name} is gone: nobody listens there") from error
            except OSError as error:
                if time.monotonic() + pause_s > deadline_s:
                    raise ServerError(
                        f"{self.name} can't be reached within {self._manners.patience_s:g} s: {_reason(error)}"
                    ) from error
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # so that not all workers come at once
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _try(self, deadline_s: float) -> Channel:
        peer, local = self._dial(deadline_s)
        try:
            self.facts = greet(peer, self.greeting, self._secret, deadline_s)
            channel = Channel(peer, checked=not local and self._manners.tls is None)
            channel.most_bytes = MOST_BYTES
            if self.facts["shared"]:
                peer.setblocking(True)
                _, handles, _, _ = socket.recv_fds(peer, 1, 1)
                if not handles:
                    raise RefusedError(f"{self.name} promised shared memory and gave none")
                to_server, to_client = map_memory(handles[0])
                channel.attach(to_server, to_client)
                peer.setblocking(False)
        except BaseException:
            peer.close()
            raise
        return channel

    def _dial(self, deadline_s: float) -> tuple[socket.socket, bool]:
        """By the Unix socket if the server is on this machine, else by TCP."""
        if self.greeting.shared and self.address.local:
            local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with contextlib.suppress(OSError):
                local.connect("\0" + self.address.local)
                return local, True
            local.close()
        limit_s = max(deadline_s - time.monotonic(), 0.001)
        peer = socket.create_connection((self.address.host, self.address.port), timeout=limit_s)
        tune(peer)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        tls = self._manners.tls
        return (tls.wrap_socket(peer) if tls else peer), False


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
