"""The controller: observe, take requests, decide, commit, answer, act; one step at a time.

Nothing is answered or done before it is committed. If a commit fails, the state is read back from the store. Tests call
`step` by hand; `berth up` runs it in a thread.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, TypeVar

from berth.clock import Clock, MachineClock, SteadyTime
from berth.errors import BerthError
from berth.live import snapshot
from berth.live.backend import Backend, Blocker, Observation
from berth.live.commands import Command
from berth.live.decisions import PolicyFailedError, decide
from berth.live.lifecycle import Cause
from berth.live.migrate import migrate, pause
from berth.live.observer import Observer
from berth.live.reconcile import desired_orders, launches, observed_changes
from berth.live.records import QUIET, Record
from berth.live.recover import recover
from berth.live.setup import Setup, usable
from berth.live.state import ControllerState
from berth.live.store import Store, StoreError
from berth.native.cache import fingerprint
from berth.units import format_seconds

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
        self._backend_thread: ThreadPoolExecutor | None = None
        self._requests: list[tuple[Command, Future[dict[str, Any]]]] = []
        self._requests_lock = threading.Lock()
        self._closed = False  # no request is answered any more
        self.wakeup = threading.Event()  # there is something to do before the next poll
        self.listeners: list[Callable[[int, Sequence[Record]], None]] = []  # called after every commit
        state = recover(store)
        self._time = SteadyTime(clock or MachineClock(), not_before=state.now if state else 0.0)
        self.observer = Observer(backend, self._time, self._call_backend)
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
        self._fault: str | None = None  # of the policy, at its last pass

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
            self.observer.soon()
        seen = self.observer.observe(self.state) if self.observer.due else None
        self._process(seen, decides=True)
        with self.lock:
            last = self.observer.observation
            orders = desired_orders(self.state, last.attempts) if last is not None else []
        self.observer.act(orders)
        new = self.observer.schedule(self.state, orders)
        if self.store.seq - self._snapshot_seq >= SNAPSHOT_EVERY:
            self.keep_snapshot()
        return 0.0 if new else self._idle_time()

    def answer(self) -> None:
        """Commit and answer the pending requests without a pass."""
        self.wakeup.clear()
        self._process(None, decides=False)

    def blockers(self) -> list[Blocker]:
        """Return what keeps jobs from starting, whatever the policy decides."""
        found = self.observer.blockers(self.state)
        if (paused := self.state.setup.paused) is not None:
            why = self._fault or paused
            what = f"the policy failed: {why}; `berth up --policy fifo` schedules with another"
            found.append(Blocker(Cause.POLICY_FAILED, what))
        return found

    def _process(self, seen: Observation | None, *, decides: bool) -> None:
        with self._requests_lock:
            requests, self._requests = self._requests, []
        # a cancelled request is dropped; from here on it can't be cancelled
        requests = [one for one in requests if one[1].set_running_or_notify_cancel()]
        with self.lock:
            if requests:
                self.observer.soon()
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
        try:
            doubtful = self.observer.doubtful(self.state, seen) if seen is not None else frozenset()
            answers = self._take(requests, seen, doubtful, records, now)
            decides, faulty = decides and not self.observer.blind, False
            if decides:
                try:
                    self._decide(records, now)
                except PolicyFailedError as fault:
                    records, faulty = [], True
                    self._pause(fault, now, records)
                    answers = self._take(requests, seen, doubtful, records, now)
                    self._decide(records, now, runs_pass=False)
            self._changed = self._changed or any(record.kind not in QUIET for record in records)
            if records:
                first = self.store.seq + 1
                self.store.commit(records, self._pop_ended())
                for listener in self.listeners:
                    listener(first, records)
            if decides:
                self._changed = faulty  # tried once more: what it failed at may have ended in this step
        except StoreError as error:
            _log.error("%s; nothing of this step was carried out", error)
            self._restore_state()
            self._changed = True
            return [(future, error) for _, future in requests]
        return answers

    def _take(
        self,
        requests: list[tuple[Command, Future[dict[str, Any]]]],
        seen: Observation | None,
        doubtful: frozenset[str],
        records: list[Record],
        now: float,
    ) -> list[tuple[Future[dict[str, Any]], Any]]:
        """Apply requests and an observation; return the answers."""
        answers = [(future, self._answer(command, records, now)) for command, future in requests]
        if seen is not None:
            self._note(self.state, seen, doubtful, records, now)
        return answers

    def _note(
        self,
        state: ControllerState,
        seen: Observation,
        doubtful: frozenset[str],
        records: list[Record],
        now: float,
    ) -> None:
        """Apply what is new in an observation."""
        blocked = self.observer.blocked(state)
        for record in observed_changes(state, seen, self.observer.fenced, now, doubtful, blocked):
            state.apply(record)
            records.append(record)

    def _pause(self, fault: PolicyFailedError, now: float, records: list[Record]) -> None:
        """Return to the last commit, and go on from there without passes: the policy fails."""
        self._report(fault.why)
        self._restore_state()
        self.state = pause(self.state, fault.why)
        self._apply(Record(now, "paused", body={"why": fault.why}), records)

    def _resume(self, records: list[Record], now: float) -> None:
        """Run a pass with the policy that failed before, on a copy of the state; if it fails again, nothing changes."""
        setup = usable(replace(self.state.setup, paused=None))
        if setup.paused is not None:
            self._report(setup.paused)
            return
        ended, state = self.state.ended, snapshot.copy_of(self.state)
        made = [Record(now, "resumed")]
        state.ended = list(ended)
        state = migrate(state, setup)
        state.apply(made[0])
        seen = self.observer.observation
        assert seen is not None, "nothing is decided before the first observation"
        self._note(state, seen, frozenset(), made, now)  # also what a migration does not keep
        try:
            made += decide(state, now)
        except PolicyFailedError as fault:
            self._report(fault.why)
            return
        self.state, self._fault = state, None
        records += made
        _log.info("the policy works again")

    def _report(self, why: str) -> None:
        if why != self._fault:
            _log.error("the policy failed: %s; running jobs continue, and nothing is decided", why)
        self._fault = why

    def _decide(self, records: list[Record], now: float, *, runs_pass: bool = True) -> None:
        """Run a pass, if anything has changed since the last one, and launch what can be launched."""
        while (ready := self.state.next_ready()) is not None and ready[0] <= now:
            self._apply(Record(now, "ready", ready[1]), records)
        paused = self.state.setup.paused is not None
        due = now >= self.state.wake and not paused
        if runs_pass and (due or self._changed or any(record.kind not in QUIET for record in records)):
            began = time.perf_counter()
            if paused:
                self._resume(records, now)
            else:
                records += decide(self.state, now)
            self.pass_s = time.perf_counter() - began
            self.passes += 1
        if (blocked := self.observer.blocked(self.state)) is None:
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

    def _call_backend(self, ask: Callable[[], T]) -> T:
        """Call the back end. In `run` it is called in a thread, and requests are answered meanwhile."""
        if self._backend_thread is None:
            return ask()
        future = self._backend_thread.submit(ask)
        while not wait([future], _POLL_REQUESTS_S).done:
            if self._requests:
                self._process(None, decides=False)
        return future.result()

    def _idle_time(self) -> float:
        until = self.observer.next_at
        if not self.observer.blind:
            if self.state.setup.paused is None:
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
