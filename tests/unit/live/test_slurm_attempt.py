"""What an attempt shows, given the files of its parts and the jobs of Slurm."""

from __future__ import annotations

import json
import os
import signal

import pytest

from berth.live.backend import AttemptStatus, Launch, Member
from berth.live.backends.slurm_attempt import SUBMITTED, Attempt, FollowUps, Parts, Timeouts, parts_of
from berth.live.backends.slurm_json import SlurmJob
from berth.live.folder import Folder
from berth.live.lifecycle import Cause

TIMEOUTS = Timeouts(margin_s=10.0, start_s=60.0, settle_s=2.0)
GRACE_S = 30.0
AT = 1_000_000.0  # when the gang was released
ENDED = {"codes": {"0": 0}, "code": 0, "time": AT, "stopped": False, "done": False}
SHOWN = {"code": 143, "time": AT, "stopped": True}


class Gang:
    """Two parts, jobs 11 and 12, under a clock that is set by hand."""

    def __init__(self, root) -> None:
        self.folder = Folder(root, "t")
        members = (Member(0, 0, "n1", (0,)), Member(1, 0, "n2", (0,)))
        self.folder.prepare(Launch("t", "j", 1, "job", "ada", ("true",), members, grace_s=GRACE_S))
        self.write(SUBMITTED, {"0": 11, "1": 12}, AT)
        self.states = {11: "RUNNING", 12: "RUNNING"}
        self.follow_ups = FollowUps()
        self.unsure: set[int] = set()

    def write(self, name: str, facts: dict | None = None, at: float = AT) -> None:
        (self.folder.path / name).write_text(json.dumps(facts or {}))
        os.utime(self.folder.path / name, (at, at))

    def at(self, now: float, asked: float | None = None) -> AttemptStatus | None:
        jobs = [_job(number, *state.split()) for number, state in self.states.items()]
        marks = frozenset(os.listdir(self.folder.path))
        self.follow_ups = FollowUps()
        parts, asked = parts_of(self.folder), now if asked is None else asked
        attempt = Attempt(self.folder, marks, parts, jobs, now, TIMEOUTS, self.unsure, asked=asked)
        seen = attempt.observe(self.follow_ups)
        for mark in set(os.listdir(self.folder.path)) - marks:
            os.utime(self.folder.path / mark, (now, now))
        return seen


def _job(number: int, state: str, reason: str = "") -> SlurmJob:
    name = f"berth:t:{number - 11}"
    return SlurmJob(number, name, 0, frozenset({state}), reason, "n1", 1, 1, 0, code=127, ended=AT)


@pytest.fixture
def gang(tmp_path) -> Gang:
    return Gang(tmp_path)


def test_parts_are_read_back(gang):
    assert parts_of(gang.folder) == Parts((0, 1), GRACE_S)


def test_a_gang_runs_when_all_its_parts_do(gang):
    gang.write("part-0.running")
    assert gang.at(AT) == AttemptStatus("starting")
    gang.write("part-1.running")
    assert gang.at(AT) == AttemptStatus("running")
    gang.write("part-0.ended", ENDED)
    assert gang.at(AT) == AttemptStatus("running")
    gang.write("part-1.ended", ENDED | {"codes": {"1": 0}})
    assert gang.at(AT) == AttemptStatus("ended", codes=(0, 0), code=0, ended=AT)


def test_a_job_that_is_still_held_is_released(gang):
    gang.states[12] = "PENDING JobHeldUser"
    assert gang.at(AT + 1) == AttemptStatus("starting")
    assert gang.follow_ups == FollowUps(release=[12])


def test_a_gang_of_which_a_part_does_not_begin_is_given_up(gang):
    gang.states[12] = "PENDING Resources"
    assert gang.at(AT + 59) == AttemptStatus("starting")
    assert gang.follow_ups == FollowUps()
    gang.at(AT + 61)
    gang.at(AT + 61)
    assert gang.follow_ups == FollowUps(cancel=[12])
    gang.write("part-0.ended", {"codes": {}, "lost": True})
    gang.states |= {11: "COMPLETED", 12: "CANCELLED"}
    seen = gang.at(AT + 64)
    assert (seen.state, seen.lost, seen.cause) == ("ended", True, Cause.NOT_STARTED)


