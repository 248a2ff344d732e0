"""A policy of the user's own that fails, or that can't be loaded any more, on a live controller."""

from __future__ import annotations

import logging

import pytest

from berth.errors import InputError
from berth.live import commands
from berth.live.api.attention import Attention
from berth.live.api.service import Service
from berth.live.api.tokens import Caller, Tokens
from berth.live.backend import MachineStatus
from berth.live.controller import Controller
from berth.live.home import JOURNAL
from berth.live.recover import apply_all, replay_journal
from berth.live.server import Options, Server
from berth.live.setup import Setup, setup_from_dict
from berth.live.snapshot import same
from berth.live.spec import JobSpec
from berth.live.store import Store

ADMIN = Caller("root", "admin")
HEAD = """from __future__ import annotations
from dataclasses import dataclass
from berth.schedule import JobView, Policy

@dataclass(frozen=True)
class Mine(Policy):
    @staticmethod
    def order(job: JobView, now: float, params: Mine) -> float:
"""
RAISES = HEAD + "        return 1 / (int(job.gpus) - 3)\n"
LATE = (
    HEAD
    + """        if job.state == 1 and now - job.queued_since_s > 6:
            return 1.0 / (job.gpus - 16)
        return 1.0
"""
)
FINE = HEAD + "        return 1.0\n"


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(RAISES)
    return file


@pytest.fixture
def failing(crank, mine):
    """Two jobs run, a third waits at which the policy raises."""
    live = crank(policy=str(mine))
    live.submit(8, 1000, "one")
    live.submit(4, 30, "two")
    live.step(1, times=2)
    live.submit(3, 50, "three")
    return live


@pytest.fixture
def service_of(tmp_path):
    return lambda live: Service(live.controller, Tokens(live.folder), tmp_path / "attempts")


def replayed(live) -> bool:
    return same(apply_all(None, live.controller.store.records(), trust=True), live.state)


def test_a_submission_at_which_the_policy_fails_is_kept_and_nothing_is_decided(failing, mine, service_of):
    live, service = failing, service_of(failing)
    assert live.state_of("three") == "queued"
    said = (
        f"the policy failed: {mine}:9: division by zero for job three; "
        "`berth up --policy fifo` schedules with another"
    )
    warning = {"cause": "policy-failed", "sentence": said}
    assert Attention(live.controller, 0).report()["warnings"] == [warning]
    assert service.jobs(ADMIN, over=False, limit=10)["warnings"] == [warning]
    assert service.status()["policy"] == str(mine)
    assert "berth_policy_up 0.0" in service.metrics()
    reason = service.why("three", ADMIN)["reason"]
    assert (reason["code"], reason["sentence"]) == ("policy-failed", said)
    assert service.why("one", ADMIN)["reason"]["code"] != "policy-failed"
    with pytest.raises(InputError, match="division by zero for job three"):
        service.dry_run(JobSpec(run="work", gpus=1), ADMIN)
    assert replayed(live)


def test_running_jobs_go_on_while_the_policy_fails(failing):
    live = failing
    live.step()
    passes = live.controller.passes
    assert live.controller.step() > 0.0  # not at once again: nothing has happened
    assert live.controller.passes == passes
    live.step(40, times=3)
    assert live.state_of("two") == "finished"
    assert live.state_of("one") == "placed"
    live.submit(1, 10, "four")
    live.step(1, times=3)
    assert live.state_of("four") == "queued"
    assert replayed(live)


def test_it_is_tried_again_at_every_event_and_goes_on_when_it_works(failing, caplog):
    live = failing
    live.submit(1, 10, "four")
    assert live.state_of("four") == "queued"
    caplog.clear()
    live.ask(commands.cancel("three"))
    live.step(1, times=3)
    assert live.state_of("four") == "placed"
    assert live.state.setup.paused is None
    assert live.controller.blockers() == []
    live.submit(1, 10, "five")
    live.step(1)
    assert live.state_of("five") == "placed"
    assert [record.kind for record in live.controller.store.records()].count("resumed") == 1
    assert replayed(live)
    assert replay_journal(live.folder / JOURNAL)["differences"] == 0


def test_devices_used_outside_berth_stay_so_when_the_policy_works_again(failing):
    live = failing
    live.ask(commands.cancel("one"))
    live.step(1, times=3)
    live.backend.machines |= dict.fromkeys(("r0-m0", "r0-m1"), MachineStatus(external=4))
    live.step(1, times=2)
    assert sum(live.state.external) == 8
    live.controller.ask(commands.cancel("three"))
    live.submit(8, 10, "half")
    assert live.state.setup.paused is None
    assert live.state_of("half") == "queued"
    assert sum(live.state.external) == 8


def test_the_log_has_one_line(crank, mine, caplog):
    with caplog.at_level(logging.INFO, "berth.live"):
        live = crank(policy=str(mine))
        live.submit(3, 50, "three")
        live.step(1, times=5)
        live.submit(1, 50)
    (line,) = [one for one in caplog.records if "failed" in one.getMessage()]
    assert line.getMessage() == (
        f"the policy failed: {mine}:9: division by zero for job three; running jobs continue, and nothing is decided"
    )
    assert line.exc_info is None


