"""The controller, cranked by hand over an engine in memory: what becomes of jobs."""

import sqlite3
import threading
import time

import pytest

from berth.errors import InputError
from berth.live import commands
from berth.live.demand import sensitivity_key
from berth.live.history import Setups, history
from berth.live.records import Record
from berth.live.recover import apply_all
from berth.live.snapshot import same
from berth.live.spec import JobSpec
from berth.live.store import Store, StoreError


def test_a_job_is_queued_placed_and_finished(crank):
    live = crank()
    job = live.submit(gpus=4, seconds=60)
    live.step(1)
    assert live.state_of(job) == "placed"
    live.step(100)
    over = live.controller.store.ended_job(job)
    assert (over["state"], over["code"], over["attempts"]) == ("finished", 0, 1)
    assert live.backend.work[job].finished == 1


def test_a_job_that_does_not_fit_waits(crank):
    live = crank()
    first, second = live.submit(gpus=16, seconds=50), live.submit(gpus=16, seconds=50)
    live.step(1)
    assert (live.state_of(first), live.state_of(second)) == ("placed", "queued")
    live.step(60)
    assert (live.state_of(first), live.state_of(second)) == ("finished", "placed")


def test_a_cancelled_job_is_over_once_its_processes_are_gone(crank):
    live = crank()
    job = live.submit(gpus=4, seconds=1000, grace="30s")
    live.step(1)
    live.ask(commands.cancel(job))
    assert job in live.state.jobs  # its processes may still be there
    live.step(31, times=2)
    assert live.state_of(job) == "cancelled"
    assert not live.backend.alive()


def test_a_job_that_waits_is_cancelled_at_once(crank):
    live = crank()
    live.submit(gpus=16, seconds=1000)
    job = live.submit(gpus=16)
    live.ask(commands.cancel(job))
    assert live.state_of(job) == "cancelled"


@pytest.mark.parametrize(("declared", "evicted"), [({}, False), ({"preemptible": True}, True)])
def test_the_default_policy_evicts_only_jobs_that_are_declared_preemptible(crank, declared, evicted):
    live = crank(policy="berth")
    long = live.submit(gpus=16, seconds=5000, **declared)
    live.step(10)
    short = live.submit(gpus=16, seconds=10)
    live.step()
    expected = ("queued", "placed") if evicted else ("placed", "queued")
    assert (live.state_of(long), live.state_of(short)) == expected


def test_the_devices_of_an_evicted_gang_are_used_only_when_it_has_left(crank):
    live = crank(policy="srtf")
    long = live.submit(gpus=16, seconds=5000, grace="60s")
    live.step(10)
    short = live.submit(gpus=16, seconds=10)
    live.step()
    assert (live.state_of(long), live.state_of(short)) == ("queued", "placed")
    attempt = live.state.attempts[live.state.jobs[short].token]
    assert attempt.state == "waits"
    assert live.state.ahead_of(attempt) == [live.state.jobs[long].alive[0]]
    live.step(61, times=3)  # the engine checks by itself that no device is held twice
    live.step(20, times=2)
    assert live.state_of(short) == "finished"
    live.step(6000, times=3)
    assert live.state_of(long) == "finished"
    assert live.backend.work[long].attempts == live.controller.store.tokens_of(long)
    assert len(live.backend.work[long].attempts) == 2


def test_history_has_the_preempting_job_and_the_cost(crank):
    live = crank(policy="srtf")
    long = live.submit(gpus=16, seconds=5000, grace="0s")
    live.step(10, times=2)
    short = live.submit(gpus=16, seconds=10)
    live.step(20, times=8)
    reported = history(long, live.controller.store, Setups(live.controller.store))
    first, second = reported["attempts"]
    assert (first["left_for"], first["by"]) == ("outranked", [short])
    assert first["cost_device_s"] == 16 * (second["began"] - first["left"]) > 0


