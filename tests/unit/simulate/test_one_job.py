"""Jobs with parts and alternatives in a simulation: whole gangs in every part, the same work in any shape."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster.load import load_cluster
from berth.schedule.policies.registry import load_policy
from berth.schedule.reasons import ReasonCode
from berth.schedule.records import JobStatus
from berth.schedule.shape_table import ShapeTable
from berth.simulate.audit import audit
from berth.simulate.engine_state import FAULT, FaultKind
from berth.simulate.events import digest, event_frame
from berth.simulate.faults import parse_faults
from berth.simulate.metrics import summarise
from berth.simulate.run import Setting, simulate
from berth.testing import cluster
from berth.workload.binding import bind_offer
from berth.workload.mix import load_mix
from berth.workload.reading import read_trace
from berth.workload.shapes import EVERY, Offer, Part, Shape, Work, canonical
from berth.workload.trace import Trace

GPU = "GPU"
SETTING = Setting(network="static", log=True)
MIXED = """\
tiers: [{name: machine, bandwidth: 100GB/s}, {name: rack, bandwidth: 10GB/s}, {name: network, bandwidth: 10GB/s}]
racks:
  - {name: a, machines: [{count: 2, devices: {T4: 4}, price: $1/h}]}
  - {name: b, machines: [{count: 2, devices: {V100-16: 2, cpu-core: 8}}]}
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    path = tmp_path_factory.mktemp("cluster") / "mixed.yaml"
    path.write_text(MIXED)
    return load_cluster(str(path))


def shape(step_s: float, *parts: dict[str, int], tier: str | None = None, name: str = "") -> Shape:
    made = tuple(
        Part(f"p{row}", tuple(part.items()), tier if row == 0 else None) for row, part in enumerate(parts)
    )
    return Shape(name or f"{parts} in {step_s}", made, ((EVERY, step_s),), 1.0)


def offer(examples: float, *shapes: Shape) -> Offer:
    return canonical(Offer(Work(examples), shapes))


def trace(offers: list[tuple[float, Offer | tuple[int, float]]], **columns: list[Any]) -> Trace:
    """Jobs by submission: an offer, or the devices and seconds of a plain gang; `columns`: other facts of each."""
    plain = [(one.alternatives[0].parts[0].size, 1.0) if isinstance(one, Offer) else one for _, one in offers]
    return Trace.from_columns(
        {
            "job_id": [f"j{row}" for row in range(len(offers))],
            "submit_s": [time for time, _ in offers],
            "num_gpu": [gpus for gpus, _ in plain],
            "duration_s": [float(seconds) for _, seconds in plain],
            **columns,
        },
        source="test",
        offers={f"j{row}": one for row, (_, one) in enumerate(offers) if isinstance(one, Offer)},
    )


def run(jobs: Trace, machines, policy="berth", setting=SETTING):
    """A run whose log adds up."""
    done = simulate(jobs, machines, load_policy(policy), setting)
    report = audit(done)
    assert not report.violations, str(report)
    assert (done.records["state"] == JobStatus.DONE).all()
    return done


def shapes_of(done) -> list[str]:
    log = event_frame(done)
    return log.filter(log["event"] == "started")["shape"].to_list()


def test_an_idle_cluster_gives_a_job_its_fastest_shape():
    jobs = trace([(0, offer(1000, shape(1.0, {GPU: 2}, name="two"), shape(0.3, {GPU: 8}, name="eight")))])
    done = run(jobs, cluster([[4, 4]]))
    assert shapes_of(done) == ["eight"]
    assert done.records["end_s"].tolist() == [300.0]


def test_where_many_wait_jobs_take_the_shape_that_leaves_most_to_others():
    either = offer(1000, shape(1.0, {GPU: 2}, name="two"), shape(0.5, {GPU: 8}, name="eight"))
    done = run(trace([(0, either)] * 12), cluster([[4, 4]]))
    names = shapes_of(done)
    assert names.count("two") >= 8
    fixed = offer(1000, shape(0.5, {GPU: 8}, name="eight"))
    assert summarise(done).mean_jct_s < summarise(run(trace([(0, fixed)] * 12), cluster([[4, 4]]))).mean_jct_s