def test_a_restart_is_paused_too_and_another_policy_schedules(failing):
    live = failing
    live.controller.keep_snapshot()
    live.restart()
    live.step(1, times=2)
    assert [one.cause for one in live.controller.blockers()] == ["policy-failed"]
    assert live.state_of("one") == "placed"
    live.restart(policy="fifo")
    live.step(1, times=2)
    assert live.controller.blockers() == []
    assert live.state_of("three") == "placed"
    assert replayed(live)


def test_a_policy_that_fails_later_pauses_at_the_next_event(crank, mine, service_of):
    mine.write_text(LATE)
    live = crank(policy=str(mine))
    live.submit(16, 1000, "whole")
    live.submit(16, 1000, "waits")
    # its outlook fails: it is left out
    assert service_of(live).jobs(ADMIN, over=False, limit=10)["total"] == 2
    live.step(10, times=2)
    live.submit(1, 10, "next")
    live.step(1)
    assert live.state_of("whole") == "placed"
    assert [one.cause for one in live.controller.blockers()] == ["policy-failed"]
    live.restart()
    live.step(1, times=2)
    assert [one.cause for one in live.controller.blockers()] == ["policy-failed"]
    assert replayed(live)


def test_a_job_that_is_cancelled_before_the_pass_holds_up_no_other(crank, mine):
    live = crank(policy=str(mine))
    live.step(1)
    live.controller.ask(commands.submit(JobSpec(run="work", gpus=3), "me", "three"))
    live.controller.answer()  # without a pass
    live.controller.ask(commands.submit(JobSpec(run="work", gpus=1), "me", "four"))
    live.controller.ask(commands.cancel("three"))
    live.step(1, times=2)
    assert live.state_of("four") == "placed"
    assert live.controller.blockers() == []
    assert replayed(live)


def test_the_file_may_be_corrected_while_the_controller_runs(failing, mine):
    live = failing
    mine.write_text(FINE)
    live.submit(1, 10, "four")
    live.step(1)
    assert live.state_of("three") == "placed"
    assert live.controller.blockers() == []


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("source", [None, "def broken(:\n", LATE.replace("> 6", ">= 0")])
def test_another_policy_replaces_one_that_cant_be_loaded(crank, mine, source, snapshot):
    mine.write_text(FINE)
    live = crank(policy=str(mine))
    live.submit(8, 1000, "one")
    live.submit(16, 1000, "two")
    live.step(1, times=2)
    if snapshot:
        live.controller.keep_snapshot()
        live.submit(16, 1000, "three")
    if source is None:
        mine.unlink()
    else:
        mine.write_text(source)
    live.restart(policy="fifo")
    live.step(1, times=2)
    assert live.state_of("one") == "placed"
    assert live.state_of("two") == "queued"
    live.ask(commands.cancel("one"))
    live.step(1, times=3)
    assert live.state_of("two") == "placed"


def test_a_replay_without_the_policy_is_refused(crank, mine):
    mine.write_text(FINE)
    live = crank(policy=str(mine))
    live.submit(8, 1000, "one")
    mine.unlink()
    with pytest.raises(InputError, match=r"mine\.py', which can't be loaded: there is no file") as refused:
        replay_journal(live.folder / JOURNAL)
    assert "as it was" in refused.value.hint


def test_the_state_keeps_the_absolute_path_and_says_how_to_override(tmp_path, mine, monkeypatch):
    mine.write_text(FINE)
    state = tmp_path / "of-up"
    monkeypatch.chdir(tmp_path)
    started(Options(state, policy="mine.py"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert started(Options(state)) == str(mine)
    mine.unlink()
    with pytest.raises(InputError) as refused:
        Server(Options(state))
    assert refused.value.what == f"policy '{mine}' can't be loaded: there is no file '{mine}'"
    assert refused.value.hint == (
        f"its name is from the state folder, {state}; `berth up --policy NAME` starts with another"
    )
    assert started(Options(state, policy="fifo")) == "fifo"


def started(options: Options) -> str:
    """The policy of a controller that was started, and ended in order."""
    server = Server(options)
    policy = server.controller.state.setup.policy
    server.controller.close()
    server._socket.close()
    server._here.close()
    return policy


def test_a_paused_setup_is_read_back(mine):
    from berth.cluster.load import load_cluster

    setup = Setup(load_cluster("2x2x4"), str(mine), paused="it failed")
    assert setup_from_dict(setup.to_dict()).paused == "it failed"
    assert type(setup.load_policy()).__name__ == "Fifo"


def test_a_store_without_its_policy_recovers_paused(crank, mine):
    mine.write_text(FINE)
    live = crank(policy=str(mine))
    live.submit(8, 1000, "one")
    live.controller.close()
    mine.unlink()
    store = Store(live.folder)
    live.controller = Controller(
        store, live.backend, Setup(live.cluster, "fifo", store=store.name), live.clock
    )
    assert live.state_of("one") == "placed"
