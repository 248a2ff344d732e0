"""What the API answers, without HTTP: reads of the books and of the store, under the rights of whoever asks."""

from __future__ import annotations

import codecs
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from berth.cluster.serialize import cluster_to_dict
from berth.errors import InputError
from berth.live import forecast, outlook, snapshot, views
from berth.live.api.events import Events
from berth.live.api.metrics import metrics_text
from berth.live.api.tokens import Caller, LoginCodes, Tokens
from berth.live.books import Books
from berth.live.bounds import Bounds, DeniedError
from berth.live.causes import sentence
from berth.live.commands import Command, ConflictError, MissingError, check_fits, submit
from berth.live.controller import Controller
from berth.live.folder import Folder
from berth.live.forecast import Forecast
from berth.live.history import Setups, history
from berth.live.job import FINISHED, Job
from berth.live.outlook import Outlook
from berth.live.spec import JobSpec
from berth.schedule.policies.registry import load_policy
from berth.schedule.reasons import Reason
from berth.units import format_count

_THINKERS, _THINKING_S = 2, 5.0  # forecasts at a time, and how long the next one waits
_FRESH_S = 5.0  # an estimate is good for so long
_ESTIMATED = 300  # ends that the estimates of a queue look at
_SESSION_S = 12 * 3600.0  # a page that was opened with a code is let in for this long
_BUSY = 4_000  # jobs beyond which no estimates are made unasked


class BusyError(InputError):
    """Not now."""


