"""berth's own policy on cases small enough to check by hand: two racks of two machines with four GPUs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.native.kernels import IndirectKernel
from berth.schedule.migrate_nearer import migrate_nearer
from berth.schedule.policies.berth import Berth, Rank
from berth.schedule.reasons import ReasonCode
from berth.schedule.records import JobStatus
from berth.schedule.reshape import reshape
from berth.simulate.engine_state import Event
from berth.simulate.run import Setting, simulate
from berth.testing import cluster
from berth.workload.flexible import FlexibleSpec, generate_flexible
from berth.workload.trace import Trace

CLUSTER = load_cluster("2x2x4:V100-16")
FAR = Setting(congestion=20.0, log=True)
FIRST_COME = Berth(order_by=Rank.NETWORK)  # the rules about places, without evictions by order


def simulated(jobs, policy=None, setting=FAR, model="vgg16", cluster=CLUSTER):
    """Runs (submit, GPUs, duration) jobs, all of one model or each of its own."""
    submit, gpus, duration = zip(*jobs, strict=True)
    columns = {
        "job_id": [str(i) for i in range(len(jobs))],
        "submit_s": [float(value) for value in submit],
        "num_gpu": np.array(gpus, np.int32),
        "duration_s": [float(value) for value in duration],
        "model": [model] * len(jobs) if isinstance(model, str) else model,
    }
    run = simulate(Trace.from_columns(columns, source="test"), cluster, policy or FIRST_COME, setting)
    assert (run.records["state"] == JobStatus.DONE).all()
    return run


def play(jobs, policy=None, setting=FAR):
    """The records of such a run in that order, and its log."""
    run = simulated(jobs, policy, setting)
    return run.records, run.log


# three GPUs of each machine are taken, one is free on each; machine 0's end first
def crowd(first_s, others_s):
    return [(0, 3, first_s), (0, 3, others_s), (0, 3, others_s), (0, 3, others_s)]


def test_a_job_waits_for_a_near_place_when_that_is_cheaper():
    records, _ = play([*crowd(300, 90_000), (1, 2, 50_000)])
    assert records[4]["first_start_s"] == 300
    assert records[4]["end_s"] == pytest.approx(50_300)


def test_a_job_spreads_when_waiting_costs_more():
    records, _ = play([*crowd(90_000, 90_000), (1, 2, 100)])
    assert records[4]["first_start_s"] == 1
    assert 101 < records[4]["end_s"] < 90_000


def test_it_waits_even_so_when_it_must_not_spread():
    records, _ = play([*crowd(90_000, 90_000), (1, 2, 100)], Berth(order_by=Rank.NETWORK, share=0.0))
    assert records[4]["first_start_s"] == 90_000


@pytest.mark.parametrize(("factor", "moves"), [(2.0, 1), (1e9, 0), (0.0, 0)])
def test_a_spread_job_moves_up_when_a_nearer_place_opens_and_it_pays(factor, moves):
    # one GPU is left on each machine; it spreads for lack of anything sooner; then a neighbour ends early
    jobs = [*crowd(3_000, 90_000), (1, 2, 2_000)]
    records, log = play(jobs, Berth(order_by=Rank.NETWORK, move_up=factor, share=50.0))
    assert records[4]["first_start_s"] == 1
    assert int((log["what"] == Event.MOVED).sum()) == moves == records[4]["moves"]


def test_a_running_job_steps_aside_so_that_a_blocked_one_fits():
    # two machines have two free GPUs each: a job of four fits when one of the two pairs moves to the other
    jobs = [(0, 4, 9_000), (0, 4, 9_000), (0, 2, 9_000), (0, 2, 1_000), (0, 2, 9_000), (1_001, 4, 5_000)]
    records, log = play(jobs, Berth(order_by=Rank.NETWORK, share=0.0))
    assert records[5]["first_start_s"] == 1_001
    assert log[log["what"] == Event.MOVED]["reason"].tolist() == [ReasonCode.STEPPED_ASIDE]
    assert records["evictions"].sum() == 0


def test_no_job_moves_aside_for_a_short_wait():
    jobs = [(0, 4, 9_000), (0, 4, 9_000), (0, 3, 1_060), (0, 3, 1_060), (1_001, 2, 5_000)]
    records, log = play(jobs, Berth(order_by=Rank.NETWORK, share=0.0))
    assert records[4]["first_start_s"] == 1_060
    assert not (log["what"] == Event.MOVED).any()


GAP_S, SMALL_S = 140.0, 400.0
STREAM = [(GAP_S * i, 4, SMALL_S) for i in range(400)]  # of four machines two or three are always busy
STREAM_ENDS = STREAM[-1][0]


def first_start_of_large(policy, setting=FAR, duration_s=100.0):
    records, _ = play([*STREAM, (100, 16, duration_s)], policy, setting)
    return records[records["gpus"] == 16][0]


@pytest.mark.parametrize("rank", [Rank.SERVICE, Rank.NETWORK, Rank.FIFO])
@pytest.mark.parametrize("hold_after_s", [600.0, 1800.0])
@pytest.mark.parametrize("estimate_error", [0.0, 0.5])
def test_a_large_job_under_an_endless_stream_starts_within_the_stated_bound(
    rank, hold_after_s, estimate_error
):
    policy = Berth(order_by=rank, hold_after=hold_after_s)
    setting = Setting(congestion=20.0, estimate_error=estimate_error, seed=5, preemptible=0.0)
    large = first_start_of_large(policy, setting, 1000.0)
    held_by_s = max(hold_after_s, SMALL_S * (1 + estimate_error) / policy.hold_share)
    then_free_s = SMALL_S * (1 + estimate_error) / (1 - estimate_error)
    assert large["first_start_s"] - large["arrival_s"] <= held_by_s + GAP_S + then_free_s


@pytest.mark.slow
def test_at_las_order_a_large_job_under_an_endless_stream_starts_when_its_patience_ends():
    large = first_start_of_large(Berth(order_by=Rank.LAS, patience=1800.0))
    assert large["first_start_s"] - large["arrival_s"] == pytest.approx(1800.0)


@pytest.mark.slow
def test_at_las_order_a_large_job_that_has_sunk_gets_a_turn_for_each_wait():
    patience_s, turn_s, work_s = 1800.0, 600.0, 6000.0
    large = first_start_of_large(Berth(order_by=Rank.LAS, patience=patience_s, turn=turn_s), FAR, work_s)
    turns = math.ceil(work_s / (turn_s - 60.0))  # less what restoring takes
    assert large["end_s"] - large["arrival_s"] <= turns * (patience_s + turn_s)
    assert large["end_s"] < STREAM_ENDS


@pytest.mark.parametrize("rank", list(Rank))
def test_without_a_bound_the_same_stream_starves_it(rank):
    large = first_start_of_large(Berth(order_by=rank, hold_after=math.inf, patience=math.inf))
    assert large["first_start_s"] > STREAM_ENDS


@pytest.mark.parametrize("rank", list(Rank))
@pytest.mark.parametrize("estimate_error", [0.5, 0.9])
def test_with_wrong_remaining_times_everything_still_ends(rank, estimate_error):
    rng = np.random.default_rng(7)
    jobs = [
        (40.0 * i, int(rng.choice([1, 2, 3, 5, 6, 16])), float(rng.integers(10, 3000))) for i in range(300)
    ]
    setting = Setting(congestion=20.0, estimate_error=estimate_error, seed=3)
    records, _ = play(jobs, Berth(order_by=rank, patience=600.0, hold_after=600.0), setting)
    assert (records["end_s"] - records["arrival_s"] >= records["work_s"] * (1 - 1e-9)).all()


def test_who_runs_keeps_its_place_and_a_lower_queue_makes_way():
    # the first has attained enough to sink; a newcomer of all GPUs takes its place, and its equal does not
    jobs = [(0, 16, 5_000), (600, 16, 100), (601, 16, 100)]
    records, _ = play(jobs, Berth(order_by=Rank.LAS))
    assert records[1]["first_start_s"] == 600
    assert records[2]["first_start_s"] == pytest.approx(700)
    assert records[0]["evictions"] == 1


def parts(run, job):
    """Devices on each machine at each start and move of a job."""
    mine = run.log[(run.log["job"] == job) & np.isin(run.log["what"], (Event.STARTED, Event.MOVED))]
    return [sorted(run.log_places[e["places"] : e["places"] + e["count"]]["gpus"].tolist()) for e in mine]


@pytest.mark.parametrize(("model", "policy", "expected"), [
    ("vgg16", Berth(), [3, 3]),
    ("vgg16", Berth(shape=math.inf), [2, 4]),
    ("graphsage", Berth(), [2, 4]),  # insensitive to shape: it leaves a larger rest in one place
])  # fmt: skip
def test_a_gang_on_several_machines_is_spread_evenly_if_that_matters_to_it(model, policy, expected):
    assert parts(simulated([(0, 6, 1_000)], policy, model=model), 0) == [expected]


def test_an_even_spread_is_over_as_few_machines_as_hold_it():
    wide = load_cluster("1x3x4:V100-16")
    assert parts(simulated([(0, 8, 1_000)], cluster=wide, model="vgg16"), 0) == [[4, 4]]


def test_of_two_racks_a_gang_takes_the_one_that_gives_it_the_even_shape():
    # The first rack would fit it exactly, as 4 + 2; the second leaves two devices and holds it as 3 + 3.
    four, two = {"V100-16": 4}, {"V100-16": 2}
    racks = cluster([[four, two], [four, four]])
    assert parts(simulated([(0, 6, 1_000)], cluster=racks, model="vgg16"), 0) == [[3, 3]]


def test_a_gang_waits_for_an_even_place_or_takes_an_uneven_one_and_evens_out_later():
    one_rack = load_cluster("1x2x4:V100-16")
    for neighbour_s, story in ((500, [[3, 3]]), (50_000, [[2, 4], [3, 3]])):
        run = simulated([(0, 2, neighbour_s), (1, 6, 50_000)], FIRST_COME, cluster=one_rack, model="vgg16")
        assert parts(run, 1) == story


def test_no_job_moves_aside_to_a_less_balanced_place():
    # two pairs of machines; the six on the first pair could stand on the second, but only as 4 + 1 + 1
    wide = load_cluster("2x3x4:V100-16")
    jobs = [(0, 6, 90_000), (0, 3, 90_000), (0, 3, 90_000), (1, 10, 5_000)]
    run = simulated(jobs, Berth(order_by=Rank.FIFO, share=0.0), cluster=wide, model="vgg16")
    assert all(min(story) >= 3 for story in parts(run, 0))


def test_a_job_that_puts_off_many_usual_ones_does_not_have_room_made_for_it():
    # two machines have two free GPUs each; for one of four GPUs a pair would have to move, as above
    start = [(0, 4, 9_000), (0, 4, 9_000), (0, 2, 9_000), (0, 2, 1_000), (0, 2, 9_000)]
    short = [(900 + i, 1, 1) for i in range(90)]
    for others, first_start in ((1.0, 9_000), (0.0, 1_001)):
        records, _ = play([*start, *short, (1_001, 4, 5_000)], Berth(order_by=Rank.NETWORK, others=others))
        assert records[-1]["first_start_s"] == pytest.approx(first_start, abs=1)


@pytest.mark.parametrize(
    ("rank", "came_later_s", "order"),
    [(Rank.NETWORK, 600, [0, 2, 1]), (Rank.NETWORK, 4_000, [0, 1, 2]), (Rank.FIFO, 600, [0, 1, 2])],
)
def test_at_network_order_a_job_slowed_by_distance_has_a_head_start_of_at_most_an_hour(
    rank, came_later_s, order
):
    jobs = [(0, 16, 5_000), (1, 4, 100), (came_later_s, 4, 100)]
    run = simulated(jobs, Berth(order_by=rank), model=["graphsage", "graphsage", "vgg16"])
    assert run.log["job"][run.log["what"] == Event.STARTED].tolist() == order


@pytest.mark.parametrize(("rank", "moves"), [(Rank.NETWORK, 1), (Rank.FIFO, 0)])
def test_at_network_order_jobs_not_slowed_by_distance_make_way_for_those_that_are(rank, moves):
    # a pair that could as well stand on two machines holds half of the one that a gang of four needs
    jobs = [(0, 2, 50_000), (0, 4, 50_000), (0, 3, 50_000), (0, 3, 50_000), (1_000, 4, 5_000)]
    models = ["graphsage", "vgg16", "vgg16", "vgg16", "vgg16"]
    run = simulated(jobs, Berth(order_by=rank, share=0.0), model=models)
    assert run.records["moves"].tolist() == [moves, 0, 0, 0, 0]
    assert run.records["evictions"].sum() == 0
    assert (run.records["first_start_s"][4] == 1_000) == bool(moves)


# The default order


def started(run):
    return run.log["job"][run.log["what"] == Event.STARTED].tolist()


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        (
            [(0, 16, 5_000), (1, 16, 900), (2, 16, 300)],
            [0, 1, 2, 1, 0],
        ),  # least GPU time first, and it takes the place
        ([(0, 16, 500), (1, 16, 480)], [0, 1]),  # not if that gains less than restoring costs
        ([(0, 16, 500), (1, 16, 300)], [0, 1, 0]),
    ],
)
def test_by_default_least_expected_service_goes_first_and_evicts_where_that_pays(jobs, expected):
    setting = Setting(network="off", log=True)
    assert started(simulated(jobs, Berth(), setting)) == expected


def test_a_job_that_cant_be_preempted_is_waited_for():
    setting = Setting(network="off", log=True, preemptible=0.0)
    run = simulated([(0, 16, 5_000), (1, 4, 900), (2, 4, 300)], Berth(), setting)
    assert started(run) == [0, 2, 1]
    assert run.records["first_start_s"].tolist() == [0.0, 5_000.0, 5_000.0]


@pytest.mark.parametrize(("aging_s", "first"), [(math.inf, 2), (600.0, 1)])
def test_a_large_job_that_has_waited_goes_before_a_small_one_that_comes_later(aging_s, first):
    jobs = [(0, 16, 3_000), (1, 16, 4_000), (2_900, 16, 2_000)]
    setting = Setting(network="off", log=True, preemptible=0.0)
    assert started(simulated(jobs, Berth(aging=aging_s), setting)) == [0, first, 3 - first]


def test_changing_shapes_is_compiled_only_where_jobs_have_shapes(monkeypatch):
    """Compiling takes a second, which runs of ordinary gangs would spend for nothing."""
    asked = []
    pointer = IndirectKernel.pointer
    monkeypatch.setattr(
        IndirectKernel, "pointer", lambda self, given: asked.append(self) or pointer(self, given)
    )
    simulated([(0, 4, 100.0)])
    assert migrate_nearer in asked
    assert reshape not in asked
    simulate(
        generate_flexible(FlexibleSpec(jobs=2, load=0.5), load_cluster("cloud-mix")),
        load_cluster("cloud-mix"),
        Berth(),
    )
    assert reshape in asked