def test_a_job_waits_for_a_shape_that_ends_sooner_and_says_so():
    both = offer(10000, shape(1.0, {GPU: 1}, name="one"), shape(0.1, {GPU: 4}, name="four"))
    jobs = trace([(0, (3, 100.0)), (1, both)])
    seen = []

    def watch(world, clock):
        if world.jobs[1]["state"] == JobStatus.WAITING:
            seen.append(
                (int(world.jobs[1]["reason"]), float(world.jobs[1]["until_s"]), world.jobs[1]["saves_s"])
            )
        return 1

    done = simulate(jobs, cluster([4]), load_policy("berth"), SETTING, watch=watch)
    assert shapes_of(done)[-1] == "four"
    assert done.records["first_start_s"][1] == 100.0
    reason, until_s, saves_s = seen[-1]
    assert (reason, until_s) == (ReasonCode.WAITS_FOR_SHAPE, 100.0)
    assert saves_s > 8000


def test_a_trace_that_was_written_and_read_gives_the_same_simulation(tmp_path):
    either = offer(1000.5, shape(1.0, {GPU: 2}, name="two"), shape(0.3, {GPU: 8}, name="eight"))
    jobs = trace([(0, either), (1, (3, 100.0)), (2, either)])
    jobs.write(tmp_path / "jobs.jsonl.gz")
    again = read_trace(tmp_path / "jobs.jsonl.gz", strict=True)
    assert again.offers == jobs.offers
    assert len({digest(event_frame(run(one, cluster([[4, 4]])))) for one in (jobs, again)}) == 1


def test_parts_of_several_types_start_together_or_not_at_all(mixed):
    parts = offer(600, shape(1.0, {"V100-16": 3}, {"cpu-core": 10}, name="parts"))
    done = run(trace([(0, parts), (1, parts), (2, (4, 10.0))]), mixed)
    log = event_frame(done)
    first = log.filter((log["event"] == "started") & (log["job"] == "j0"))
    held = sorted(zip(first["places"][0], first["types"][0], strict=True))
    assert sum(int(place.split(":")[1]) for place, kind in held if kind == "cpu-core") == 10
    assert sum(int(place.split(":")[1]) for place, kind in held if kind == "V100-16") == 3
    assert done.records["first_start_s"].tolist() == [
        0.0,
        600.0,
        2.0,
    ]  # a gang asks for GPUs, never for cores


def test_a_tied_part_lies_within_its_tier(mixed):
    tied = offer(600, shape(1.0, {"V100-16": 2}, {"cpu-core": 12}, tier="machine", name="tied"))
    blocker = offer(100, shape(1.0, {"V100-16": 1}, name="one"))
    done = run(trace([(0, blocker), (1, blocker), (2, tied)]), mixed)
    log = event_frame(done).filter(pl_started("j2"))
    tied_places = [
        place for place, kind in zip(log["places"][0], log["types"][0], strict=True) if "@0" in kind
    ]
    assert len(tied_places) == 1
    assert tied_places[0].endswith(":2")


def pl_started(job):
    return (pl.col("event") == "started") & (pl.col("job") == job)


# What must not matter


def many(seed: int, alternatives) -> Trace:
    random = np.random.default_rng(seed)
    rows = []
    for number in range(40):
        at, work = float(random.integers(0, 4000)), float(random.integers(100, 3000))
        rows.append(
            (at, (int(random.integers(1, 5)), work) if number % 4 == 3 else offer(work, *alternatives))
        )
    return trace(rows)


TWO, FOUR, EIGHT = (
    shape(1.0, {GPU: 2}, name="two"),
    shape(0.6, {GPU: 4}, name="four"),
    shape(0.35, {GPU: 8}, name="8"),
)
POLICIES = ["berth", "fifo", "srtf", "tiresias", "gandiva"]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_the_order_of_alternatives_and_one_that_never_fits_change_nothing(policy):
    machines = cluster([[4, 4], [4, 4]])
    never = shape(0.01, {GPU: 64}, name="never")
    logs = [
        event_frame(run(many(1, alternatives), machines, policy))
        for alternatives in ([TWO, FOUR, EIGHT], [EIGHT, TWO, FOUR], [FOUR, never, EIGHT, TWO])
    ]
    assert len({digest(log) for log in logs}) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_single_alternative_of_one_type_behaves_as_a_plain_gang(policy):
    machines, jobs = cluster([[4, 4], [4, 4]]), many(2, [FOUR])
    gangs = trace(
        [
            (at, (4, jobs.offers[name].near_s(FOUR)) if name in jobs.offers else (int(gpus), seconds))
            for name, at, gpus, seconds in zip(
                jobs.job_ids, jobs.submit_s, jobs.num_gpu, jobs.duration_s, strict=True
            )
        ]
    )
    off = replace(SETTING, network="off")
    one, other = run(jobs, machines, policy, off), run(gangs, machines, policy, off)
    left_out = ("job", "shape", "types")  # jobs are named by their row in each trace
    assert event_frame(one).drop(left_out).equals(event_frame(other).drop(left_out))


