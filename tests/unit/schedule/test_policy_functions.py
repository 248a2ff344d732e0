"""The functions of the policies that come with berth, called one by one: each answer is computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from berth.schedule.policies.berth import Berth, Rank
from berth.schedule.policies.dally import Dally, Order
from berth.schedule.policies.gandiva import Gandiva
from berth.schedule.policies.las import place_in_line, rank, sinks_at, starved_at, update_queue
from berth.schedule.policies.lwf import Lwf
from berth.schedule.policies.optimus import Optimus
from berth.schedule.policies.preferences import Preferred, Required, Switches
from berth.schedule.policies.shortest import Sjf, Srsf, Srtf
from berth.schedule.policies.themis import Themis
from berth.schedule.policies.tiresias import Tiresias
from berth.schedule.records import EstimateKind
from berth.schedule.world import new_jobs


class Case:
    """A job record with a policy's own fields beside it."""

    def __init__(self, **fields: Any) -> None:
        self.queue, self.entered_s, self.forgiven_gpu_s, self.forgiven_wait_s = 0, 0.0, 0.0, 0.0
        self.turn_ends_gpu_s = 0.0
        record = new_jobs(1).view(np.recarray)[0]
        for name in record.dtype.names:
            value = record[name]
            setattr(self, name, list(value) if np.ndim(value) else value.item())
        self.widest_tier, self.gpus = 2, 1
        for name, value in fields.items():
            if isinstance(value, tuple):
                getattr(self, name)[: len(value)] = value
            else:
                setattr(self, name, value)


# Order


@pytest.mark.parametrize(
    ("policy", "job", "now", "expected"),
    [
        (Sjf, {"estimated_remaining_s": 70.0, "gpus": 4}, 0.0, 70.0),
        (Srtf, {"estimated_remaining_s": 70.0, "gpus": 4}, 9.0, 70.0),
        (Srsf, {"estimated_remaining_s": 70.0, "gpus": 4}, 9.0, 280.0),
        (Lwf, {"estimated_remaining_s": 70.0, "gpus": 4}, 9.0, 280.0),
        (Optimus, {"estimated_remaining_s": 70.0, "gpus": 4}, 9.0, 280.0),
        # where it runs, distance counts
        (Optimus, {"estimated_remaining_s": 70.0, "gpus": 4, "tier": 1, "slowdown": (1.0, 1.5)}, 9.0, 420.0),
        # 100 s since arrival and 300 s left, of 200 s alone
        (Themis, {"arrival_s": 50.0, "estimated_remaining_s": 300.0, "work_s": 200.0}, 150.0, -2.0),
        (
            Themis,
            {
                "arrival_s": 50.0,
                "estimated_remaining_s": 100.0,
                "work_s": 200.0,
                "tier": 1,
                "slowdown": (1.0, 3.0),
            },
            150.0,
            -2.0,
        ),
        # an estimate that is twice the truth makes both times twice as long
        (Themis, {"estimated_remaining_s": 400.0, "work_s": 200.0, "estimate_error": 2.0}, 400.0, -2.0),
        (Themis, {"estimated_remaining_s": 0.5, "work_s": 0.25}, 1.5, -2.0),  # a second at least
    ],
)
def test_order_is_as_each_policy_describes_it(policy, job, now, expected):
    assert policy.order(Case(**job), now, policy()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("fields", "now", "expected"),
    [
        ({"queued_since_s": 30.0}, 100.0, 30.0),  # waiting: longest first
        ({"queued_since_s": 30.0, "tier": 0, "started_s": 100.0}, 100.0, 30.0),  # started in this very pass
        # its slice of 60 s ends at 100
        ({"queued_since_s": 30.0, "tier": 0, "started_s": 40.0}, 100.0, 100.0),
        ({"queued_since_s": 30.0, "tier": 0, "started_s": 41.0}, 100.0, 101.0),
    ],
)
def test_gandiva_serves_a_running_job_again_a_slice_after_its_start(fields, now, expected):
    assert Gandiva.order(Case(**fields), now, Gandiva()) == expected


