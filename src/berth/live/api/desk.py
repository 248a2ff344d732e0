"""What the API answers, without HTTP: reads of the books and of the store, under the rights of whoever asks."""

from __future__ import annotations

import codecs
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from berth.cluster.plain import to_plain
from berth.errors import InputError
from berth.live import forecast, views
from berth.live.api.events import Events
from berth.live.api.metrics import metrics_text
from berth.live.api.tokens import Caller, Tokens
from berth.live.books import Books
from berth.live.commands import MissingError, check_fits
from berth.live.controller import Controller
from berth.live.folder import Folder
from berth.live.forecast import Forecast
from berth.live.history import Setups, history
from berth.live.spec import JobSpec
from berth.units import format_count

_THINKERS, _THINKING_S = 2, 5.0  # forecasts at a time, and how long the next one waits
_FRESH_S = 5.0  # an estimate is good for so long
_ESTIMATED = 300  # ends that the estimates of a queue look at
_BUSY = 4_000  # jobs beyond which no estimates are made unasked


class BusyError(InputError):
    """Not now."""


class DeniedError(MissingError):
    """It exists, and it is somebody else's."""


class Desk:
    """Everything that can be read."""

    def __init__(self, controller: Controller, tokens: Tokens, attempts: Path) -> None:
        self.controller, self.tokens = controller, tokens
        self.events = Events(controller)
        self._attempts = attempts
        self._setups = Setups(controller.store)
        self._estimate: tuple[float, Forecast] | None = None
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
                "seq": self.controller.store.seq,
                "usd_per_hour": self._books.cluster.usd_per_hour,
            }

    def cluster(self) -> dict[str, Any]:
        """Machines and who is on them."""
        with self.controller.lock:
            plain = to_plain(self._books.cluster)
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
            rows = []
            for place, job in enumerate([*waiting, *others][:limit]):
                row = views.job_row(books, job, details=caller.may_touch(job.user))
                row["reason"] = views.reason_row(views.reason_of(books, job, now))
                if place < len(waiting):
                    row["position"] = place + 1
                row["expected_start"] = estimate.starts.get(job.id) if estimate else None
                rows.append(row)
            return {"jobs": rows, "waiting": len(waiting), "total": len(books.jobs)}

    def expected_starts(self) -> dict[str, float]:
        """By job, as far as a forecast that is not too old knows."""
        estimate = self._estimated()
        return estimate.starts if estimate else {}

    def _estimated(self) -> Forecast | None:
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
            copy = self._copy()
            self._estimate = (time.monotonic(), forecast.forecast(copy, events=_ESTIMATED))
            return self._estimate[1]
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
        if job is None:
            row = self.job(name, caller)
            sentence = f"it is over: {row['state']}"
            return {"job": name, "state": row["state"], "reason": {"code": "over", "sentence": sentence}}
        estimate = self._estimated()
        return told | {"expected_start": estimate.starts.get(name) if estimate else None}

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
        path = Folder(self._attempts, f"{self.controller.store.name}-{name}.{number}").log(rank)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(limit)
        except FileNotFoundError:
            return "", offset
        whole = _whole_letters(data, limit)
        return data[:whole].decode(errors="replace"), offset + whole

    def dry_run(self, spec: JobSpec, caller: Caller) -> dict[str, Any]:
        """Where and when a job would start."""
        with self.controller.lock:
            check_fits(self._books, spec)
        with self._thinking():
            name, told = forecast.dry_run(self._copy(), spec, caller.user)
        return {
            "modelled": True,
            "now": told.now,
            "starts": told.starts.get(name),
            "tier": told.tiers.get(name),
            "machines": told.places.get(name),
        }

    def _copy(self) -> Books:
        with self.controller.lock:
            return forecast.copy_of(self._books)

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
        with self._thinking():
            state = self._copy()
            was = state.setup.policy
            changed = forecast.what_if(forecast.copy_of(state), policy=policy, racks=racks)
            plain = forecast.forecast(state)
        return {
            "modelled": True,
            "as_it_is": _result(plain),
            "changed": _result(changed),
            "policy": policy or was,
            "add_racks": racks,
        }


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