@pytest.mark.parametrize("policy", POLICIES)
def test_two_parts_of_one_type_behave_as_one(policy):
    machines = cluster([[4, 4], [4, 4]])
    halves = [shape(1.0, {GPU: 1}, {GPU: 1}, name="two"), shape(0.6, {GPU: 1}, {GPU: 3}, name="four")]
    one, other = run(many(3, [TWO, FOUR]), machines, policy), run(many(3, halves), machines, policy)
    assert digest(event_frame(one)) == digest(event_frame(other))


def test_the_same_run_twice_is_the_same_to_the_bit():
    jobs, machines = many(4, [TWO, FOUR, EIGHT]), cluster([[4, 4], [4, 4]])
    assert digest(event_frame(run(jobs, machines))) == digest(event_frame(run(jobs, machines)))


# Restarts


def failures(*rows: tuple[float, int, int]):
    return np.array(list(rows), FAULT)


def test_a_job_that_loses_a_machine_goes_on_in_another_shape_with_the_work_that_is_left():
    either = offer(6000, shape(1.0, {GPU: 2}, name="two"), shape(0.5, {GPU: 4}, name="four"))
    jobs = trace([(0, either), (0, (2, 60_000.0))])
    (place,) = event_frame(run(jobs, cluster([4, 4]))).filter(pl_started("j0"))["places"][0]
    machine = int(place[1])
    faults = failures((1800.0, machine, FaultKind.FAIL), (90_000.0, machine, FaultKind.REPAIR))
    done = run(jobs, cluster([4, 4]), setting=replace(SETTING, faults=faults, checkpoint_s=600.0))
    log = event_frame(done).filter(pl_started("j0"))
    assert log["shape"].to_list() == ["four", "two"]
    assert done.accounts[0]["reshapes"] == 1
    # 1800 s at 2 examples a second, all of it saved; the rest at 1 a second, after a restore of 40 s
    assert done.records[0]["end_s"] == pytest.approx(1800.0 + 40.0 + (6000.0 - 3600.0))


def test_a_running_job_grows_into_idle_devices_once_and_does_not_oscillate():
    either = offer(30_000, shape(1.0, {GPU: 2}, name="two"), shape(0.3, {GPU: 8}, name="eight"))
    done = run(trace([(0, (6, 1000.0)), (1, either), (5000, (1, 10.0))]), cluster([[4, 4]]))
    assert done.accounts[1]["reshapes"] <= 1
    assert done.records["moves"][1] <= 1
    assert done.records["end_s"][1] < 30_000


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), policy=st.sampled_from(POLICIES))
def test_every_run_adds_up_with_parts_failures_and_preemption(seed, policy, mixed):
    random = np.random.default_rng(seed)
    kinds = [
        shape(1.0, {"V100-16": 2}, {"cpu-core": 4}, tier="machine", name="near"),
        shape(0.7, {"V100-16": 3}, {"cpu-core": 9}, name="wide"),
        shape(1.5, {"T4": 2}, name="t4"),
        shape(0.9, {"T4": 5}, name="more t4"),
        shape(1.1, {"T4": 2, "cpu-core": 3}, name="both"),
    ]
    rows = []
    for number in range(14):
        picked = [kinds[at] for at in random.permutation(5)[: random.integers(1, 5)]]
        at, work = float(random.integers(0, 3000)), float(random.integers(100, 4000))
        rows.append((at, (int(random.integers(1, 5)), work) if number % 3 == 2 else offer(work, *picked)))
    down = sorted((float(random.integers(0, 4000)), int(random.integers(0, 4))) for _ in range(2))
    faults = [(time, machine, FaultKind.FAIL) for time, machine in down]
    faults += [(time + 500.0, machine, FaultKind.REPAIR) for time, machine in down]
    run(trace(rows), mixed, policy, replace(SETTING, faults=failures(*sorted(faults)), checkpoint_s=300.0))


# Places against a brute-force search

