"""Why an attempt ended, and what holds jobs up: in the journal, and everywhere people look."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from berth.cli.queue import _print_ended
from berth.cli.why import _ended_by
from berth.errors import InputError
from berth.live import commands
from berth.live.api.service import Service
from berth.live.api.tokens import Caller, Tokens
from berth.live.backend import AttemptStatus, BackendError, Blocker, Observation
from berth.live.backends.local import LocalBackend
from berth.live.folder import Folder, gang_end
from berth.live.lifecycle import Cause, sentence
from berth.live.reconcile import observed_changes
from berth.live.records import Record
from berth.live.recover import apply_all
from berth.live.server import Options, Server, listen
from berth.live.snapshot import same
from berth.live.spec import JobSpec
from berth.live.store import Store
from berth.testing.up import until

ADMIN = Caller("root", "admin")


@pytest.fixture
def service_of(tmp_path):
    return lambda live: Service(live.controller, Tokens(live.folder), tmp_path)


def test_every_cause_has_a_sentence():
    named = {
        Cause.UNREACHABLE,
        Cause.MACHINES_MISSING,
        Cause.UNKNOWN_ATTEMPTS,
        Cause.POLICY_FAILED,
    }  # with their own sentence
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
    ended = [
        record.body["ended"]
        for _, record in live.controller.store.job_records(job)
        if record.kind == "exited"
    ]
    assert row["ran_s"] == pytest.approx(sum(ended) - sum(began))
    assert row["ran_s"] < row["ended"] - row["first_start"]


def test_an_end_without_a_controller_has_its_own_time(crank, service_of):
    live = crank()
    job = live.submit(gpus=1, seconds=4, name="short")
    live.step(1, times=2)
    live.controller.store.close()
    live.clock.advance(100)
    live.restart()
    live.step()
    service = service_of(live)
    (row,) = service.jobs(ADMIN, over=True, limit=10)["jobs"]
    (attempt,) = service.history(job)["attempts"]
    assert row["ended"] == attempt["ended"] == attempt["began"] + row["ran_s"]
    assert 3 <= row["ran_s"] <= 4
    assert 3 <= live.state.durations["short"] <= 5
    assert same(live.state, apply_all(None, live.controller.store.records(), trust=True))


@pytest.mark.parametrize("seconds", [30, 1000])
def test_a_start_without_a_controller_has_its_own_time(crank, service_of, seconds):
    live = crank()
    job = live.submit(gpus=1, seconds=seconds)
    live.step()
    placed = live.controller.now()
    live.controller.store.close()
    live.clock.advance(100)
    live.restart()
    live.step()
    service = service_of(live)
    (attempt,) = service.history(job)["attempts"]
    assert 0 <= attempt["began"] - placed < 10
    if seconds == 30:
        (row,) = service.jobs(ADMIN, over=True, limit=10)["jobs"]
        assert row["ran_s"] == attempt["ended"] - attempt["began"] == pytest.approx(30)
    assert same(live.state, apply_all(None, live.controller.store.records(), trust=True))


def test_a_folder_says_when_all_parts_of_a_gang_ran(tmp_path):
    folder = Folder(tmp_path, "token")
    folder.path.mkdir(parents=True)
    members = [{"machine": name, "devices": [0]} for name in ("a", "b")]
    (folder.path / "launch.json").write_text(json.dumps({"members": members}))
    for part, time in enumerate((20.0, 10.0)):
        assert folder.seen(together=False) == AttemptStatus("starting")
        (folder.path / f"part-{part}.running").write_text(json.dumps({"pids": [1], "time": time}))
    assert folder.seen(together=False) == AttemptStatus("running", began=20.0)
    for part in range(2):
        end = {"codes": {str(part): 0}, "code": 0, "time": 30.0 + part}
        (folder.path / f"part-{part}.ended").write_text(json.dumps(end))
    seen = folder.seen(together=False)
    assert (seen.began, seen.ended) == (20.0, 31.0)


def test_an_end_is_not_before_its_start_and_not_after_its_discovery(crank):
    live = crank()
    for off_s in (-1e6, 1e6):
        job = live.submit(gpus=1, seconds=4)
        live.step(1, times=2)
        (token,) = live.state.jobs[job].alive
        began, end = live.state.attempts[token].began, AttemptStatus("ended", codes=(0,), ended=off_s)
        seen = Observation({token: replace(end, ended=live.clock.wall() + off_s)}, live.backend.machines)
        (record,) = observed_changes(live.state, seen, frozenset(), began + 3)
        assert record.body["ended"] == (began if off_s < 0 else began + 3)
        live.ask(commands.cancel(job))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"run": ["nosuchcmd", "--x"]}, "nosuchcmd: No such file or directory"),
        ({"run": ["true"], "cwd": "/no/such"}, "folder /no/such: No such file or directory"),
    ],
)
def test_a_command_that_cannot_be_started_says_why_and_is_tried_twice(
    crank, tmp_path, service_of, spec, said, capsys
):
    live = crank(backend=lambda cluster, _: LocalBackend(tmp_path, cluster))
    job = live.submit(**spec)
    until(lambda: live.step(0.1) or job not in live.state.jobs)
    service = service_of(live)
    assert (live.state_of(job), service.job(job, ADMIN)["attempts"]) == ("failed", 2)
    whole = f"it is over: failed, its command can't be started ({said})"
    assert service.why(job, ADMIN)["reason"]["sentence"] == whole
    assert said in service.logs(job, ADMIN, attempt=None, rank=0, offset=0, limit=1000)[0]
    _, attempt = service.history(job)["attempts"]
    assert _ended_by(attempt) == f"command-error ({said}), exit 127"
    rows = service.jobs(ADMIN, over=True, limit=10)["jobs"]
    _print_ended(Console(width=400), rows, rows[0]["ended"])
    assert f"its command can't be started ({said})" in capsys.readouterr().out


def test_a_forecast_from_before_the_start_is_not_shown_of_a_running_job(crank, service_of):
    live = crank()
    names = [machine.name for machine in live.cluster.machines]
    for name in names:
        live.ask(commands.drain(name))
    job, service = live.submit(gpus=1, seconds=1000), service_of(live)
    assert "out of service" in service.why(job, ADMIN)["blocker"]
    for name in names:
        live.ask(commands.drain(name, back=True))
    live.step(1, times=2)
    (row,) = service.jobs(ADMIN, over=False, limit=10)["jobs"]
    why = service.why(job, ADMIN)
    assert (row["state"], why["state"]) == ("running", "running")
    assert "blocker" not in row
    assert "blocker" not in why


def test_the_time_that_a_running_job_needs_yet_counts_down(crank, service_of):
    live, service = (one := crank()), service_of(one)
    job = live.submit(gpus=1, seconds=1000)
    live.step(1, times=2)
    before = service.job(job, ADMIN)["remaining_s"]
    live.clock.advance(300)  # without a pass
    assert service.job(job, ADMIN)["remaining_s"] == pytest.approx(before - 300)
    assert service.reasons([job])[job]["remaining_s"] == pytest.approx(before - 300)


def test_a_rank_that_an_attempt_does_not_have_is_refused(crank, tmp_path, service_of):
    live = crank(backend=lambda cluster, _: LocalBackend(tmp_path, cluster))
    job = live.submit(run=["true"], gpus=2, per="machine")
    until(lambda: live.step(0.1) or job not in live.state.jobs)
    service, where = service_of(live), {"attempt": None, "offset": 0, "limit": 1000}
    assert service.logs(job, ADMIN, rank=0, **where) == ("", 0)
    with pytest.raises(commands.MissingError, match="has no rank 1: its last is 0"):
        service.logs(job, ADMIN, rank=1, **where)


def test_a_job_that_is_submitted_again_is_named_by_its_state(crank):
    live = crank()
    job = live.submit(gpus=1, seconds=1000, job="mine")
    live.step(1, times=2)
    again = commands.submit(live.state.jobs[job].spec, "me", "mine")
    assert live.ask(again) == {"job": "mine", "state": "running", "new": False}


def test_a_gang_that_is_too_large_learns_what_there_is_of_which_type(crank):
    live = crank(cluster="examples/clusters/small-mix.yaml")
    too_large = live.controller.ask(commands.submit(JobSpec(run="x", gpus=11), "me"))
    live.step()
    with pytest.raises(commands.ConflictError) as refused:
        too_large.result(0)
    assert refused.value.what == "11 devices are asked for, and small-mix has at most 2 T4"
    assert "cpu-core only with --device" in refused.value.hint


def test_a_second_controller_of_a_state_is_refused_as_such_even_if_it_wants_the_same_port(tmp_path):
    store, sock = Store(tmp_path / "state"), listen("127.0.0.1", 0)
    try:
        with pytest.raises(InputError, match="another controller"):
            Server(Options(tmp_path / "state", "1x1x2", port=sock.getsockname()[1]))
    finally:
        sock.close()
        store.close()


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
