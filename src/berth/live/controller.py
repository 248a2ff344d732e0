"""The controller: observe, take requests, decide, commit, answer, act; one step at a time.

Nothing is answered or done before it is committed. If a commit fails, the state is read back from the store. Tests call
`step` by hand; `berth up` runs it in a thread.
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
from berth.live.backend import Backend, BackendError, Blocker, Observation, Order, Stop
from berth.live.commands import Command
from berth.live.decisions import decide
from berth.live.lifecycle import Cause
from berth.live.migrate import migrate
from berth.live.reconcile import (
    MANY_MISSING_S,
    MISSING_S,
    Blocked,
    MachineLiveness,
    blocked_devices,
    desired_orders,
    launches,
    observed_changes,
)
from berth.live.records import LOST, QUIET, Record
from berth.live.recover import recover
from berth.live.setup import Setup
from berth.live.state import ControllerState
from berth.live.store import Store, StoreError
from berth.native.cache import fingerprint
from berth.units import format_count, format_seconds

_log = logging.getLogger("berth.live")
T = TypeVar("T")
SNAPSHOT_EVERY = 5_000  # records
_POLL_REQUESTS_S = 0.01  # between two checks for requests during a call of the back end
_CLOSED = "the controller has ended; try again when it is up"
_AHEAD_S = 60.0  # a journal that is further ahead of the clock is reported
_LONGEST_PAUSE_S = 0.25  # between two steps while there is something to do


class Controller:
    """Schedules the jobs of one store on one back end."""

    def __init__(self, store: Store, backend: Backend, setup: Setup, clock: Clock | None = None) -> None:
        self.store, self.backend = store, backend
        self.lock = threading.RLock()  # held while the state changes; readers take it too
        self.observation: Observation | None = None
        self.backend_error: str | None = None  # while it lasts
        self._liveness = MachineLiveness()
        self._observed_at = self._observe_at = -math.inf  # times of the last and the next observation
        self._interval_s = 0.0  # between the two
        self._backend_thread: ThreadPoolExecutor | None = (
            None  # calls the back end, while requests are answered here
        )
        self._requests: list[tuple[Command, Future[dict[str, Any]]]] = []
        self._requests_lock = threading.Lock()
        self._closed = False  # no request is answered any more
        self.wakeup = threading.Event()  # there is something to do before the next poll
        self._fenced: set[str] = set()
        self._places: dict[str, Mapping[str, Sequence[int]] | None] = {}  # of unknown attempts
        self.listeners: list[Callable[[int, Sequence[Record]], None]] = []  # called after every commit
        self._last_orders: list[Order] = []
        state = recover(store)
        self._time = SteadyTime(clock or MachineClock(), not_before=state.now if state else 0.0)
        if self._time.ahead_s > _AHEAD_S:
            _log.warning(
                "the journal ends %s ahead of this machine's clock: times stay ahead until the clock is there",
                format_seconds(self._time.ahead_s),
            )
        # new at every start: no token of after a backup is used again once the backup is restored
        epoch = {"epoch": secrets.token_hex(4)}
        opened = Record(self._time.now(), "opened", body=setup.to_dict() | epoch)
        self.state = ControllerState(setup) if state is None else migrate(state, setup)
        records = [opened, *self._lost_by_adoption(opened.time)]
        for record in records:
            self.state.apply(record)
        store.commit(records, self._pop_ended(), ends_adoption=True)
        self._snapshot_seq = store.seq
        self._changed = True  # something has changed since the last pass
        self.passes, self.pass_s = 0, 0.0

    def _lost_by_adoption(self, now: float) -> list[Record]:
        """Return the ends of the attempts of an adopted store: they are the original's, and their jobs wait again."""
        if not self.store.adopted:
            return []
        lost = {"codes": [], "lost": True, "cause": "the state was adopted from another place"}
        attempts = self.state.attempts.values()
        return [Record(now, "exited", one.job, {"token": one.token, **lost}) for one in attempts]

    @property
    def pending(self) -> bool:
        """Whether something has changed since the last pass."""
        return self._changed

    def now(self) -> float:
        """Return the current time; it never runs backwards in the journal."""
        return max(self._time.now(), self.state.now)

    def ask(self, command: Command) -> Future[dict[str, Any]]:
        """Request a command; the future has its answer once it is committed."""
        answer: Future[dict[str, Any]] = Future()
        with self._requests_lock:
            if self._closed:
                answer.set_exception(StoreError(_CLOSED))
                return answer
            self._requests.append((command, answer))
        self.wakeup.set()
        return answer

    def step(self) -> float:
        """Run one round; return after how many seconds the next is due, unless `wakeup` is set before."""
        self.wakeup.clear()
        if self._requests:
            self._observe_soon()
        seen = self._observe() if self._due else None
        self._process(seen, decides=True)
        with self.lock:
            orders = (
                desired_orders(self.state, self.observation.attempts) if self.observation is not None else []
            )
        self._act(orders)
        self._schedule_observation(orders)
        if self.store.seq - self._snapshot_seq >= SNAPSHOT_EVERY:
            self.keep_snapshot()
        return self._idle_time(orders)

    def answer(self) -> None:
        """Commit and answer the pending requests without a pass."""
        self.wakeup.clear()
        self._process(None, decides=False)

    def blockers(self) -> list[Blocker]:
        """Return what keeps jobs from starting, whatever the policy decides."""
        found = list(self.observation.blockers) if self.observation is not None else []
        if self.backend_error is not None:
            what = f"the back end does not answer, so nothing is decided: {self.backend_error}"
            found.append(Blocker(Cause.UNREACHABLE, what))
        if doubtful := self._liveness.doubtful:
            after_s = MANY_MISSING_S if self._liveness.many else MISSING_S
            machines = f"{format_count(len(doubtful), 'machine')} missing from the back end's answer, or down"
            what = (
                f"{machines} ({_some(sorted(doubtful))}): "
                f"nothing is decided; lost if still so after {after_s:.0f} s"
            )
            found.append(Blocker(Cause.MACHINES_MISSING, what))
        if unknown := self._unknown():
            found.append(self._unknown_attempts(unknown))
        return found

    def _unknown_attempts(self, unknown: list[str]) -> Blocker:
        blocked, machines = self._blocked(), self.state.cluster.machines
        if blocked is None:
            held = "no job is launched"
        else:
            devices = format_count(sum(map(len, blocked.values())), "device")
            held = f"{devices} of {_some([machines[at].name for at in sorted(blocked)])} can't be used"
        what = (
            f"{format_count(len(unknown), 'attempt')} running that the journal does not know ({_some(unknown)}): "
            f"{held} until they have been stopped"
        )
        return Blocker(Cause.UNKNOWN_ATTEMPTS, what, blocked)

    def _unknown(self) -> list[str]:
        """Return running attempts that the journal does not know, because a backup was restored.

        Their devices look free. They are being stopped (see `reconcile.desired_orders`).
        """
        seen = self.observation.attempts if self.observation is not None else {}
        return sorted(
            token for token, one in seen.items() if one.state != "ended" and token not in self.state.attempts
        )

    def _blocked(self) -> Blocked | None:
        """Return the devices that unknown attempts may hold; None if it may be any."""
        return blocked_devices(self.state.cluster, map(self._places.get, self._unknown()))

    def _process(self, seen: Observation | None, *, decides: bool) -> None:
        with self._requests_lock:
            requests, self._requests = self._requests, []
        # a cancelled request is dropped; from here on it can't be cancelled
        requests = [one for one in requests if one[1].set_running_or_notify_cancel()]
        with self.lock:
            if requests:
                self._observe_soon()
            answers = self._commit_turn(requests, seen, self.now(), decides=decides)
        for future, value in answers:
            if isinstance(value, BaseException):
                future.set_exception(value)
            else:
                future.set_result(value)

    def _commit_turn(
        self,
        requests: list[tuple[Command, Future[dict[str, Any]]]],
        seen: Observation | None,
        now: float,
        *,
        decides: bool,
    ) -> list[tuple[Future[dict[str, Any]], Any]]:
        """Apply requests, observation and decisions to the state, and commit them together."""
        records: list[Record] = []
        answers: list[tuple[Future[dict[str, Any]], Any]] = []
        try:
            for command, future in requests:
                answers.append((future, self._answer(command, records, now)))
            if seen is not None:
                doubtful = self._doubtful(seen)
                for record in observed_changes(
                    self.state, seen, self._fenced, now, doubtful, self._blocked()
                ):
                    self._apply(record, records)
            decides = decides and not self._blind
            if decides:
                self._decide(records, now)
            self._changed = self._changed or any(record.kind not in QUIET for record in records)
            if records:
                first = self.store.seq + 1
                self.store.commit(records, self._pop_ended())
                for listener in self.listeners:
                    listener(first, records)
            if decides:
                self._changed = False
        except StoreError as error:
            _log.error("%s; nothing of this step was carried out", error)
            self._restore_state()
            self._changed = True
            return [(future, error) for _, future in requests]
        return answers

    @property
    def _blind(self) -> bool:
        """Whether the last observation is too old or too doubtful for decisions."""
        return self.observation is None or self.backend_error is not None or bool(self._liveness.doubtful)

    def _doubtful(self, seen: Observation) -> frozenset[str]:
        state = self.state
        names = [machine.name for machine in state.cluster.machines]
        there = [name for index, name in enumerate(names) if LOST not in state.unavailable[index]]
        needed = {names[index] for attempt in state.attempts.values() for index in attempt.machines}
        down = {name for name, machine in seen.machines.items() if not machine.up}
        return self._liveness.update(there, set(seen.machines), needed, self._time.now(), down)

    def _decide(self, records: list[Record], now: float) -> None:
        """Run a pass, if anything has changed since the last one, and launch what can be launched."""
        while (ready := self.state.next_ready()) is not None and ready[0] <= now:
            self._apply(Record(now, "ready", ready[1]), records)
        if self._changed or now >= self.state.wake or any(record.kind not in QUIET for record in records):
            began = time.perf_counter()
            records += decide(self.state, now)
            self.pass_s = time.perf_counter() - began
            self.passes += 1
        if (blocked := self._blocked()) is None:
            return
        for record in launches(self.state, now, blocked):
            self._apply(record, records)

    def _answer(self, command: Command, records: list[Record], now: float) -> Any:
        try:
            answer = command(self.state, self.store, now)
        except BerthError as error:
            return error
        for record in answer.records:
            self._apply(record, records)
        return answer.value

    def _apply(self, record: Record, records: list[Record]) -> None:
        self.state.apply(record)
        records.append(record)

    def _pop_ended(self) -> list[Any]:
        ended, self.state.ended = self.state.ended, []
        return ended

    def _restore_state(self) -> None:
        """Restore the state of the last commit."""
        state = recover(self.store)
        assert state is not None
        self.state = state

    @property
    def _due(self) -> bool:
        return self.backend.pace.least_s == 0.0 or self._time.now() >= self._observe_at

    def _observe(self) -> Observation | None:
        self._observed_at = self._time.now()
        try:
            self.observation = self._call_backend(self.backend.observe)
            self.backend_error = None
        except BackendError as error:
            self.backend_error = str(error)
            _log.warning("the back end can't be observed: %s", error)
            return None
        self._fenced &= set(self.state.attempts)
        self._places = {
            token: self._places.get(token) or self._call_backend(partial(self.backend.devices_of, token))
            for token in self._unknown()
        }
        return self.observation

    def _act(self, orders: list[Order]) -> None:
        if not orders:
            return
        try:
            done = self._call_backend(lambda: self.backend.apply(orders))
        except BackendError as error:
            self.backend_error = str(error)
            _log.warning("the back end did not accept %d orders: %s", len(orders), error)
            return
        self._fenced |= {order.token for order in done if isinstance(order, Stop)}

    def _call_backend(self, ask: Callable[[], T]) -> T:
        """Call the back end. In `run` it is called in a thread, and requests are answered meanwhile."""
        if self._backend_thread is None:
            return ask()
        future = self._backend_thread.submit(ask)
        while not wait([future], _POLL_REQUESTS_S).done:
            if self._requests:
                self._process(None, decides=False)
        return future.result()

    def _observe_soon(self) -> None:
        """Observe soon: a request has come, and the last observation of an idle back end is old."""
        self._observe_at = min(self._observe_at, self._observed_at + self.backend.pace.least_s)

    def _schedule_observation(self, orders: list[Order]) -> None:
        """Set the time of the next observation: at once after new orders, soon while there are jobs, else later."""
        pace = self.backend.pace
        if orders and orders != self._last_orders:
            self._observe_at = self._observed_at
            return
        if self.state.jobs or orders or self._blind:
            self._interval_s = pace.busy_s
        elif self._observed_at + self._interval_s <= self._observe_at:
            return  # not observed since the last step
        else:
            self._interval_s = min(pace.idle_s, 2.0 * max(self._interval_s, pace.busy_s / 2.0))
        self._observe_at = self._observed_at + self._interval_s

    def _idle_time(self, orders: list[Order]) -> float:
        news, self._last_orders = orders != self._last_orders, orders  # repeated orders need time
        if orders and news:
            return 0.0
        until = self._observe_at
        if not self._blind:
            until = min(until, self.state.wake)
            if (ready := self.state.next_ready()) is not None:
                until = min(until, ready[0])
        return max(0.0, until - self._time.now())

    def keep_snapshot(self) -> None:
        """Save the state, so that a restart need not apply all records."""
        try:
            with self.lock:
                self.store.snapshot(fingerprint(), snapshot.save(self.state))
            self._snapshot_seq = self.store.seq
        except StoreError as error:
            _log.warning("%s", error)

    def run(self, until: threading.Event) -> None:
        """Step until the event is set; between two steps, requests are answered as they come.

        A step over a large cluster takes a while, so steps take up at most a third of the time. An unexpected error is
        raised: the journal is right, and the state may not be.
        """
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="back-end") as self._backend_thread:
                self._run(until)
        finally:
            self._backend_thread = None
            self._refuse_requests()

    def _refuse_requests(self) -> None:
        """Refuse pending and future requests."""
        with self._requests_lock:
            self._closed, requests, self._requests = True, self._requests, []
        for _, answer in requests:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(StoreError(_CLOSED))

    def _run(self, until: threading.Event) -> None:
        while not until.is_set():
            began = time.monotonic()
            rest = self.step()
            pause = min(_LONGEST_PAUSE_S, 2.0 * (time.monotonic() - began))
            after = time.monotonic() + pause
            while (left := after - time.monotonic()) > 0 and not until.is_set():
                if self.wakeup.wait(left):
                    self.answer()
                    rest = 0.0
            self.wakeup.wait(rest)

    def close(self, *, keep: bool = True) -> None:
        """Save the state and release the store; running jobs continue."""
        if keep and self.store.seq > self._snapshot_seq:
            self.keep_snapshot()
        self.backend.close()
        self.store.close()


def _some(names: Sequence[str]) -> str:
    """Return the first three names."""
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
