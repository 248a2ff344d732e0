"""Jobs on shared links: the closed form against the explicit simulation, and what must not matter to it."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.errors import InputError
from berth.native.kernels import entry
from berth.network import _contention_kernels as kernels
from berth.network.contention import SharedLinks, beside
from berth.network.fabric import Fabric
from berth.network.flow import alone_s, flow_of
from berth.network.placement import Placement
from berth.network.sharing import LinkShares
from berth.network.traffic import Traffic
from berth.workload.profiles import all_profiles, load_profile

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from iterations import SharingJob, iteration_seconds, max_min, mean_slowdowns

GB = 1e9
OVER_TWO_RACKS = Placement.of_counts({0: 4, 2: 4})


@pytest.fixture(scope="module")
def cluster():
    return load_cluster("4x2x8:A100")  # a rack's up-link carries one gang of 4 + 4 at full rate


def sharing_job(traffic: Traffic, placement: Placement, fabric: Fabric) -> SharingJob:
    flow = flow_of(traffic, placement, fabric)
    return SharingJob(
        silent_s=traffic.forward * traffic.compute_s,
        backward_s=(1 - traffic.forward) * traffic.compute_s,
        volume=flow.volume_bytes,
        peak=flow.volume_bytes / flow.alone_comm_s,
        overlap=traffic.overlap,
        weights=dict(zip(flow.links.tolist(), flow.weights.tolist(), strict=True)),
    )


def one_link(silent_s: float, backward_s: float, comm_s: float, overlap: float = 6.0) -> SharingJob:
    return SharingJob(silent_s, backward_s, comm_s, 1.0, overlap, {0: 1.0})


def closed_form(jobs: list[SharingJob], capacity: list[float]) -> list[float]:
    """Seconds per iteration by the kernels, for jobs without a placement."""
    state = LinkShares(capacity, len(jobs), len(jobs) * len(capacity)).state
    flows, loads = kernels.new_flows(len(jobs)), kernels.new_loads(len(capacity))
    for number, job in enumerate(jobs):
        compute_s = job.silent_s + job.backward_s
        forward = job.silent_s / compute_s if compute_s else 0.0
        kernels.describe(flows, number, compute_s, forward, job.overlap, job.volume, job.volume / job.peak)
        links, weights = np.array(list(job.weights), np.int32), np.array(list(job.weights.values()))
        kernels.join(state, flows, loads, number, links, weights)
    return flows.seconds.tolist()


# The explicit simulation itself


@pytest.mark.parametrize("overlap", [1.0, 2.0, 6.0, 50.0])
@pytest.mark.parametrize("comm_s", [0.2, 0.7, 1.5])
def test_alone_the_explicit_simulation_takes_what_the_profiles_formula_says(overlap, comm_s):
    job = one_link(0.4, 0.8, comm_s, overlap)
    [seconds] = iteration_seconds([job], [1.0], [0.3], iterations=6, skip=2, buckets=200)
    assert seconds == pytest.approx(job.alone_s(), rel=0.005)


def test_two_jobs_in_step_that_only_send_take_twice_as_long():
    jobs = [one_link(0.5, 0.0, 1.0)] * 2
    assert iteration_seconds(jobs, [1.0], [0.0, 0.0]) == pytest.approx([2.5, 2.5], rel=1e-6)


def test_two_jobs_out_of_step_hide_their_silence_behind_each_other():
    jobs = [one_link(0.5, 0.0, 1.0)] * 2
    assert iteration_seconds(jobs, [1.0], [0.0, 0.9]) == pytest.approx([2.0, 2.0], rel=1e-3)


def test_a_job_whose_production_is_slower_than_the_link_falls_into_step():
    jobs = [one_link(1 / 3, 2 / 3, 0.5)] * 2
    apart = iteration_seconds(jobs, [1.0], [0.0, 0.3], iterations=60, skip=40)
    together = iteration_seconds(jobs, [1.0], [0.0, 0.0], iterations=60, skip=40)
    assert apart == pytest.approx(together, rel=0.01)


def test_max_min_gives_equal_shares_and_leaves_what_a_slow_job_does_not_take():
    fast, slow = one_link(0.0, 1.0, 1.0), SharingJob(0.0, 1.0, 1.0, 0.2, 6.0, {0: 1.0})
    assert max_min([fast, fast, slow], [1.0], [True, True, True]) == pytest.approx([0.4, 0.4, 0.2])
    assert max_min([fast, fast, slow], [1.0], [True, False, False]) == [1.0, 0.0, 0.0]


# The closed form against it


def test_two_jobs_that_only_send_and_are_silent_take_their_exact_mean_over_all_offsets():
    # Offset d in a period T: T = 2C + max(0, A - d); over all offsets that is T^2 = 2CT + A^2.
    silent_s, comm_s = 0.5, 1.0
    exact = comm_s + math.sqrt(comm_s**2 + silent_s**2)
    assert closed_form([one_link(silent_s, 0.0, comm_s)] * 2, [1.0]) == pytest.approx([exact] * 2, rel=1e-3)


@pytest.mark.parametrize("ratio", [0.3, 0.6, 0.8, 1.0, 1.3, 2.0, 5.0])
@pytest.mark.parametrize("gangs", [2, 3])
@pytest.mark.parametrize("capacity", [1.0, 1.5])
@pytest.mark.slow
def test_equal_gangs_are_slowed_as_the_explicit_simulation_slows_them(ratio, gangs, capacity):
    jobs = [one_link(1 / 3, 2 / 3, ratio * 2 / 3)] * gangs
    expected = mean_slowdowns(jobs, [capacity], 6 if gangs == 2 else 3, iterations=30, skip=12)
    found = [
        seconds / job.alone_s() for seconds, job in zip(closed_form(jobs, [capacity]), jobs, strict=True)
    ]
    assert found == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize("case", range(12))
@pytest.mark.slow
def test_unlike_gangs_are_slowed_as_the_explicit_simulation_slows_them(case):
    rng = random.Random(case)
    jobs = []
    for _ in range(2 + case % 2):
        compute_s, ratio = rng.uniform(0.5, 2.0), math.exp(rng.uniform(math.log(0.3), math.log(4)))
        peak = rng.choice([1.0, 0.6])
        jobs.append(
            SharingJob(
                compute_s / 3, compute_s * 2 / 3, ratio * compute_s * 2 / 3 * peak, peak, 6.0, {0: 1.0}
            )
        )
    expected = mean_slowdowns(jobs, [1.2], 4 if len(jobs) == 2 else 3, iterations=40, skip=10)
    found = [seconds / job.alone_s() for seconds, job in zip(closed_form(jobs, [1.2]), jobs, strict=True)]
    assert found == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize("gangs", [2, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.slow
def test_over_models_and_congestion_the_median_error_is_below_3_and_the_worst_below_8_percent(cluster, gangs):
    """Cells whose two ratios are alike are played once: sending to backward pass, and link to the gang's peak."""
    cells: dict[tuple[int, int], list[tuple[SharingJob, Fabric, float]]] = {}
    for congestion in (1, 2, 5, 10, 20):
        fabric = Fabric(cluster, congestion)
        for profile in all_profiles():
            traffic = profile.traffic(cluster.device_types[0])
            alone = alone_s(traffic, flow_of(traffic, OVER_TWO_RACKS, fabric))
            found = beside(traffic, OVER_TWO_RACKS, fabric, gangs - 1) / alone
            job = sharing_job(traffic, OVER_TWO_RACKS, fabric)
            ratio = job.volume / job.peak / job.backward_s
            if ratio * gangs < 0.5:
                assert found == pytest.approx(1.0, abs=0.01)  # too little is sent to fill the link
            else:
                room = fabric.arrays.capacity.min() / job.peak
                key = round(math.log(ratio) / 0.05), round(math.log(room) / 0.03)
                cells.setdefault(key, []).append((job, fabric, found))
    errors = []
    for alike in cells.values():
        job, fabric, _ = alike[0]
        offsets, capacity = 6 if gangs == 2 else 3, fabric.arrays.capacity.tolist()
        expected = mean_slowdowns([job] * gangs, capacity, offsets, iterations=30, skip=14, buckets=30)
        errors += [abs(found / np.mean(expected) - 1) for _, _, found in alike]
    assert len(errors) >= 60
    assert np.median(errors) <= 0.03
    assert max(errors) <= 0.08


