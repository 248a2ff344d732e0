"""The page "Does waiting pay?" says what its figures say, and can be made again."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from berth.workload.trace import Trace

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import waiting_page  # noqa: E402
import waiting_ratios  # noqa: E402
import waiting_runs  # noqa: E402
import waiting_study  # noqa: E402

TUNED = waiting_page.TUNED
CELLS = len(waiting_ratios.CELLS)


def figures(factor):
    """Made-up figures: every policy's are `factor(policy, part)` times 100."""
    return {
        play: [100.0 * factor(play.policy, play.part)] * len(waiting_runs.METRICS)
        for play in waiting_runs.plays()
    }


def times(word, factor):
    """Policies whose names hold a word have `factor` times the figures of the others."""
    return lambda policy, part: factor if word in policy else 1.0


@pytest.mark.slow
def test_a_policy_twice_as_quick_everywhere_is_better_in_every_cell():
    study = waiting_ratios.Study(figures(lambda policy, part: 0.5 if policy == TUNED else 1.0))
    versus = study.versus("gangs", TUNED, "fifo")
    assert versus.tally == f"0.50 · {CELLS}/0/0"
    assert str(versus.overall) == "0.50 (0.50-0.50)"
    assert study.versus("gangs", "fifo", TUNED).tally == f"2.00 · 0/0/{CELLS}"
    assert study.best("gangs", ["fifo", TUNED], (0.5, 1.0)) == TUNED


@pytest.mark.slow
@pytest.mark.parametrize(
    "factor",
    [
        lambda policy, part: (0.8, 1.25)[part % 2] if policy == TUNED else 1.0,  # noise
        lambda policy, part: 0.995 if policy == TUNED else 1.0,  # sure, but next to nothing
    ],
    ids=["noise", "too little"],
)
def test_what_is_noise_or_next_to_nothing_counts_as_even(factor):
    versus = waiting_ratios.Study(figures(factor)).versus("all jobs", TUNED, "fifo")
    assert [versus.count(word) for word in ("better", "even", "worse")] == [0, CELLS, 0]


@pytest.mark.slow
def test_the_sentences_follow_the_figures():
    better, worse = (
        waiting_page.parts(waiting_ratios.Study(figures(times("full", factor)))) for factor in (0.5, 2.0)
    )
    assert f"pays: 0.50 times the mean JCT (better in {CELLS} of {CELLS} cells" in better["answer"]
    assert "costs: 2.00 times the mean JCT" in worse["answer"]
    ahead = waiting_page.parts(waiting_ratios.Study(figures(times("srtf", 0.5))))["answer"]
    assert "ahead of 0, behind 1: `srtf` (2.00)" in ahead
    assert f"{CELLS} of {CELLS}" in better["losses"]  # full is ahead of tuned everywhere
    assert "In no cell is another policy ahead" in worse["losses"]


@pytest.mark.slow
def test_the_page_has_a_place_for_every_part_and_filling_it_twice_changes_nothing():
    page = (ROOT / "docs" / "waiting.md").read_text()
    made = waiting_page.parts(waiting_ratios.Study(figures(lambda policy, part: 1.0 + len(policy) / 100)))
    filled = waiting_page.fill(page, made)
    assert all(text.strip() in filled for text in made.values())
    assert waiting_page.fill(filled, made) == filled
    with pytest.raises(ValueError, match="no marker"):
        waiting_page.fill("# Empty\n", made)


@pytest.mark.slow
def test_the_pictures_are_whole_and_the_page_shows_each_of_them():
    study = waiting_ratios.Study(figures(lambda policy, part: 1.0 + len(policy) / 100))
    page = (ROOT / "docs" / "waiting.md").read_text()
    for name, picture in waiting_study.pictures(study).items():
        assert ElementTree.fromstring(picture).tag.endswith("svg")
        assert f"assets/{name}" in page


def test_a_slice_is_stretched_to_the_wanted_load_and_keeps_its_bursts():
    columns = {
        "job_id": list("abcd"),
        "submit_s": [0.0, 10, 20, 100],
        "num_gpu": [1, 2, 4, 1],
        "duration_s": [60.0] * 4,
    }
    jobs = Trace.from_columns(columns, source="test")
    slice_ = waiting_runs.at_load(jobs, np.array([1, 2, 3]), 0.5, gpus=8)
    assert slice_.gpu_seconds / (8 * slice_.span_s) == pytest.approx(0.5)
    assert slice_.submit_s == pytest.approx(np.array([0, 10, 90]) * slice_.span_s / 90)


@pytest.mark.slow
def test_a_study_that_was_stopped_plays_only_what_is_missing(tmp_path, monkeypatch):
    played = []
    monkeypatch.setattr(waiting_runs, "run", lambda play: played.append(play) or [1.0])
    wanted = waiting_runs.plays()[:6]

    def tell(*_):
        pass

    waiting_runs.play_all(wanted[:4], tmp_path, tell)
    file = tmp_path / "runs.jsonl"
    file.write_text(file.read_text()[:-20])  # killed while it wrote the fourth
    found = waiting_runs.play_all(wanted, tmp_path, tell)
    assert set(found) == set(wanted)
    assert played == [*wanted[:4], *wanted[3:]]
    waiting_runs.play_all(wanted, tmp_path, tell)
    assert len(played) == 7


def test_without_the_trace_it_says_where_it_looked_and_stops(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERTH_SHARED", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["waiting_study.py"])
    assert waiting_study.main() == 2
    assert str(tmp_path / "traces" / "philly") in capsys.readouterr().err
