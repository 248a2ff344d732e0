"""The fold in virtual time: what would happen from here, if every job took as long as is expected of it.

The very pass that schedules the cluster is run over a copy of the books, from one expected end to the next. So an
estimate, a dry run and a what-if are all the same question: what does this state become. All of it is modelled.

A job that has outlived its estimate is overdue: it is expected to need another quarter of the time it was given, as
the scheduler itself reckons at its next pass.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace

from berth.live import _kernels
from berth.live.books import Books
from berth.live.job import STOPPING, Job
from berth.live.orders import launches
from berth.live.passing import decide
from berth.live.rebase import rebase
from berth.live.records import Record
from berth.live.setup import DEFAULT_DURATION_S, Setup
from berth.live.spec import JobSpec, submission
from berth.simulate.whatif import add_racks

EVENTS = 3_000  # ends that a forecast looks at, unless told otherwise
_OVERDUE_S = 1.0  # a back end is looked at about once a second: a job that has just ended is not overdue


@dataclass(slots=True)
class Forecast:
    """When jobs are expected to start and to end; what is not in here lies beyond the events looked at."""

    now: float
    starts: dict[str, float] = field(default_factory=dict)
    places: dict[str, dict[str, int]] = field(default_factory=dict)  # devices by machine
    tiers: dict[str, str] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)  # of the start: see schedule/reasons.py
    after: dict[str, list[str]] = field(default_factory=dict)  # jobs whose end lets it start
    displaced: dict[str, list[str]] = field(default_factory=dict)  # jobs that are evicted as it starts
    reserved: dict[str, str] = field(
        default_factory=dict
    )  # for a job that backfills: for which job its place is kept
    expected_ends: dict[str, float] = field(default_factory=dict)  # of the attempts that run now
    whole: bool = True  # every job came to its end
    complete: bool = True  # nothing more happens by itself; otherwise the events looked at did not suffice

    def mean_left_s(self) -> float | None:
        """Seconds from now to the end of a job, on average."""
        return sum(end - self.now for end in self.ends.values()) / len(self.ends) if self.ends else None


def overdue_s(books: Books, job: Job, now: float) -> float:
    """For how long a running job has outlived its estimate; 0: it has not."""
    if job.token is None:
        return 0.0
    record = books.world.jobs[job.row]
    speed, touched = float(record["speed"]), float(record["updated_s"])
    estimate_s = job.spec.duration or books.durations.get(job.spec.name) or DEFAULT_DURATION_S
    worked_s = max(0.0, now - max(touched, float(record["restored_at_s"]))) * speed
    if float(record["work_s"]) - float(record["true_remaining_s"]) + worked_s < estimate_s:
        return 0.0
    late_s = float(record["ran_s"]) + now - touched - estimate_s / speed
    return late_s if late_s > _OVERDUE_S else 0.0


def forecast(
    books: Books,
    *,
    now: float | None = None,
    pending: bool = True,
    until: str | None = None,
    events: int = EVENTS,
) -> Forecast:
    """Plays books that are not needed any more from `now` to the end, or until a job has started.

    `pending`: something has changed since the last pass, so that the controller would run one now. Without that there
    is none before the next event: one more pass could decide what the controller never would.
    """
    play = _Play(books, max(books.now, now or 0.0))
    play.begin(pending=pending)
    for _ in range(events):
        if until is not None and until in play.told.starts:
            break
        if not play.step():
            break
    else:
        play.told.complete = False
    play.told.whole = all(job.ends_as is not None for job in books.jobs.values())
    return play.told


class _Play:
    """One forecast on its way."""

    def __init__(self, books: Books, now: float) -> None:
        self.books, self.told = books, Forecast(now)
        self._ends: list[tuple[float, str, int]] = []
        self._ended: dict[str, set[str]] = {}  # jobs that end at this moment, and their machines

    def begin(self, *, pending: bool) -> None:
        """Brings the books up to the present, with a pass if one is due."""
        books, now = self.books, self.told.now
        books.now = now
        _kernels.bring_up_to(books.scene, now)
        running = [job.id for job in books.jobs.values() if job.token is not None]
        ready = books.next_ready()
        if pending or books.wake <= now or (ready is not None and ready[0] <= now):
            self._pass(now)
        for name in running:
            if name in books.jobs and books.jobs[name].token is not None and name not in self.told.starts:
                self._expect(name)
        self.told.expected_ends = {name: end for end, name, _ in self._ends if name in set(running)}

    def step(self) -> bool:
        """Goes on to the next moment at which something happens; False: there is none."""
        now = self._next()
        if now == math.inf:
            return False
        self._ended = {}
        while self._ends and self._ends[0][0] <= now:
            self._end(*heapq.heappop(self._ends)[1:], now)
        self._pass(now)
        return True

    def _next(self) -> float:
        ready = self.books.next_ready()
        times = (
            self._ends[0][0] if self._ends else math.inf,
            self.books.wake,
            ready[0] if ready else math.inf,
        )
        return (
            max(min(times), math.nextafter(self.books.now, math.inf)) if min(times) < math.inf else math.inf
        )

    def _pass(self, now: float) -> None:
        """Runs passes until nothing stops: as in the controller, the exit of an evicted attempt asks for another."""
        self._decide(now)
        while self._let_stop(now):
            self._decide(now)

    def _let_stop(self, now: float) -> bool:
        """What was evicted or moved has left at once, whatever its grace; returns whether anything had to."""
        books = self.books
        stopping = [one for one in books.attempts.values() if one.state == STOPPING]
        for attempt in stopping:
            body = {"token": attempt.token, "codes": [], "stopped": True, "lost": True}
            books.fold(Record(now, "exited", attempt.job, body))
        for record in launches(books, now, {}):
            books.fold(record)
        return bool(stopping)

    def _decide(self, now: float) -> None:
        books = self.books
        while (ready := books.next_ready()) is not None and ready[0] <= now:
            books.fold(Record(now, "ready", ready[1]))
        made = decide(books, now)[1:]
        evicted = [record for record in made if record.kind == "evict"]
        for record in made:
            if record.kind != "evict" and record.job is not None:
                if record.job not in self.told.starts:
                    self._note_start(record, evicted)
                self._expect(record.job)

    def _note_start(self, record: Record, evicted: list[Record]) -> None:
        books, told, name = self.books, self.told, record.job
        assert name is not None
        attempt = books.attempts[record.body["token"]]
        places: dict[str, int] = {}
        for seat in attempt.seats:
            machine = books.cluster.machines[seat.machine].name
            places[machine] = places.get(machine, 0) + len(seat.devices)
        told.starts[name], told.places[name] = record.time, places
        told.tiers[name], told.reasons[name] = books.setup.tiers[attempt.tier], int(record.body["reason"])
        there = [job for job, machines in self._ended.items() if machines & set(places)]
        told.after[name] = there or list(self._ended)
        told.displaced[name] = [one.job for one in evicted if one.job and name in one.body.get("by", [])]
        holder = int(books.world.state[0]["last_reserved"])
        if holder >= 0 and (other := books.rows[holder]) is not None:
            told.reserved[name] = other.id

    def _expect(self, name: str) -> None:
        job = self.books.jobs[name]
        record = self.books.world.jobs[job.row]
        end = max(self.books.now, float(record["restored_at_s"])) + float(record["true_remaining_s"]) / float(
            record["speed"]
        )
        heapq.heappush(self._ends, (end, name, job.attempts))

    def _end(self, name: str, attempt: int, now: float) -> None:
        """A job ends, unless it has been evicted since this was expected of it."""
        books, job = self.books, self.books.jobs.get(name)
        if job is None or job.attempts != attempt or job.token is None:
            return
        machines = books.attempts[job.token].machines
        self._ended[name] = {books.cluster.machines[machine].name for machine in machines}
        for token in list(job.alive):
            codes = [0] if token == job.token else []
            books.fold(Record(now, "exited", name, {"token": token, "codes": codes, "lost": not codes}))
        self.told.ends[name] = now


def dry_run(books: Books, spec: JobSpec, user: str, now: float | None = None) -> tuple[str, Forecast]:
    """Where and when a job would start that was submitted now; for books that are not needed any more."""
    name = "?"  # no other job's: ids begin with a letter or a digit
    moment = max(books.now, now or 0.0)
    books.fold(Record(moment, "submitted", name, submission(spec, user)))
    return name, forecast(books, now=moment, until=name)


def what_if(books: Books, *, policy: str | None = None, racks: int = 0, now: float | None = None) -> Forecast:
    """The same jobs from here, under another policy or on more racks; for books that are not needed any more."""
    setup: Setup = books.setup
    if policy is not None:
        setup = replace(setup, policy=policy)
    if racks:
        setup = replace(setup, cluster=add_racks(setup.cluster, racks))
    setup.load_policy()
    return forecast(rebase(books, setup), now=now)