TYPES = ("T4", "V100-16", "cpu-core")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_shape_starts_at_the_nearest_tier_that_a_brute_force_search_finds(data, mixed):
    fillers = data.draw(
        st.lists(st.tuples(st.sampled_from(TYPES), st.integers(1, 4)), min_size=1, max_size=6)
    )
    counts = st.dictionaries(st.sampled_from(TYPES), st.integers(1, 3), min_size=1, max_size=2)
    parts = data.draw(
        st.lists(st.tuples(counts, st.sampled_from([None, "machine", "rack"])), min_size=1, max_size=3)
    )
    made = tuple(Part(f"p{row}", tuple(need.items()), tier) for row, (need, tier) in enumerate(parts))
    wanted = Offer(Work(10.0), (Shape("wanted", made, ((EVERY, 1.0),), 1.0),))
    rows = [(0.0, offer(1e6, shape(1.0, {kind: count}, name="filler"))) for kind, count in fillers]
    done = simulate(trace([*rows, (10.0, wanted)]), mixed, load_policy("preferred"), SETTING)
    assert not audit(done).violations
    log = event_frame(done)
    free = {(row, kind): 0 for row in range(4) for kind in TYPES}
    for row, machine in enumerate(mixed.machines):
        for kind, count in machine.devices:
            free[row, mixed.device_types[kind].name] += count
    names = [machine.name for machine in mixed.machines]
    for event in log.filter((pl.col("event") == "started") & (pl.col("time_s") < 10)).iter_rows(named=True):
        for place in event["places"]:
            machine, _, count = place.rpartition(":")
            free[names.index(machine), event["device"]] -= int(count)
    job = f"j{len(fillers)}"
    found = log.filter(pl_started(job) & (pl.col("time_s") == 10.0))["tier"].to_list()
    tier = nearest_by_brute_force(mixed, free, parts)
    assert found == ([] if tier is None else [mixed.tiers[tier].name])


def nearest_by_brute_force(machines, free, parts):
    """The nearest tier at which every part finds its devices, each tied part by trying every group."""
    for tier in range(3):
        for group in sorted(set(machines.groups[tier].tolist())):
            inside = [row for row in range(4) if machines.groups[tier][row] == group]
            ties = [
                sorted({(level, int(machines.groups[level][row])) for row in inside})
                if (level := {None: 3, "machine": 0, "rack": 1}[name]) < tier
                else [None]
                for _, name in parts
            ]
            if any(fits(machines, free, parts, inside, picked) for picked in itertools.product(*ties)):
                return tier
    return None


def fits(machines, free, parts, inside, picked):
    """Whether all parts fit; machine ties are taken first, then racks by their sums, then the whole group."""
    left = {key: count for key, count in free.items() if key[0] in inside}
    used = {(1, rack): dict.fromkeys(TYPES, 0) for rack in (0, 1)}
    total = dict.fromkeys(TYPES, 0)
    for (need, _), place in zip(parts, picked, strict=True):
        for kind, count in need.items():
            total[kind] += count
            if place is not None:
                rack = place[1] if place[0] == 1 else int(machines.groups[1][place[1]])
                used[1, rack][kind] += count
                if place[0] == 0:
                    left[place[1], kind] -= count
    if min(left.values()) < 0:
        return False
    for kind in TYPES:
        if total[kind] > sum(free[row, kind] for row in inside):
            return False
        for rack in (0, 1):
            rows = [row for row in inside if machines.groups[1][row] == rack]
            if used[1, rack][kind] > sum(free[row, kind] for row in rows):
                return False
    return True


def test_a_larger_shape_that_does_not_fit_says_nothing_about_smaller_gangs():
    """The job waits for two devices of one machine, and its smallest shape is one device: a gang of one still fits."""
    machines = cluster([4, 4])
    near = machines.tiers[0].name
    one, two = (
        replace(shape(step_s, {GPU: size}, name=str(size)), tier=near)
        for step_s, size in [(0.5, 1), (0.01, 2)]
    )
    rows = [
        (0.0, (3, 200.0)),
        (0.0, (3, 300.0)),
        (0.0, (1, 5000.0)),
        (1.0, offer(1000, one, two)),
        (2.0, (1, 1000.0)),
    ]
    jobs = trace(
        rows, priority=[0, 0, 0, 5, 0], preemptible=[0, 0, 1, 1, 1], device=[None, None, None, None, GPU]
    )
    done = run(jobs, machines, "srtf", setting=replace(SETTING, network="off"))
    assert done.records["first_start_s"][4] == 2.0


# Waiting for a better shape

BARE = replace(SETTING, network="off", eviction_s=0.0, eviction_large_s=0.0)


def first_starts(done) -> list[float]:
    return done.records["first_start_s"].tolist()


@pytest.mark.parametrize("preemptible", [0.0, 1.0])
def test_a_better_shape_that_others_take_again_and_again_is_given_up(preemptible):
    """Four devices come free only if small jobs stop coming: it waits no longer than one device would cost it."""
    slow, fast = shape(5.0, {GPU: 1}, name="one"), shape(1.0, {GPU: 4}, name="four")
    rows = [(13.0 * number, (1, 100.0)) for number in range(1500)]
    rows.insert(10, (rows[9][0] + 1, offer(1000, slow, fast)))
    done = run(trace(rows), cluster([8]), setting=replace(BARE, preemptible=preemptible))
    assert done.records["deferred_s"][10] <= 5000.0
    assert done.records["first_start_s"][10] < 118.0 + 5000.0 + 100.0