class Service:
    """Everything that can be read."""

    def __init__(
        self, controller: Controller, tokens: Tokens, attempts: Path, bounds: Bounds | None = None
    ) -> None:
        self.controller, self.tokens = controller, tokens
        self.codes, self._bounds = LoginCodes(), bounds or Bounds()
        self.events = Events(controller)
        self._attempts = attempts
        self._setups = Setups(controller.store)
        self._estimate: tuple[float, Outlook] | None = None
        self._estimating = threading.Lock()
        self._thinkers = threading.Semaphore(_THINKERS)

    @property
    def _books(self) -> Books:
        return self.controller.books

    def metrics(self) -> str:
        """For Prometheus."""
        with self.controller.lock:
            return metrics_text(self.controller)

    def status(self) -> dict[str, Any]:
        """A few numbers."""
        with self.controller.lock:
            return views.counts(self._books) | {
                "time": self.controller.now(),
                "backend": self.controller.backend.name,
                "policy": self._books.setup.policy,
                "cluster": self._books.cluster.name,
                "trouble": self.controller.trouble,
                "warnings": self._warnings(),
                "seq": self.controller.store.seq,
                "usd_per_hour": self._books.cluster.usd_per_hour,
            }

    def cluster(self) -> dict[str, Any]:
        """Machines and who is on them."""
        with self.controller.lock:
            plain = cluster_to_dict(self._books.cluster)
            told = {
                name: plain[name]
                for name in ("name", "device_types", "tiers", "groups", "group_names", "notes")
            }
            return told | {"machines": views.machines(self._books)}

    def jobs(self, caller: Caller, *, over: bool, limit: int) -> dict[str, Any]:
        """The queue in its order and what runs, or what has ended."""
        if over:
            rows = self.controller.store.recent(limit)
            return {"jobs": [views.over_row(row, details=caller.may_touch(row["user"])) for row in rows]}
        estimate = self._estimated()
        with self.controller.lock:
            books, now = self._books, self.controller.now()
            waiting = views.queue(books)
            known = {job.id for job in waiting}
            others = [job for job in books.jobs.values() if job.id not in known]
            listed, held_up = [*waiting, *others][:limit], self._held_up()
            facts, specs = [views.job_facts(books, job) for job in listed], [job.spec for job in listed]
            held = {job.id: reason for job in listed if (reason := held_up(job)) is not None}
            reasons = [held.get(job.id) or views.reason_of(books, job, now) for job in listed]
            counts = {"waiting": len(waiting), "total": len(books.jobs)}
            warnings = self._warnings()
        # the forecast is of a copy: what it says is put together while the controller goes on
        rows = [
            row
            | {"spec": views.spec_row(spec, details=caller.may_touch(row["user"]))}
            | {"reason": views.reason_row(reason)}
            | ({"position": place} if place <= len(waiting) else {})
            | _expected(estimate, row["id"], now, explained=row["id"] not in held)
            for place, (row, spec, reason) in enumerate(zip(facts, specs, reasons, strict=True), 1)
        ]
        return {"jobs": rows, **counts, "warnings": warnings}

    def _warnings(self) -> list[dict[str, Any]]:
        return [one.plain() for one in self.controller.hindrances()]

    def reasons(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """By job that is not over: why it waits or runs where it does, the work left, and what a forecast says.

        What the back end holds up comes before the policy's reasons.
        """
        estimate = self._estimated()
        with self.controller.lock:
            books, now, held_up = self._books, self.controller.now(), self._held_up()
            jobs = [books.jobs[name] for name in names if name in books.jobs]
            held = {job.id: reason for job in jobs if (reason := held_up(job)) is not None}
            reasons = [held.get(job.id) or views.reason_of(books, job, now) for job in jobs]
            left_s = [float(books.world.jobs[job.row]["estimated_remaining_s"]) for job in jobs]
        return {
            job.id: {"reason": views.reason_row(reason), "remaining_s": left}
            | _expected(estimate, job.id, now, explained=job.id not in held)
            for job, reason, left in zip(jobs, reasons, left_s, strict=True)
        }

    def _held_up(self) -> Callable[[Job], Reason | None]:
        """What the back end holds up, by job; for as long as the controller's lock is held."""
        books, seen, hindrances = self._books, self.controller.seen, self.controller.hindrances()
        return lambda job: views.held_up(books, job, seen, hindrances)

    def _estimated(self) -> Outlook | None:
        """When jobs should start, from a forecast that is not too old; it is made by one caller at a time."""
        known = self._estimate
        if known is not None and time.monotonic() - known[0] < _FRESH_S:
            return known[1]
        if not self._estimating.acquire(blocking=False):
            return known[1] if known else None
        try:
            with self.controller.lock:
                if len(self._books.jobs) > _BUSY:
                    return None
            copy, now, pending = self._copy()
            made = Outlook(copy, now, pending=pending, events=_ESTIMATED)
            self._estimate = (time.monotonic(), made)
            return made
        finally:
            self._estimating.release()

    def find(self, prefix: str) -> str:
        """A job's id by its beginning."""
        with self.controller.lock:
            if prefix in self._books.jobs:
                return prefix
            active = [name for name in self._books.jobs if name.startswith(prefix)]
        if self.controller.store.over(prefix) is not None:
            return prefix
        found = sorted({*active, *self.controller.store.ids_with(prefix)})
        if len(found) == 1 and prefix:
            return found[0]
        if found and prefix:
            shown = ", ".join(found[:5]) + (" ..." if len(found) > 5 else "")
            raise MissingError(f"several jobs begin with {prefix!r}: {shown}")
        raise MissingError(
            f"there is no job {prefix!r}", hint="berth queue lists them; --over those that ended"
        )

    def own(self, prefix: str, caller: Caller) -> str:
        """The same, if it is the caller's."""
        name = self.find(prefix)
        if not caller.may_touch(self._owner(name)):
            raise DeniedError(f"job {name} is not yours")
        return name

    def _owner(self, name: str) -> str:
        with self.controller.lock:
            job = self._books.jobs.get(name)
        if job is not None:
            return job.user
        over = self.controller.store.over(name)
        return str(over["user"]) if over is not None else ""

    def job(self, prefix: str, caller: Caller) -> dict[str, Any]:
        """One job."""
        name = self.find(prefix)
        with self.controller.lock:
            job = self._books.jobs.get(name)
            if job is not None:
                return views.job_row(self._books, job, details=caller.may_touch(job.user))
        over = self.controller.store.over(name)
        assert over is not None
        return views.over_row(over, details=caller.may_touch(over["user"]))

    def why(self, prefix: str, caller: Caller) -> dict[str, Any]:
        """Why it stands where it stands."""
        name = self.find(prefix)
        with self.controller.lock:
            job = self._books.jobs.get(name)
            if job is not None:
                told = views.why(self._books, job, self.controller.now())
                told["warnings"] = self._warnings()
        if job is None:
            row = self.job(name, caller)
            said = f"it is over: {row['state']}"
            if row["cause"] and row["state"] != FINISHED:
                said += f", {sentence(row['cause'], row['detail'])}"
            return {"job": name, "state": row["state"], "reason": {"code": "over", "sentence": said}}
        return told | self.reasons([name]).get(name, {})

    def history(self, prefix: str) -> dict[str, Any]:
        """All that happened to a job."""
        return history(self.find(prefix), self.controller.store, self._setups)

    def logs(
        self, prefix: str, caller: Caller, *, attempt: int | None, rank: int, offset: int, limit: int
    ) -> tuple[str, int]:
        """A piece of a log, and where the next begins."""
        name = self.own(prefix, caller)
        row = self.job(name, caller)
        if attempt is not None and attempt > row["attempts"]:
            raise MissingError(f"job {name} has had {format_count(row['attempts'], 'attempt')}")
        if rank >= row["gpus"]:
            raise MissingError(f"job {name} has no rank {rank}: it has {format_count(row['gpus'], 'device')}")
        number = attempt or int(row["attempts"])
        if number == 0:
            return "", 0
        path = Folder(self._attempts, self.controller.store.tokens_of(name)[number - 1]).log(rank)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(limit)
        except FileNotFoundError:
            return "", offset
        whole = _whole_letters(data, limit)
        return data[:whole].decode(errors="replace"), offset + whole

    def session(self, caller: Caller) -> str | None:
        """A token for a page, with the rights of the caller; None: the caller's own has ended."""
        return self.tokens.add_session(caller, time.time() + _SESSION_S)

    def submission(self, spec: JobSpec, caller: Caller, job: str | None) -> Command:
        """The command that submits a job, if the caller may ask for all of it."""
        try:
            spec.check_together()
        except InputError as error:
            raise ConflictError(error.what) from None
        if caller.role != "admin":
            self._bounds.check(spec)
        return submit(spec, caller.user, job)

    def dry_run(self, spec: JobSpec, caller: Caller) -> dict[str, Any]:
        """Where and when a job would start."""
        self.submission(spec, caller, None)
        with self.controller.lock:
            check_fits(self._books, spec)
        with self._thinking():
            copy, now, _ = self._copy()
            name, told = forecast.dry_run(copy, spec, caller.user, now)
        return {
            "modelled": True,
            "now": told.now,
            "blocker": None if name in told.starts else outlook.never(copy, copy.jobs[name], told),
            "starts": told.starts.get(name),
            "tier": told.tiers.get(name),
            "machines": told.places.get(name),
        }

    def _copy(self) -> tuple[Books, float, bool]:
        """Books to play with, what time it is, and whether a pass is due."""
        with self.controller.lock:
            return snapshot.copy_of(self._books), self.controller.now(), self.controller.pending

    @contextmanager
    def _thinking(self) -> Iterator[None]:
        """Forecasts take a while: a few at a time, so that everything else is answered meanwhile."""
        if not self._thinkers.acquire(timeout=_THINKING_S):
            raise BusyError("too many forecasts are being made", hint="ask again in a moment")
        try:
            yield
        finally:
            self._thinkers.release()

    def what_if(self, *, policy: str | None, racks: int) -> dict[str, Any]:
        """From here as it is, and from here with the change."""
        if policy is not None:
            load_policy(policy)  # an unknown one is refused before the state is copied
        with self._thinking():
            state, now, pending = self._copy()
            was = state.setup.policy
            changed = forecast.what_if(snapshot.copy_of(state), policy=policy, racks=racks, now=now)
            plain = forecast.forecast(state, now=now, pending=pending)
        return {
            "modelled": True,
            "as_it_is": _result(plain),
            "changed": _result(changed),
            "policy": policy or was,
            "add_racks": racks,
        }


def _expected(estimate: Outlook | None, name: str, now: float, *, explained: bool) -> dict[str, Any]:
    """The forecast of a job; not `explained`: the back end holds it up, whatever the policy would do."""
    if estimate is None:
        return {"expected_start": None}
    row = estimate.row(name, now)
    return row if explained or "blocker" not in row else row | {"blocker": None}


def _whole_letters(data: bytes, limit: int) -> int:
    """How many of these bytes end with a whole letter: the rest of one that was cut comes with the next piece."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(data)
    whole = len(data) - len(decoder.getstate()[0])
    return whole if whole or len(data) < limit else len(data)  # a limit below a letter's bytes gets on, too


def _result(told: Forecast) -> dict[str, Any]:
    last = max(told.ends.values(), default=told.now)
    return {
        "jobs": len(told.ends),
        "whole": told.whole,
        "mean_left_s": told.mean_left_s(),
        "last_end_s": last - told.now,
    }
