"""The fold in virtual time: what would happen from here, if every job took as long as is expected of it.

The very pass that schedules the cluster is run over a copy of the books, from one expected end to the next. So an
estimate, a dry run and a what-if are all the same question: what does this state become. All of it is modelled.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace

from berth.live import snapshot
from berth.live.books import Books
from berth.live.passing import decide
from berth.live.rebase import rebase
from berth.live.records import Record
from berth.live.setup import Setup
from berth.live.spec import JobSpec
from berth.simulate.whatif import add_racks

EVENTS = 3_000  # ends that a forecast looks at, unless told otherwise


@dataclass(slots=True)
class Forecast:
    """When jobs are expected to start and to end; what is not in here lies beyond the events looked at."""

    now: float
    starts: dict[str, float] = field(default_factory=dict)
    places: dict[str, dict[str, int]] = field(default_factory=dict)  # devices by machine
    tiers: dict[str, str] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    whole: bool = True  # every job came to its end

    def mean_left_s(self) -> float | None:
        """Seconds from now to the end of a job, on average."""
        return sum(end - self.now for end in self.ends.values()) / len(self.ends) if self.ends else None


def copy_of(books: Books) -> Books:
    """Books that share nothing with these."""
    return snapshot.load(snapshot.save(books))


def forecast(books: Books, *, until: str | None = None, events: int = EVENTS) -> Forecast:
    """Plays books that nobody needs any more to the end, or until a job has started."""
    told = Forecast(books.now)
    ends: list[tuple[float, str, int]] = []
    _note(books, told, ends, decide(books, books.now))
    for job in books.jobs.values():
        if job.token is not None and job.id not in told.starts:
            _expect(books, ends, job.id)
    for _ in range(events):
        if until is not None and until in told.starts:
            break
        now = _next(books, ends)
        if now == math.inf:
            break
        while ends and ends[0][0] <= now:
            _end(books, told, *heapq.heappop(ends)[1:], now)
        while (ready := books.next_ready()) is not None and ready[0] <= now:
            books.fold(Record(now, "ready", ready[1]))
        _note(books, told, ends, decide(books, now))
    told.whole = all(job.ends_as is not None for job in books.jobs.values())
    return told


def _next(books: Books, ends: list[tuple[float, str, int]]) -> float:
    ready = books.next_ready()
    times = (ends[0][0] if ends else math.inf, books.wake, ready[0] if ready else math.inf)
    return max(min(times), math.nextafter(books.now, math.inf)) if min(times) < math.inf else math.inf


def _note(books: Books, told: Forecast, ends: list[tuple[float, str, int]], made: list[Record]) -> None:
    """Writes down who starts where, and when that should end."""
    for record in made[1:]:
        if record.kind == "evict" or record.job is None:
            continue
        if record.job not in told.starts:
            attempt = books.attempts[record.body["token"]]
            told.starts[record.job] = record.time
            told.tiers[record.job] = books.setup.tiers[attempt.tier]
            places: dict[str, int] = {}
            for seat in attempt.seats:
                name = books.cluster.machines[seat.machine].name
                places[name] = places.get(name, 0) + len(seat.devices)
            told.places[record.job] = places
        _expect(books, ends, record.job)


def _expect(books: Books, ends: list[tuple[float, str, int]], name: str) -> None:
    job = books.jobs[name]
    record = books.world.jobs[job.row]
    end = max(books.now, float(record["stall"])) + float(record["left"]) / float(record["speed"])
    heapq.heappush(ends, (end, name, job.attempts))


def _end(books: Books, told: Forecast, name: str, attempt: int, now: float) -> None:
    """A job ends, unless it has been evicted since this was expected of it."""
    job = books.jobs.get(name)
    if job is None or job.attempts != attempt or job.token is None:
        return
    for token in list(job.alive):
        codes = [0] if token == job.token else []
        books.fold(Record(now, "exited", name, {"token": token, "codes": codes, "lost": not codes}))
    told.ends[name] = now


def dry_run(books: Books, spec: JobSpec, user: str) -> tuple[str, Forecast]:
    """Where and when a job would start that was submitted now; for books that nobody needs any more."""
    name = "?"  # nobody else's: ids begin with a letter or a digit
    books.fold(Record(books.now, "submitted", name, {"spec": spec.plain(), "user": user}))
    return name, forecast(books, until=name)


def what_if(books: Books, *, policy: str | None = None, racks: int = 0) -> Forecast:
    """The same jobs from here, under another policy or on more racks; for books that nobody needs any more."""
    setup: Setup = books.setup
    if policy is not None:
        setup = replace(setup, policy=policy)
    if racks:
        setup = replace(setup, cluster=add_racks(setup.cluster, racks))
    setup.load_policy()
    return forecast(rebase(books, setup))
