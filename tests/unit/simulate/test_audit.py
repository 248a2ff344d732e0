"""The audit finds what it is there to find: good logs, each spoilt in one way."""

from __future__ import annotations

import polars as pl
import pytest

from berth.errors import InputError
from berth.simulate.audit import audit, check
from berth.simulate.events import event_frame
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, faults, jobs
from berth.testing.policies import EXERCISES

MACHINES = cluster([[4, 4], [4]])
#              j0          j1            j2           j3 evicts j2 and j0
TRACE = jobs([(0, 4, 100), (0, 2, 1000), (0, 4, 900), (50, 8, 20), (2000, 1, 10)])
SETTING = Setting(
    network="off",
    eviction_s=10.0,
    log=True,
    faults=faults([(1500, 2, "fail"), (1600, 2, "repair"), (2005, 1, "drain"), (2100, 1, "undrain")]),
)


@pytest.fixture(scope="module")
def run():
    return simulate(TRACE, MACHINES, EXERCISES["least-left"], SETTING)


def test_a_good_run_has_no_violations(run):
    report = audit(run)
    assert report.violations == ()
    assert str(report) == f"{len(run.log)} events of 5 jobs counted again: everything adds up"
    assert {"evicted", "failed", "drained"} <= set(event_frame(run)["event"])


def spoil(frame: pl.DataFrame, job: str, event: str, **columns: object) -> pl.DataFrame:
    """The log with some columns of a job's first such event replaced."""
    row = frame.with_row_index().filter((pl.col("job") == job) & (pl.col("event") == event))["index"][0]
    return frame.with_row_index().with_columns(
        pl.when(pl.col("index") == row).then(pl.lit(value, frame.schema[name])).otherwise(pl.col(name)).alias(name)
        for name, value in columns.items()
    ).drop("index")  # fmt: skip


def without(frame: pl.DataFrame, job: str, event: str) -> pl.DataFrame:
    return frame.filter(~((pl.col("job") == job) & (pl.col("event") == event)))


SPOILT = {
    "a device held twice": (lambda log: spoil(log, "j2", "started", places=["m2:4"]), "held-twice"),
    "half a gang": (lambda log: spoil(log, "j0", "started", places=["m0:2"]), "gang"),
    "a gang larger than asked": (lambda log: spoil(log, "j1", "started", gpus=3), "gang"),
    "devices of no such type": (lambda log: spoil(log, "j0", "started", device="H100"), "held-twice"),
    "a tier that is none of its places": (lambda log: spoil(log, "j0", "started", tier="network"), "tier"),
    "a job that never finishes": (lambda log: without(log, "j1", "finished"), "lost"),
    "a job that never arrives": (lambda log: without(log, "j4", "arrived"), "attempts"),
    "a job that starts twice": (lambda log: without(log, "j2", "evicted"), "attempts"),
    "an eviction of who does not run": (lambda log: without(log, "j1", "started"), "attempts"),
    "a reason to be evicted that is none": (
        lambda log: spoil(log, "j2", "evicted", reason="nearest"),
        "reason",
    ),
    "a spread place called nearest": (lambda log: spoil(log, "j4", "started", reason="spread"), "reason"),
    "devices freed by no eviction": (lambda log: spoil(log, "j0", "started", reason="made-room"), "reason"),
    "a host lost where none failed": (lambda log: spoil(log, "j2", "evicted", reason="host-lost"), "reason"),
    "time that goes back": (lambda log: spoil(log, "j1", "finished", time_s=0.0), "order"),
    "an arrival at another time": (lambda log: spoil(log, "j3", "arrived", time_s=49.0), "order"),
    "a start on a failed machine": (lambda log: late_start(log, "m2", 1550.0), "down"),
    "a start on a drained machine": (lambda log: late_start(log, "m1", 2050.0), "down"),
    "a wait that is longer in the log": (lambda log: shift(log, "j0", "started", 1e-3), "waits"),
    "a run that is shorter in the log": (lambda log: shift(log, "j1", "finished", -1.0), "device-seconds"),
}


def late_start(log: pl.DataFrame, machine: str, time_s: float) -> pl.DataFrame:
    """One more start, of a job that is over, on a machine that is down just then."""
    start = log.filter((pl.col("job") == "j4") & (pl.col("event") == "started")).with_columns(
        pl.lit(time_s).alias("time_s"), pl.lit([f"{machine}:1"], pl.List(pl.String)).alias("places")
    )
    return pl.concat([log, start]).sort("time_s", maintain_order=True)


