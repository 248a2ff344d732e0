"""Why an attempt ended, and what holds jobs up: in the journal, and everywhere people look."""

from dataclasses import replace

import pytest

from berth.live import commands
from berth.live.api.service import Service
from berth.live.api.tokens import Caller, Tokens
from berth.live.backend import AttemptStatus, BackendError, Blocker
from berth.live.folder import gang_end
from berth.live.lifecycle import Cause, sentence
from berth.live.records import Record
from berth.live.recover import apply_all
from berth.live.snapshot import same

ADMIN = Caller("root", "admin")


@pytest.fixture
def service_of(tmp_path):
    return lambda live: Service(live.controller, Tokens(live.folder), tmp_path)


def test_every_cause_has_a_sentence():
    named = {Cause.UNREACHABLE, Cause.MACHINES_MISSING, Cause.UNKNOWN_ATTEMPTS}  # with their own sentence
    assert all(sentence(cause) != cause for cause in Cause if cause not in named)
    assert sentence("of-the-future", "x") == "of-the-future (x)"


@pytest.mark.slow
def test_a_lost_machine_is_named_in_why_queue_and_history(crank, service_of):
    live = crank()
    job = live.submit(gpus=16, seconds=1000)
    live.step(1, times=2)
    live.backend.lose("r1-m0")
    live.step(1, times=2)
    service = service_of(live)
    assert service.why(job, ADMIN)["last_end"]["cause"] == "node-lost"
    assert "r1-m0" in service.why(job, ADMIN)["last_end"]["sentence"]
    (row,) = service.jobs(ADMIN, over=False, limit=10)["jobs"]
    assert row["last_end"]["cause"] == "node-lost"
    (attempt,) = service.history(job)["attempts"]
    assert (attempt["cause"], attempt["detail"]) == ("node-lost", "r1-m0")
    assert [event["cause"] for event in service.history(job)["events"] if "cause" in event] == ["node-lost"]


def test_a_job_that_failed_for_good_says_why_also_when_it_is_over(crank, service_of):
    live = crank()
    job = live.submit(gpus=1, seconds=1, restarts=1, env={"FAILS": "9"})
    live.step(2)
    service = service_of(live)
    assert "its command exited with an error" in service.why(job, ADMIN)["reason"]["sentence"]
    live.step(5, times=4)
    assert live.state_of(job) == "failed"
    assert (
        service.why(job, ADMIN)["reason"]["sentence"]
        == "it is over: failed, its command exited with an error"
    )
    (row,) = service.jobs(ADMIN, over=True, limit=10)["jobs"]
    assert row["cause"] == "exit"


def test_what_a_job_ran_is_the_time_of_its_processes_without_waits_and_pauses(crank, service_of):
    live = crank()
    job = live.submit(gpus=4, seconds=100)
    live.step(1, times=2)
    live.step(28)
    live.backend.lose(places(live, job)[0])
    live.step()
    live.step(1, times=2)
    live.step(500, times=2)
    assert live.state_of(job) == "finished"
    (row,) = service_of(live).jobs(ADMIN, over=True, limit=10)["jobs"]
    began = [record.time for _, record in live.controller.store.job_records(job) if record.kind == "started"]
    ended = [record.time for _, record in live.controller.store.job_records(job) if record.kind == "exited"]
    assert row["ran_s"] == pytest.approx(sum(ended) - sum(began))
    assert row["ran_s"] < row["ended"] - row["first_start"]


def places(live, job: str) -> list[str]:
    attempt = live.state.attempts[live.state.jobs[job].token]
    return [live.state.cluster.machines[index].name for index in attempt.machines]


def test_a_back_end_that_does_not_answer_is_the_reason_of_all_that_would_start(
    crank, service_of, monkeypatch
):
    live = crank()
    runs = live.submit(gpus=8, seconds=1000)
    live.step(1, times=2)

    def silent():
        raise BackendError("sinfo: Unable to contact slurm controller")

    monkeypatch.setattr(live.backend, "observe", silent)
    waits = live.submit(gpus=8, seconds=1000)
    service = service_of(live)
    for reported in (service.why(waits, ADMIN), service.jobs(ADMIN, over=False, limit=10), service.status()):
        assert [warning["cause"] for warning in reported["warnings"]] == ["backend-unreachable"]
        assert "Unable to contact" in reported["warnings"][0]["sentence"]
    assert service.why(waits, ADMIN)["reason"]["code"] == "backend-unreachable"
    assert service.why(runs, ADMIN)["reason"]["code"] != "backend-unreachable"


def test_what_an_engine_says_of_a_launch_is_the_reason_of_the_job(crank, service_of, monkeypatch):
    live = crank()
    job = live.submit(gpus=8, seconds=1000)
    observe = live.backend.observe
    token = live.state.jobs[job].token

    def down():
        waits = AttemptStatus("starting", cause=Cause.PARTITION_DOWN, detail="Slurm's job 7: PartitionDown")
        blocker = Blocker(Cause.PARTITION_DOWN, "Slurm's partition main is DOWN")
        return replace(observe(), attempts={token: waits}, blockers=(blocker,))

    monkeypatch.setattr(live.backend, "observe", down)
    live.step()
    service = service_of(live)
    reason = service.why(job, ADMIN)["reason"]
    assert reason["code"] == "partition-down"
    assert "Slurm's job 7" in reason["sentence"]
    assert (
        service.jobs(ADMIN, over=False, limit=10)["warnings"][0]["sentence"]
        == "Slurm's partition main is DOWN"
    )


def test_journals_without_causes_are_read_and_replays_have_them(crank):
    live = crank()
    job = live.submit(gpus=1, seconds=1, restarts=0, env={"FAILS": "9"})
    live.step(2, times=3)
    assert live.state_of(job) == "failed"
    records = list(live.controller.store.records())
    assert same(apply_all(None, records, trust=True), live.state)
    plain = [
        Record(r.time, r.kind, r.job, {k: v for k, v in r.body.items() if k not in ("cause", "detail")})
        for r in records
    ]
    (old,) = apply_all(None, plain, trust=True).ended
    assert (old.state, old.cause) == ("failed", None)


def test_a_job_that_was_cancelled_says_so(crank, service_of):
    live = crank()
    job = live.submit(gpus=4, seconds=1000, grace="0s")
    live.step(1, times=2)
    live.ask(commands.cancel(job))
    live.step(1, times=2)
    assert service_of(live).why(job, ADMIN)["reason"]["sentence"] == "it is over: cancelled, berth stopped it"


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        ([{"codes": {"0": 0}, "time": 1}], None),
        (
            [
                {"codes": {"0": 3}, "time": 1, "cause": "exit"},
                {"codes": {"1": 143}, "time": 2, "cause": None},
            ],
            Cause.EXIT,
        ),
        (
            [{"codes": {}, "time": 2, "cause": "node-lost"}, {"codes": {}, "time": 1, "cause": "stopped"}],
            Cause.NODE_LOST,
        ),
        ([{"codes": {"0": 143}, "time": 1, "cause": "stopped"}], Cause.STOPPED),
        ([{"codes": {"0": 1}, "time": 1, "cause": "of-the-future"}], None),
    ],
)
def test_the_cause_of_a_gang_is_that_of_the_part_that_ended_first_by_itself(ends, cause):
    assert gang_end([{"code": None} | end for end in ends]).cause == cause
