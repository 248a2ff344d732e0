"""Finish times with the network on, computed by hand from the profile and the figures of the cluster.

Machines of two devices with 100 GB/s inside and one link of 10 GB/s per machine, no latencies. A ring over two devices
sends its vector once: V bytes take V / bandwidth seconds, and an iteration takes
f c + (((1 - f) c)^y + comm^y)^(1/y).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from berth.cluster.model import Cluster, DeviceType, Machine, Tier
from berth.network.contention import beside
from berth.network.fabric import Fabric
from berth.network.placement import Placement
from berth.schedule import Migrate, Policy, Rules, StaticOrder
from berth.simulate.engine_state import FAULT
from berth.simulate.events import event_frame
from berth.simulate.metrics import summarise
from berth.simulate.run import Run, Setting, simulate
from berth.testing import jobs
from berth.testing.policies import EXERCISES
from berth.workload.profiles import load_profile

INSIDE, BETWEEN = 100e9, 10e9
MODELS = ["vgg16", "resnet50", "bert-large"]
ONE_EACH = Placement.of_counts({0: 1, 1: 1})


def machines(count: int = 2, size: int = 2, nic: float | None = BETWEEN, between: float = BETWEEN) -> Cluster:
    """Machines in one network; all devices of a machine share its link."""
    return Cluster(
        "by hand",
        (DeviceType("V100"),),
        (Tier("machine", INSIDE), Tier("network", between)),
        tuple(Machine(f"m{i}", ((0, size),), nic_bytes_per_s=nic) for i in range(count)),
        np.array([range(count), [0] * count], np.int32),
        (tuple(f"m{i}" for i in range(count)), ("all",)),
    )


def iteration_s(model: str, bytes_per_s: float, devices: int = 2) -> float:
    """Seconds of an iteration of a ring over devices whose slowest link has this bandwidth."""
    traffic = load_profile(model).traffic("V100")
    sent = traffic.all_reduce_bytes * 2 * (devices - 1) / devices / bytes_per_s
    silent, hidden, y = (
        traffic.forward * traffic.compute_s,
        (1 - traffic.forward) * traffic.compute_s,
        traffic.overlap,
    )
    return silent + (hidden**y + sent**y) ** (1 / y)


# Single devices fill two machines of two; one of each ends at 100 s, so that a gang of two is spread from then on.
FILLED = [(0, 1, 100, "vgg16"), (0, 1, 1e5, "vgg16")] * 2


def compute_s(model: str) -> float:
    return load_profile(model).traffic("V100").compute_s


def play(
    rows: list, cluster: Cluster | None = None, policy: str | Policy = "fit-first", **setting: object
) -> Run:
    chosen = {"network": "static", "log": True, "eviction_s": 40.0, **setting}
    rules = EXERCISES[policy] if isinstance(policy, str) else policy
    return simulate(jobs(rows), cluster or machines(), rules, Setting(**chosen))


def places(run: Run, job: str) -> list[list[str]]:
    log = event_frame(run)
    found = log.filter((log["job"] == job) & log["event"].is_in(["started", "moved"]))["places"]
    return [sorted(where) for where in found.to_list()]


@pytest.mark.parametrize("network", ["static", "on"])
@pytest.mark.parametrize("model", MODELS)
def test_inside_one_machine_a_job_takes_its_duration(model, network):
    run = play([(5, 2, 1000, model)], network=network)
    assert places(run, "j0") == [["m0:2"]]
    assert run.records["end_s"][0] == pytest.approx(1005.0, rel=1e-12)
    exposed = 2 * 1000 * (1 - compute_s(model) / iteration_s(model, INSIDE))
    assert run.accounts["exposed_comm_gpu_s"][0] == pytest.approx(exposed, rel=1e-9)


@pytest.mark.parametrize("network", ["static", "on"])
@pytest.mark.parametrize("model", MODELS)
def test_over_two_machines_it_takes_as_much_longer_as_an_iteration_does(model, network):
    run = play([*FILLED, (0, 2, 1000, model)], network=network)
    assert places(run, "j4") == [["m0:1", "m1:1"]]
    near_s, far_s = iteration_s(model, INSIDE), iteration_s(model, BETWEEN)
    assert run.records["end_s"][4] == pytest.approx(100 + 1000 * far_s / near_s, rel=1e-9)
    exposed = 2 * 1000 * (far_s - compute_s(model)) / near_s
    assert run.accounts["exposed_comm_gpu_s"][4] == pytest.approx(exposed, rel=1e-9)
    assert run.records["slowdown"][4][1] == pytest.approx(far_s / near_s, rel=1e-9)
    assert run.records["compute_share"][4] == pytest.approx(compute_s(model) / near_s, rel=1e-9)


@pytest.mark.parametrize("devices", [3, 4])
def test_a_ring_over_whole_machines_sends_over_the_link_of_each(devices):
    # Machines of one device: a flat ring, in which each sends 2 (n - 1) / n of the vector.
    cluster = machines(count=devices, size=1)
    run = play([(0, devices, 500, "vgg16")], cluster)
    near_s = iteration_s("vgg16", BETWEEN, devices)
    assert run.records["end_s"][0] == pytest.approx(500.0, rel=1e-12)  # no nearer place exists
    exposed = devices * 500 * (1 - compute_s("vgg16") / near_s)
    assert run.accounts["exposed_comm_gpu_s"][0] == pytest.approx(exposed, rel=1e-9)


def test_congestion_divides_what_links_between_machines_carry():
    run = play([*FILLED, (0, 2, 1000, "vgg16")], congestion=4.0)
    slower = iteration_s("vgg16", BETWEEN / 4) / iteration_s("vgg16", INSIDE)
    assert run.records["end_s"][4] == pytest.approx(100 + 1000 * slower, rel=1e-9)


def test_without_a_network_no_distance_costs_anything():
    run = play([*FILLED, (0, 2, 1000, "vgg16")], network="off")
    assert places(run, "j4") == [["m0:1", "m1:1"]]
    assert run.records["end_s"][4] == 1100.0
    assert run.accounts["exposed_comm_gpu_s"].tolist() == [0.0] * 5


def test_the_share_of_service_at_each_tier_is_that_of_gangs():
    run = play([*FILLED, (0, 2, 1000, "vgg16"), (2e5, 2, 250, "vgg16")])
    assert places(run, "j5") == [["m0:2"]]
    far_s = 1000 * iteration_s("vgg16", BETWEEN) / iteration_s("vgg16", INSIDE)
    shares = summarise(run).tier_share
    assert shares["machine"] == pytest.approx(250 / (250 + far_s), rel=1e-9)
    assert shares["network"] == pytest.approx(far_s / (250 + far_s), rel=1e-9)


def pair(model: str, first_s: float, second_at: float, second_s: float, **setting: object) -> Run:
    """Two gangs of two, j6 from 100 s and j7 from `second_at`, both on one device of each machine.

    Single devices fill both machines; one of each ends at 100 s and one at `second_at`, so that a gang is spread.
    """
    fillers = [(0, 1, 100, model), (0, 1, second_at, model), (0, 1, 1e7, model)] * 2
    gangs = [(0, 2, first_s, model), (0, 2, second_s, model)]
    run = play([*fillers, *gangs], machines(size=3), network="on", **setting)
    assert places(run, "j6") == places(run, "j7") == [["m0:1", "m1:1"]]
    assert run.records["first_start_s"][6:].tolist() == [100.0, second_at]
    return run


def speeds(model: str) -> tuple[float, float]:
    """Seconds of work per second of a gang that is spread: alone, and beside another of its kind."""
    near_s = iteration_s(model, INSIDE)
    shared_s = beside(load_profile(model).traffic("V100"), ONE_EACH, Fabric(machines(size=3)), 1)
    return near_s / iteration_s(model, BETWEEN), near_s / shared_s


@pytest.mark.parametrize("model", ["vgg16", "bert-large"])
def test_two_gangs_on_the_same_links_are_slow_only_while_both_run(model):
    alone, shared = speeds(model)
    assert shared < 0.95 * alone, "they do not meet: this would show nothing"
    first_s, second_s = 1000.0, 200.0
    second_at = 500.0
    run = pair(model, first_s, second_at, second_s)
    second_end = second_at + second_s / shared
    left = first_s - (second_at - 100) * alone - second_s  # what the first did until the second left
    assert run.records["end_s"][7] == pytest.approx(second_end, rel=1e-9)
    assert run.records["end_s"][6] == pytest.approx(second_end + left / alone, rel=1e-9)


def test_what_the_network_cost_is_the_time_that_was_not_computation():
    run = pair("vgg16", 1000.0, 500.0, 200.0)
    share = compute_s("vgg16") / iteration_s("vgg16", INSIDE)
    for row, work_s in ((6, 1000.0), (7, 200.0)):
        ran_s = run.records["end_s"][row] - run.records["first_start_s"][row]
        exposed = 2 * (ran_s - work_s * share)
        assert run.accounts["exposed_comm_gpu_s"][row] == pytest.approx(exposed, rel=1e-9)
    assert summarise(run).exposed_comm_gpu_s == pytest.approx(run.accounts["exposed_comm_gpu_s"].sum())


def test_a_gang_that_ends_first_leaves_the_second_alone():
    alone, shared = speeds("vgg16")
    run = pair("vgg16", 400 * alone + 50 * shared, 500.0, 1000.0)
    first_end = 550.0
    assert run.records["end_s"][6] == pytest.approx(first_end, rel=1e-9)
    left = 1000.0 - 50 * shared
    assert run.records["end_s"][7] == pytest.approx(first_end + left / alone, rel=1e-9)


def test_of_equal_gangs_on_links_of_their_own_neither_is_slowed():
    # Without a cap per machine every device has a link of its own.
    fillers = [(0, 1, 100, "vgg16"), (0, 1, 200, "vgg16"), (0, 1, 1e7, "vgg16")] * 2
    rows = [*fillers, (0, 2, 1000, "vgg16"), (0, 2, 1000, "vgg16")]
    run = play(rows, machines(size=3, nic=None), network="on")
    slower = iteration_s("vgg16", BETWEEN) / iteration_s("vgg16", INSIDE)
    ends = [100 + 1000 * slower, 200 + 1000 * slower]
    assert run.records["end_s"][6:].tolist() == pytest.approx(ends, rel=1e-9)


def test_where_links_are_static_no_gang_slows_another():
    alone, _ = speeds("vgg16")
    fillers = [(0, 1, 100, "vgg16"), (0, 1, 200, "vgg16"), (0, 1, 1e7, "vgg16")] * 2
    run = play([*fillers, (0, 2, 1000, "vgg16"), (0, 2, 1000, "vgg16")], machines(size=3))
    assert run.records["end_s"][6:].tolist() == pytest.approx(
        [100 + 1000 / alone, 200 + 1000 / alone], rel=1e-9
    )


def test_a_checkpoint_is_work_done_at_the_speed_of_the_place():
    # The spread gang starts at 100 s; m0 fails at 900 s, 100 s after the second checkpoint of 350 s intervals.
    fillers = [(0, 1, 100, "vgg16"), (0, 1, 1e4, "vgg16"), (0, 1, 1e4, "vgg16")] * 2
    down = np.array([(900.0, 0, 1), (1000.0, 0, 2)], FAULT)
    rows = [*fillers, (0, 2, 5000, "vgg16")]
    run = play(rows, machines(size=3), network="on", checkpoint_s=350.0, faults=down)
    speed = speeds("vgg16")[0]
    assert run.accounts["redone_s"][6] == pytest.approx(100 * speed, rel=1e-9)
    assert run.accounts["lost_gpu_s"][6] == pytest.approx(2 * (100 + 40), rel=1e-9)


def test_an_evicted_gang_keeps_its_work_and_restores_first():
    # j1, shorter, takes both devices of the only machine from 100 s to 150 s; j0 restores for 40 s.
    one = machines(count=1)
    run = play([(0, 2, 1000, "vgg16"), (100, 2, 50, "vgg16")], one, "least-left")
    assert run.records["end_s"].tolist() == [1090.0, 150.0]
    assert run.accounts["lost_gpu_s"].tolist() == [80.0, 0.0]
    exposed = 1 - compute_s("vgg16") / iteration_s("vgg16", INSIDE)
    assert run.accounts["exposed_comm_gpu_s"].tolist() == pytest.approx([2000 * exposed, 100 * exposed])


# What a policy decides by these figures. One single device of each machine is free from 100 s on, and m0 from 1,000 s
# on: until then a gang of two finds no machine.
LATER = [(0, 1, 100, "vgg16"), (0, 1, 1000, "vgg16"), (0, 1, 100, "vgg16"), (0, 1, 1e5, "vgg16")]


@dataclass(frozen=True)
class NearIfCheaper(Policy):
    """A gang starts spread where that costs it less than the wait for one machine."""

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), relax_locality=True)

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        return job.nearest_tier


@pytest.mark.parametrize("network", ["static", "on"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("more", [-1.0, 1.0], ids=["less", "more"])
def test_a_gang_waits_for_one_machine_if_the_network_would_cost_it_more_than_the_wait(model, network, more):
    """The wait is 900 s from 100 s on, and distance costs its work times the slowdown less one."""
    slower = iteration_s(model, BETWEEN) / iteration_s(model, INSIDE)
    work_s = 900.0 / (slower - 1.0) + more
    run = play([*LATER, (0, 2, work_s, model)], policy=NearIfCheaper(), network=network)
    spread = more < 0
    assert places(run, "j4") == ([["m0:1", "m1:1"]] if spread else [["m0:2"]])
    end_s = 100.0 + work_s * slower if spread else 1000.0 + work_s
    assert run.records["end_s"][4] == pytest.approx(end_s, rel=1e-9)


@dataclass(frozen=True)
class Nearer(Policy):
    """A spread gang moves to one machine where that saves it more than a restore."""

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), migrate=Migrate(1.0))


@pytest.mark.parametrize("network", ["static", "on"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("more", [-1.0, 1.0], ids=["less", "more"])
def test_a_spread_gang_moves_if_the_network_costs_what_is_left_more_than_a_restore(model, network, more):
    """A third machine is free from 1,000 s on. By then 900 s / slowdown are done; a restore takes 40 s.

    It moves if what is left, times the slowdown less one, is more than those.
    """
    slower = iteration_s(model, BETWEEN) / iteration_s(model, INSIDE)
    left_s = 40.0 / (slower - 1.0) + more
    rows = [*FILLED, (0, 2, 1000, "vgg16"), (0, 2, 900.0 / slower + left_s, model)]
    run = play(rows, machines(3), Nearer(), network=network)
    moves = more > 0
    assert places(run, "j5") == [["m0:1", "m1:1"], ["m2:2"]][: 1 + moves]
    end_s = 1000.0 + (40.0 + left_s if moves else left_s * slower)
    assert run.records["end_s"][5] == pytest.approx(end_s, rel=1e-9)
