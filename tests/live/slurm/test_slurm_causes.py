"""What happens to jobs in Slurm, and what people read about it: in why, in the queue and in the history."""

from __future__ import annotations

import stat
import threading
import time
from pathlib import Path

import pytest

from berth.live import commands
from berth.live.api.service import Service
from berth.live.api.tokens import Caller, Tokens
from berth.live.spec import JobSpec

pytestmark = pytest.mark.slow
ADMIN = Caller("root", "admin")


class Reader:
    """What the API says of a job."""

    def __init__(self, one, job: str) -> None:
        self.one, self.job = one, job
        self.service = Service(one.controller, Tokens(one.folder), one.folder / "attempts")

    def attempts(self) -> list[dict]:
        return self.service.history(self.job)["attempts"]

    def ends(self) -> list[str]:
        return [attempt["cause"] for attempt in self.attempts() if "cause" in attempt]

    def why(self) -> dict:
        return self.service.why(self.job, ADMIN)

    def queue(self) -> dict:
        return self.service.jobs(ADMIN, over=False, limit=10)


def slurm_jobs(slurm) -> list[str]:
    return [str(job["job_id"]) for job in slurm.jobs() if job["name"].startswith("berth:")]


def test_scancel_of_one_part_ends_the_gang_with_that_cause(desk, slurm):
    one = desk()
    job = one.submit("sleep 300", gpus=16)
    one.until_running(job)
    reader = Reader(one, job)
    slurm.run("scancel", slurm_jobs(slurm)[1])
    one.until(lambda: one.running(job) and one.controller.state.jobs[job].attempts == 2, "it runs again")
    assert reader.ends() == ["cancelled-by-engine"]
    assert "CANCELLED" in reader.attempts()[0]["detail"]
    assert reader.why()["last_end"]["cause"] == "cancelled-by-engine"
    assert reader.queue()["jobs"][0]["last_end"]["cause"] == "cancelled-by-engine"
    assert one.controller.state.jobs[job].failures == 0


def test_a_time_limit_is_reported_and_does_not_restart_forever(desk, slurm):
    one = desk()
    job = one.submit("trap 'exit 0' TERM; while :; do sleep 0.1; done", gpus=2, restarts=0)
    one.until_running(job)
    reader = Reader(one, job)
    # Slurm refuses a moment in the past
    soon = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 2))
    slurm.run("scontrol", "update", f"jobid={slurm_jobs(slurm)[0]}", f"EndTime={soon}")
    one.until(lambda: one.over(job), "it is over")
    assert reader.ends() == ["time-limit"]
    over = one.over(job)
    assert (over["state"], over["failures"], over["code"], over["cause"]) == ("failed", 1, 124, "time-limit")
    assert "time limit" in reader.why()["reason"]["sentence"]


def test_a_node_that_is_lost_is_named(desk, slurm):
    one = desk()
    job = one.submit("sleep 300", gpus=16)
    one.until_running(job)
    reader, gone = Reader(one, job), one.machines(job)[1]
    slurm.lose(gone)
    one.until(lambda: one.running(job) and one.controller.state.jobs[job].attempts == 2, "it runs again")
    assert reader.ends() == ["node-lost"]
    assert gone in reader.attempts()[0]["detail"]
    assert gone in reader.why()["last_end"]["sentence"]


def test_a_partition_that_is_down_starts_nothing_and_is_the_reason(desk, slurm):
    one = desk()
    slurm.run("scontrol", "update", "partitionname=main", "state=down")
    try:
        job = one.submit("true", gpus=8)
        reader = Reader(one, job)
        one.until(lambda: reader.queue()["warnings"], "it is noticed")
        assert one.controller.state.jobs[job].attempts == 0
        assert reader.why()["reason"]["code"] == "partition-down"
        assert reader.queue()["jobs"][0]["reason"]["sentence"].startswith("Slurm's partition main is DOWN")
    finally:
        slurm.run("scontrol", "update", "partitionname=main", "state=up")
    one.until_over(job)
    assert one.over(job)["attempts"] == 1


@pytest.mark.parametrize("policy", ["fifo", "berth"])
def test_a_controller_of_slurm_that_stops_and_comes_back_moves_no_job(
    desk, slurm, policy, tmp_path, monkeypatch
):
    one = desk(policy=policy)
    runs = one.submit("sleep 300", gpus=8, duration="2h")
    one.until_running(runs)
    places = one.machines(runs)
    slurm.stop_controller()
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf_with(tmp_path / "slurm.conf", MessageTimeout=2)))
    try:
        one.until(lambda: one.controller.observer.error, "it is noticed")
        waits = one.submit("sleep 300", gpus=8, duration="2h")
        reader = Reader(one, waits)
        assert one.controller.state.jobs[waits].attempts == 0
        assert reader.why()["reason"]["code"] == "backend-unreachable"
        assert reader.queue()["warnings"][0]["cause"] == "backend-unreachable"
    finally:
        monkeypatch.undo()
        slurm.start_controller()
    one.until_running(waits)
    slurm_module_until_settled(one, slurm)
    assert one.machines(runs) == places
    assert len(one.machines(waits)) == 1
    assert [one.controller.state.jobs[job].attempts for job in (runs, waits)] == [1, 1]
    assert [one.controller.state.jobs[job].evictions for job in (runs, waits)] == [0, 0]


def slurm_module_until_settled(one, slurm) -> None:
    """All nodes have reported themselves again, and the controller has seen that."""
    settled = {"idle", "mixed", "allocated"}
    one.until(lambda: set(slurm.states().values()) <= settled, "nodes are back")
    one.until(lambda: not one.controller.blockers(), "all is well")


def test_requests_are_answered_while_sbatch_hangs(desk, slurm, tmp_path, monkeypatch):
    one = desk()
    go, called = tmp_path / "go", tmp_path / "called"
    real = Path(slurm.run("which", "sbatch").strip())
    slow = tmp_path / "bin" / "sbatch"
    slow.parent.mkdir()
    slow.write_text(
        f'#!/bin/sh\ntouch {called}\nwhile [ ! -e {go} ]; do sleep 0.05; done\nexec {real} "$@"\n'
    )
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(slow.parent), prepend=":")
    over = threading.Event()
    thread = threading.Thread(target=one.controller.run, args=(over,))
    thread.start()
    try:
        first = one.controller.ask(commands.submit(JobSpec(run="sleep 300", gpus=2), "ada"))
        assert first.result(60)
        wait_for(called.exists)
        for _ in range(3):
            assert one.controller.ask(commands.submit(JobSpec(run="true"), "ada")).result(60)
        assert not go.exists()
        go.touch()
        wait_for(lambda: one.running(first.result()["job"]))
    finally:
        go.touch()
        over.set()
        one.controller.wakeup.set()
        thread.join()


def wait_for(condition, timeout_s: float = 300.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