def test_a_part_that_ended_without_a_report_ends_the_others_and_has_a_code(gang):
    gang.states[11] = "FAILED"
    assert gang.at(AT + 5) == AttemptStatus("starting")
    assert (gang.folder.path / "failed").exists()
    gang.states[12] = "COMPLETED"
    gang.write("part-1.ended", {"codes": {"1": 143}})
    assert gang.at(AT + 6) == AttemptStatus("starting")  # a word may yet be seen
    assert gang.at(AT + 8) == AttemptStatus("ended", codes=(127, 143), code=127, cause=Cause.EXIT)
    assert "job 11 ended with code 127" in gang.folder.log(0).read_text()


@pytest.mark.parametrize("state", ["NODE_FAIL", None])
def test_a_part_whose_node_is_gone_is_fenced_and_given_a_while_to_end(gang, state):
    gang.states.pop(11)
    if state:
        gang.states[11] = state
    gang.at(AT + 5)
    assert {"failed", "part-0.fenced"} <= set(os.listdir(gang.folder.path))
    assert not (gang.folder.path / "part-1.fenced").exists()
    gang.write("part-1.ended", {"codes": {"1": 143}})
    gang.states[12] = "COMPLETED"
    assert gang.at(AT + 14) == AttemptStatus("starting")
    seen = gang.at(AT + 16)
    assert (seen.state, seen.codes, seen.lost) == ("ended", (143,), True)
    assert seen.cause == (Cause.NODE_LOST if state else None)


def test_the_rest_of_a_gang_that_lost_a_node_has_its_grace(gang):
    gang.states[11] = "NODE_FAIL"
    gang.at(AT + 5)
    assert gang.at(AT + 44) == AttemptStatus("starting")
    assert gang.follow_ups == FollowUps()
    gang.at(AT + 46)
    assert gang.follow_ups == FollowUps(cancel=[12])


def test_a_report_from_a_lost_node_counts(gang):
    gang.states[11] = "NODE_FAIL"
    gang.at(AT + 5)
    gang.write("part-0.ended", {"codes": {"0": 143}})
    gang.write("part-1.ended", {"codes": {"1": 143}})
    seen = gang.at(AT + 6)
    assert (seen.state, seen.codes, seen.cause) == ("ended", (143, 143), Cause.NODE_LOST)


def test_a_job_that_ignores_its_stop_is_cancelled(gang):
    gang.write("stop", at=AT + 5)
    gang.at(AT + 44)
    assert gang.follow_ups == FollowUps()
    gang.at(AT + 46)
    assert gang.follow_ups == FollowUps(cancel=[11, 12])
    gang.states = {11: "CANCELLED", 12: "CANCELLED"}
    assert gang.at(AT + 47) == AttemptStatus("ended", stopped=True, lost=True, cause=Cause.STOPPED)


def test_a_job_that_another_user_stopped_did_not_fail(gang):
    for part in (0, 1):
        gang.write(f"part-{part}.ended", SHOWN | {"codes": {str(part): 143}})
    assert gang.at(AT) == AttemptStatus("running")  # Slurm has not yet said why
    gang.states = {11: "CANCELLED", 12: "COMPLETED"}
    seen = gang.at(AT)
    assert (seen.state, seen.codes, seen.stopped, seen.lost) == ("ended", (143, 143), True, True)
    assert (seen.cause, seen.detail) == (Cause.CANCELLED, "Slurm's job 11 on n1: CANCELLED")
    gang.write("stop")
    assert gang.at(AT) == AttemptStatus(
        "ended", codes=(143, 143), code=143, stopped=True, cause=Cause.STOPPED, ended=AT
    )