def shift(log: pl.DataFrame, job: str, event: str, by_s: float) -> pl.DataFrame:
    which = (pl.col("job") == job) & (pl.col("event") == event)
    return log.with_columns(
        pl.when(which).then(pl.col("time_s") + by_s).otherwise("time_s").alias("time_s")
    ).sort("time_s", maintain_order=True)


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_log_is_found_out(run, name):
    change, rule = SPOILT[name]
    violations = check(change(event_frame(run)), MACHINES, TRACE, SETTING, run)
    assert rule in {violation.rule for violation in violations}, [str(one) for one in violations]


@pytest.mark.slow
def test_room_that_was_made_elsewhere_is_found_out():
    trace = jobs([(0, 1, 900), (0, 4, 900), (100, 4, 500)])
    setting = Setting(network="off", log=True)
    run = simulate(trace, cluster([4, 4]), EXERCISES["by-gain"], setting)
    log = event_frame(run)
    made_room = log.filter((log["reason"] == "made-room") & (log["event"] == "started"))
    assert made_room["places"].to_list() == [["m0:4"]]
    assert audit(run).violations == ()
    found = check(spoil(log, "j2", "started", places=["m1:4"]), run.cluster, trace, setting)
    assert any("runs where no job made any" in one.what for one in found)


RECORDED = {
    "attained_gpu_s": "device-seconds",
    "ran_s": "device-seconds",
    "lost_gpu_s": "device-seconds",
    "exposed_comm_gpu_s": "device-seconds",
    "tier_gpu_s": "device-seconds",
    "waited_s": "waits",
    "end_s": "waits",
    "evictions": "attempts",
    "work_s": "work",
    "widest_tier": "tier",
}


def records_with(run, field):
    """The records of a run that have a field: the scheduler's, or the simulator's accounts."""
    return run.records if field in run.records.dtype.names else run.accounts


@pytest.mark.parametrize("field", RECORDED)
def test_a_record_that_differs_from_the_log_is_a_violation(field):
    own = simulate(TRACE, MACHINES, EXERCISES["least-left"], SETTING)
    records_with(own, field)[field][3] += -3 if field == "widest_tier" else 1
    assert RECORDED[field] in {violation.rule for violation in audit(own).violations}


def test_a_device_that_no_job_holds_and_that_is_not_free_is_a_violation():
    own = simulate(TRACE, MACHINES, EXERCISES["least-left"], SETTING)
    own.world.hosts["free"][0] -= 1
    (violation,) = audit(own).violations
    assert (violation.rule, violation.who) == ("free", "m0")


def test_a_run_without_a_log_cannot_be_audited():
    silent = simulate(TRACE, MACHINES, EXERCISES["fit-first"], Setting(network="off"))
    with pytest.raises(InputError, match="kept no log"):
        audit(silent)


def test_a_job_larger_than_the_cluster_is_refused_and_nothing_is_wrong():
    trace = jobs([(0, 13, 10), (0, 12, 10)])
    report = audit(simulate(trace, MACHINES, EXERCISES["fit-first"], Setting(network="off", log=True)))
    assert report.violations == ()
    assert report.events == 3


# Gangs of 12 span racks of 8 and meet on up-links; a machine of the first one fails.
ARRIVALS = [(0, 9000), (300, 900), (1700, 100), (4000, 900), (6000, 300)]
CROSSING = jobs([(arrival, 12, work, "vgg16") for arrival, work in ARRIVALS])
DOWN = faults([(2500, 0, "fail"), (2600, 0, "repair")])


def crossing(network: str):
    setting = Setting(network=network, congestion=8.0, log=True, faults=DOWN)
    return simulate(CROSSING, cluster([[4, 4]] * 3), EXERCISES["fit-first"], setting)


@pytest.mark.parametrize("network", ["off", "static", "on"])
def test_work_is_conserved_whatever_the_network(network):
    run = crossing(network)
    assert audit(run).violations == ()
    assert run.accounts["redone_s"][0] > 0.0
    assert (run.accounts["exposed_comm_gpu_s"][0] > 0.0) == (network != "off")


@pytest.mark.parametrize("network", ["off", "static", "on"])
@pytest.mark.parametrize("field", ["work_s", "redone_s", "exposed_comm_gpu_s", "lost_gpu_s", "compute_share"])
def test_a_record_whose_work_does_not_add_up_is_found_out(network, field):
    run = crossing(network)
    records_with(run, field)[field][0] *= 1.001
    records_with(run, field)[field][0] += 0.01
    rules = {violation.rule for violation in audit(run).violations if violation.who == "j0"}
    assert rules & {"work", "device-seconds"}


@pytest.mark.parametrize(("network", "allowed"), [("static", 0.999), ("on", 0.8)])
def test_a_gang_that_works_faster_than_its_places_allow_is_found_out(network, allowed):
    run = crossing(network)
    run.jobs.traffic["near_s"] *= allowed  # less than the engine took
    assert "work" in {violation.rule for violation in audit(run).violations}