@pytest.mark.parametrize(
    ("slowest", "expected"),
    [(1.0, 5000.0), (2.0, 5000.0 - 1800.0), (4.0, 5000.0 - 2700.0), (math.inf, 5000.0 - 3600.0)],
)
def test_berths_head_start_is_the_share_of_time_that_distance_costs(slowest, expected):
    job = Case(arrival_s=5000.0, slowdown=(1.0, 1.0, slowest))
    assert Berth.order(job, 0.0, Berth(order_by=Rank.NETWORK, head_start=3600.0)) == pytest.approx(expected)
    assert Berth.order(job, 0.0, Berth(order_by=Rank.FIFO)) == 5000.0


# How far a job spreads


@pytest.mark.parametrize(
    ("policy", "now", "tier", "wake"),
    [
        (Preferred(), 0.0, 2, math.inf),
        (Required(), 1e9, 1, math.inf),
        (Switches(wait=300.0), 399.0, 1, 400.0),
        (Switches(wait=300.0), 400.0, 2, math.inf),
        (Switches(wait=0.0), 100.0, 2, math.inf),
        (Berth(), 1e9, 1, math.inf),
    ],
    ids=["preferred", "required", "switches waits", "switches gives up", "switches never waits", "berth"],
)
def test_the_widest_tier_that_is_accepted_and_when_that_changes(policy, now, tier, wake):
    job = Case(nearest_tier=1, queued_since_s=100.0)
    assert policy.allowed_tier(job, now, policy) == tier
    assert policy.wake(job, now, policy) == wake


@pytest.mark.parametrize(("skew", "tier"), [(0.29, 2), (0.31, 0)])
def test_tiresias_keeps_a_job_together_whose_largest_tensor_is_large(skew, tier):
    assert Tiresias.allowed_tier(Case(skew=skew), 0.0, Tiresias(skew=0.3)) == tier


SPREADS = {
    # remaining 100 s, twice as slow: loses 100 s; half of the wait must be more
    "waiting is cheaper": ({"slowdown": (1.0, 2.0)}, 1, 199.0, 0),
    "waiting costs as much": ({"slowdown": (1.0, 2.0)}, 1, 200.0, 0),
    "waiting costs more": ({"slowdown": (1.0, 2.0)}, 1, 201.0, 1),
    "distance costs nothing": ({"slowdown": (1.0, 1.0)}, 1, 1.0, 1),
    "forever": ({"slowdown": (1.0, 50.0)}, 1, math.inf, 1),
    # an uneven shape at the nearest tier counts like distance
    "uneven, and waiting is cheaper": ({"imbalance_slowdown": 1.5}, 0, 99.0, 0),
    "uneven, and waiting costs more": ({"imbalance_slowdown": 1.5}, 0, 101.0, 1),
    "farther and uneven": ({"slowdown": (1.0, 2.0), "imbalance_slowdown": 1.5}, 1, 399.0, 0),
    "farther and uneven, a long wait": ({"slowdown": (1.0, 2.0), "imbalance_slowdown": 1.5}, 1, 401.0, 1),
}


@pytest.mark.parametrize("name", SPREADS)
def test_berth_spreads_where_that_costs_less_than_half_of_the_wait(name):
    fields, tier, wait, expected = SPREADS[name]
    job = Case(estimated_remaining_s=100.0, typical_gpu_s=1e12, **fields)
    assert Berth.spread(job, tier, wait, 0.0, Berth(share=0.5)) == expected


