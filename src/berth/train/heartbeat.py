"""Heartbeats of ranks and servers, and reports of those that hold up the others.

Every rank publishes a heartbeat: a counter, its step, and whether it waits for others. A rank whose heartbeat has
stopped is silent (stopped, hung or disconnected); one that neither ends its step nor waits is busy. The lowest rank
that is not silent reports both after `silent_after_s()`. Servers answer pings of a rank on their host, which
publishes the number of answers. Nothing is killed: only the rendezvous timeout ends a run.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from berth.errors import ForeignValueError, ServerError

LOG_FD = "BERTH_TRAIN_VOICE"  # file descriptor of the launcher's standard error
_CHECKS = 6  # checks within `silent_after_s()`


def silent_after_s() -> float:
    """Return the time without a heartbeat after which a process is reported."""
    return float(os.environ.get("BERTH_TRAIN_SILENT_S", "30"))


@dataclass(slots=True)
class Heartbeat:
    """What this process is doing."""

    step: int = 0
    waiting: bool = False


HEARTBEAT = Heartbeat()


@contextmanager
def waiting_for_peers() -> Iterator[None]:
    """Mark a wait for other ranks; a lost connection becomes a `ServerError`."""
    HEARTBEAT.waiting = True
    try:
        yield
    except RuntimeError as error:  # torch.distributed has no common error type
        raise ServerError(f"lost another process of the run: {str(error).splitlines()[0]}") from error
    finally:
        HEARTBEAT.waiting = False


def notify(text: str) -> None:
    """Print a line to standard error, or to that of the launcher."""
    os.write(int(os.environ.get(LOG_FD, "2")), f"{text}\n".encode())


class KeyValueStore(Protocol):
    """Where heartbeats are published, such as torch's store."""

    def set(self, key: str, value: str) -> Any:
        """Set a value."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are set."""
        ...

    def get(self, key: str) -> bytes:
        """Return a value."""
        ...


@dataclass(slots=True)
class _PeerState:
    """The last heartbeat of a rank, and since when it is unchanged."""

    beat: str = ""
    state: str = ""
    beat_at: float = 0.0
    state_at: float = 0.0

    def update(self, text: str, now: float) -> None:
        beat, _, state = text.partition(" ")
        if beat != self.beat:
            self.beat, self.beat_at = beat, now
        if state != self.state:
            self.state, self.state_at = state, now


@dataclass(frozen=True, slots=True)
class WatchedServer:
    """A server, for reports."""

    name: str  # "server 1 on host b"
    rank: int  # which pings it


