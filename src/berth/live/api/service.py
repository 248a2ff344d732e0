"""What the API answers, without HTTP: reads of the controller's state and store, under the caller's rights."""

from __future__ import annotations

import asyncio
import codecs
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from berth.cluster.model import Cluster
from berth.cluster.serialize import cluster_to_dict
from berth.errors import InputError, UnknownNameError, nearest
from berth.live import forecast, outlook, snapshot, views
from berth.live.alternatives import without_comparison
from berth.live.api.events import Events
from berth.live.api.metrics import metrics_text
from berth.live.api.tokens import Caller, LoginCodes, Tokens
from berth.live.commands import Command, ConflictError, MissingError, check_fits, submit
from berth.live.controller import Controller
from berth.live.decisions import PolicyFailedError
from berth.live.demand import requested
from berth.live.folder import Folder
from berth.live.forecast import Forecast, cluster_of_free, free_over_time
from berth.live.history import Setups, history
from berth.live.job import Job
from berth.live.lifecycle import FINISHED, QUEUED, sentence
from berth.live.offer import sent_offer
from berth.live.outlook import RUNNING_FIELDS, Outlook
from berth.live.spec import Bounds, DeniedError, JobSpec
from berth.live.state import ControllerState
from berth.schedule.policies.registry import load_policy
from berth.schedule.reasons import CODES, Reason, ReasonCode
from berth.units import format_count
from berth.workload.binding import bind, run_s
from berth.workload.shapes import Offer, Shape

if TYPE_CHECKING:
    from berth.live.goals import Goal, PlannedGoal

_FORECASTS, _FORECAST_WAIT_S = 2, 5.0  # concurrent forecasts, and how long another one waits for its turn
_OUTLOOK_TTL_S = 5.0
_OUTLOOK_EVENTS = 300  # ends of jobs that an outlook simulates
_COMPARED_NAMES = 5_000  # with more ids and names, the nearest is not looked for
_OUTLOOK_MOST_JOBS = 4_000  # with more jobs no outlook is computed for lists
_SAME_S, _MOST_CHANGES = 1.0, 200  # a what-if: ends this close together are the same; jobs that it lists
_SESSION_S = 12 * 3600.0  # validity of a token that a page gets for a login code
_CLUSTER_KEYS = ("name", "device_types", "tiers", "groups", "group_names", "notes")

_PASS_S = 1.0  # that an explanation waits for, at most


class BusyError(InputError):
    """Too many requests of this kind at the moment."""