def test_estimates_that_are_wrong_do_not_prolong_the_wait_for_a_better_shape():
    """j0 was expected to end at 100 s and runs on: j1 looks again when waiting can't pay any more."""
    both = offer(1000, shape(1.0, {GPU: 1}, name="one"), shape(0.1, {GPU: 4}, name="four"))
    jobs = trace([(0, (3, 90_000.0)), (1, both)], preemptible=[0, 0])
    jobs = replace(jobs, frame=jobs.frame.with_columns(pl.Series("estimate_s", [100.0, 1000.0])))
    done = run(jobs, cluster([4]), setting=replace(BARE, estimates="learned"))
    assert done.records["first_start_s"][1] < 10_000.0


def test_devices_that_a_running_job_offers_are_not_counted_twice():
    """j2 outranks j1 and can't start beside j0; j3 sees that eight devices are free when j0 ends, not when j1 does."""
    both = offer(100, shape(4.0, {GPU: 2}, name="two"), shape(0.1, {GPU: 8}, name="eight"))
    rows = [(0.0, (4, 100_000.0)), (0.0, (4, 50.0)), (1.0, (8, 1.0)), (1.0, both)]
    jobs = trace(rows, priority=[0, 0, 9, 5], preemptible=[0, 1, 1, 1])
    done = run(jobs, cluster([8]), setting=BARE)
    assert first_starts(done)[3] == 1.0


def test_jobs_of_lower_priority_do_not_make_devices_expensive():
    either = offer(1000, shape(1.0, {GPU: 2}, name="two"), shape(0.5, {GPU: 8}, name="eight"))
    rows = [(0.0, either)] * 12
    for first, taken in ((9, "eight"), (0, "two")):
        log = event_frame(run(trace(rows, priority=[first] + [0] * 11), cluster([[4, 4]]), setting=BARE))
        assert log.filter(pl_started("j0"))["shape"][0] == taken


def test_a_job_that_grows_gives_way_to_one_that_goes_before_it_then():
    """j0 grows to eight devices, and its work there is more than j2's: what was known of its order is out of date."""
    either = offer(1000, shape(10.0, {GPU: 1}, name="one"), shape(2.0, {GPU: 8}, name="eight"))
    rows = [(1.0, either), (10.0, (8, 90_000.0)), (1100.0, (8, 1400.0))]
    faults = failures((0.5, 1, FaultKind.DRAIN), (1000.0, 1, FaultKind.UNDRAIN))
    jobs = trace(rows)
    jobs = replace(jobs, frame=jobs.frame.with_columns(pl.col("submit_s") + 1.0))
    done = run(jobs, cluster([1, 7]), setting=replace(BARE, faults=faults))
    assert done.accounts[0]["reshapes"] >= 1
    assert first_starts(done)[2] == 1100.0


def test_the_reason_names_devices_that_are_reserved_for_a_job_with_parts(mixed):
    parts = offer(600, shape(1.0, {"V100-16": 4}, {"cpu-core": 10}, name="parts"))
    blocker = offer(500, shape(1.0, {"V100-16": 3}, name="three"))
    short = offer(700, shape(1.0, {"V100-16": 1}, {"cpu-core": 1}, name="one"))
    seen = set()

    def watch(world, clock):
        if world.jobs[2]["state"] == JobStatus.WAITING:
            seen.add(int(world.jobs[2]["reason"]))
        return 1

    simulate(trace([(0, blocker), (1, parts), (2, short)]), mixed, load_policy("easy"), SETTING, watch=watch)
    assert int(ReasonCode.HELD_FOR_OTHER) in seen


def test_alternatives_keep_to_links_that_few_share():
    """Under `lwf` both jobs would send over the link of the middle machine with messages of one size."""

    def either(examples: float, size: int) -> Offer:
        shapes = [
            Shape(str(step_s), (Part("all", ((GPU, size),), collective_bytes=1e9),), ((EVERY, step_s),), 1.0)
            for step_s in (1.0, 2.0)
        ]
        return offer(examples, *shapes)

    done = run(trace([(0.0, either(1000, 4)), (10.0, either(10, 5))]), cluster([3, 3, 3]), "lwf")
    assert first_starts(done) == [0.0, 1000.0]