@pytest.mark.parametrize(
    ("gpus", "wait", "typical", "expected"),
    [
        # It would hold 4 devices for 100 s: 4 x 100 / typical jobs are put off by up to 100 s, against its wait.
        (4, 1000.0, 39.0, 0),  # 4 x 100 x 100 = 40,000 > 39 x 1000
        (4, 1000.0, 41.0, 1),
        (8, 1000.0, 41.0, 0),
        # of a wait shorter than its run only the wait counts: after that it would run anyway
        (4, 10.0, 39.0, 0),  # 4 x 10 x 10 = 400 > 39 x 10
        (4, 10.0, 41.0, 1),
    ],
)
def test_berth_does_not_spread_a_job_that_puts_off_more_than_it_gains(gpus, wait, typical, expected):
    job = Case(estimated_remaining_s=100.0, gpus=gpus, typical_gpu_s=typical, slowdown=(1.0, 1.0))
    assert Berth.spread(job, 1, wait, 0.0, Berth(order_by=Rank.FIFO)) == expected
    assert Berth.spread(job, 1, wait, 0.0, Berth(order_by=Rank.FIFO, others=0.0)) == 1
    # at the default order a job that can be preempted puts off none for long
    assert Berth.spread(job, 1, wait, 0.0, Berth()) == 1


@pytest.mark.parametrize(("movable", "expected"), [(1, 1), (0, 0)])
def test_a_job_that_cant_be_moved_later_reckons_with_busy_links(movable, expected):
    """1000 s at 1.1 times the time lose 100 s, against half of a wait of 300 s; with the risk they lose 700 s."""
    job = Case(estimated_remaining_s=1000.0, typical_gpu_s=1e12, slowdown=(1.0, 1.1), movable=movable)
    assert Berth.spread(job, 1, 300.0, 0.0, Berth(risk=0.5)) == expected


@pytest.mark.parametrize("kind", EstimateKind)
@pytest.mark.parametrize("movable", [0, 1])
@pytest.mark.parametrize("widest", [1.005, 1.02])
def test_a_job_that_may_run_for_weeks_and_cant_be_moved_spreads_only_if_no_distance_slows_it(
    kind, movable, widest
):
    """At tier 1 it is as fast as at tier 0, and would wait for 10,000 s."""
    job = Case(
        estimated_remaining_s=1000.0,
        typical_gpu_s=1e12,
        slowdown=(1.0, 1.0, widest),
        movable=movable,
        estimate_kind=kind,
    )
    spreads = Berth.spread(job, 1, 1e4, 0.0, Berth())
    assert spreads == (movable == 1 or kind == EstimateKind.TRACKED or widest < 1.01)
    by_arrival = Berth(order_by=Rank.FIFO)
    assert Berth.spread(job, 1, 1e4, 0.0, by_arrival) == 1


@pytest.mark.parametrize(
    ("fields", "gpu_s"),
    [
        ({"index_s": 100.0}, 400.0),
        ({"index_s": 100.0, "tier": 0, "restore_s": 40.0}, 240.0),
        ({"index_s": 10.0, "tier": 0, "restore_s": 40.0}, 4.0),
        ({"index_s": 100.0, "estimate_kind": 2}, 400.0),
        ({"index_s": 100.0, "estimate_kind": 2, "preemptible": 0}, 100.0),
    ],
)
def test_berth_orders_by_expected_gpu_time_a_running_job_ahead_by_its_restore(fields, gpu_s):
    job = Case(gpus=4, arrival_s=200.0, **fields)
    assert Berth.order(job, 0.0, Berth(aging=100.0)) == pytest.approx(math.log(gpu_s) + 2.0)


def test_a_gang_that_is_uneven_at_its_own_tier_weighs_only_its_own_loss():
    job = Case(estimated_remaining_s=100.0, gpus=64, typical_gpu_s=1.0, imbalance_slowdown=1.1)
    assert Berth.spread(job, 0, 1000.0, 0.0, Berth(order_by=Rank.FIFO)) == 1
    assert Berth.spread(job, 1, 1000.0, 0.0, Berth(order_by=Rank.FIFO)) == 0


# Least attained service