def random_gangs(cluster, seed: int) -> tuple[Fabric, list[tuple[Traffic, Placement]]]:
    rng = random.Random(seed)
    fabric = Fabric(cluster, rng.choice([2, 5, 10]))
    models = (
        "vgg16",
        "vgg19",
        "resnet50",
        "resnet152",
        "bert-large",
        "bert-base",
        "gpt2",
        "gpt2-medium",
        "moe",
    )
    gangs = []
    for _ in range(rng.randrange(4, 9)):
        traffic = load_profile(rng.choice(models)).traffic(cluster.device_types[0])
        machines = rng.sample(range(8), rng.randrange(2, 5))
        gangs.append((traffic, Placement.of_counts({machine: rng.randrange(1, 4) for machine in machines})))
    return fabric, gangs


@pytest.mark.slow
def test_many_unlike_gangs_over_many_links_are_slowed_as_the_explicit_simulation_slows_them(cluster):
    errors = []
    for seed in range(12):
        fabric, gangs = random_gangs(cluster, seed)
        links, capacity, rng = SharedLinks(fabric), fabric.arrays.capacity.tolist(), random.Random(seed)
        for number, gang in enumerate(gangs):
            links.add(number, *gang)
        jobs = [sharing_job(*gang, fabric) for gang in gangs]
        played = np.zeros(len(jobs))
        for _ in range(2):
            offsets = [rng.random() * job.alone_s() for job in jobs]
            played += iteration_seconds(jobs, capacity, offsets, iterations=14, skip=4, buckets=16)
        for number, job in enumerate(jobs):
            [alone] = iteration_seconds([job], capacity, [0.0], iterations=5, skip=1, buckets=16)
            slowdown = links.seconds(number) / links.alone_s(number)
            errors.append(abs(slowdown / (played[number] / 2 / alone) - 1))
    assert np.median(errors) <= 0.02
    assert np.quantile(errors, 0.9) <= 0.1


