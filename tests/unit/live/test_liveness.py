"""A back end whose answer is empty, cut short or missing evicts nothing, and nothing is decided by it."""

import threading

import pytest

from berth.live import commands
from berth.live.backend import BackendError, MachineStatus, Pace
from berth.live.reconcile import ANSWERS, MANY_MISSING_S, MISSING_S
from berth.live.spec import JobSpec


def forget(live, *names: str) -> dict:
    """Machines that are missing from all answers from now on; what they were."""
    return {name: live.backend.machines.pop(name) for name in names or list(live.backend.machines)}


def lost(live) -> list[str]:
    machines = live.state.cluster.machines
    return [machines[index].name for index, why in enumerate(live.state.unavailable) if "lost" in why]


def test_empty_answers_evict_nothing_until_they_have_lasted(crank):
    live = crank()
    job = live.submit(gpus=8, seconds=10_000)
    live.step(1, times=2)
    machines = forget(live)
    for _ in range(int(MANY_MISSING_S) - 1):
        live.step(1)
        assert (lost(live), live.state.jobs[job].evictions) == ([], 0)
    live.backend.machines.update(machines)
    live.step(1)
    assert (lost(live), live.state.jobs[job].evictions, live.state_of(job)) == ([], 0, "placed")
    forget(live)
    live.step(1, times=int(MANY_MISSING_S) + 2)
    assert sorted(lost(live)) == sorted(machines)
    assert live.state_of(job) == "queued"


def test_one_answer_in_between_begins_the_count_again(crank):
    live = crank()
    live.submit(gpus=16, seconds=10_000)
    live.step(1)
    for _ in range(30):
        machines = forget(live, "r0-m0")
        live.step(MISSING_S - 1)
        live.backend.machines.update(machines)
        live.step(1)
    assert lost(live) == []


def test_one_machine_that_is_missing_for_a_while_is_lost(crank):
    live = crank()
    job = live.submit(gpus=16, seconds=10_000)
    live.step(1)
    forget(live, "r1-m1")
    live.step(MISSING_S)
    assert lost(live) == []  # one answer, however late, is one answer
    live.step(MISSING_S, times=ANSWERS - 1)
    assert lost(live) == ["r1-m1"]
    assert live.state_of(job) == "queued"


def test_a_machine_that_is_called_down_is_lost_at_once(crank):
    live = crank()
    live.step(1)
    live.backend.machines["r0-m1"] = MachineStatus(up=False)
    live.step()
    assert lost(live) == ["r0-m1"]


@pytest.mark.parametrize("names", [("r0-m0", "r1-m1"), ("r0-m0", "r0-m1", "r1-m0", "r1-m1")])
def test_many_machines_that_are_called_down_at_once_are_lost_only_after_a_while(crank, names):
    live = crank()
    job = live.submit(gpus=16, seconds=10_000)
    live.step(1, times=2)
    before = dict(live.backend.machines)

    def down():
        live.backend.machines.update(dict.fromkeys(names, MachineStatus(up=False)))

    down()
    for _ in range(int(MANY_MISSING_S) - 1):
        live.step(1)
        assert (lost(live), live.state.jobs[job].evictions) == ([], 0)
    assert [one.cause for one in live.controller.blockers()] == ["machines-missing"]
    live.backend.machines.update(before)
    live.step(1)
    assert (lost(live), live.state_of(job)) == ([], "placed")
    down()
    live.step(1, times=int(MANY_MISSING_S) + 2)
    assert sorted(lost(live)) == sorted(names)


def test_machines_that_were_never_seen_block_nothing(crank):
    live = crank()
    forget(live, "r0-m0", "r0-m1", "r1-m0")
    job = live.submit(gpus=4, seconds=100)
    live.step(1)
    assert live.state_of(job) == "placed"
    assert len(lost(live)) == 3


def test_nothing_is_decided_on_a_view_that_is_old_or_doubtful(crank, monkeypatch):
    live = crank()
    live.step(1)
    observe = live.backend.observe

    def silent():
        raise BackendError("slurmctld: no answer")

    monkeypatch.setattr(live.backend, "observe", silent)
    job = live.submit(gpus=4, seconds=100)
    live.step(1, times=5)
    assert live.state_of(job) == "queued"
    assert [one.cause for one in live.controller.blockers()] == ["backend-unreachable"]
    assert "slurmctld: no answer" in live.controller.blockers()[0].sentence
    monkeypatch.setattr(live.backend, "observe", observe)
    machines = forget(live)
    live.step(1, times=5)
    assert live.state_of(job) == "queued"
    assert [one.cause for one in live.controller.blockers()] == ["machines-missing"]
    live.backend.machines.update(machines)
    live.step(1)
    assert live.state_of(job) == "placed"
    assert live.controller.blockers() == []


class Counting:
    """Counts observations of a back end that are not for nothing."""

    def __init__(self, backend) -> None:
        self.backend, self.times, self._observe = backend, 0, backend.observe
        backend.observe, backend.pace = self, Pace(busy_s=1.0, idle_s=20.0, least_s=1.0)

    def __call__(self):
        self.times += 1
        return self._observe()

    def during(self, live, seconds: int) -> int:
        before = self.times
        for _ in range(seconds):
            live.step(1)
        return self.times - before


def test_an_idle_back_end_is_observed_more_and_more_seldom_and_a_busy_one_every_second(crank):
    live = crank()
    counting = Counting(live.backend)
    assert counting.during(live, 10) <= 5
    assert counting.during(live, 200) <= 11
    job = live.submit(gpus=4, seconds=60)
    live.step()
    assert live.state_of(job) == "placed"  # not twenty seconds later
    assert counting.during(live, 30) in range(29, 33)
    live.step(100, times=2)
    assert live.state_of(job) == "finished"
    counting.during(live, 100)
    assert counting.during(live, 200) <= 11


def test_a_job_that_waits_for_others_keeps_the_back_end_watched(crank):
    live = crank()
    for name in live.backend.machines:
        live.backend.machines[name] = MachineStatus(external=4)
    counting = Counting(live.backend)
    job = live.submit(gpus=4, seconds=60)
    assert counting.during(live, 30) in range(29, 33)
    assert live.state_of(job) == "queued"
    live.backend.machines["r0-m0"] = MachineStatus()
    live.step(1)
    assert live.state_of(job) == "placed"


@pytest.mark.parametrize("blocked", ["observe", "apply"])
def test_requests_are_answered_while_the_back_end_hangs(crank, monkeypatch, blocked):
    live = crank()
    call, hangs, go_on = getattr(live.backend, blocked), threading.Event(), threading.Event()

    def hanging(*args):
        hangs.set()
        assert go_on.wait(60)
        return call(*args)

    monkeypatch.setattr(live.backend, blocked, hanging)
    over = threading.Event()
    thread = threading.Thread(target=live.controller.run, args=(over,))
    thread.start()
    try:
        first = live.controller.ask(commands.submit(JobSpec(run="work"), "me", "first"))
        assert hangs.wait(60)
        second = live.controller.ask(commands.submit(JobSpec(run="work"), "me", "second"))
        assert second.result(60)["job"] == "second"
        assert first.result(60)["job"] == "first"
        assert not go_on.is_set()
    finally:
        over.set()
        go_on.set()
        live.controller.wakeup.set()
        thread.join()
