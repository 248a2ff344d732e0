"""Forecasts: the controller's state played on in virtual time, if every job takes as long as expected.

The pass that schedules the cluster runs over a copy of the state, from one expected end to the next. An estimate, a dry
run and a what-if differ only in the state they begin with.

A job that has outlived its estimate is overdue: it is expected to need another quarter of its estimate, as the
scheduler assumes at its next pass.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace

from berth.cluster.model import Cluster
from berth.live import _kernels
from berth.live.decisions import decide
from berth.live.job import Job
from berth.live.lifecycle import STOPPING
from berth.live.migrate import migrate
from berth.live.reconcile import launches
from berth.live.records import Record
from berth.live.setup import DEFAULT_DURATION_S, Setup
from berth.live.spec import JobSpec, submission
from berth.live.state import ControllerState
from berth.simulate.whatif import add_racks

EVENTS = 3_000  # ends that a forecast looks at, by default
_OVERDUE_S = 1.0  # a back end is looked at about once a second: a job that has just ended is not overdue


@dataclass(slots=True)
class Forecast:
    """Expected starts and ends of jobs; what is missing lies beyond the events looked at."""

    now: float
    starts: dict[str, float] = field(default_factory=dict)
    places: dict[str, dict[str, int]] = field(default_factory=dict)  # devices by machine
    tiers: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, str] = field(default_factory=dict)  # alternatives in which jobs start
    ends: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)  # of the start: see schedule/reasons.py
    after: dict[str, list[str]] = field(default_factory=dict)  # jobs whose end allows its start
    displaced: dict[str, list[str]] = field(default_factory=dict)  # jobs that are evicted as it starts
    # by job that backfills: the job with the reservation
    reserved: dict[str, str] = field(default_factory=dict)
    expected_ends: dict[str, float] = field(default_factory=dict)  # of the attempts that run now
    whole: bool = True  # every job came to its end
    complete: bool = True  # nothing more happens by itself; otherwise the events looked at did not suffice

    def mean_left_s(self) -> float | None:
        """Return the mean time from now to the end of a job."""
        return sum(end - self.now for end in self.ends.values()) / len(self.ends) if self.ends else None


def overdue_s(state: ControllerState, job: Job, now: float) -> float:
    """Return for how long a running job has outlived its estimate."""
    if job.token is None:
        return 0.0
    record = state.world.jobs[job.row]
    speed, touched = float(record["speed"]), float(record["updated_s"])
    estimate_s = job.spec.duration or state.durations.get(job.spec.name) or DEFAULT_DURATION_S
    if job.spec.offer is not None and record["shape_count"]:
        estimate_s = job.spec.offer.work.amount * float(state.world.shapes[record["shape"]]["unit_s"])
    worked_s = max(0.0, now - max(touched, float(record["restored_at_s"]))) * speed
    if float(record["work_s"]) - float(record["true_remaining_s"]) + worked_s < estimate_s:
        return 0.0
    late_s = float(record["ran_s"]) + now - touched - estimate_s / speed
    return late_s if late_s > _OVERDUE_S else 0.0


def forecast(
    state: ControllerState,
    *,
    now: float | None = None,
    pending: bool = True,
    until: str | None = None,
    events: int = EVENTS,
) -> Forecast:
    """Play a state, which is used up, from `now` to the end, or until a job has started.

    `pending`: something has changed since the last pass, so the controller would run one now. Otherwise there is none
    before the next event: one more pass could decide what the controller never would.
    """
    play = _Play(state, max(state.now, now or 0.0))
    play.begin(pending=pending)
    for _ in range(events):
        if until is not None and until in play.result.starts:
            break
        if not play.step():
            break
    else:
        play.result.complete = False
    play.result.whole = all(job.ends_as is not None for job in state.jobs.values())
    return play.result


class _Play:
    """A forecast in progress."""

    def __init__(self, state: ControllerState, now: float) -> None:
        self.state, self.result = state, Forecast(now)
        self._ends: list[tuple[float, str, int]] = []
        self._ended: dict[str, set[str]] = {}  # jobs that end at this moment, and their machines

    def begin(self, *, pending: bool) -> None:
        """Advance the state to the present, with a pass if one is due."""
        state, now = self.state, self.result.now
        state.now = now
        _kernels.bring_up_to(state.native_world, now)
        running = [job.id for job in state.jobs.values() if job.token is not None]
        ready = state.next_ready()
        if pending or state.wake <= now or (ready is not None and ready[0] <= now):
            self._pass(now)
        for name in running:
            if name in state.jobs and state.jobs[name].token is not None and name not in self.result.starts:
                self._expect(name)
        self.result.expected_ends = {name: end for end, name, _ in self._ends if name in set(running)}

    def step(self) -> bool:
        """Advance to the next event; return False if there is none."""
        now = self._next()
        if now == math.inf:
            return False
        self._ended = {}
        while self._ends and self._ends[0][0] <= now:
            self._end(*heapq.heappop(self._ends)[1:], now)
        self._pass(now)
        return True

    def _next(self) -> float:
        ready = self.state.next_ready()
        times = (
            self._ends[0][0] if self._ends else math.inf,
            self.state.wake,
            ready[0] if ready else math.inf,
        )
        return (
            max(min(times), math.nextafter(self.state.now, math.inf)) if min(times) < math.inf else math.inf
        )

    def _pass(self, now: float) -> None:
        """Run passes until nothing stops: as in the controller, the exit of an evicted attempt requires one."""
        self._decide(now)
        while self._let_stop(now):
            self._decide(now)

    def _let_stop(self, now: float) -> bool:
        """End evicted and moved attempts at once, whatever their grace; return whether there were any."""
        state = self.state
        stopping = [one for one in state.attempts.values() if one.state == STOPPING]
        for attempt in stopping:
            body = {"token": attempt.token, "codes": [], "stopped": True, "lost": True}
            state.apply(Record(now, "exited", attempt.job, body))
        for record in launches(state, now, {}):
            state.apply(record)
        return bool(stopping)

    def _decide(self, now: float) -> None:
        state = self.state
        while (ready := state.next_ready()) is not None and ready[0] <= now:
            state.apply(Record(now, "ready", ready[1]))
        made = decide(state, now)[1:]
        evicted = [record for record in made if record.kind == "evict"]
        for record in made:
            if record.kind != "evict" and record.job is not None:
                if record.job not in self.result.starts:
                    self._note_start(record, evicted)
                self._expect(record.job)

    def _note_start(self, record: Record, evicted: list[Record]) -> None:
        state, found, name = self.state, self.result, record.job
        assert name is not None
        attempt = state.attempts[record.body["token"]]
        places: dict[str, int] = {}
        for seat in attempt.seats:
            machine = state.cluster.machines[seat.machine].name
            places[machine] = places.get(machine, 0) + len(seat.devices)
        found.starts[name], found.places[name] = record.time, places
        found.tiers[name], found.reasons[name] = state.setup.tiers[attempt.tier], int(record.body["reason"])
        if attempt.shape is not None:
            found.shapes[name] = attempt.shape
        there = [job for job, machines in self._ended.items() if machines & set(places)]
        found.after[name] = there or list(self._ended)
        found.displaced[name] = [one.job for one in evicted if one.job and name in one.body.get("by", [])]
        holder = int(state.world.reservation[0]["last_holder"])
        if holder >= 0 and (other := state.rows[holder]) is not None:
            found.reserved[name] = other.id

    def _expect(self, name: str) -> None:
        job = self.state.jobs[name]
        record = self.state.world.jobs[job.row]
        end = max(self.state.now, float(record["restored_at_s"])) + float(record["true_remaining_s"]) / float(
            record["speed"]
        )
        heapq.heappush(self._ends, (end, name, job.attempts))

    def _end(self, name: str, attempt: int, now: float) -> None:
        """End a job, unless it has been evicted since its end was expected."""
        state, job = self.state, self.state.jobs.get(name)
        if job is None or job.attempts != attempt or job.token is None:
            return
        machines = state.attempts[job.token].machines
        self._ended[name] = {state.cluster.machines[machine].name for machine in machines}
        for token in list(job.alive):
            codes = [0] if token == job.token else []
            state.apply(Record(now, "exited", name, {"token": token, "codes": codes, "lost": not codes}))
        self.result.ends[name] = now


def free_over_time(
    state: ControllerState, *, now: float, pending: bool, within_s: float = 86_400.0, most: int = 4
) -> list[tuple[float, tuple[int, ...]]]:
    """Return moments at which more devices of a type are free than ever before, and the free devices of each type.

    The state is played on, and used up; at most `most` moments, the first is now.
    """
    play = _Play(state, max(state.now, now))
    play.begin(pending=pending)
    found = [(play.result.now, _free_by_type(state))]
    best = found[0][1]
    for _ in range(EVENTS):
        if len(found) >= most or not play.step() or state.now > play.result.now + within_s:
            break
        free = _free_by_type(state)
        if any(have > before for have, before in zip(free, best, strict=True)):
            found.append((state.now, free))
            best = tuple(map(max, free, best))
    return found


def _free_by_type(state: ControllerState) -> tuple[int, ...]:
    hosts = state.world.hosts
    kinds = range(len(state.setup.device_type_names))
    return tuple(int(hosts["free"][hosts["device_type"] == kind].sum()) for kind in kinds)


def cluster_of_free(cluster: Cluster, free: tuple[int, ...]) -> Cluster:
    """Return a cluster with this number of devices of each type, taken from its first machines."""
    left = list(free)
    machines = []
    for machine in cluster.machines:
        devices = []
        for kind, count in machine.devices:
            taken = min(count, left[kind])
            left[kind] -= taken
            devices.append((kind, taken))
        machines.append(replace(machine, devices=tuple(one for one in devices if one[1])))
    return replace(cluster, machines=tuple(machines))


def dry_run(
    state: ControllerState, spec: JobSpec, user: str, now: float | None = None
) -> tuple[str, Forecast]:
    """Return where and when a job would start if it were submitted now; uses up the state."""
    name = "?"  # ids begin with a letter or a digit
    moment = max(state.now, now or 0.0)
    state.apply(Record(moment, "submitted", name, submission(spec, user)))
    return name, forecast(state, now=moment, until=name)


def end_changes(before: Forecast, after: Forecast) -> dict[str, tuple[float, float]]:
    """Return by job its end in two forecasts, in seconds from now, the largest change first."""
    ends = {
        name: (end - before.now, after.ends[name] - after.now)
        for name, end in before.ends.items()
        if name in after.ends
    }
    return dict(sorted(ends.items(), key=lambda one: -abs(one[1][1] - one[1][0])))


def what_if(
    state: ControllerState, *, policy: str | None = None, racks: int = 0, now: float | None = None
) -> Forecast:
    """Return the forecast under another policy or with more racks; uses up the state."""
    setup: Setup = state.setup
    if policy is not None:
        setup = replace(setup, policy=policy)
    if racks:
        setup = replace(setup, cluster=add_racks(setup.cluster, racks))
    setup.load_policy()
    state.now = max(state.now, now or 0.0)
    _kernels.bring_up_to(state.native_world, state.now)  # a migration keeps the work left at the last pass
    return forecast(migrate(state, setup), now=now)
