"""Each policy on a handful of jobs, whose starts can be computed by hand.

A case is a list of jobs (arrival, GPUs, seconds) and the time at which each of them ends.
"""

from __future__ import annotations

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.errors import InputError
from berth.schedule.policies.registry import load_policy, policy_names
from berth.schedule.policies.tiresias import index_table
from berth.schedule.records import JobStatus
from berth.simulate.audit import audit
from berth.simulate.engine_state import Event
from berth.simulate.run import Setting, simulate
from berth.workload.trace import Trace

FREE = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0)


def play(policy, cluster, jobs, setting=FREE):
    arrivals, gpus, seconds = zip(*jobs, strict=True)
    columns = {
        "job_id": [str(i) for i in range(len(jobs))],
        "submit_s": np.array(arrivals, float),
        "num_gpu": gpus,
        "duration_s": np.array(seconds, float),
    }
    trace = Trace.from_columns(columns, source="test")
    return simulate(trace, load_cluster(cluster), load_policy(policy), setting)


def starts(run, job):
    return run.log["time"][(run.log["what"] == Event.STARTED) & (run.log["job"] == job)].tolist()


def ends(policy, cluster, jobs):
    return play(policy, cluster, jobs).records["end_s"].tolist()


LOGGED = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0, log=True)

# 8 GPUs: the second job blocks, the third is small and long, the fourth small and short
BLOCKED = [(0, 6, 100), (1, 8, 50), (2, 2, 200), (3, 2, 40)]
# 8 GPUs: one job each, of falling length
FALLING = [(0, 8, 100), (1, 8, 50), (2, 8, 10)]


@pytest.mark.parametrize(
    ("policy", "jobs", "expected"),
    [
        # 0 until 100, 1 until 150, then 2 and 3 side by side
        ("fifo", BLOCKED, [100, 150, 350, 190]),
        # 2 takes the two free devices at 2, so 1 waits for it; 3 goes at 100
        ("fit-first", BLOCKED, [100, 252, 202, 140]),
        # 2 would delay 1, which can start at 100; 3 ends at 43
        ("easy", BLOCKED, [100, 150, 350, 43]),
        # at 2 no shorter job waits, so 2 goes; at 100 3 (40 s) is before 1 (50 s)
        ("sjf", BLOCKED, [100, 252, 202, 140]),
        ("sjf", FALLING, [100, 160, 110]),
        # 1 (50 s left) displaces 0 (99 left) at 1, 2 displaces 1 at 2
        ("srtf", FALLING, [160, 61, 12]),
        # at 1, 8 x 50 = 400 GPU-s is less than 6 x 99
        ("srsf", [(0, 6, 100), (1, 8, 50)], [150, 51]),
        # the service counts, not the time: 1 x 50 goes before 8 x 10, then the first has 99 s left
        ("srsf", [(0, 8, 100), (1, 8, 10), (1, 1, 50)], [160, 61, 51]),
    ],
)
def test_order_and_passing_on_one_machine(policy, jobs, expected):
    assert ends(policy, "8", jobs) == pytest.approx(expected)


def test_tiresias_sinks_a_job_that_has_had_its_share():
    # alone, the first job has 800 GPU-s at 100 and sinks; the second then displaces it until it sinks too,
    # and comes behind the first, which entered the second queue before it
    policy = "tiresias:first=800,second=100000"
    assert ends(policy, "8", [(0, 8, 200), (50, 8, 150)]) == pytest.approx([300, 350])


def test_tiresias_lets_who_runs_finish_before_who_waits_in_the_same_queue():
    # 1 GPU is free: the third job takes it, and is not displaced by the second, which came before it
    assert ends("tiresias", "8", [(0, 7, 100), (1, 8, 10), (2, 1, 150)]) == pytest.approx([100, 162, 152])


