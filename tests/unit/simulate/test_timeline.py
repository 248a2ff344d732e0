"""Curves are recounted from the log, and no GPU-second is lost on the way."""

from __future__ import annotations

import numpy as np
import pytest

from berth.simulate import timeline


def test_a_step_is_averaged_over_the_bins_it_crosses():
    means = timeline.binned_mean(np.array([1.0, 3.0]), np.array([4.0, -4.0]), np.array([0.0, 2.0, 4.0, 6.0]))
    assert means == pytest.approx([2.0, 2.0, 0.0])


def test_a_value_that_never_falls_back_goes_on_beyond_its_last_step():
    means = timeline.binned_mean(np.array([1.0]), np.array([4.0]), np.array([0.0, 2.0, 4.0]))
    assert means == pytest.approx([2.0, 4.0])


def test_nothing_logged_is_nothing_held():
    assert timeline.binned_mean(np.zeros(0), np.zeros(0), np.array([0.0, 1.0])).tolist() == [0.0]


def test_attempts_add_up_to_the_service_of_every_job(busy_run):
    tried = timeline.attempts(busy_run)
    held = np.bincount(tried.job, weights=(tried.stop_s - tried.start_s) * tried.gpus)
    assert held == pytest.approx(busy_run.records["attained_gpu_s"])
    assert len(tried) > len(busy_run.records), "no job was evicted, so this shows little"


def test_curves_and_map_hold_the_same_gpu_seconds(busy_run):
    tried = timeline.attempts(busy_run)
    edges = np.linspace(0, timeline.last_end_s(busy_run), 38)
    width = edges[1]
    total = float(busy_run.records["attained_gpu_s"].sum())
    found = timeline.occupancy(busy_run, tried, edges)
    assert timeline.devices_held(tried, edges).sum() * width == pytest.approx(total)
    assert (found.word, found.names) == ("rack", ("r0", "r1"))
    assert found.share.sum() * width * 8 == pytest.approx(total)
    assert found.share.max() <= 1.0 + 1e-9
    assert timeline.queue_length(busy_run, edges).sum() * width == pytest.approx(
        busy_run.records["waited_s"].sum()
    )
