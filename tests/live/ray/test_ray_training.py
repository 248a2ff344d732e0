"""`berth train` under berth under Ray: evicted, moved, and not a step lost."""

from __future__ import annotations

import pytest

from berth.live import commands

pytestmark = pytest.mark.slow


def test_a_training_is_evicted_and_moved_and_ends_as_if_nothing_had_happened(open_desk, training):
    desk = open_desk(policy="srtf")
    facts = {"duration": "2h", "grace": "60s", "per": "machine"}
    job = desk.submit(training.command, 4, **facts, **training.surroundings)
    desk.until(training.has_begun)
    [home] = desk.machines_of(job)
    short = desk.submit("true", 16, duration="1s")
    assert desk.machines_of(job) == {}
    desk.ask(commands.drain(home))
    desk.until(lambda: desk.controller.store.ended_job(short))
    training.release()
    desk.until_over(short, job)
    assert desk.controller.store.ended_job(job)["attempts"] == 2
    training.assert_preempted(desk.logs(job, 1)["rank-0.log"])
    training.assert_as_if_nothing_had_happened()