def test_tiresias_brings_a_starved_job_back_to_the_first_queue():
    # 0 sinks at 12.5, and waits while a fresh one comes every 12 s
    jobs = [(0, 8, 100), *((12.5 + 12 * i, 8, 12) for i in range(20))]
    policy = "tiresias:first=100,second=1000000"
    assert starts(play(policy, "8", jobs, LOGGED), 0) == [0.0, 252.5]
    # having run 12.5 s, at k = 3 it is first again after 37.5 s, at 50; the one that runs ends at 60.5
    assert starts(play(f"{policy},starvation=3", "8", jobs, LOGGED), 0)[:2] == [0.0, 60.5]


def test_gittins_prefers_the_job_that_is_most_likely_to_end_soon():
    # services are 8 or 800 GPU-s: who has had more than 8 is a long one and makes way for a new one
    jobs = [(0, 8, 100), (5, 8, 1), (20, 8, 1), (40, 8, 1)]
    assert ends("gittins:delta=8,first=8", "8", jobs) == pytest.approx([103, 6, 21, 41])


def test_the_gittins_index_is_chance_over_time():
    table = np.array(index_table([10.0, 10.0, 10.0, 1000.0], 10.0))
    ranks = table[len(table) // 2 :]
    assert ranks[0] == pytest.approx(-0.75 / 10.0)  # three of four end within 10, and all take 10 until then
    assert ranks[1] == 0.0  # at 10 only the long one is left, and it does not end within 10 more
    assert ranks[-1] == 0.0


@pytest.mark.parametrize("delta", ["0", "inf"])
def test_gittins_must_have_something_to_look_ahead_by(delta):
    with pytest.raises(InputError, match="delta"):
        ends(f"gittins:delta={delta}", "8", [(0, 8, 100)])


def test_gandiva_takes_turns():
    # two jobs on one machine, 60 s each in turn: 0 runs 0-60, 120-180; 1 runs 60-120, 180-240
    done = play("gandiva:eviction=0", "8", [(0, 8, 120), (0, 8, 120)])
    assert done.records["end_s"].tolist() == pytest.approx([180, 240])
    assert int(done.clock[0]["evictions"]) == 2


def test_gandiva_states_its_own_cost_of_an_eviction():
    setting = Setting(network="off", eviction_s=40.0, eviction_large_s=40.0)
    run = play("gandiva", "8", [(0, 8, 120), (0, 8, 120)], setting)
    # 8 GPUs
    assert (run.accounts["lost_gpu_s"] / run.records["evictions"]).tolist() == pytest.approx([0.8, 0.8])


def test_themis_serves_the_job_that_waiting_stretches_most():
    # at the first lease's end (100) the short job has rho 110/10, the long one 1000/1000
    assert ends("themis:lease=100s", "8", [(0, 8, 1000), (0, 8, 10)]) == pytest.approx([1010, 110])


def test_optimus_decides_in_rounds():
    # the short job comes at 1 and displaces the long one at the round's end
    assert ends("optimus:round=100s", "8", [(0, 8, 1000), (1, 8, 10)]) == pytest.approx([1010, 110])


def test_lwf_takes_the_emptiest_machine_where_others_fill_the_fullest():
    jobs = [(0, 1, 100), (1, 1, 100), (2, 8, 10)]
    # packed, both small jobs stand on one machine and the large one fits on the other at once
    assert ends("fit-first", "2x8", jobs)[2] == pytest.approx(12)
    spread = play("lwf", "2x8", jobs, Setting(network="off"))
    assert spread.accounts["tier_gpu_s"][2].tolist()[:2] == [0.0, 80.0]  # it runs at once, over both machines


# 2 machines of 8: 3 devices of one and 1 of the other are free, so a gang of 4 must wait or be spread
BUSY = [(0, 5, 1000), (0, 7, 1000), (10, 4, 50)]


@pytest.mark.parametrize(
    ("policy", "tier", "start"),
    [
        ("preferred", 1, 10),
        ("required", 0, 1000),
        ("switches:wait=5m", 1, 310),
        ("switches:wait=2h", 0, 1000),
        ("dally:mode=no-wait", 1, 10),
        ("dally:mode=full", 0, 1000),
        ("dally:machine=5m", 1, 310),
        ("dally:machine=12h", 0, 1000),
        ("dally:mode=tuned,machine=5m", 1, 310),
        ("dally:machine=12h,cap=yes", 1, 10),
    ],
)
def test_how_long_a_gang_waits_for_one_machine(policy, tier, start):
    run = play(policy, "2x8", BUSY)
    job = run.records[2]
    assert job["first_start_s"] == pytest.approx(start)
    assert np.flatnonzero(run.accounts[2]["tier_gpu_s"]).tolist() == [tier]


# 8 machines of 2 in racks and pods of 2: every device is taken by a job of its own; the first and the last
# of them, in different pods, end at 10. A pair comes at 1.
SCATTERED = [(0, 1, 10 if i in (0, 15) else 90_000) for i in range(16)] + [(1, 2, 50)]


@pytest.mark.parametrize(
    ("constants", "start"),
    [
        ("machine=1m,rack=2m,beyond=4m", 421),
        ("machine=0,rack=0,beyond=4m", 241),
        ("machine=0,rack=0,beyond=0", 10),
        ("mode=full", 90_000),
    ],
)
def test_timers_add_up_over_any_number_of_tiers(constants, start):
    job = play(f"dally:order=fifo,{constants}", "2x2x2x2", SCATTERED).records[16]
    assert job["first_start_s"] == pytest.approx(start)


def test_a_refused_offer_does_not_reset_the_clock():
    # one device each of two machines of a rack comes free, at 100 and 300; the pair, there since 1, refuses
    # what the rack offers until it has held out 400 s
    taken = [(0, 1, {1: 100, 3: 300}.get(i, 90_000)) for i in range(16)]
    run = play("dally:order=fifo,machine=400s", "2x2x2x2", [*taken, (1, 2, 50)])
    assert run.records[16]["first_start_s"] == pytest.approx(401)
    assert np.flatnonzero(run.accounts[16]["tier_gpu_s"]).tolist() == [1]


MODELS = ["vgg16", "resnet50", "bert-large", "mobilenetv3"]


@pytest.mark.parametrize("network", ["off", "static", "on"])
@pytest.mark.parametrize("policy", [*policy_names(), "dally:mode=tuned", "dally:order=las,machine=10m"])
def test_every_policy_brings_every_job_to_its_end(policy, network):
    dice = np.random.default_rng(5)
    columns = {
        "job_id": [str(i) for i in range(80)],
        "submit_s": np.sort(dice.uniform(0, 20_000, 80)),
        "num_gpu": dice.choice([1, 2, 3, 4, 8, 12], 80),
        "duration_s": dice.uniform(60, 6_000, 80),
        "model": dice.choice(MODELS, 80),
    }
    trace = Trace.from_columns(columns, source="test")
    setting = Setting(network=network, congestion=5.0, log=True)
    run = simulate(trace, load_cluster("2x2x4"), load_policy(policy), setting)
    records = run.records
    assert (records["state"] == JobStatus.DONE).all()
    assert (records["true_remaining_s"] == 0.0).all()
    assert audit(run).violations == ()  # work and device-seconds are conserved, tiers and waits are true
    assert run.world.hosts["free"].tolist() == run.world.hosts["size"].tolist()
    wait = records["end_s"] - records["arrival_s"] - records["waited_s"]
    assert records["ran_s"] == pytest.approx(wait)  # it waits or it runs
    assert run.accounts["tier_gpu_s"].sum(axis=1) == pytest.approx(records["attained_gpu_s"])
    single = records["gpus"] == 1
    assert (run.accounts["exposed_comm_gpu_s"] >= -1e-6 * records["attained_gpu_s"]).all()
    assert run.accounts["exposed_comm_gpu_s"][single] == pytest.approx(np.zeros(single.sum()), abs=1e-6)
    if network == "off":
        assert run.accounts["exposed_comm_gpu_s"] == pytest.approx(np.zeros(80), abs=1e-6)
    else:  # 12 devices never fit one machine of 4
        assert (run.accounts["exposed_comm_gpu_s"][records["gpus"] == 12] > 0.0).all()
