"""The controller: observe, take in what was asked, decide, write it down, answer, act. One step at a time.

Nothing is answered and nothing is done before it is on the disk. If it can't be written, the books are read
back from the store: what was not written has not happened. Tests call `step` by hand; `berth up` lets a thread do it.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

from berth.clock import Clock, MachineClock, SteadyTime
from berth.errors import BerthError
from berth.live import snapshot
from berth.live.backend import Backend, BackendError, Observation, Order, Stop
from berth.live.books import Books
from berth.live.causes import Cause, Hindrance
from berth.live.commands import Command
from berth.live.orders import Blocked, blocked_devices, happened, launches, wanted
from berth.live.passing import decide
from berth.live.presence import MANY_MISSING_S, MISSING_S, Presence
from berth.live.rebase import rebase
from berth.live.records import LOST, QUIET, Record
from berth.live.recover import recover
from berth.live.setup import Setup
from berth.live.store import Store, StoreError
from berth.native.cache import fingerprint
from berth.units import format_count, format_seconds

_log = logging.getLogger("berth.live")
T = TypeVar("T")
SNAPSHOT_EVERY = 5_000  # records
_GLANCE_S = 0.01  # between two looks at what was asked, while the back end takes its time
_CLOSED = "the controller has ended; ask again when it is up"
_AHEAD_S = 60.0  # a journal that is further ahead of the clock is reported
_LONGEST_PAUSE_S = 0.25  # between two steps while there is something to do


class Controller:
    """Owns a store and a back end."""

    def __init__(self, store: Store, backend: Backend, setup: Setup, clock: Clock | None = None) -> None:
        self.store, self.backend = store, backend
        self.lock = threading.RLock()  # held while the books change; readers take it too
        self.seen: Observation | None = None
        self.trouble: str | None = None  # of the back end, as long as it lasts
        self._presence = Presence()
        self._looked = self._look_at = -math.inf  # when the back end was observed last, and will be next
        self._pace_s = 0.0  # between the two
        self._engine: ThreadPoolExecutor | None = None  # asks the back end, while questions are answered here
        self._asked: list[tuple[Command, Future[dict[str, Any]]]] = []
        self._asked_lock = threading.Lock()
        self._closed = False  # nobody answers any more
        self.called = threading.Event()  # something is to be done before the next poll
        self._fenced: set[str] = set()
        self._places: dict[str, Mapping[str, Sequence[int]] | None] = {}  # of unknown attempts
        self.listeners: list[Callable[[int, Sequence[Record]], None]] = []  # told of every commit
        self._ordered: list[Order] = []
        books = recover(store)
        self._time = SteadyTime(clock or MachineClock(), not_before=books.now if books else 0.0)
        if self._time.ahead_s > _AHEAD_S:
            _log.warning(
                "the journal ends %s ahead of this machine's clock: times stay ahead until the clock is there",
                format_seconds(self._time.ahead_s),
            )
        # drawn at every start: a journal that was set back to a backup never comes to a token of after the backup
        epoch = {"epoch": secrets.token_hex(4)}
        opened = Record(self._time.now(), "opened", body=setup.plain() | epoch)
        self.books = Books(setup) if books is None else rebase(books, setup)
        records = [opened, *self._lost_by_adoption(opened.time)]
        for record in records:
            self.books.fold(record)
        store.commit(records, self._over(), ends_adoption=True)
        self._kept = store.seq
        self._news = True  # something has changed since the last pass
        self.passes, self.pass_s = 0, 0.0

    def _lost_by_adoption(self, now: float) -> list[Record]:
        """What ran under the original of an adopted store is the original's: here it is lost, and waits again."""
        if not self.store.adopted:
            return []
        lost = {"codes": [], "lost": True, "cause": "the state was adopted from another place"}
        attempts = self.books.attempts.values()
        return [Record(now, "exited", one.job, {"token": one.token, **lost}) for one in attempts]

    @property
    def pending(self) -> bool:
        """Whether something has changed since the last pass."""
        return self._news

    def now(self) -> float:
        """What time it is, by the journal's reckoning."""
        return max(self._time.now(), self.books.now)

    def ask(self, command: Command) -> Future[dict[str, Any]]:
        """Puts a question; the answer comes once it is on the disk."""
        answer: Future[dict[str, Any]] = Future()
        with self._asked_lock:
            if self._closed:
                answer.set_exception(StoreError(_CLOSED))
                return answer
            self._asked.append((command, answer))
        self.called.set()
        return answer

    def step(self) -> float:
        """One round; returns for how many seconds nothing is to be done, unless somebody calls."""
        self.called.clear()
        if self._asked:
            self._hurry()
        seen = self._observe() if self._due else None
        self._take(seen, decides=True)
        with self.lock:
            orders = wanted(self.books, self.seen.attempts) if self.seen is not None else []
        self._act(orders)
        self._look_later(orders)
        if self.store.seq - self._kept >= SNAPSHOT_EVERY:
            self.keep_snapshot()
        return self._rest(orders)

    def answer(self) -> None:
        """What was asked is written down and answered; nothing is decided yet."""
        self.called.clear()
        self._take(None, decides=False)

    def hindrances(self) -> list[Hindrance]:
        """What keeps jobs from starting, whatever the policy decides; empty: nothing does."""
        found = list(self.seen.hindrances) if self.seen is not None else []
        if self.trouble is not None:
            what = f"the back end does not answer, so nothing is decided: {self.trouble}"
            found.append(Hindrance(Cause.UNREACHABLE, what))
        if doubtful := self._presence.doubtful:
            after_s = MANY_MISSING_S if self._presence.many else MISSING_S
            machines = f"{format_count(len(doubtful), 'machine')} missing from the back end's answer, or down"
            what = (
                f"{machines} ({_some(sorted(doubtful))}): "
                f"nothing is decided; lost if still so after {after_s:.0f} s"
            )
            found.append(Hindrance(Cause.MACHINES_MISSING, what))
        if unknown := self._unknown():
            found.append(self._unknown_attempts(unknown))
        return found

    def _unknown_attempts(self, unknown: list[str]) -> Hindrance:
        blocked, machines = self._blocked(), self.books.cluster.machines
        if blocked is None:
            held = "no job is launched"
        else:
            devices = format_count(sum(map(len, blocked.values())), "device")
            held = f"{devices} of {_some([machines[at].name for at in sorted(blocked)])} can't be used"
        what = (
            f"{format_count(len(unknown), 'attempt')} running that the journal does not know ({_some(unknown)}): "
            f"{held} until they have been stopped"
        )
        return Hindrance(Cause.UNKNOWN_ATTEMPTS, what, blocked)

    def _unknown(self) -> list[str]:
        """Attempts that run and that the journal does not know, because it was set back to a backup.

        The devices that they hold look free. They are stopped (see `orders.wanted`).
        """
        seen = self.seen.attempts if self.seen is not None else {}
        return sorted(
            token for token, one in seen.items() if one.state != "ended" and token not in self.books.attempts
        )

    def _blocked(self) -> Blocked | None:
        """Devices that unknown attempts may hold; None: it may be any."""
        return blocked_devices(self.books.cluster, map(self._places.get, self._unknown()))

    def _take(self, seen: Observation | None, *, decides: bool) -> None:
        with self._asked_lock:
            asked, self._asked = self._asked, []
        # who has gone away meanwhile is not heard; who is heard can't go away any more
        asked = [one for one in asked if one[1].set_running_or_notify_cancel()]
        with self.lock:
            if asked:
                self._hurry()
            answers = self._turn(asked, seen, self.now(), decides=decides)
        for future, value in answers:
            if isinstance(value, BaseException):
                future.set_exception(value)
            else:
                future.set_result(value)

    def _turn(
        self,
        asked: list[tuple[Command, Future[dict[str, Any]]]],
        seen: Observation | None,
        now: float,
        *,
        decides: bool,
    ) -> list[tuple[Future[dict[str, Any]], Any]]:
        """Everything that changes the books, and the one commit that makes it so."""
        records: list[Record] = []
        answers: list[tuple[Future[dict[str, Any]], Any]] = []
        try:
            for command, future in asked:
                answers.append((future, self._answer(command, records, now)))
            if seen is not None:
                doubtful = self._doubtful(seen)
                for record in happened(self.books, seen, self._fenced, now, doubtful, self._blocked()):
                    self._fold(record, records)
            decides = decides and not self._blind
            if decides:
                self._decide(records, now)
            self._news = self._news or any(record.kind not in QUIET for record in records)
            if records:
                first = self.store.seq + 1
                self.store.commit(records, self._over())
                for listener in self.listeners:
                    listener(first, records)
            if decides:
                self._news = False
        except StoreError as error:
            _log.error("%s; nothing of this step was done", error)
            self._read_back()
            self._news = True
            return [(future, error) for _, future in asked]
        return answers

    @property
    def _blind(self) -> bool:
        """Whether what is known of the back end is too old, or too doubtful, to decide anything by."""
        return self.seen is None or self.trouble is not None or bool(self._presence.doubtful)

    def _doubtful(self, seen: Observation) -> frozenset[str]:
        books = self.books
        names = [machine.name for machine in books.cluster.machines]
        there = [name for index, name in enumerate(names) if LOST not in books.shut[index]]
        needed = {names[index] for attempt in books.attempts.values() for index in attempt.machines}
        down = {name for name, machine in seen.machines.items() if not machine.up}
        return self._presence.judge(there, set(seen.machines), needed, self._time.now(), down)

    def _decide(self, records: list[Record], now: float) -> None:
        """A pass, if anything has changed since the last one, and the launches that have become possible."""
        while (ready := self.books.next_ready()) is not None and ready[0] <= now:
            self._fold(Record(now, "ready", ready[1]), records)
        if self._news or now >= self.books.wake or any(record.kind not in QUIET for record in records):
            began = time.perf_counter()
            records += decide(self.books, now)
            self.pass_s = time.perf_counter() - began
            self.passes += 1
        if (blocked := self._blocked()) is None:
            return
        for record in launches(self.books, now, blocked):
            self._fold(record, records)

    def _answer(self, command: Command, records: list[Record], now: float) -> Any:
        try:
            answer = command(self.books, self.store, now)
        except BerthError as error:
            return error
        for record in answer.records:
            self._fold(record, records)
        return answer.value

    def _fold(self, record: Record, records: list[Record]) -> None:
        self.books.fold(record)
        records.append(record)

    def _over(self) -> list[Any]:
        over, self.books.over = self.books.over, []
        return over

    def _read_back(self) -> None:
        """What was not written has not happened."""
        books = recover(self.store)
        assert books is not None
        self.books = books

    @property
    def _due(self) -> bool:
        return self.backend.pace.least_s == 0.0 or self._time.now() >= self._look_at

    def _observe(self) -> Observation | None:
        self._looked = self._time.now()
        try:
            self.seen = self._ask_engine(self.backend.observe)
            self.trouble = None
        except BackendError as error:
            self.trouble = str(error)
            _log.warning("the back end can't be observed: %s", error)
            return None
        self._fenced &= set(self.books.attempts)
        self._places = {
            token: self._places.get(token) or self._ask_engine(partial(self.backend.devices_of, token))
            for token in self._unknown()
        }
        return self.seen

    def _act(self, orders: list[Order]) -> None:
        if not orders:
            return
        try:
            done = self._ask_engine(lambda: self.backend.apply(orders))
        except BackendError as error:
            self.trouble = str(error)
            _log.warning("the back end did not take %d orders: %s", len(orders), error)
            return
        self._fenced |= {order.token for order in done if isinstance(order, Stop)}

    def _ask_engine(self, ask: Callable[[], T]) -> T:
        """What the back end answers. In `run` it is asked in a thread, and questions are answered meanwhile."""
        if self._engine is None:
            return ask()
        future = self._engine.submit(ask)
        while not wait([future], _GLANCE_S).done:
            if self._asked:
                self._take(None, decides=False)
        return future.result()

    def _hurry(self) -> None:
        """Something was asked: what was seen of an idle back end is too old."""
        self._look_at = min(self._look_at, self._looked + self.backend.pace.least_s)

    def _look_later(self, orders: list[Order]) -> None:
        """When to observe again: at once after new orders, soon while there are jobs, else more and more seldom."""
        pace = self.backend.pace
        if orders and orders != self._ordered:
            self._look_at = self._looked
            return
        if self.books.jobs or orders or self._blind:
            self._pace_s = pace.busy_s
        elif self._looked + self._pace_s <= self._look_at:
            return  # it was not observed since the last step
        else:
            self._pace_s = min(pace.idle_s, 2.0 * max(self._pace_s, pace.busy_s / 2.0))
        self._look_at = self._looked + self._pace_s

    def _rest(self, orders: list[Order]) -> float:
        news, self._ordered = orders != self._ordered, orders  # what was ordered before needs time, not haste
        if orders and news:
            return 0.0
        until = self._look_at
        if not self._blind:
            until = min(until, self.books.wake)
            if (ready := self.books.next_ready()) is not None:
                until = min(until, ready[0])
        return max(0.0, until - self._time.now())

    def keep_snapshot(self) -> None:
        """Keeps the state, so that a restart need not fold what came before."""
        try:
            with self.lock:
                self.store.snapshot(fingerprint(), snapshot.save(self.books))
            self._kept = self.store.seq
        except StoreError as error:
            _log.warning("%s", error)

    def run(self, until: threading.Event) -> None:
        """Steps until told otherwise; between two steps, questions are answered as they come.

        A step over a large cluster takes a while, so steps take up at most a third of the time. Should a step fail in
        a way that nobody foresaw, this raises: the journal is right, and the books may not be.
        """
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="back-end") as self._engine:
                self._run(until)
        finally:
            self._engine = None
            self._refuse()

    def _refuse(self) -> None:
        """Nobody will answer any more."""
        with self._asked_lock:
            self._closed, asked, self._asked = True, self._asked, []
        for _, answer in asked:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(StoreError(_CLOSED))

    def _run(self, until: threading.Event) -> None:
        while not until.is_set():
            began = time.monotonic()
            rest = self.step()
            pause = min(_LONGEST_PAUSE_S, 2.0 * (time.monotonic() - began))
            after = time.monotonic() + pause
            while (left := after - time.monotonic()) > 0 and not until.is_set():
                if self.called.wait(left):
                    self.answer()
                    rest = 0.0
            self.called.wait(rest)

    def close(self, *, keep: bool = True) -> None:
        """Keeps the state and lets go of the store; what runs goes on running."""
        if keep and self.store.seq > self._kept:
            self.keep_snapshot()
        self.backend.close()
        self.store.close()


def _some(names: Sequence[str]) -> str:
    """The first of some names."""
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