# Gangs beside jobs with alternatives choose among device types

TYPES_OF_GANGS = [{"T4": 4, "V100": 4}]
APART = replace(SETTING, network="off", reference_device="T4")


def held_types(done, job: str) -> list[str]:
    log = event_frame(done).filter((pl.col("job") == job) & pl.col("event").is_in(["started", "moved"]))
    return log["device"].to_list()


def beside_gang(shapes: int, seconds: float, until: float) -> Trace:
    """j0 holds all V100 `until` then, whatever others need; j1 is a gang of this many seconds on T4."""
    on_v100 = [shape(1.0, {"V100": 4}, name="V100"), shape(9.0, {"T4": 4}, name="T4")][:shapes]
    rows = [(0.0, offer(until, *on_v100)), (1.0, (4, seconds))]
    return trace(rows, preemptible=[0, 1])


def test_a_job_on_cores_does_not_make_the_network_of_gangs_faster(tmp_path):
    """Gangs share the up-links of racks; the cluster keeps its cores only for a job that asks for them."""
    path = tmp_path / "cores.yaml"
    path.write_text("racks: [{count: 2, machines: [{count: 2, devices: {H100: 8, cpu-core: 64}}]}]")
    machines, setting = load_cluster(str(path)), Setting(mix=load_mix("vgg16"), log=True)
    gangs: list[tuple[float, Offer | tuple[int, float]]] = [
        (0.0, (10, 1e5)),
        (1.0, (10, 1e5)),
        (2.0, (12, 36e3)),
    ]
    later = (900_000.0, offer(10, shape(1.0, {"cpu-core": 4})))
    alone, beside = (
        run(trace(jobs), machines, "fifo", setting).records["end_s"][:3].tolist()
        for jobs in (gangs, [*gangs, later])
    )
    assert alone == beside
    assert 40e3 < alone[2] < 900e3  # the links matter


@pytest.mark.parametrize("shapes", [1, 2])
def test_a_gang_waits_for_a_faster_type_that_comes_free_soon(shapes):
    done = run(beside_gang(shapes, 5000.0, 100.0), cluster(TYPES_OF_GANGS), setting=APART)
    assert held_types(done, "j1") == ["V100-16"]
    assert first_starts(done)[1] == 100.0


def test_a_gang_moves_to_a_faster_type_that_comes_free_and_pays_for_the_restore():
    machines = cluster(TYPES_OF_GANGS)
    done = run(beside_gang(2, 50_000.0, 40_000.0), machines, setting=APART)
    assert held_types(done, "j1") == ["T4", "V100-16"]
    assert done.records["end_s"][1] < 47_000.0
    short = run(beside_gang(2, 40_010.0, 40_000.0), machines, setting=APART)
    assert held_types(short, "j1") == ["T4"]  # what is left is less than a restore takes


ONLY_GANGS = [(0.0, (4, 100.0)), (1.0, (4, 60_000.0)), *((1000.0 * at, (1, 1.0)) for at in range(1, 12))]


def test_without_jobs_with_shapes_gangs_start_where_devices_are_free_and_stay_unless_the_policy_lets_them_choose():
    machines = cluster(TYPES_OF_GANGS)
    first_free = run(trace(ONLY_GANGS), machines, "fit-first", setting=APART)
    assert (held_types(first_free, "j1"), first_starts(first_free)[:2]) == (["T4"], [0.0, 1.0])
    chosen = run(trace(ONLY_GANGS), machines, setting=APART)
    assert held_types(chosen, "j1") == ["V100-16"]
    assert first_starts(chosen)[:2] == [0.0, float(chosen.records["end_s"][0])]
    assert chosen.records["end_s"][1] < first_free.records["end_s"][1]


MANY_GANGS = [(60.0 * at, (1 + at % 5, 500.0 + 900.0 * (at % 7))) for at in range(60)]


@pytest.mark.parametrize("estimates", ["known", "learned", "none"])
def test_a_log_of_gangs_that_choose_adds_up(estimates):
    setting = Setting(
        congestion=20.0,
        mix=load_mix("vgg16"),
        log=True,
        estimates=estimates,
        preemptible=0.5,
        fault_spec=parse_faults("mtbf=12h,mttr=10m,seed=5"),
    )
    machines = cluster([[{"V100": 4}] * 3, [{"V100": 4}] * 3, [{"T4": 4}] * 3])
    log = event_frame(run(trace(MANY_GANGS), machines, setting=setting))
    assert {"T4", "V100-16"} == set(log["device"].drop_nulls().to_list())
    assert "reshaped" in set(log["reason"].drop_nulls().to_list())


