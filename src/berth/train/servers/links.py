"""All servers of a run, as a worker speaks to them: ask all at once, take answers from whoever is first."""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Callable, Iterator, Sequence

from berth.errors import InputError, ServerError
from berth.train.servers.address import Address
from berth.train.servers.flusher import Flusher
from berth.train.servers.greet import Greeting
from berth.train.servers.link import Link, Manners
from berth.train.servers.secret import Secret
from berth.train.servers.wire import MOST_BYTES, Array, Flag, Frame, Kind, Layout


class Links:
    """A link to each server; `step` goes with every request, for messages that people read."""

    def __init__(
        self,
        addresses: Sequence[Address],
        secret: Secret,
        manners: Manners,
        *,
        rank: int,
        workers: int,
        generation: int,
    ) -> None:
        self.step = 0
        self._manners = manners
        self._flusher = Flusher()
        self._all: list[Link] = []
        session = secrets.randbits(64)
        try:
            for index, address in enumerate(addresses):
                greeting = Greeting(rank, workers, index, len(addresses), generation, session, manners.shared)
                self._all.append(Link(address, greeting, secret, manners))
        except BaseException:
            self.close()
            raise
        self.mode = str(self._all[0].facts["mode"])
        self.tiered = bool(self._all[0].facts["tiered"])
        told = max(float(str(link.facts["patience_s"])) for link in self._all)
        self._patience_s = told + manners.patience_s

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, shard: int) -> Link:
        return self._all[shard]

    def __iter__(self) -> Iterator[Link]:
        return iter(self._all)

    def ask(
        self, shard: int, kind: Kind, arrays: Sequence[Array] | None = None, *, flags: int = Flag.NONE
    ) -> int:
        """A request to one server, with copies of arrays; its number."""
        if arrays is None:
            return self._all[shard].ask(kind, flags=flags, step=self.step)

        def fill(views: list[Array]) -> None:
            for view, array in zip(views, arrays, strict=True):
                view[...] = array

        layout = Layout([(array.dtype, array.shape) for array in arrays])
        return self.ask_in_place(shard, kind, layout, fill, flags=flags)

    def ask_in_place(
        self,
        shard: int,
        kind: Kind,
        layout: Layout,
        fill: Callable[[list[Array]], None],
        *,
        flags: int = Flag.NONE,
    ) -> int:
        """A request whose arrays are written where they travel from."""
        link = self._all[shard]
        must_fit(layout.length)
        number = link.ask(kind, layout, fill, flags=flags, step=self.step)
        self._flusher.watch(link.channel)
        return number

    def ask_all(self, kind: Kind) -> Iterator[tuple[int, Frame]]:
        """The answers of all servers."""
        return self.answers([self.ask(shard, kind) for shard in range(len(self))])

    def call_all(self, kind: Kind) -> None:
        """Wait until all servers have done something."""
        for _ in self.ask_all(kind):
            pass

    def answers(self, numbers: list[int]) -> Iterator[tuple[int, Frame]]:
        """The answers to a request to each server; each is let go when the next is asked for."""
        for shard, frame in self.arrivals(dict(enumerate(numbers))):
            yield shard, frame
            self._all[shard].release(frame)

    def answer(self, shard: int, number: int) -> Frame:
        """One server's answer; to be released."""
        return next(frame for _, frame in self.arrivals({shard: number}))

    def arrivals(self, waiting: dict[int, int]) -> Iterator[tuple[int, Frame]]:
        """(server, its answer), whoever is first; to be released."""
        left = dict(waiting)
        while left:
            here = [shard for shard, number in left.items() if number in self._all[shard].answers]
            for shard in here:
                yield shard, self._all[shard].take(left.pop(shard))
            if left and not here:
                pairs = [(self._all[shard], number) for shard, number in left.items()]
                self._read_until(_any_answered(pairs), [link for link, _ in pairs])

    def keep_bound(self, shard: int) -> None:
        """Wait while too many pushes are not confirmed."""
        link = self._all[shard]
        self._read_until(lambda: link.pushes_in_flight < self._manners.in_flight, [link])

    def close(self) -> None:
        """Hang up."""
        self._flusher.close()
        for link in self._all:
            link.close()

    def _read_until(self, done: Callable[[], bool], links: list[Link]) -> None:
        """A server that stays silent too long is given up."""
        deadline = time.monotonic() + self._patience_s
        for link in links:
            link.send_held()
        while not done():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                names = ", ".join(link.name for link in links)
                raise ServerError(f"no answer within {self._patience_s:g} s from {names}")
            for link in _ready(links, left_s):
                link.read()


def _ready(links: list[Link], timeout_s: float) -> list[Link]:
    """The links that have something to read, or can send on; `poll` knows no limit to the number of files."""
    poll = select.poll()
    for link in links:
        poll.register(link, select.POLLIN | (select.POLLOUT if link.channel.has_outgoing else 0))
    files = {file for file, _ in poll.poll(timeout_s * 1000)}
    return [link for link in links if link.fileno() in files]


def must_fit(length: int) -> None:
    """A message that the other side would refuse is not sent."""
    if length > MOST_BYTES:
        raise InputError(
            f"a message of {length} bytes is more than the {MOST_BYTES} that travel at once",
            hint="use smaller batches, or more servers",
        )


def _any_answered(pairs: list[tuple[Link, int]]) -> Callable[[], bool]:
    return lambda: any(number in link.answers for link, number in pairs)
