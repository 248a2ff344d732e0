"""What `berth train` says about the processes it starts is what it starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from berth.cli.train_division import Wish, division_of, running, tell
from berth.train.recipes import recipe
from berth.train.rendezvous import Seat
from berth.train.stages.cut import StageCut


def wish(**changed) -> Wish:
    plain = Wish(None, 1, None, None, 4, [], "sync", 0, 10, "fp32", None, 1, "60s", None)
    return replace(plain, **changed)


@pytest.mark.parametrize(
    ("cut", "lanes", "said"),
    [
        (StageCut(0, 1), 1, "running 1 process here"),
        (StageCut(0, 1, "cpu-core", 7), 2, "planned 7 x cpu-core; running 2 processes here"),
        (StageCut(0, 1, "T4", 14), 1, "planned 14 x T4; running 1 process here, emulated on a core"),
        (
            StageCut(0, 1, "T4", 14, 1.5),
            1,
            "planned 14 x T4; running 1 process here, emulated on a core, 1.5 times slower",
        ),
    ],
)
def test_what_is_planned_and_what_runs_are_told_apart(cut, lanes, said):
    assert running(cut, lanes) == said


@pytest.fixture
def planned(monkeypatch):
    def plan(*cuts):
        monkeypatch.setattr("berth.train.stages.cut.cuts_of_plan", lambda *_: list(cuts))

    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return plan


def test_a_plan_of_one_stage_is_said_to_cut_nothing(planned, capsys):
    made = recipe("ctrdnn-8", batch=64)
    planned(StageCut(0, len(made.model) - 1, "T4", 14))
    division = division_of(wish(plan="plan.yaml"), made, None)
    assert division.cuts == ()
    assert capsys.readouterr().err == (
        "the plan has one stage, so the model is not cut; "
        "planned 14 x T4; running 1 process here, emulated on a core\n"
    )


def test_every_stage_of_a_plan_says_what_runs(planned, capsys):
    made = recipe("ctrdnn-8", batch=64)
    planned(StageCut(0, 0, "cpu-core", 3), StageCut(1, len(made.model) - 1, "T4", 14))
    tell(division_of(wish(plan="plan.yaml", workers=2), made, None), made)
    said = capsys.readouterr().err
    assert "2 x 2 workers" in said
    assert "planned 3 x cpu-core; running 2 processes here\n" in said
    assert "planned 14 x T4; running 2 processes here, emulated on a core\n" in said


def test_a_folder_for_cold_rows_is_made_once_and_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("BERTH_TRAIN_COLD", raising=False)
    made = recipe("ctrdnn-8", batch=64)
    several = wish(workers=2, memory="64MB")
    assert division_of(several, made, Seat(1, 2)).settings.folder is None
    first = division_of(several, made, None).settings.folder
    assert f"rows beyond --memory go to {first}" in capsys.readouterr().err
    assert division_of(several, made, Seat(0, 2)).settings.folder == first
    assert division_of(several, made, Seat(1, 2)).settings.folder == first
    assert [str(path) for path in tmp_path.glob("berth-cold-*")] == [first]
    monkeypatch.delenv("BERTH_TRAIN_COLD")


def test_the_way_of_rows_is_that_of_all_workers():
    from berth.report.train import _way

    near, far, no_rows = ({"shared_memory": told} for told in (True, False, None))
    assert _way(near) == "shared memory"
    assert _way({**near, "workers": [near, near, no_rows]}) == "shared memory"
    assert _way({**near, "workers": [near, far]}) == "shared memory (1 of 2 workers) and TCP"
    assert _way({**far, "workers": [far, far]}) == "TCP"