class InProcessStore(dict[str, bytes]):
    """The key-value store of a run with one rank."""

    def set(self, key: str, value: str) -> None:
        """Set a value."""
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are set."""
        return all(key in self for key in keys)

    def get(self, key: str) -> bytes:  # type: ignore[override]  # always set
        """Return a value."""
        return self[key]


class StallMonitor:
    """One rank's view of all ranks and servers."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        silent_s: float | None = None,
        notify: Callable[[str], None] = notify,
    ) -> None:
        self._rank, self._notify = rank, notify
        self._silent_s = silent_after_s() if silent_s is None else silent_s
        now = time.monotonic()
        self._peers = {other: _PeerState(beat_at=now, state_at=now) for other in range(world_size)}
        self._servers: list[tuple[WatchedServer, _PeerState]] = []
        self._pings: Mapping[int, Callable[[], int]] = {}
        self._beats = 0
        self._exchanged_at = now  # the last completed exchange
        self._quiet_until = 0.0
        self._repeat_s = self._silent_s
        self._ended = threading.Event()

    def start(self, store: KeyValueStore) -> None:
        """Start two threads: exchanging blocks while rank 0, which hosts the store, is stopped."""
        for name, work in (("pulse", lambda: self.exchange(store, time.monotonic())), ("watch", self._check)):
            threading.Thread(target=self._repeat, args=(work,), daemon=True, name=f"berth-{name}").start()

    @property
    def check_every_s(self) -> float:
        """Return the time between two heartbeats."""
        return self._silent_s / _CHECKS

    def watch_servers(
        self, servers: Sequence[WatchedServer], pings: Mapping[int, Callable[[], int]], now: float
    ) -> None:
        """Watch servers too; `pings` count the answers of those that this rank pings."""
        self._pings = pings
        self._servers = [(server, _PeerState(beat_at=now, state_at=now)) for server in servers]

    def stop(self) -> None:
        """Stop the threads."""
        self._ended.set()

    def exchange(self, store: KeyValueStore, now: float) -> None:
        """Publish this rank's heartbeat and read those of the others.

        After a long gap the clocks of the others are reset: they could not publish, or this rank itself was stopped.
        """
        self._beats += 1
        after_gap = now - self._exchanged_at >= self._silent_s
        text = f"{self._beats} {HEARTBEAT.step} {int(HEARTBEAT.waiting)}"
        store.set(f"pulse/{self._rank}", text)
        for other, peer in self._peers.items():
            if other == self._rank:
                peer.update(text, now)
            else:
                _read(store, f"pulse/{other}", peer, now)
            if after_gap:
                peer.state_at = now
                peer.beat_at = peer.beat_at if other == 0 else now
        for index, (_, server) in enumerate(self._servers):
            if index in self._pings:
                store.set(f"pulse/server/{index}", str(self._pings[index]()))
            _read(store, f"pulse/server/{index}", server, now)
            if after_gap:
                server.beat_at = now
        self._exchanged_at = now

    def stall_message(self, now: float) -> str | None:
        """Return which ranks and servers hold up the others, if this rank is to report it."""
        silent = [rank for rank in self._peers if self._is_silent(rank, now)]
        responsive = [rank for rank in self._peers if rank not in silent]
        busy = [
            rank
            for rank in responsive
            if self._peers[rank].state.endswith(" 0")
            and self._observed_until(rank, now) - self._peers[rank].state_at >= self._silent_s
        ]
        servers = [  # those whose rank published heartbeats meanwhile
            (server, state)
            for server, state in self._servers
            if self._peers[server.rank].beat_at - state.beat_at >= self._silent_s
        ]
        if not (silent or busy or servers):
            self._repeat_s, self._quiet_until = self._silent_s, 0.0
            return None
        if self._rank != min(responsive, default=self._rank) or now < self._quiet_until:
            return None
        self._quiet_until, self._repeat_s = now + self._repeat_s, 2 * self._repeat_s
        reports = [
            f"rank {rank} has been silent for {now - self._peers[rank].beat_at:.0f} s{self._last_step(rank)}"
            for rank in silent
        ]
        reports += [
            f"rank {rank} has been busy for {now - self._peers[rank].state_at:.0f} s{self._last_step(rank)}"
            for rank in busy
        ]
        reports += [
            f"{server.name} has been silent for {now - state.beat_at:.0f} s" for server, state in servers
        ]
        return f"waiting: {', '.join(reports)}"

    def is_lost(self, rank: int) -> bool:
        """Return whether a rank has been silent for twice as long as it takes to report it."""
        return rank != self._rank and self._silence_s(rank, time.monotonic()) >= 2 * self._silent_s

    def _silence_s(self, rank: int, now: float) -> float:
        return self._observed_until(rank, now) - self._peers[rank].beat_at

    def _is_silent(self, rank: int, now: float) -> bool:
        return rank != self._rank and self._silence_s(rank, now) >= self._silent_s

    def _observed_until(self, rank: int, now: float) -> float:
        """Return the time up to which a rank is observed. Rank 0 hosts the store, so no response is its silence."""
        return now if rank == 0 else self._exchanged_at

    def _last_step(self, rank: int) -> str:
        step = self._peers[rank].state.partition(" ")[0]
        return f" (after step {int(step):,})" if step else ""

    def _check(self) -> None:
        text = self.stall_message(time.monotonic())
        if text is not None:
            self._notify(text)

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._ended.wait(self._silent_s / _CHECKS):
            try:
                work()
            except RuntimeError:  # the store is gone, and so is rank 0
                continue


def _read(store: KeyValueStore, key: str, peer: _PeerState, now: float) -> None:
    """Read a heartbeat; one that was not written with the run's secret counts as none."""
    if store.check([key]):
        with suppress(ForeignValueError):
            peer.update(store.get(key).decode(), now)