@pytest.mark.parametrize("policy", ["berth:types=no", "berth:order=las", "berth:share=0", "srsf"])
def test_under_other_rules_gangs_take_what_is_free(policy):
    done = run(trace(ONLY_GANGS), cluster(TYPES_OF_GANGS), policy, setting=APART)
    assert held_types(done, "j1") == ["T4"]


def test_with_several_priorities_gangs_take_what_is_free_and_with_one_they_choose():
    machines = cluster(TYPES_OF_GANGS)
    for priorities, taken in (
        ([3] * len(ONLY_GANGS), "V100-16"),
        ([3, 3, *[4] * (len(ONLY_GANGS) - 2)], "T4"),
    ):
        assert held_types(run(trace(ONLY_GANGS, priority=priorities), machines, setting=APART), "j1") == [
            taken
        ]


def test_gangs_take_the_type_on_which_they_end_first_whatever_it_costs(tmp_path):
    path = tmp_path / "prices.yaml"
    prices = "devices: {V100: {price: $50/h}, T4: {price: $0.01/h}}"
    path.write_text(
        f"{prices}\nmachines: [{{count: 1, devices: {{V100: 4}}}}, {{count: 1, devices: {{T4: 4}}}}]"
    )
    done = run(trace([(0.0, (4, 9000.0))]), load_cluster(str(path)), setting=APART)
    assert held_types(done, "j0") == ["V100"]


def test_two_names_of_one_type_are_as_good_as_one_to_gangs_that_choose(tmp_path):
    facts = "{kind: gpu, memory: 16GiB, flops: 65TFLOPS, price: $1/h}"
    two = "{count: 2, devices: {%s: 4}}"
    means = []
    for other in ("first", "second"):
        path = tmp_path / f"{other}.yaml"
        racks = f"racks: [{{machines: [{two % 'first'}]}}, {{machines: [{two % other}]}}]"
        path.write_text(f"devices: {{first: {facts}, second: {facts}}}\n{racks}")
        done = run(trace(MANY_GANGS), load_cluster(str(path)))
        means.append(float((done.records["end_s"] - done.records["arrival_s"]).mean()))
    assert means[1] == pytest.approx(means[0], rel=0.05)


@pytest.mark.parametrize(
    ("estimates", "starts"), [("known", [0.0, 0.0, 1.0]), ("none", [0.0, 0.0, 200_000.0])]
)
def test_of_unknown_duration_a_gang_that_cant_be_moved_takes_no_place_where_distance_slows_it(
    estimates, starts
):
    """One V100 is free on each of two machines, and both T4 are out of service."""
    rows = [(0.0, (3, 200_000.0)), (0.0, (3, 300_000.0)), (1.0, (2, 9000.0))]
    machines = cluster([{"V100": 4}, {"V100": 4}, {"T4": 2}])
    setting = Setting(
        network="static",
        log=True,
        estimates=estimates,
        preemptible=0.0,
        mix=load_mix("vgg16"),
        fault_spec=parse_faults("drain=m2@0s+100h"),
    )
    done = run(trace(rows), machines, setting=setting)
    assert first_starts(done) == starts


def test_of_shapes_that_end_at_nearly_the_same_time_the_cheaper_is_taken():
    rows = [(0.0, offer(1000, shape(1.0, {GPU: 4}, name="four"), shape(0.97, {GPU: 8}, name="eight")))]
    machines = cluster([[4, 4]])
    price = replace(machines.device_types[0], usd_per_hour=1.0)
    for kinds, taken in ((machines.device_types, "eight"), ((price,), "four")):
        done = run(trace(rows), replace(machines, device_types=kinds))
        assert shapes_of(done) == [taken]


# Dollars

EITHER_TYPE = (shape(1.0, {"T4": 4}, name="T4"), shape(1.0, {"V100": 4}, name="V100"))


def priced(*machines: dict[str, int]):
    """A V100 costs five times as much as a T4."""
    made = cluster(list(machines))
    usd = {"T4": 0.5, "V100-16": 2.5}
    return replace(
        made, device_types=tuple(replace(kind, usd_per_hour=usd[kind.name]) for kind in made.device_types)
    )


