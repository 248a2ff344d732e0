"""Says which process of a training the others wait for.

Every rank publishes a pulse: a number that grows, its step, and whether it waits for others. A rank whose pulse has
stopped is silent (stopped, hung or cut off); one that neither ends its step nor waits is busy. Both are named after
`SILENT_S`, by the lowest rank that is not silent. Nothing is ended: only patience does that.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from berth.errors import ServerError

SILENT_S = float(os.environ.get("BERTH_TRAIN_SILENT_S", "30"))
VOICE = "BERTH_TRAIN_VOICE"  # a file descriptor: where a launcher wants to hear its workers
_LOOKS = 6  # in that time


@dataclass(slots=True)
class Pulse:
    """What this process does now."""

    step: int = 0
    waiting: bool = False


PULSE = Pulse()


@contextmanager
def among_others() -> Iterator[None]:
    """Marks a wait for other processes; where they are gone, that is the error."""
    PULSE.waiting = True
    try:
        yield
    except RuntimeError as error:  # of torch.distributed, whose errors have no kind in common
        raise ServerError(f"another process of the training is gone: {str(error).splitlines()[0]}") from error
    finally:
        PULSE.waiting = False


def say(text: str) -> None:
    """To people: standard error, or the launcher's."""
    os.write(int(os.environ.get(VOICE, "2")), f"{text}\n".encode())


class Board(Protocol):
    """Where pulses are published: torch's store, for one."""

    def set(self, key: str, value: str) -> Any:
        """Publishes."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""
        ...

    def get(self, key: str) -> bytes:
        """What was published."""
        ...


@dataclass(slots=True)
class _Seen:
    """The pulse of a rank, and since when it is as it is."""

    beat: str = ""
    state: str = ""
    beat_at: float = 0.0
    state_at: float = 0.0

    def note(self, text: str, now: float) -> None:
        beat, _, state = text.partition(" ")
        if beat != self.beat:
            self.beat, self.beat_at = beat, now
        if state != self.state:
            self.state, self.state_at = state, now


class Watch:
    """One rank's view of all."""

    def __init__(
        self, rank: int, world: int, *, silent_s: float = SILENT_S, say: Callable[[str], None] = say
    ) -> None:
        self._rank, self._silent_s, self._say = rank, silent_s, say
        now = time.monotonic()
        self._seen = {other: _Seen(beat_at=now, state_at=now) for other in range(world)}
        self._beats = 0
        self._heard_at = now  # the last exchange with the board that completed
        self._quiet_until = 0.0
        self._again_s = silent_s
        self._ended = threading.Event()

    def start(self, board: Board) -> None:
        """Two threads: the board is in rank 0, and who asks a rank that is stopped waits."""
        for name, work in (("pulse", lambda: self.exchange(board, time.monotonic())), ("watch", self._look)):
            threading.Thread(target=self._repeat, args=(work,), daemon=True, name=f"berth-{name}").start()

    def stop(self) -> None:
        """Ends the threads."""
        self._ended.set()

    def exchange(self, board: Board, now: float) -> None:
        """Publishes this rank's pulse, and reads those of the others.

        After a long gap the others are given time: they could not publish either, or this rank was stopped itself.
        """
        self._beats += 1
        late = now - self._heard_at >= self._silent_s
        text = f"{self._beats} {PULSE.step} {int(PULSE.waiting)}"
        board.set(f"pulse/{self._rank}", text)
        for other, seen in self._seen.items():
            if other == self._rank:
                seen.note(text, now)
            elif board.check([f"pulse/{other}"]):
                seen.note(board.get(f"pulse/{other}").decode(), now)
            if late:
                seen.state_at = now
                seen.beat_at = seen.beat_at if other == 0 else now
        self._heard_at = now

    def complaint(self, now: float) -> str | None:
        """Whom the others wait for, if it is this rank's turn to say so."""
        silent = [rank for rank in self._seen if self._is_silent(rank, now)]
        heard = [rank for rank in self._seen if rank not in silent]
        busy = [
            rank
            for rank in heard
            if self._seen[rank].state.endswith(" 0")
            and self._known_at(rank, now) - self._seen[rank].state_at >= self._silent_s
        ]
        if not (silent or busy) or self._rank != min(heard, default=self._rank) or now < self._quiet_until:
            if not (silent or busy):
                self._again_s, self._quiet_until = self._silent_s, 0.0
            return None
        self._quiet_until, self._again_s = now + self._again_s, 2 * self._again_s
        told = [
            f"rank {rank} has been silent for {now - self._seen[rank].beat_at:.0f} s{self._at(rank)}"
            for rank in silent
        ]
        told += [
            f"rank {rank} has been busy for {now - self._seen[rank].state_at:.0f} s{self._at(rank)}"
            for rank in busy
        ]
        return f"waiting: {', '.join(told)}"

    def _is_silent(self, rank: int, now: float) -> bool:
        known_at = self._known_at(rank, now)
        return rank != self._rank and known_at - self._seen[rank].beat_at >= self._silent_s

    def _known_at(self, rank: int, now: float) -> float:
        """The time up to which a rank is observed. The board is in rank 0: no answer from it is rank 0's silence."""
        return now if rank == 0 else self._heard_at

    def _at(self, rank: int) -> str:
        step = self._seen[rank].state.partition(" ")[0]
        return f" (after step {int(step):,})" if step else ""

    def _look(self) -> None:
        text = self.complaint(time.monotonic())
        if text is not None:
            self._say(text)

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._ended.wait(self._silent_s / _LOOKS):
            try:
                work()
            except RuntimeError:  # the board is gone: so is rank 0, which then is silent
                continue