@pytest.mark.parametrize(
    ("attained", "queue", "entered"),
    [
        (0.0, 0, 7.0),  # nothing yet: as it came
        (99.0, 0, 0.0),
        (100.0, 1, 500.0),
        (140.0, 1, 490.0),  # the limit was passed 40 GPU-s ago, on 4 devices: 10 s
        (1000.0, 2, 500.0),  # passed both, the second just now
        (1200.0, 2, 450.0),
    ],
)
def test_a_job_sinks_when_its_service_reached_a_limit(attained, queue, entered):
    job = Case(arrival_s=7.0, attained_gpu_s=attained, gpus=4, tier=0)
    update_queue(job, 500.0, 100.0, 1000.0, 0.0)
    assert (job.queue, job.entered_s) == (queue, entered)


def test_a_job_that_waited_as_often_as_it_ran_is_first_again_and_starts_from_nothing():
    job = Case(queue=1, attained_gpu_s=400.0, gpus=4, waited_s=150.0, queued_since_s=1000.0)
    # it ran 100 s, so at k = 3 it must have waited 300 s: 150 s before, and 150 s since 1000
    assert starved_at(job, 3.0) == 1150.0
    update_queue(job, 1149.0, 300.0, 9000.0, 3.0)
    assert job.queue == 1
    update_queue(job, 1150.0, 300.0, 9000.0, 3.0)
    assert (job.queue, job.entered_s, job.forgiven_gpu_s, job.forgiven_wait_s) == (0, 1150.0, 400.0, 300.0)
    job.attained_gpu_s = 699.0
    update_queue(job, 1300.0, 300.0, 9000.0, 3.0)
    assert job.queue == 0
    job.attained_gpu_s, job.tier = 700.0, 0  # 300 GPU-s since it was forgiven
    update_queue(job, 1310.0, 300.0, 9000.0, 3.0)
    assert job.queue == 1


@pytest.mark.parametrize(("queue", "starvation"), [(0, 3.0), (1, 0.0)])
def test_in_the_first_queue_or_without_a_factor_no_job_starves(queue, starvation):
    assert starved_at(Case(queue=queue, attained_gpu_s=400.0), starvation) == math.inf


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"queue": 1, "tier": 0, "entered_s": 50.0, "started_s": 20.0}, 1.0),  # running
        ({"queue": 1, "tier": -1}, 1.25),  # waiting
        ({"queue": 1, "tier": 0, "entered_s": 100.0, "started_s": 20.0}, 1.5),  # it has just sunk
        ({"queue": 1, "tier": 0, "entered_s": 100.0, "started_s": 100.0}, 1.0),  # ... but has just started
    ],
)
def test_inside_a_queue_running_jobs_come_first_and_those_that_just_sank_last(fields, expected):
    assert rank(Case(**fields), 100.0) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tier": 0, "started_s": 30.0, "entered_s": 20.0}, 30.0),
        ({"tier": 0, "started_s": 30.0, "entered_s": 40.0}, 40.0),
        ({"tier": -1, "entered_s": 40.0}, 40.0),
        # evicted: before those that waited
        ({"tier": -1, "entered_s": 40.0, "last_eviction_s": 60.0}, -60.0),
        ({"tier": -1, "entered_s": 40.0, "last_eviction_s": 40.0}, 40.0),  # it sank when it was evicted
    ],
)
def test_the_place_in_the_line_of_a_queue(fields, expected):
    assert place_in_line(Case(**fields)) == expected


@pytest.mark.parametrize(
    ("queue", "attained", "forgiven", "at"),
    [
        (0, 60.0, 0.0, 510.0),  # 40 of 100 GPU-s left, on 4 devices
        (0, 60.0, 20.0, 515.0),
        (1, 900.0, 0.0, 525.0),
        (2, 5000.0, 0.0, math.inf),
        (0, 100.0, 0.0, 500.0 + 1e-3 / 4),  # reached: it is looked at again after the slack
    ],
)
def test_when_a_running_job_reaches_the_limit_of_its_queue(queue, attained, forgiven, at):
    job = Case(queue=queue, attained_gpu_s=attained, forgiven_gpu_s=forgiven, gpus=4)
    assert sinks_at(job, 500.0, 100.0, 1000.0) == pytest.approx(at, abs=1e-9)