@pytest.mark.parametrize(("t4_usd", "excess"), [(1.0, [2.0, 0.0]), (0.0, [0.0, 0.0])])
def test_dollars_do_not_count_for_a_job_that_could_run_at_no_cost(tmp_path, t4_usd, excess):
    """As the note of a cluster with such a type says: nothing is a multiple of $0."""
    path = tmp_path / "free.yaml"
    prices = f"devices: {{T4: {{price: ${t4_usd}/h}}, V100-16: {{price: $3/h}}}}"
    path.write_text(f"{prices}\nmachines: [{{devices: {{T4: 4, V100-16: 4}}}}]\n")
    machines = load_cluster(str(path))
    either = offer(10, shape(1.0, {"V100-16": 1}), shape(1.0, {"T4": 1}))
    table = ShapeTable()
    table.add(either, bind_offer(either, machines), machines)
    found = dict(
        zip((next(iter(one.shape.devices)) for one in table.bound), table.shapes["usd_excess"], strict=True)
    )
    assert [found["V100-16"], found["T4"]] == excess
    assert bool(machines.notes) == (t4_usd == 0.0)


def large_job_beside(until_s: float):
    """j0 holds the only T4s, and can run nowhere else. On either type j1 to j4 need 10 s each and j5 1,000 s."""
    small = [(1000.0 * at, offer(10, *EITHER_TYPE)) for at in range(1, 5)]
    rows = [(0.0, offer(until_s, EITHER_TYPE[0])), *small, (5000.0, offer(1000, *EITHER_TYPE))]
    jobs = trace(rows, preemptible=[0, 1, 1, 1, 1, 1])
    return run(jobs, priced({"T4": 4}, {"V100": 4}), setting=replace(BARE, log=True))


def test_a_large_job_waits_for_the_type_on_which_it_is_cheap_and_small_ones_do_not():
    """It costs 4.8 times the mean of the five."""
    done = large_job_beside(15_000.0)
    assert first_starts(done)[1:] == [1000.0, 2000.0, 3000.0, 4000.0, 15_000.0]
    assert held_types(done, "j5") == ["T4"]


def test_a_large_job_waits_sixteen_times_its_run_at_most():
    done = large_job_beside(90_000.0)
    assert first_starts(done)[5] == pytest.approx(5000.0 + 16_000.0, rel=1e-12)
    assert held_types(done, "j5") == ["V100-16"]


def test_so_does_each_of_many_large_jobs():
    """Twelve of them, the first four of a pass or not: the other type is idle, and none waits longer."""
    small = [(1000.0 + at, offer(10, *EITHER_TYPE)) for at in range(100)]
    large = [(5000.0 + at, offer(1000 + at, *EITHER_TYPE)) for at in range(12)]
    rows = [(0.0, offer(500_000.0, EITHER_TYPE[0])), *small, *large]
    jobs = trace(rows, preemptible=[0] + [1] * 112)
    done = run(jobs, priced({"T4": 4}, *[{"V100": 4}] * 12), setting=replace(BARE, log=True))
    waits = [at - 5000.0 - k for k, at in enumerate(first_starts(done)[101:])]
    assert min(waits) == pytest.approx(16_000.0, rel=1e-9)
    assert max(waits) <= 16.0 * 1011 + 1.0, waits


def test_a_large_job_does_not_wait_for_a_shape_that_its_quota_never_allows():
    rows = [(1000.0 * at, offer(10, EITHER_TYPE[0])) for at in range(5)]
    halves = shape(2.0, {"V100": 2}, name="two V100")
    jobs = trace([*rows, (6000.0, offer(1000, EITHER_TYPE[0], halves))], vc=[None] * 5 + ["q"])
    for quota, types in ((2, ["V100-16"]), (4, ["T4"])):
        setting = replace(BARE, log=True, quotas={"q": quota})
        done = run(jobs, priced({"T4": 4}, {"V100": 4}), setting=setting)
        assert first_starts(done)[5] == 6000.0
        assert held_types(done, "j5") == types


@pytest.mark.parametrize(("v100_usd", "held"), [(2.5, ["T4"]), (1.5, ["T4", "V100-16"])])
def test_no_running_job_moves_to_a_type_on_which_its_work_costs_more(v100_usd, held):
    """j1 starts on T4s. At 6,000 s j0 leaves V100s: three times as fast, at 5 or 3 times the price."""
    slow, fast = shape(3.0, {"T4": 4}, name="slow"), shape(1.0, {"V100": 4}, name="fast")
    rows = [(0.0, (4, 6000.0)), (1.0, offer(3000, slow, fast))]
    jobs = trace(rows, preemptible=[0, 1], device=["V100", None])
    machines = priced({"T4": 4}, {"V100": 4})
    t4, v100 = machines.device_types
    machines = replace(machines, device_types=(t4, replace(v100, usd_per_hour=v100_usd)))
    done = run(jobs, machines, setting=replace(BARE, log=True))
    assert held_types(done, "j1") == held