def test_a_gang_at_its_time_limit_has_failed_even_after_a_checkpoint(gang):
    for part in (0, 1):
        gang.write(f"part-{part}.ended", SHOWN | {"code": 0, "codes": {str(part): 0}})
    gang.states = {11: "TIMEOUT", 12: "TIMEOUT"}
    seen = gang.at(AT)
    assert (seen.lost, seen.code, seen.cause) == (False, 124, Cause.TIME_LIMIT)


@pytest.mark.parametrize(
    ("state", "code", "lost", "cause"),
    [
        ("TIMEOUT", 124, False, Cause.TIME_LIMIT),
        ("CANCELLED", 0, True, Cause.CANCELLED),
        ("PREEMPTED", 0, True, Cause.PREEMPTED),
    ],
)
def test_processes_that_exit_with_0_on_a_signal_of_slurm_did_not_finish(gang, state, code, lost, cause):
    for part in (0, 1):  # their supervisors had not received it yet
        gang.write(f"part-{part}.ended", ENDED | {"codes": {str(part): 0}})
    gang.states = {11: f"{state}", 12: "COMPLETED"}
    seen = gang.at(AT + 1)
    assert (seen.state, seen.stopped, seen.done) == ("ended", True, False)
    assert (seen.code, seen.lost, seen.cause) == (code, lost, cause)


def test_a_success_that_is_newer_than_the_answer_of_slurm_waits_for_the_next(gang):
    for part in (0, 1):
        gang.write(f"part-{part}.ended", ENDED | {"codes": {str(part): 0}})
    assert gang.at(AT + 1, asked=AT - 1) == AttemptStatus("running")
    assert gang.at(AT + 1, asked=AT) == AttemptStatus("ended", codes=(0, 0), code=0, ended=AT)


def test_a_job_that_reported_that_it_is_done_has_finished_whatever_slurm_did(gang):
    for part in (0, 1):
        gang.write(f"part-{part}.ended", ENDED | {"codes": {str(part): 0}, "done": True})
    gang.states = {11: "CANCELLED", 12: "CANCELLED"}
    assert gang.at(AT + 1).done


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("CANCELLED", Cause.CANCELLED),
        ("PREEMPTED", Cause.PREEMPTED),
        ("OUT_OF_MEMORY", Cause.MEMORY),
        ("NODE_FAIL", Cause.NODE_LOST),
    ],
)
def test_the_slurm_state_of_a_killed_job_is_the_cause_and_only_memory_is_its_own_failure(gang, state, cause):
    for part in (0, 1):
        gang.write(
            f"part-{part}.ended", {"code": 137, "codes": {str(part): 137}, "cause": "signal", "time": AT}
        )
    assert gang.at(AT) == AttemptStatus("running")  # Slurm has not yet said why
    gang.states = {11: state, 12: "COMPLETED"}
    seen = gang.at(AT)
    assert (seen.cause, seen.lost) == (cause, cause is not Cause.MEMORY)


def test_a_signal_that_slurm_did_not_send_is_a_failure_of_the_gang(gang):
    for part in (0, 1):
        end = {"code": 143, "codes": {str(part): 143}, "cause": "signal", "time": AT}
        gang.write(f"part-{part}.ended", end)
    gang.states = {11: "COMPLETED", 12: "COMPLETED"}
    assert (gang.at(AT).lost, gang.at(AT).cause) == (False, Cause.SIGNAL)


def test_a_crash_is_not_attributed_to_slurm(gang):
    crash = 128 + signal.SIGSEGV
    gang.write("part-0.ended", {"code": crash, "codes": {"0": crash}, "cause": "signal", "time": AT})
    gang.write("part-1.ended", {"code": 143, "codes": {"1": 143}, "time": AT + 1})
    gang.states = {11: "FAILED", 12: "CANCELLED"}  # the second did not end in time
    seen = gang.at(AT + 60)
    assert (seen.code, seen.cause, seen.lost) == (crash, Cause.SIGNAL, False)


