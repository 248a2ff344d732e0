"""Asking about few running jobs decides as asking about all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pytest

from berth.schedule import PreemptByOrder, Rules, StaticOrder
from berth.schedule.records import JobStatus
from berth.simulate.events import event_frame
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, faults, jobs
from berth.testing.policies import Exercise


@dataclass(frozen=True)
class LeastLeft(Exercise):
    """Least remaining work; the policy is asked about few jobs."""

    min_run_s: float = 0.0

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), preempt=PreemptByOrder(0.0, self.min_run_s, monotone_order=True))

    @staticmethod
    def order(job: Any, now: float, params: Any) -> float:
        return job.estimated_remaining_s


class OfAll(LeastLeft):
    """The same; a policy that keeps state is asked about all."""

    @staticmethod
    def update(job: Any, now: float, params: Any) -> None:
        pass


@pytest.mark.parametrize(("kind", "asks_all"), [(LeastLeft, False), (OfAll, True)])
def test_a_policy_that_keeps_no_state_is_asked_about_some_running_jobs_only(kind, asks_all):
    dice = np.random.default_rng(1)
    rows = [(10.0 * number, 2, float(dice.lognormal(6, 1))) for number in range(80)]
    unasked = 0

    def look(world, clock):
        nonlocal unasked
        now = float(world.state[0]["now"])
        records = world.jobs
        runs = records["state"] == JobStatus.RUNNING
        started = records[runs & (records["started_s"] == now)]
        if (records["last_eviction_s"] == now).any() and len(started):  # what goes after them was threatened
            threatened = runs & (records["order_key"] > started["order_key"].max())
            unasked += int((records["updated_s"][threatened] < now).sum())
        return 1

    simulate(jobs(rows), cluster([[4, 4], [4, 4]]), kind(), Setting(network="off"), watch=look)
    assert (unasked == 0) == asks_all


@pytest.mark.parametrize("seed", range(8))
def test_jobs_that_were_not_asked_about_change_no_decision(seed):
    dice = np.random.default_rng(seed)
    priorities = [0] if seed % 2 else [0, 0, 5, -5]
    rows = [
        (
            float(dice.uniform(0, 20_000)),
            int(dice.choice([1, 1, 2, 3, 4, 8, 12])),
            float(dice.lognormal(6, 1.5)),
            None,
            None,
            int(dice.choice(priorities)),
        )
        for _ in range(150)
    ]
    setting = Setting(
        network="on" if seed % 3 else "off",
        congestion=5.0,
        log=True,
        preemptible=float(dice.choice([0.5, 1.0])),
        faults=faults([(3000.0, 0, "fail"), (9000.0, 0, "repair")]),
    )
    min_run_s = float(dice.choice([0.0, 120.0]))
    few, every = (
        event_frame(simulate(jobs(rows), cluster([[4, 4], [4, 4]]), kind(min_run_s), setting))
        .with_columns(moment=pl.col("time_s").round(6))
        .sort("moment", "event", "job")  # jobs of a lost machine are in no order
        for kind in (LeastLeft, OfAll)
    )
    assert (few["event"] == "evicted").sum() > 20
    words = [name for name in few.columns if not few[name].dtype.is_float()]
    assert few.select("moment", *words).equals(every.select("moment", *words), null_equal=True)