@pytest.mark.slow
def test_no_link_carries_more_than_its_capacity(cluster):
    fullest = []
    for seed in range(20):
        fabric, gangs = random_gangs(cluster, seed)
        links, load = SharedLinks(fabric), np.zeros(len(fabric.arrays.capacity))
        for number, gang in enumerate(gangs):
            links.add(number, *gang)
        for number, gang in enumerate(gangs):
            flow = flow_of(*gang, fabric)
            load[flow.links] += flow.weights * flow.volume_bytes / links.seconds(number)
        fullest.append(float((load / fabric.arrays.capacity).max()))
    assert max(fullest) <= 1 + 1e-9
    assert max(fullest) > 0.9


# What must not matter


def test_gangs_on_links_of_their_own_are_as_fast_as_alone(cluster):
    traffic, fabric = Traffic(0.1, 1 * GB, overlap=6.0, forward=1 / 3), Fabric(cluster, 10)
    links = SharedLinks(fabric)
    links.add(0, traffic, Placement.of_counts({0: 4, 1: 4}))
    assert links.add(1, traffic, Placement.of_counts({4: 4, 5: 4})) == [1]
    assert links.seconds(0) == links.alone_s(0) == links.seconds(1)


def test_a_gang_inside_one_machine_meets_no_other(cluster):
    traffic, fabric = Traffic(0.1, 1 * GB, overlap=6.0, forward=1 / 3), Fabric(cluster, 10)
    links = SharedLinks(fabric)
    links.add(0, traffic, OVER_TWO_RACKS)
    assert links.add(1, traffic, Placement.of_counts({0: 4})) == [1]
    assert links.seconds(1) == links.alone_s(1)
    assert links.remove(1) == []