def test_a_failure_of_the_gang_is_not_attributed_to_slurm(gang):
    gang.write("part-0.ended", {"code": 3, "codes": {"0": 3}, "cause": "exit", "time": AT})
    gang.write("part-1.ended", {"code": 143, "codes": {"1": 143}, "time": AT + 1})
    gang.states = {11: "FAILED", 12: "CANCELLED"}  # the second did not end in time
    seen = gang.at(AT + 60)
    assert (seen.code, seen.cause, seen.lost) == (3, Cause.EXIT, False)


@pytest.mark.parametrize("reported", [True, False], ids=["with a report", "without a report"])
@pytest.mark.parametrize("code", [128 + signal.SIGKILL, 128 + signal.SIGTERM])
def test_a_crash_by_a_signal_of_slurm_is_not_attributed_to_berths_own_cancel(gang, code, reported):
    crash = {"code": code, "codes": {"0": code}, "cause": "signal", "time": AT}
    gang.write("part-0.ended", crash)
    gang.write("failed")
    gang.states[11] = "COMPLETED"
    gang.at(AT + 41)
    assert gang.follow_ups == FollowUps(cancel=[12])
    gang.states[12] = "CANCELLED"
    if reported:
        gang.write("part-1.ended", {"code": 137, "codes": {"1": 137}, "time": AT + 42}, AT + 42)
    seen = gang.at(AT + 45)
    assert (seen.state, seen.code, seen.cause, seen.lost) == ("ended", code, Cause.SIGNAL, False)


def test_a_gang_that_another_user_cancelled_did_not_fail_though_berth_cancels_the_rest(gang):
    gang.write("part-0.ended", SHOWN | {"codes": {"0": 143}, "cause": "stopped"})
    gang.write("failed")
    gang.states[11] = "CANCELLED"
    gang.at(AT + 41)
    assert gang.follow_ups == FollowUps(cancel=[12])
    gang.states[12] = "CANCELLED"
    seen = gang.at(AT + 45)
    assert (seen.lost, seen.cause, seen.detail) == (True, Cause.CANCELLED, "Slurm's job 11 on n1: CANCELLED")


def test_a_partition_that_is_down_is_waited_for_and_said(gang):
    gang.states = {11: "PENDING PartitionDown", 12: "PENDING PartitionDown"}
    seen = gang.at(AT + 1000)
    assert (seen.state, seen.cause) == ("starting", Cause.PARTITION_DOWN)
    assert not (gang.folder.path / "failed").exists()


def test_jobs_that_are_missing_from_an_answer_are_not_taken_for_gone_at_once(gang):
    gang.write("part-0.running")
    gang.write("part-1.running")
    gang.states = {}
    gang.unsure = {11, 12}
    assert gang.at(AT + 5) == AttemptStatus("running")
    assert not {"failed", "part-0.fenced"} & set(os.listdir(gang.folder.path))
    gang.unsure = set()
    gang.at(AT + 65)
    assert "failed" in os.listdir(gang.folder.path)


def test_a_job_that_was_submitted_twice_is_cancelled(gang):
    gang.states[13] = "PENDING JobHeldUser"
    gang.at(AT)
    assert gang.follow_ups == FollowUps(cancel=[13])


def test_what_was_not_wholly_submitted_may_be_launched_again_or_stopped(gang):
    (gang.folder.path / SUBMITTED).unlink()
    gang.states = {11: "PENDING JobHeldUser"}
    assert gang.at(AT) is None
    assert gang.follow_ups == FollowUps()
    gang.write("stop")
    assert gang.at(AT) == AttemptStatus("starting")
    assert gang.follow_ups == FollowUps(cancel=[11])
    gang.states = {11: "CANCELLED"}
    assert gang.at(AT) == AttemptStatus("ended", stopped=True, lost=True, cause=Cause.STOPPED)