def test_a_cancelled_request_does_not_stop_the_controller(crank):
    live = crank()
    gone = live.controller.ask(commands.submit(JobSpec(run="work"), "me", "gone"))
    assert gone.cancel()
    kept = live.controller.ask(commands.submit(JobSpec(run="work"), "me", "kept"))
    live.step()
    assert kept.result(0)["job"] == "kept"
    assert "gone" not in live.state.jobs


def test_an_id_that_has_just_ended_is_not_taken_again(crank):
    live = crank()
    live.submit(gpus=16, seconds=1000)
    spec = JobSpec(run="work", gpus=16)
    for command in (commands.submit(spec, "me", "x"), commands.cancel("x")):
        live.controller.ask(command)
    again = live.controller.ask(commands.submit(spec, "me", "x"))
    live.step()
    assert again.result(0) == {"job": "x", "state": "cancelled", "new": False}


def test_measurements_never_commit_half_of_a_step(crank):
    """Two threads write; whoever is in the middle of a step has it committed whole or not at all."""
    live = crank()
    store = live.controller.store
    over = threading.Event()

    def measure():
        while not over.is_set():
            store.note_steps([(0.0, "key", "job", 0, 1, 0.1)] * 20)

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        before = store.seq
        for _ in range(20):
            with pytest.raises(StoreError):
                store.commit([Record(1.0, "launch", "j", {"token": "t"})] * 200, _Failing())
        assert len(list(store.records(before))) == 0
    finally:
        over.set()
        thread.join()


class _Failing:
    """Jobs that are over, which can't be written: the disk fills up after the records."""

    def __iter__(self):
        time.sleep(0.005)
        raise sqlite3.OperationalError("database or disk is full")


def test_a_controller_that_has_ended_refuses_requests(crank):
    live = crank()
    over = threading.Event()
    over.set()
    live.controller.run(over)
    with pytest.raises(StoreError, match="has ended"):
        live.controller.ask(commands.cancel("x")).result(0)


def test_a_job_that_fails_is_tried_again_a_little_later_and_then_given_up(crank):
    live = crank()
    job = live.submit(seconds=5, restarts=2, env={"FAILS": "9"})
    for _ in range(40):
        live.step(5)
    over = live.controller.store.ended_job(job)
    assert (over["state"], over["failures"], over["attempts"]) == ("failed", 3, 3)


def test_a_lost_machine_costs_no_restart(crank):
    live = crank()
    job = live.submit(gpus=4, seconds=100, restarts=0)
    live.step(1)
    machine = live.state.cluster.machines[live.state.attempts[live.state.jobs[job].token].machines[0]].name
    live.backend.lose(machine)
    live.step(1, times=3)
    live.step(200, times=3)
    over = live.controller.store.ended_job(job)
    assert (over["state"], over["failures"], over["evictions"]) == ("finished", 0, 1)


def test_a_drained_machine_keeps_what_runs_and_takes_nothing_new(crank):
    live = crank(cluster="1x2x4:V100-16")
    first = live.submit(gpus=4, seconds=500)
    live.step(1)
    where = live.state.attempts[live.state.jobs[first].token].machines[0]
    for machine in live.state.cluster.machines:
        live.ask(commands.drain(machine.name))
    second = live.submit(gpus=1)
    live.step(10)
    assert (live.state_of(first), live.state_of(second)) == ("placed", "queued")
    live.ask(commands.drain(live.state.cluster.machines[1 - where].name, back=True))
    assert live.state_of(second) == "placed"


@pytest.mark.slow
def test_devices_that_others_hold_are_left_alone(crank):
    from berth.live.backend import MachineStatus

    live = crank(cluster="1x2x4:V100-16")
    first, second = (machine.name for machine in live.cluster.machines)
    live.backend.machines |= {first: MachineStatus(external=3), second: MachineStatus(external=4)}
    job = live.submit(gpus=2, seconds=10)
    live.step(1)
    assert live.state_of(job) == "queued"
    live.backend.machines[second] = MachineStatus(external=1)
    live.step(1)
    assert live.state_of(job) == "placed"