class Service:
    """All reads, and the checks before a command."""

    def __init__(
        self, controller: Controller, tokens: Tokens, attempts: Path, bounds: Bounds | None = None
    ) -> None:
        self.controller, self.tokens = controller, tokens
        self.codes, self._bounds = LoginCodes(), bounds or Bounds()
        self.events = Events(controller)
        self._attempts = attempts
        self._setups = Setups(controller.store)
        self._outlook: tuple[float, Outlook | None] | None = None
        self._outlook_lock = threading.Lock()
        self._forecasts = threading.Semaphore(_FORECASTS)

    @property
    def _state(self) -> ControllerState:
        return self.controller.state

    async def run(self, command: Command) -> dict[str, Any]:
        """Run a command in the controller's thread and return its answer."""
        return await asyncio.wrap_future(self.controller.ask(command))

    def metrics(self) -> str:
        """Return the metrics for Prometheus."""
        with self.controller.lock:
            return metrics_text(self.controller)

    def status(self) -> dict[str, Any]:
        """Return the cluster in a few numbers."""
        with self.controller.lock:
            return views.counts(self._state) | {
                "time": self.controller.now(),
                "backend": self.controller.backend.name,
                "policy": self._state.setup.policy,
                "cluster": self._state.cluster.name,
                "trouble": self.controller.observer.error,
                "warnings": self._warnings(),
                "seq": self.controller.store.seq,
                "usd_per_hour": self._state.cluster.usd_per_hour,
            }

    def cluster(self) -> dict[str, Any]:
        """Return the machines and the jobs on them."""
        with self.controller.lock:
            plain = cluster_to_dict(self._state.cluster)
            return {name: plain[name] for name in _CLUSTER_KEYS} | {"machines": views.machines(self._state)}

    def jobs(self, caller: Caller, *, over: bool, limit: int) -> dict[str, Any]:
        """Return waiting jobs in queue order and running jobs; with `over`, jobs that have ended."""
        if over:
            rows, cluster = self.controller.store.recent(limit), self._state.cluster
            return {
                "jobs": [views.ended_row(cluster, row, details=caller.may_touch(row["user"])) for row in rows]
            }
        estimates = self._current_outlook()
        with self.controller.lock:
            state, now = self._state, self.controller.now()
            waiting = views.queue(state)
            queued = {job.id for job in waiting}
            listed = [*waiting, *(job for job in state.jobs.values() if job.id not in queued)][:limit]
            facts, specs = [views.job_facts(state, job, now) for job in listed], [job.spec for job in listed]
            reasons = self._reasons(listed, now)
            counts = {"waiting": len(waiting), "total": len(state.jobs)}
            warnings = self._warnings()
        # The outlook is computed from a copy, so the lock is not needed for it.
        rows = [
            row
            | {"spec": views.spec_row(spec, details=caller.may_touch(row["user"]))}
            | {"reason": views.reason_row(reason)}
            | ({"position": place} if place <= len(waiting) else {})
            | _expected(estimates, row["id"], now, held_up=held_up, waits=place <= len(waiting))
            for place, (row, spec, (reason, held_up)) in enumerate(zip(facts, specs, reasons, strict=True), 1)
        ]
        return {"jobs": rows, **counts, "warnings": warnings}

    def _warnings(self) -> list[dict[str, Any]]:
        return [one.to_dict() for one in self.controller.blockers()]

    def reasons(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return by job why it waits or runs where it does, its remaining work, and its expected start.

        Jobs that have ended are left out. A reason of the back end takes precedence over the policy's.
        """
        estimates = self._current_outlook()
        with self.controller.lock:
            state, now = self._state, self.controller.now()
            jobs = [state.jobs[name] for name in names if name in state.jobs]
            reasons = self._reasons(jobs, now)
            remaining_s = [views.remaining_s(state, job, now) for job in jobs]
        return {
            job.id: {"reason": views.reason_row(reason), "remaining_s": remaining}
            | _expected(estimates, job.id, now, held_up=held_up, waits=job.state == QUEUED)
            for job, (reason, held_up), remaining in zip(jobs, reasons, remaining_s, strict=True)
        }

    def _reasons(self, jobs: Sequence[Job], now: float) -> list[tuple[Reason, bool]]:
        """The reason of each job, and whether the back end holds it up. Needs the controller's lock."""
        state, seen, blockers = self._state, self.controller.observer.observation, self.controller.blockers()
        found = []
        for job in jobs:
            held_up = views.launch_blocker(state, job, seen, blockers)
            found.append((held_up or views.reason_of(state, job, now), held_up is not None))
        return found

    def _current_outlook(self) -> Outlook | None:
        """Expected starts, at most a few seconds old. One thread computes them; others get the previous ones."""
        known = self._outlook
        if known is not None and time.monotonic() - known[0] < _OUTLOOK_TTL_S:
            return known[1]
        if not self._outlook_lock.acquire(blocking=False):
            return known[1] if known else None
        try:
            with self.controller.lock:
                if len(self._state.jobs) > _OUTLOOK_MOST_JOBS:
                    return None
            made: Outlook | None
            try:
                copy, now, pending = self._copy()
                made = Outlook(copy, now, pending=pending, events=_OUTLOOK_EVENTS)
            except PolicyFailedError:  # now, or at a later time
                made = None
            self._outlook = (time.monotonic(), made)
            return made
        finally:
            self._outlook_lock.release()

    def find(self, prefix: str) -> str:
        """Return the id of the job with this id or unique prefix."""
        with self.controller.lock:
            if prefix in self._state.jobs:
                return prefix
            active = [name for name in self._state.jobs if name.startswith(prefix)]
            named = [job.id for job in self._state.jobs.values() if job.spec.name == prefix]
            known = {name for job in self._state.jobs.values() for name in (job.id, job.spec.name)}
        if self.controller.store.ended_job(prefix) is not None:
            return prefix
        found = sorted({*active, *self.controller.store.ids_with(prefix)})
        if len(found) == 1 and prefix:
            return found[0]
        if found and prefix:
            raise MissingError(f"several jobs begin with {prefix!r}: {_some(found)}")
        if prefix and named:
            verb = "has" if len(named) == 1 else "have"
            raise MissingError(
                f"there is no job {prefix!r}; {_some(named)} {verb} that name", hint=f"use its id: {named[0]}"
            )
        near = nearest(prefix, known) if len(known) <= _COMPARED_NAMES else None
        meant = f"did you mean {near!r}? " if near else ""
        raise MissingError(
            f"there is no job {prefix!r}", hint=f"{meant}berth queue lists them; --over those that ended"
        )

    def own(self, prefix: str, caller: Caller) -> str:
        """Return the id of a job if the caller may change it."""
        name = self.find(prefix)
        if not caller.may_touch(self._owner(name)):
            raise DeniedError(f"job {name} is not yours")
        return name

    def _owner(self, name: str) -> str:
        with self.controller.lock:
            job = self._state.jobs.get(name)
        if job is not None:
            return job.user
        over = self.controller.store.ended_job(name)
        return str(over["user"]) if over is not None else ""

    def job(self, prefix: str, caller: Caller) -> dict[str, Any]:
        """Return one job."""
        name = self.find(prefix)
        with self.controller.lock:
            job = self._state.jobs.get(name)
            if job is not None:
                now, own = self.controller.now(), caller.may_touch(job.user)
                return views.job_row(self._state, job, now, details=own)
        over = self.controller.store.ended_job(name)
        assert over is not None
        return views.ended_row(self._state.cluster, over, details=caller.may_touch(over["user"]))

    def why(self, prefix: str, caller: Caller) -> dict[str, Any]:
        """Return why a job waits or runs where it does, or how it ended."""
        name = self.find(prefix)
        self._await_pass(name)
        with self.controller.lock:
            job = self._state.jobs.get(name)
            if job is not None:
                answer = views.why(self._state, job, self.controller.now()) | {"warnings": self._warnings()}
        if job is not None:
            return _said_once(answer | self.reasons([name]).get(name, {}))
        row = self.job(name, caller)
        text = f"it is over: {row['state']}"
        if row["cause"] and row["state"] != FINISHED:
            text += f", {sentence(row['cause'], row['detail'])}"
        return {"job": name, "state": row["state"], "reason": {"code": "over", "sentence": text}}

    def _await_pass(self, name: str) -> None:
        """Wait for the pass that decides about a job that was just submitted: it is moments away."""
        until_s = time.monotonic() + _PASS_S
        while time.monotonic() < until_s:
            with self.controller.lock:
                job = self._state.jobs.get(name)
                if job is None or job.state != QUEUED or not self.controller.pending:
                    return
            time.sleep(0.02)

    def history(self, prefix: str) -> dict[str, Any]:
        """Return all events and attempts of a job."""
        return history(self.find(prefix), self.controller.store, self._setups)

    def logs(
        self,
        prefix: str,
        caller: Caller,
        *,
        attempt: int | None,
        rank: int,
        offset: int,
        limit: int,
        tail: int | None = None,
    ) -> tuple[str, int]:
        """Return a piece of a log and the offset of the next piece; `tail`: its last bytes, whatever the offset."""
        name = self.own(prefix, caller)
        row = self.job(name, caller)
        if attempt is not None and attempt > row["attempts"]:
            raise MissingError(f"job {name} has had {format_count(row['attempts'], 'attempt')}")
        if rank >= row["gpus"] and "shape" not in row:  # parts may have more processes than devices
            raise MissingError(f"job {name} has no rank {rank}: it has {format_count(row['gpus'], 'device')}")
        number = attempt or int(row["attempts"])
        if number == 0:
            return "", 0
        folder = Folder(self._attempts, self.controller.store.tokens_of(name)[number - 1])
        path, processes = folder.log(rank), folder.processes()
        if processes is not None and rank >= processes:
            raise MissingError(
                f"attempt {number} of job {name} has no rank {rank}: its last is {processes - 1}"
            )
        try:
            with path.open("rb") as file:
                if tail is not None:
                    offset = max(0, path.stat().st_size - tail)
                file.seek(offset)
                data = file.read(limit)
        except FileNotFoundError:
            return "", offset
        whole = _whole_characters(data, limit)
        return data[:whole].decode(errors="replace"), offset + whole

    def session(self, caller: Caller) -> str | None:
        """Return a token for a page, with the caller's rights; None if the caller's own token has ended."""
        return self.tokens.add_session(caller, time.time() + _SESSION_S)

    def submission(self, spec: JobSpec, caller: Caller, job: str | None) -> Command:
        """Return the command that submits a job, if the caller may ask for all of it."""
        try:
            spec.check_together()
        except InputError as error:
            raise ConflictError(error.what) from None
        if caller.role != "admin":
            self._bounds.check(spec)
        return submit(spec, caller.user, job)

    def dry_run(self, spec: JobSpec, caller: Caller) -> dict[str, Any]:
        """Return where and when a job would start (modelled)."""
        self.submission(spec, caller, None)
        with self.controller.lock:
            check_fits(self._state, spec)
        with self._forecasting():
            copy, now, _ = self._copy()
            name, found = forecast.dry_run(copy, spec, caller.user, now)
        return {
            "modelled": True,
            "now": found.now,
            "blocker": None if name in found.starts else outlook.never(copy, copy.jobs[name], found),
            "starts": found.starts.get(name),
            "tier": found.tiers.get(name),
            "shape": found.shapes.get(name),
            "machines": found.places.get(name),
        }

    def plan(self, goal: Goal) -> dict[str, Any]:
        """Return the keys of a job whose alternatives meet a goal on this cluster."""
        with self._forecasting():
            planned = self._planned(goal, self._state.cluster)
        return sent_offer(planned.offer) | {"plans": planned.plans}

    def free_plans(self, goal: Goal) -> dict[str, Any]:
        """Return plans for what is free now and at later times (modelled), with the time at which each would end."""
        with self._forecasting():
            copy, now, pending = self._copy()
            cluster, kinds = copy.cluster, copy.setup.device_type_names
            rows: list[dict[str, Any]] = []
            refused: InputError | None = None
            moments = free_over_time(copy, now=now, pending=pending)
            if not any(any(free) for _, free in moments):
                raise ConflictError(
                    f"no device of {cluster.name} is free now, or will be in the next hours",
                    hint="`berth cluster` shows which machines are drained; `berth undrain MACHINE` brings one back",
                )
            for moment, free in moments:
                if not any(free):
                    continue
                try:
                    planned = self._planned(goal, cluster_of_free(cluster, free))
                except InputError as error:
                    refused = refused or error
                    continue
                rows += [
                    {
                        "start": moment,
                        "end": moment + _run_s(planned.offer, shape, cluster),
                        "free": {name: count for name, count in zip(kinds, free, strict=True) if count},
                        "usd_per_hour": shape.usd_per_hour,
                        "shape": one,
                        "plan": planned.plans[one["plan_digest"]],
                    }
                    for shape, one in zip(
                        planned.offer.alternatives, sent_offer(planned.offer)["alternatives"], strict=True
                    )
                ]
        if not rows and refused is not None:
            raise refused
        return {
            "modelled": True,
            "now": now,
            "plans": sorted(rows, key=lambda row: (row["end"], row["start"])),
        }

    @staticmethod
    def _planned(goal: Goal, cluster: Cluster) -> PlannedGoal:
        from berth.live.goals import plan_goal  # the planner is loaded when it is needed

        try:
            return plan_goal(goal, cluster)
        except UnknownNameError:
            raise
        except InputError as error:
            raise ConflictError(error.what, hint=error.hint) from None

    def what_if(self, *, policy: str | None, racks: int) -> dict[str, Any]:
        """Return the outcome of the current jobs as the cluster is, and with the change (modelled)."""
        if policy is not None:
            load_policy(policy)  # refuses an unknown one before the state is copied
        with self._forecasting():
            state, now, pending = self._copy()
            current_policy = state.setup.policy
            about = {job.id: {"name": job.spec.name, "user": job.user} for job in state.jobs.values()}
            changed = forecast.what_if(snapshot.copy_of(state), policy=policy, racks=racks, now=now)
            unchanged = forecast.forecast(state, now=now, pending=pending)
        return {
            "modelled": True,
            "as_it_is": _outcome(unchanged),
            "changed": _outcome(changed),
            "policy": policy or current_policy,
            "add_racks": racks,
            **_gains(forecast.end_changes(unchanged, changed), about),
        }

    def _copy(self) -> tuple[ControllerState, float, bool]:
        """A copy of the state, the time, and whether a scheduling pass is due; none while the policy fails."""
        with self.controller.lock:
            if (why := self._state.setup.paused) is not None:
                raise PolicyFailedError(why)
            return snapshot.copy_of(self._state), self.controller.now(), self.controller.pending

    @contextmanager
    def _forecasting(self) -> Iterator[None]:
        """Limit concurrent forecasts, which take long, so that other requests are answered meanwhile."""
        if not self._forecasts.acquire(timeout=_FORECAST_WAIT_S):
            raise BusyError("too many forecasts are running", hint="ask again in a moment")
        try:
            yield
        finally:
            self._forecasts.release()


def _run_s(offer: Offer, shape: Shape, cluster: Cluster) -> float:
    """Seconds that the work takes in a shape at the nearest tier of the cluster that can hold it."""
    bound = bind(requested(shape, cluster), cluster)
    return run_s(offer, bound, bound.nearest_tier)


def _expected(
    estimates: Outlook | None, name: str, now: float, *, held_up: bool, waits: bool
) -> dict[str, Any]:
    """The forecast of a job, without a blocker if the back end holds it up: then the policy does not matter.

    The forecast may be older than the start of a job that no longer waits.
    """
    if estimates is None:
        return {"expected_start": None}
    row = estimates.row(name, now)
    if not waits:
        return {key: value for key, value in row.items() if key in RUNNING_FIELDS}
    return row | {"blocker": None} if held_up and "blocker" in row else row


def _said_once(answer: dict[str, Any]) -> dict[str, Any]:
    """Leave out of the blocker what the reason says already, with a figure of its own: another alternative fits now."""
    if answer["reason"]["code"] != CODES[ReasonCode.WAITS_FOR_SHAPE] or not answer.get("blocker"):
        return answer
    return answer | {"blocker": without_comparison(answer["blocker"])}


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")


def _whole_characters(data: bytes, limit: int) -> int:
    """The number of bytes up to the last whole character; the rest of a cut one comes with the next piece."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(data)
    whole = len(data) - len(decoder.getstate()[0])
    # a limit below one character makes progress, too
    return whole if whole or len(data) < limit else len(data)


def _gains(ends: dict[str, tuple[float, float]], about: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """How many jobs end sooner and later with a change, and those that it changes most."""
    change_s = {name: after - before for name, (before, after) in ends.items()}
    moved = [name for name in ends if abs(change_s[name]) >= _SAME_S]
    return {
        "sooner": sum(1 for name in moved if change_s[name] < 0.0),
        "later": sum(1 for name in moved if change_s[name] > 0.0),
        "same": len(ends) - len(moved),
        "jobs": [
            {"job": name, **about[name], "end_s": ends[name][0], "changed_end_s": ends[name][1]}
            for name in moved[:_MOST_CHANGES]
        ],
    }


def _outcome(found: Forecast) -> dict[str, Any]:
    last = max(found.ends.values(), default=found.now)
    return {
        "jobs": len(found.ends),
        "whole": found.whole,
        "mean_left_s": found.mean_left_s(),
        "last_end_s": last - found.now,
    }
