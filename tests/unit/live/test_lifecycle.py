"""The life cycle of a job: one table of transitions, which the state, a job's history and simulations follow."""

from dataclasses import dataclass

import pytest

from berth.live.lifecycle import DELAYED, PLACED, QUEUED, SIMULATED, TRANSITIONS, JobTrack, transition
from berth.live.simulation_view import _MACHINE
from berth.live.store import Store
from berth.simulate.events import EVENTS
from berth.testing.fault_simulation import FaultRun


@dataclass
class Waiting:
    state: str = QUEUED
    since: float = 0.0


@pytest.mark.parametrize("event", TRANSITIONS)
@pytest.mark.parametrize("state", [QUEUED, PLACED, DELAYED, "finished"])
def test_an_event_is_allowed_in_one_state_only(event, state):
    before, after = TRANSITIONS[event]
    job = Waiting(state)
    if state != before:
        with pytest.raises(AssertionError, match=f"{event} of a job that is {state}"):
            transition(job, event)
        after = state
    else:
        transition(job, event)
    assert job.state == after


def test_a_job_waits_from_the_time_of_its_event():
    job = Waiting(PLACED)
    transition(job, "evict", since=7.0)
    assert (job.state, job.since) == (QUEUED, 7.0)
    transition(job, "start")
    assert (job.state, job.since) == (PLACED, 7.0)


def test_every_event_of_a_simulation_has_a_record():
    assert set(EVENTS.values()) == SIMULATED.keys() | _MACHINE.keys()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 21])
def test_the_records_of_a_job_lead_to_its_attempts_and_its_end(tmp_path, seed):
    FaultRun(seed, tmp_path / "state").play()
    store = Store(tmp_path / "state")
    evicted = 0
    for ended in store.recent(1_000):
        track, records = JobTrack(), store.job_records(ended["id"])
        for _, record in records:
            track.apply(record.kind, record.time, record.body)
        assert list(track.attempts) == store.tokens_of(ended["id"])
        assert len(track.attempts) == ended["attempts"]
        assert track.evictions == sum(record.kind == "evict" for _, record in records) <= ended["evictions"]
        evicted += track.evictions
        if ended["state"] == "finished" and track.last.end and track.last.left is None:
            assert track.last.ended_at == ended["ended"]
    store.close()
    assert evicted