@pytest.mark.slow
def test_priority_decides_who_goes_first(crank):
    live = crank(policy="berth")
    live.submit(gpus=16, seconds=100)
    early, late = live.submit(gpus=16, seconds=100), live.submit(gpus=16, seconds=100)
    live.ask(commands.prioritise(late, 5))
    live.step(120)
    assert (live.state_of(late), live.state_of(early)) == ("placed", "queued")


def test_a_reservation_keeps_no_devices_of_a_type_that_the_job_does_not_take(crank, tmp_path):
    (tmp_path / "c.yaml").write_text("machines: [{devices: {V100-16: 4}}, {devices: {T4: 4}}]")
    live = crank(cluster=str(tmp_path / "c.yaml"), policy="fit-first")
    live.submit(gpus=1, seconds=1000, kind="V100-16")
    first = live.submit(gpus=4, seconds=10, kind="V100-16", priority=5)
    lower = live.submit(gpus=4, seconds=5000, kind="T4")
    same = live.submit(gpus=1, seconds=5000, kind="V100-16")
    live.step(1)
    assert [live.state_of(job) for job in (first, lower, same)] == ["queued", "placed", "queued"]


def test_any_of_several_types_will_do_and_no_other(crank, tmp_path):
    spec = "machines: [{devices: {V100-16: 4}}, {devices: {A100-40: 4}}, {devices: {T4: 4}}]"
    (tmp_path / "c.yaml").write_text(spec)
    live = crank(cluster=str(tmp_path / "c.yaml"))
    jobs = [live.submit(gpus=4, seconds=500, any_of=["A100-40", "T4"]) for _ in range(3)]
    live.step(1)
    assert [live.state_of(job) for job in jobs] == ["placed", "placed", "queued"]
    used = {live.state.attempts[live.state.jobs[job].token].seats[0].device_type for job in jobs[:2]}
    assert {live.state.setup.device_type_names[kind] for kind in used} == {"A100-40", "T4"}
    other = live.submit(gpus=4, seconds=10, kind="V100-16")
    live.step(1)
    assert live.state_of(other) == "queued"  # strictly in order
    live.step(600, times=3)
    assert live.state_of(other) == "finished"


@pytest.mark.parametrize("asked", [{"kind": "A100-40GB"}, {"any_of": ["a100-40gb"]}])
def test_a_device_type_goes_by_the_names_that_it_has_in_plans(crank, tmp_path, asked):
    (tmp_path / "c.yaml").write_text("machines: [{devices: {T4: 4}}, {devices: {A100-40GB: 4}}]")
    live = crank(cluster=str(tmp_path / "c.yaml"))
    job = live.submit(gpus=4, seconds=10, **asked)
    live.step(1)
    [seat] = live.state.attempts[live.state.jobs[job].token].seats
    assert live.state.setup.device_type_names[seat.device_type] == "A100-40"


def test_a_job_gets_cpu_cores_only_if_it_names_them(crank, tmp_path):
    (tmp_path / "c.yaml").write_text("machines: [{devices: {cpu-core: 8}}, {devices: {T4: 4}}]")
    live = crank(cluster=str(tmp_path / "c.yaml"))
    gpus, waiting, cores = live.submit(4, 500), live.submit(4, 500), live.submit(8, 500, kind="cpu-core")
    live.step(1)
    assert [live.state_of(job) for job in (gpus, waiting)] == ["placed", "queued"]
    seat = live.state.attempts[live.state.jobs[gpus].token].seats[0]
    assert live.state.setup.device_type_names[seat.device_type] == "T4"
    with pytest.raises(InputError, match="5 devices are asked for, and c has at most 4 T4"):
        live.submit(5, 500)  # there are eight cores, and four GPUs
    live.step(600, times=4)
    assert live.state_of(cores) == "finished"


