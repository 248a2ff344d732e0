"""The controller's view of its back end: the last observation, when the next is due, and what blocks launches."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from berth.clock import SteadyTime
from berth.live.backend import Backend, BackendError, Blocker, Observation, Order, Stop
from berth.live.lifecycle import Cause
from berth.live.reconcile import MANY_MISSING_S, MISSING_S, Blocked, MachineLiveness, blocked_devices
from berth.live.records import LOST
from berth.live.state import ControllerState
from berth.units import format_count

_log = logging.getLogger("berth.live")


class Observer:
    """Observes a back end and sends it orders; `call` calls a function of the back end."""

    def __init__(self, backend: Backend, time: SteadyTime, call: Callable[[Callable[[], Any]], Any]) -> None:
        self._backend, self._time, self._call = backend, time, call
        self.observation: Observation | None = None
        self.error: str | None = None  # of the back end, while it lasts
        self.fenced: set[str] = set()  # tokens that the back end has agreed to stop
        self.orders: list[Order] = []  # of the last step
        self.next_at = self._observed_at = -math.inf  # times of the next and the last observation
        self._interval_s = 0.0  # between the two
        self._liveness = MachineLiveness()
        self._places: dict[str, Mapping[str, Sequence[int]] | None] = {}  # of unknown attempts

    @property
    def blind(self) -> bool:
        """Whether the last observation is too old or too doubtful for decisions."""
        return self.observation is None or self.error is not None or bool(self._liveness.doubtful)

    @property
    def due(self) -> bool:
        """Whether it is time to observe."""
        return self._backend.pace.least_s == 0.0 or self._time.now() >= self.next_at

    def observe(self, state: ControllerState) -> Observation | None:
        """Observe the back end; None if it does not answer."""
        self._observed_at = self._time.now()
        try:
            self.observation = self._call(self._backend.observe)
            self.error = None
        except BackendError as error:
            self.error = str(error)
            _log.warning("the back end can't be observed: %s", error)
            return None
        self.fenced &= set(state.attempts)
        self._places = {
            token: self._places.get(token) or self._call(partial(self._backend.devices_of, token))
            for token in self._unknown(state)
        }
        return self.observation

    def act(self, orders: list[Order]) -> None:
        """Send orders to the back end."""
        if not orders:
            return
        try:
            done = self._call(lambda: self._backend.apply(orders))
        except BackendError as error:
            self.error = str(error)
            _log.warning("the back end did not accept %d orders: %s", len(orders), error)
            return
        self.fenced |= {order.token for order in done if isinstance(order, Stop)}

    def soon(self) -> None:
        """Observe soon: a request has come, and the last observation of an idle back end is old."""
        self.next_at = min(self.next_at, self._observed_at + self._backend.pace.least_s)

    def schedule(self, state: ControllerState, orders: list[Order]) -> bool:
        """Set the time of the next observation; return whether there are new orders (repeated ones need time).

        It is at once after new orders, soon while there are jobs, else ever later.
        """
        pace = self._backend.pace
        new, self.orders = bool(orders) and orders != self.orders, orders
        if new:
            self.next_at = self._observed_at
            return True
        if state.jobs or orders or self.blind:
            self._interval_s = pace.busy_s
        elif self._observed_at + self._interval_s <= self.next_at:
            return False  # not observed since the last step
        else:
            self._interval_s = min(pace.idle_s, 2.0 * max(self._interval_s, pace.busy_s / 2.0))
        self.next_at = self._observed_at + self._interval_s
        return False

    def doubtful(self, state: ControllerState, seen: Observation) -> frozenset[str]:
        """Return the machines that are missing or down in an observation, but not lost yet."""
        names = [machine.name for machine in state.cluster.machines]
        there = [name for index, name in enumerate(names) if LOST not in state.unavailable[index]]
        needed = {names[index] for attempt in state.attempts.values() for index in attempt.machines}
        down = {name for name, machine in seen.machines.items() if not machine.up}
        return self._liveness.update(there, set(seen.machines), needed, self._time.now(), down)

    def blocked(self, state: ControllerState) -> Blocked | None:
        """Return the devices that unknown attempts may hold; None if it may be any."""
        return blocked_devices(state.cluster, map(self._places.get, self._unknown(state)))

    def _unknown(self, state: ControllerState) -> list[str]:
        """Return running attempts that the journal does not know, because a backup was restored.

        Their devices look free. They are being stopped (see `reconcile.desired_orders`).
        """
        seen = self.observation.attempts if self.observation is not None else {}
        return sorted(
            token for token, one in seen.items() if one.state != "ended" and token not in state.attempts
        )

    def blockers(self, state: ControllerState) -> list[Blocker]:
        """Return what keeps jobs from starting, whatever the policy decides."""
        found = list(self.observation.blockers) if self.observation is not None else []
        if self.error is not None:
            what = f"the back end does not answer, so nothing is decided: {self.error}"
            found.append(Blocker(Cause.UNREACHABLE, what))
        if doubtful := self._liveness.doubtful:
            after_s = MANY_MISSING_S if self._liveness.many else MISSING_S
            what = (
                f"{format_count(len(doubtful), 'machine')} missing from the back end's answer, or down "
                f"({_some(sorted(doubtful))}): nothing is decided; lost if still so after {after_s:.0f} s"
            )
            found.append(Blocker(Cause.MACHINES_MISSING, what))
        if unknown := self._unknown(state):
            blocked, held = self.blocked(state), "no job is launched"
            if blocked is not None:
                devices = format_count(sum(map(len, blocked.values())), "device")
                names = [state.cluster.machines[at].name for at in sorted(blocked)]
                held = f"{devices} of {_some(names)} can't be used"
            what = (
                f"{format_count(len(unknown), 'attempt')} running that the journal does not know "
                f"({_some(unknown)}): {held} until they have been stopped"
            )
            found.append(Blocker(Cause.UNKNOWN_ATTEMPTS, what, blocked))
        return found


def _some(names: Sequence[str]) -> str:
    """Return the first three names."""
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