@pytest.mark.slow
def test_iterations_are_the_same_bits_however_the_links_came_to_be_shared(cluster):
    fabric, rng = Fabric(cluster, 10), random.Random(5)
    traffics = [
        profile.traffic(cluster.device_types[0])
        for profile in all_profiles()
        if profile.name in ("vgg16", "bert-large", "resnet50", "dlrm", "gpt2")
    ]
    gangs = [
        (rng.choice(traffics), Placement.of_counts({rng.randrange(0, 4): 2, rng.randrange(4, 8): 2}))
        for _ in range(10)
    ]
    wandering = SharedLinks(fabric)
    present: set[int] = set()
    for _ in range(120):
        job = rng.randrange(len(gangs))
        if job in present:
            wandering.remove(job)
            present.remove(job)
        else:
            wandering.add(job, *gangs[job])
            present.add(job)
    fresh = SharedLinks(fabric)
    for job in sorted(present, reverse=True):
        fresh.add(job, *gangs[job])
    assert present
    assert {job: wandering.seconds(job) for job in present} == {job: fresh.seconds(job) for job in present}
    assert any(fresh.seconds(job) > 1.05 * fresh.alone_s(job) for job in present)


def test_no_iteration_is_shorter_than_alone_and_all_that_changed_are_named(cluster):
    fabric, rng = Fabric(cluster, 20), random.Random(3)
    links = SharedLinks(fabric)
    profiles = all_profiles()
    seconds: dict[int, float] = {}
    for job in range(14):
        traffic = rng.choice(profiles).traffic(cluster.device_types[0])
        counts = dict.fromkeys(rng.sample(range(8), 3), 1)
        changed = links.add(job, traffic, Placement.of_counts(counts))
        now = {other: links.seconds(other) for other in range(job + 1)}
        assert changed == [other for other in now if now[other] != seconds.get(other)]
        assert all(now[other] >= links.alone_s(other) * (1 - 1e-12) for other in now)
        seconds = now


@pytest.mark.slow
def test_compiled_and_interpreted_contention_agree_to_the_bit(cluster):
    from berth.network import compiled

    describe, join, leave = (entry(one.py_func) for one in (compiled.describe, compiled.join, compiled.leave))
    jobs = [one_link(1 / 3, 2 / 3, ratio * 2 / 3) for ratio in (0.4, 0.7, 0.7, 1.1, 3.0)]
    state = LinkShares([1.0], len(jobs), len(jobs)).state
    flows, loads = kernels.new_flows(len(jobs)), kernels.new_loads(1)
    for number, job in enumerate(jobs):
        describe(flows, number, 1.0, job.silent_s, job.overlap, job.volume, job.volume / job.peak)
        join(state, flows, loads, number, np.zeros(1, np.int32), np.ones(1))
    assert flows.seconds.tolist() == closed_form(jobs, [1.0])
    leave(state, flows, loads, 4)
    assert flows.seconds[:4].tolist() == closed_form(jobs[:4], [1.0])


def test_a_job_is_added_once_and_removed_once(cluster):
    links = SharedLinks(Fabric(cluster))
    links.add(0, Traffic(0.1, 1 * GB), OVER_TWO_RACKS)
    with pytest.raises(InputError, match="job 0 is on the links already"):
        links.add(0, Traffic(0.1, 1 * GB), OVER_TWO_RACKS)
    links.remove(0)
    with pytest.raises(InputError, match="job 0 is not on the links"):
        links.remove(0)


@pytest.mark.parametrize("forward", [0.0, 1 / 3, 1.0])
@pytest.mark.parametrize("compute_s", [0.5, 1.0, 2.0])
def test_jobs_that_compute_and_then_send_are_not_taken_to_be_in_step(compute_s, forward):
    job = one_link(forward * compute_s, (1 - forward) * compute_s, 1.0, overlap=1.0)
    found = closed_form([job, job], [1.0])
    assert found == pytest.approx([1 + (1 + compute_s**2) ** 0.5] * 2, rel=2e-3)  # C + sqrt(C^2 + A^2)
    played = mean_slowdowns([job, job], [1.0], 16)[0] * (compute_s + 1)
    assert found[0] == pytest.approx(played, rel=0.04)  # in step it would be 17 to 25 % more