def test_a_device_of_unknown_speed_takes_jobs_too(crank, tmp_path):
    (tmp_path / "c.yaml").write_text(
        "devices: {X1: {kind: gpu}}\nmachines: [{devices: {X1: 4}}, {devices: {X1: 4}}]"
    )
    live = crank(cluster=str(tmp_path / "c.yaml"))
    near, far = live.submit(4, 50), live.submit(6, 50)
    live.step(100, times=4)
    assert [live.state_of(job) for job in (near, far)] == ["finished", "finished"]


def test_an_id_makes_a_submission_happen_once(crank):
    live = crank()
    spec = JobSpec(run="work", gpus=2)
    assert live.ask(commands.submit(spec, "me", "mine"))["new"]
    assert not live.ask(commands.submit(spec, "me", "mine"))["new"]
    with pytest.raises(commands.ConflictError, match="different spec"):
        live.ask(commands.submit(JobSpec(run="other", gpus=2), "me", "mine"))
    live.step(100, times=2)
    assert live.ask(commands.submit(spec, "me", "mine"))["state"] == "finished"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"gpus": 17}, "17 devices are asked for, and .* has at most 16"),
        ({"kind": "H100"}, "no device type in .* is called 'H100'"),
        ({"required": "rak"}, "did you mean 'rack'"),
        ({"model": "resnet51"}, "resnet51"),
        ({"gpus": 8, "required": "machine"}, "no machine of .* ever holds 8"),
    ],
)
def test_a_job_that_can_never_run_is_refused(crank, spec, said):
    live = crank()
    with pytest.raises(InputError, match=said):
        live.ask(commands.submit(JobSpec(run="work", **spec), "me"))
    assert not live.state.jobs


@pytest.mark.parametrize("command", [commands.cancel("j9"), commands.prioritise("j9", 1)])
def test_an_unknown_job_is_named(crank, command):
    with pytest.raises(commands.MissingError, match="no job 'j9'"):
        crank().ask(command)


def test_a_job_that_is_over_can_not_be_changed(crank):
    live = crank()
    job = live.submit(seconds=1)
    live.step(5, times=2)
    with pytest.raises(commands.ConflictError, match="is over: finished"):
        live.ask(commands.cancel(job))


def test_a_full_disk_loses_nothing_and_says_so(crank, monkeypatch):
    live = crank()
    job = live.submit(gpus=4, seconds=500)
    live.step(1)
    before = live.controller.store.seq

    def full(records, over=()):
        raise StoreError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(live.controller.store, "commit", full)
        with pytest.raises(StoreError, match="full"):
            live.ask(commands.submit(JobSpec(run="work"), "me", "lost"))
    assert live.controller.store.seq == before
    assert "lost" not in live.state.jobs
    assert live.state_of(job) == "placed"
    live.submit(job="kept")
    live.step(1)
    assert live.state_of("kept") == "placed"


def test_a_restart_finds_everything_as_it_was(crank):
    live = crank(policy="dally:mode=tuned")
    for gpus in (4, 8, 2, 16, 12, 1):
        live.submit(gpus=gpus, seconds=300)
    live.step(50, times=2)
    before = live.controller.state
    live.restart()
    assert before.epoch != live.state.epoch
    before.now, before.epoch = live.state.now, live.state.epoch  # the restart is on record, and took no time
    assert same(before, live.state)
    live.step(2000, times=8)
    assert not live.state.jobs
    assert {work.finished for work in live.backend.work.values()} == {1}


def test_a_clock_that_is_behind_the_journal_is_reported_and_time_goes_on(crank, caplog):
    live = crank()
    live.submit(gpus=1, seconds=300)
    live.step(50)
    before = live.state.now
    live.clock.jump(-30)
    live.restart()
    assert "ahead of this machine's clock" not in caplog.text  # seconds are what clocks are corrected by
    live.clock.jump(-86_400)
    live.restart()
    assert "the journal ends 1d ahead of this machine's clock" in caplog.text
    live.step(10)
    assert live.state.now == before + 10