LAS = Berth(order_by=Rank.LAS, patience=1000.0, turn=60.0, first=100.0, second=1000.0)


def test_at_las_order_a_job_that_has_waited_its_patience_gets_a_turn_of_service():
    job = Case(gpus=4, attained_gpu_s=500.0, queued_since_s=0.0, queue=1)
    Berth.update(job, 999.0, LAS)
    assert job.turn_ends_gpu_s == 0.0
    assert Berth.order(job, 999.0, LAS) == 1.25
    Berth.update(job, 1000.0, LAS)
    assert job.turn_ends_gpu_s == 500.0 + 4 * 60.0
    assert Berth.order(job, 1000.0, LAS) == -0.75  # before all queues
    job.tier, job.started_s = 0, 1000.0
    assert Berth.order(job, 1000.0, LAS) == -1.0  # and, while it runs, before others that have a turn
    assert Berth.wake(job, 1000.0, LAS) == 1060.0
    job.attained_gpu_s, job.entered_s = 740.0, 100.0
    assert Berth.order(job, 1060.0, LAS) == 1.0


def test_a_turn_may_end_by_sinking_first():
    job = Case(gpus=4, attained_gpu_s=900.0, queue=1, tier=0, turn_ends_gpu_s=2000.0)
    assert Berth.wake(job, 500.0, LAS) == 525.0
    assert Berth.wake(job, 500.0, Berth(order_by=Rank.FIFO)) == math.inf


# Dally


def victim(**fields: Any) -> Case:
    """A job on its nearest tier that computes all the time."""
    facts = {"estimated_remaining_s": 5000.0, "tier": 0, "slowdown": (1.0, 1.2, 2.0)}
    return Case(**(facts | {"work_s": 10_000.0, "ran_s": 5000.0} | fields))


# before its first run: a quarter of its time is computation
HURT = Case(slowdown=(1.0, 1.5, 4.0), work_s=100.0)


@pytest.mark.parametrize(
    ("fields", "cost"),
    [
        ({}, 5000.0 * 0.2),  # what it loses one tier wider
        ({"tier": 1}, 0.0),  # it is there already
        ({"nearest_tier": 2, "tier": 2}, 0.0),
        ({"estimated_remaining_s": 599.0}, math.inf),  # about to finish
        ({"ran_s": 20_000.0}, math.inf),  # a quarter of its time was computation, too
        ({"ran_s": 19_999.0}, 1000.0),
    ],
)
def test_the_cost_of_moving_a_job_for_one_that_the_network_hurts_more(fields, cost):
    assert Dally.cost(victim(**fields), HURT, 0.0, Dally(nearly_done=600.0)) == pytest.approx(cost)


def test_dallys_order_is_by_efficiency_arrival_or_queue():
    job = Case(arrival_s=70.0, slowdown=(1.0, 1.5, 4.0), queue=1, estimated_remaining_s=9.0, entered_s=3.0)
    values = {
        which: (
            Dally.order(job, 0.0, Dally(order_by=which)),
            Dally.tie_break(job, 0.0, Dally(order_by=which)),
        )
        for which in Order
    }
    assert values == {Order.EFF: (0.25, 9.0), Order.FIFO: (70.0, 0.0), Order.LAS: (1.25, 3.0)}


@pytest.mark.parametrize(
    ("mode", "timers"),
    [
        ("NO_WAIT", [0.0] * 4),
        ("FULL", [math.inf] * 4),
        ("MANUAL", [10.0, 20.0, 30.0, 30.0]),
        ("TUNED", [10.0, 20.0, 30.0, 30.0]),
    ],
)
def test_dallys_timers_by_mode(mode, timers):
    from berth.schedule.policies.dally import Mode

    policy = Dally(mode=Mode[mode], machine=10.0, rack=20.0, beyond=30.0)
    assert list(policy.timers(["machine", "rack", "hall", "site"])) == timers
