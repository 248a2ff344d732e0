"""Checks what a policy promises: it is asked again about every job at every event of random scenarios.

The engine trusts `StaticOrder`, `monotone_order`, `cost_by_order` and `wake`: a promise that does not hold gives a
wrong order, other victims, or a job that starts too late, and nothing would show it. Here the answers that it relies on
are computed again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from berth.errors import InputError
from berth.native.kernels import entry
from berth.schedule.checks import rules_of, where_of
from berth.schedule.failures import (
    constants_from,
    function_of,
    limit_exceeded,
    plain_function,
)
from berth.schedule.limits import LimitError
from berth.schedule.policy import Policy, names_of, takes_cluster
from berth.schedule.progress import advance_progress
from berth.schedule.records import Array, JobStatus, World
from berth.schedule.rules import PreemptByGain, PreemptByOrder
from berth.schedule.sealed import View
from berth.simulate.run import Setting, simulate
from berth.testing.builders import cluster, jobs
from berth.testing.check import PolicyError, check_policy

_SLACK = 1e-9  # of keys, relative: they are sums
_SLACK_S = 0.01  # an answer may change this much before the moment that `wake` gave
_MODELS = (None, "vgg16", "bert-large", "mobilenetv3")
_CLUSTERS = ([[4, 4], [4, 4]], [[8, 8]], [[2, 2, 2], [8]])


@dataclass(frozen=True, slots=True)
class Checked:
    """How much was looked at."""

    scenarios: int
    moments: int


def check_promises(policy: Policy, scenarios: int = 6) -> Checked:
    """Raises `InputError` at the first promise that a policy does not keep."""
    moments = 0
    for seed in range(scenarios):
        dice = np.random.default_rng(seed)
        trace = jobs(_rows(dice))
        machines = cluster(_CLUSTERS[seed % len(_CLUSTERS)])
        setting = Setting(
            network=("off", "static", "on")[seed % 3],
            congestion=20.0,
            eviction_s=(0.0, 40.0)[seed % 2],
            estimate_error=(0.0, 0.5)[seed // 2 % 2],
            seed=seed,
        )
        prepared = policy.prepare(trace)
        watch = PromiseWatch(prepared)
        simulate(trace, machines, prepared, setting, watch=watch)
        moments += watch.moments
        try:
            check_policy(policy, trace, machines, replace(setting, log=True))
        except PolicyError as error:
            raise InputError(f"{type(policy).__name__}: {error}", where=where_of(type(policy))) from error
    return Checked(scenarios, moments)


def _rows(dice: Any, count: int = 40) -> list[tuple[Any, ...]]:
    """Jobs that come at round times and at odd ones, so that many things happen at once."""
    arrivals = np.where(
        dice.random(count) < 0.5, dice.integers(0, 40, count) * 100.0, dice.uniform(0, 4000, count)
    )
    gpus = dice.choice([1, 1, 2, 3, 4, 8], count)
    seconds = np.exp(dice.uniform(math.log(30), math.log(8000), count))
    models = dice.integers(0, len(_MODELS), count)
    rows = [
        (float(at), int(size), float(span), _MODELS[model])
        for at, size, span, model in zip(np.sort(arrivals), gpus, seconds, models, strict=True)
    ]
    return [(0.0, *rows[0][1:]), *rows[1:]]


@entry
def advance_all(records: Array, now: float) -> None:
    """Brings the running jobs of a copy up to a time."""
    for i in range(len(records)):
        if records[i].state == JobStatus.RUNNING:
            advance_progress(records[i], now)


@dataclass(slots=True)
class _Last:
    """What a policy answered about a job when last asked, and since when it waits or runs."""

    now: float
    since: tuple[int, float]
    keys: tuple[float, float]
    allowed_tier: int
    wake: float


class PromiseWatch:
    """A `watch` of `simulate`: after every event it asks the policy again, on copies of the records."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.rules, self.moments = policy, rules_of(policy), 0
        kind = type(policy)
        functions = {name: function_of(kind, name) for name in _HOOKS}
        self.functions = {name: plain_function(function) for name, function in functions.items()}
        self.with_cluster = {name for name, function in functions.items() if takes_cluster(function)}
        self.names = names_of(kind)
        self.last: dict[int, _Last] = {}
        self.waiting: dict[int, Array] = {}  # the record of each job that waits, where order preempts

    def __call__(self, world: World, clock: Array) -> int:
        """Checks every job that waits or runs; asks to be called again after one event."""
        now = float(clock[0]["now"])
        if world.params[0]["failed"]:
            return 1  # the run stops, and says why
        self.moments += 1
        params = constants_from(self.names.params, world.params[0])
        records = world.jobs.copy()
        advance_all(records, now)
        for row in np.flatnonzero(
            (records["state"] == JobStatus.WAITING) | (records["state"] == JobStatus.RUNNING)
        ):
            self._check(records[row : row + 1], now, (params, totals_of(world, records[row], now)))
        preempt = self.rules.preempt
        if isinstance(preempt, PreemptByGain) and preempt.cost_by_order and preempt.victims_by_order:
            for row in np.flatnonzero(records["state"] == JobStatus.RUNNING):
                self._check_cost(records, int(row), now, params)
        return 1

    def _ask(self, name: str, records: Array, now: float, read: tuple[Any, Any]) -> Any:
        view = View(records[0], self.names.state, name == "update")
        try:
            return self.functions[name](view, now, *read[: 2 if name in self.with_cluster else 1])
        except LimitError as error:
            about = f" for job j{records[0]['id']} at {now:g} s"
            raise limit_exceeded(self.policy, name, about, error) from None

    def _check(self, records: Array, now: float, read: tuple[Any, Any]) -> None:
        """Checks one job, in an array of one record; `read` are the constants and the totals."""
        job, row = records[0].copy(), int(records[0]["id"])
        if self.rules.keeps_state:
            self._check_update(records, row, now, read)
        order = self._ask("order", records, now, read)
        if (again := self._ask("order", records, now, read)) != order:
            self._refuse("order", row, now, f"returned {order!r}, and asked again {again!r}", _SAME)
        tie_break = self._ask("tie_break", records, now, read) if self.rules.keeps_state else 0.0
        keys = float(order), float(tie_break)
        waits = job["state"] == JobStatus.WAITING
        if waits and self.rules.order and not self._reordered(job, now):
            kept = float(job["order_key"]), float(job["tie_break"])
            self._compare_keys(row, now, kept, keys)
        asks_wake = waits or self.rules.wake_running
        wake = float(self._ask("wake", records, now, read)) if asks_wake else math.inf
        allowed_tier = int(self._ask("allowed_tier", records, now, read))
        since = int(job["state"]), float(job["queued_since_s"] if waits else job["started_s"])
        asked = _Last(now, since, keys, allowed_tier, wake if wake > now else math.inf)
        before, self.last[row] = self.last.get(row), asked
        preempt = self.rules.preempt
        if isinstance(preempt, PreemptByOrder) and not preempt.period_s:
            self._check_start(records, job, waits, now, read)
        if before is not None and before.since == since and before.wake - _SLACK_S > now:
            self._compare(row, before, asked, waits)

    def _check_start(self, records: Array, job: Any, waits: bool, now: float, read: tuple[Any, Any]) -> None:
        """A job that has just started must not go later than it would if it still waited."""
        row = int(job["id"])
        waited = self.waiting.pop(row, None)
        if waits:
            self.waiting[row] = records.copy()
        elif waited is not None and job["started_s"] >= now and waited[0]["evictions"] == job["evictions"]:
            waited["policy_state"] = records["policy_state"]
            hooks = ("order", "tie_break")[: 1 + self.rules.keeps_state]
            was, is_ = (
                tuple(float(self._ask(name, record, now, read)) for name in hooks)
                for record in (waited, records)
            )
            if is_ > was and not np.allclose(is_, was, rtol=_SLACK, atol=0.0):
                what = f"is {is_[0]!r} once it runs, and {was[0]!r} if it still waits"
                self._refuse("order", row, now, what, _EVICTED)

    def _check_cost(self, records: Array, victim: int, now: float, params: Any) -> None:
        """The cost of a victim must be infinite for jobs that do not go before it, and the same for all others."""

        def cost_for(row: int) -> float:
            views = (View(records[at], self.names.state, False) for at in (victim, row))
            return float(self.functions["cost"](*views, now, params))

        waiting = np.flatnonzero(records["state"] == JobStatus.WAITING).tolist()
        ahead = [row for row in waiting if self.last[row].keys[0] < self.last[victim].keys[0]]
        what = ""
        for row in (victim, *waiting):
            if row not in ahead and (cost := cost_for(row)) < math.inf:
                what = f"is {cost:g} s for j{row}, which does not go before it"
        costs = {row: cost_for(row) for row in ahead}
        if len(set(costs.values())) > 1:
            one, other = min(costs, key=lambda row: costs[row]), max(costs, key=lambda row: costs[row])
            what = (
                f"is {costs[one]:g} s for j{one} and {costs[other]:g} s for j{other}, which both go before it"
            )
        if what:
            hint = "it promises cost_by_order: write PreemptByGain(cost_by_order=False)"
            self._refuse("cost", victim, now, what, hint)

    def _check_update(self, records: Array, row: int, now: float, read: tuple[Any, Any]) -> None:
        """A second `update` at the same time must leave the state of the first."""
        self._ask("update", records, now, read)
        once = records[0]["policy_state"].tolist()
        self._ask("update", records, now, read)
        for (name, _), first, second in zip(
            self.names.state, once, records[0]["policy_state"].tolist(), strict=False
        ):
            if first != second:
                what = f"sets {name} to {first:g}, and called again to {second:g}"
                self._refuse("update", row, now, what, _SAME_STATE)

    def _reordered(self, job: Any, now: float) -> bool:
        """Whether the static order of a job is computed again by rule."""
        after_s = self.rules.order.reorder_after_s if self.rules.order else math.inf
        return bool(now - job["queued_since_s"] >= after_s - _SLACK_S)

    def _compare_keys(
        self, row: int, now: float, kept: tuple[float, float], keys: tuple[float, float]
    ) -> None:
        second = type(self.policy).tie_break is not Policy.tie_break
        for name, old, new in zip(("order", "tie_break")[: 1 + second], kept, keys, strict=False):
            if old != new:
                what = f"is {new!r} while it waits, and was {old!r} when it was queued"
                self._refuse(name, row, now, what, "it promises StaticOrder: leave it out of the rules")

    def _compare(self, row: int, before: _Last, asked: _Last, waits: bool) -> None:
        """What must not change between two looks, before the moment that `wake` gave."""
        if not waits:
            by_order = self.rules.preempt
            monotone = isinstance(by_order, PreemptByOrder) and by_order.monotone_order
            if monotone and asked.keys > before.keys:
                what = f"rose from {before.keys} at {before.now:g} s to {asked.keys} while it runs"
                hint = "it promises monotone_order: write PreemptByOrder(monotone_order=False)"
                self._refuse("order", row, asked.now, what, hint)
        elif asked.allowed_tier != before.allowed_tier and not self._allowed_tier_may_change():
            what = f"changed from {before.allowed_tier} at {before.now:g} s to {asked.allowed_tier} by itself"
            self._refuse("allowed_tier", row, asked.now, what, "`wake` must return when that happens")

    def _allowed_tier_may_change(self) -> bool:
        """Whether events change it, after which it is computed again: timers learn, totals change."""
        return self.rules.learn_timers or "allowed_tier" in self.with_cluster

    def _refuse(self, hook: str, row: int, now: float, what: str, hint: str) -> None:
        kind = type(self.policy)
        about = f"{kind.__name__}.{hook} of job j{row} at {now:g} s {what}"
        raise InputError(about, where=where_of(kind, hook), hint=hint)


def totals_of(world: World, job: Any, now: float) -> View:
    """The totals that a hook reads about a job: see berth.schedule.totals."""
    totals, user, quota = world.cluster.copy(), world.users[job["user"]], job["quota"]
    totals["free"] = world.groups["free"][-1, 0]
    totals["user_gpus"], totals["user_devices"] = user["gpus"], user["devices"]
    totals["user_gpu_s"] = user["gpu_s"] + user["gpus"] * max(0.0, now - user["updated_s"])
    used = world.quotas[quota] if quota >= 0 else {"used": 0, "allowed": 0}
    totals["quota_gpus"], totals["quota_limit"] = used["used"], used["allowed"]
    return View(totals[0])


_HOOKS = "update", "order", "tie_break", "allowed_tier", "wake", "cost"
_SAME_STATE = "`update` must leave the same state when it is called twice at the same time"
_EVICTED = "where order preempts, a job must not go later by starting: it would be evicted at once"
_SAME = "`order` must give the same answer when it is asked twice at the same time"