def test_timers_and_windows_survive_a_restart(crank):
    live = crank(policy="dally:mode=tuned")
    for _ in range(6):
        live.submit(gpus=8, seconds=100)
        live.step(40)
    live.step(3000, times=3)
    offers = live.state.world.wait_stats["count"].sum()
    assert offers > 0
    live.controller.keep_snapshot()
    live.restart()
    assert live.state.world.wait_stats["count"].sum() == offers


@pytest.mark.slow
def test_measured_steps_replace_the_profile_and_survive_a_restart(crank):
    live = crank(policy="berth")
    job = live.submit(gpus=8, seconds=5000, model="vgg19", name="mine")
    live.step(1)
    key = sensitivity_key(live.state.setup, live.state.jobs[job].spec)
    live.ask(commands.learn(key, 1, 0.2))
    live.ask(commands.learn(key, 2, 0.5))
    row = live.state.jobs[job].row
    assert live.state.world.jobs[row]["slowdown"][2] == pytest.approx(2.5)
    live.restart()
    later = live.submit(gpus=8, seconds=50, model="vgg19", name="mine")
    assert live.state.world.jobs[live.state.jobs[later].row]["slowdown"][2] == pytest.approx(2.5)


def test_a_second_controller_is_refused(crank):
    live = crank()
    with pytest.raises(InputError, match="another controller"):
        Store(live.folder)


def test_another_policy_after_a_restart_leaves_what_runs_where_it_is(crank):
    live = crank(policy="fifo")
    running, waiting = live.submit(gpus=16, seconds=300), live.submit(gpus=4, seconds=300)
    live.step(10)
    seats = live.state.attempts[live.state.jobs[running].token].seats
    live.restart(policy="berth")
    live.step(1)
    assert live.state.attempts[live.state.jobs[running].token].seats == seats
    assert live.state_of(waiting) == "queued"
    live.step(400, times=4)
    assert {work.finished for work in live.backend.work.values()} == {1}
    assert same(apply_all(None, live.controller.store.records(), trust=True), live.state)


def test_on_a_smaller_cluster_jobs_of_lost_machines_wait_again(crank):
    live = crank(cluster="2x2x4:V100-16")
    job = live.submit(gpus=16, seconds=300, job="whole")
    small = live.submit(gpus=2, seconds=50)
    live.step(10)
    live.restart(cluster="1x2x4:V100-16")
    live.step(1)
    assert live.state_of(job) == "delayed"  # no machine can hold it, and it blocks no other job
    live.step(200, times=3)
    assert live.state_of(small) == "finished"
    live.restart(cluster="2x2x4:V100-16")
    live.step(400, times=6)
    assert live.backend.work[job].finished == 1


def test_a_drained_machine_stays_drained_under_another_policy(crank):
    live = crank(cluster="1x2x4:V100-16", policy="fifo")
    job = live.submit(gpus=8, seconds=100)
    live.step(1)
    live.ask(commands.drain(live.cluster.machines[0].name))
    live.restart(policy="berth")
    live.step(200, times=3)
    assert live.state_of(job) == "finished"
    assert [live.state.free_on(machine) for machine in range(2)] == [0, 4]


@pytest.mark.slow
def test_rows_of_jobs_that_are_over_are_used_again(crank):
    live = crank(cluster="1x8x8:V100-16")
    for number in range(600):
        live.controller.ask(commands.submit(JobSpec(run="work", env={"SECONDS": "1"}), "me", f"n{number}"))
        if number % 60 == 0:
            live.step(2)
    for _ in range(40):
        live.step(2)
    assert not live.state.jobs
    assert len(live.state.world.jobs) <= 1024
    assert sum(work.finished for work in live.backend.work.values()) == 600
