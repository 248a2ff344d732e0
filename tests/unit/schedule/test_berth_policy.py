"""berth's own policy on cases small enough to check by hand: two racks of two machines with four GPUs."""

from __future__ import annotations

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.schedule.policies.berth import Berth, Rank
from berth.schedule.reasons import STEPPED_ASIDE
from berth.schedule.view import DONE
from berth.simulate.run import Setting, simulate
from berth.simulate.view import MOVED, STARTED
from berth.workload.trace import Trace

CLUSTER = load_cluster("2x2x4:V100-16")
FAR = Setting(congestion=20.0, log=True)


def play(jobs, policy=None, setting=FAR, model="vgg16"):
    """Plays (submit, GPUs, duration) jobs; returns their records in that order, and the log."""
    submit, gpus, duration = zip(*jobs, strict=True)
    columns = {
        "job_id": [str(i) for i in range(len(jobs))],
        "submit_s": [float(value) for value in submit],
        "num_gpu": np.array(gpus, np.int32),
        "duration_s": [float(value) for value in duration],
        "model": [model] * len(jobs),
    }
    run = simulate(Trace.from_columns(columns, source="test"), CLUSTER, policy or Berth(), setting)
    assert (run.records["state"] == DONE).all()
    return run.records, run.log


# three GPUs of each machine are taken, one is free on each; machine 0's end first
def crowd(first_s, others_s):
    return [(0, 3, first_s), (0, 3, others_s), (0, 3, others_s), (0, 3, others_s)]


def test_a_job_waits_for_a_near_place_when_that_is_cheaper():
    records, _ = play([*crowd(300, 90_000), (1, 2, 50_000)])
    assert records[4]["first_start"] == 300
    assert records[4]["end"] == pytest.approx(50_300)


def test_a_job_spreads_when_waiting_costs_more():
    records, _ = play([*crowd(90_000, 90_000), (1, 2, 100)])
    assert records[4]["first_start"] == 1
    assert 101 < records[4]["end"] < 90_000


def test_it_waits_even_so_when_it_must_not_spread():
    records, _ = play([*crowd(90_000, 90_000), (1, 2, 100)], Berth(share=0.0))
    assert records[4]["first_start"] == 90_000


@pytest.mark.parametrize(("factor", "moves"), [(2.0, 1), (1e9, 0), (0.0, 0)])
def test_a_spread_job_moves_up_when_a_nearer_place_opens_and_it_pays(factor, moves):
    # one GPU is left on each machine; it spreads for lack of anything sooner; then a neighbour ends early
    jobs = [*crowd(3_000, 90_000), (1, 2, 2_000)]
    records, log = play(jobs, Berth(move_up=factor, share=50.0))
    assert records[4]["first_start"] == 1
    assert int((log["what"] == MOVED).sum()) == moves == records[4]["moves"]


def test_a_running_job_steps_aside_so_that_a_blocked_one_fits():
    # two machines have two free GPUs each: a job of four fits when one of the two pairs moves to the other
    jobs = [(0, 4, 9_000), (0, 4, 9_000), (0, 2, 9_000), (0, 2, 1_000), (0, 2, 9_000), (1_001, 4, 5_000)]
    records, log = play(jobs, Berth(share=0.0))
    assert records[5]["first_start"] == 1_001
    assert log[log["what"] == MOVED]["reason"].tolist() == [STEPPED_ASIDE]
    assert records["evictions"].sum() == 0


def test_nobody_steps_aside_for_a_short_wait():
    jobs = [(0, 4, 9_000), (0, 4, 9_000), (0, 3, 1_060), (0, 3, 1_060), (1_001, 2, 5_000)]
    records, log = play(jobs, Berth(share=0.0))
    assert records[4]["first_start"] == 1_060
    assert not (log["what"] == MOVED).any()


STREAM = [(30.0 * i, 4, 400) for i in range(600)]


@pytest.mark.parametrize("rank", list(Rank))
def test_a_large_job_is_not_passed_over_for_ever(rank):
    patience_s = 1800.0
    records, log = play(
        [*STREAM, (100, 16, 100)], Berth(patience=patience_s, hold_after=patience_s, order_by=rank)
    )
    large = records[records["gpus"] == 16][0]
    if rank == Rank.FIFO:
        assert large["first_start"] - large["arrival"] <= patience_s + 2 * 400
        started = log[(log["what"] == STARTED) & (log["time"] > large["first_start"])]
        assert len(started) > 100, "the stream would have gone on"
    else:
        assert large["end"] < STREAM[-1][0]


def test_without_a_hold_the_same_stream_starves_it():
    records, _ = play([*STREAM, (100, 16, 100)], Berth(hold_after=float("inf")))
    large = records[records["gpus"] == 16][0]
    assert large["first_start"] > STREAM[-1][0]


@pytest.mark.parametrize("rank", list(Rank))
@pytest.mark.parametrize("doubt", [0.5, 0.9])
def test_with_wrong_remaining_times_everything_still_ends(rank, doubt):
    rng = np.random.default_rng(7)
    jobs = [
        (40.0 * i, int(rng.choice([1, 2, 3, 5, 6, 16])), float(rng.integers(10, 3000))) for i in range(300)
    ]
    setting = Setting(congestion=20.0, doubt=doubt, seed=3)
    records, _ = play(jobs, Berth(order_by=rank, patience=600.0, hold_after=600.0), setting)
    assert (records["end"] - records["arrival"] >= records["work"] * (1 - 1e-9)).all()


def test_equals_are_spared_and_a_lower_queue_makes_way():
    # the first has attained enough to sink; a newcomer of all GPUs takes its place, and its equal does not
    jobs = [(0, 16, 5_000), (600, 16, 100), (601, 16, 100)]
    records, _ = play(jobs, Berth(order_by=Rank.LAS))
    assert records[1]["first_start"] == 600
    assert records[2]["first_start"] == pytest.approx(700)
    assert records[0]["evictions"] == 1
