"""What `berth train` says about the processes it starts is what it starts."""

from __future__ import annotations

import pytest

from berth.train.launch_config import resolve, stage_processes
from berth.train.options import TrainOptions
from berth.train.recipes import make_recipe
from berth.train.rendezvous import RankInfo
from berth.train.stages.cut import StageCut


@pytest.mark.parametrize(
    ("cut", "pipelines", "said"),
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
def test_planned_and_running_processes_are_both_shown(cut, pipelines, said):
    assert stage_processes(cut, pipelines) == said


@pytest.fixture
def planned(monkeypatch):
    def plan(*cuts):
        monkeypatch.setattr("berth.train.launch_config.cuts_from_plan", lambda *_: list(cuts))

    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return plan


def test_a_plan_of_one_stage_is_reported_to_split_nothing(planned):
    made = make_recipe("ctrdnn-8", batch=64)
    planned(StageCut(0, len(made.model) - 1, "T4", 14))
    lines = []
    config = resolve(made, TrainOptions(plan="plan.yaml"), None, lines.append)
    assert config.cuts == ()
    assert lines == [
        "the plan has one stage, so the model is not split; "
        "planned 14 x T4; running 1 process here, emulated on a core"
    ]


def test_every_stage_of_a_plan_says_what_runs(planned):
    made = make_recipe("ctrdnn-8", batch=64)
    planned(StageCut(0, 0, "cpu-core", 3), StageCut(1, len(made.model) - 1, "T4", 14))
    lines = resolve(made, TrainOptions(plan="plan.yaml", workers=2), None, print).describe(made)
    assert lines[0] == "1 server (sync), 2 x 2 workers"
    assert lines[1].endswith("; planned 3 x cpu-core; running 2 processes here")
    assert lines[2].endswith("; planned 14 x T4; running 2 processes here, emulated on a core")


def test_a_folder_for_cold_rows_is_created_once_and_reported(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("BERTH_TRAIN_COLD", raising=False)
    made = make_recipe("ctrdnn-8", batch=64)
    several, lines = TrainOptions(workers=2, memory="64MB"), []

    def folder(rank_info):
        return resolve(made, several, rank_info, lines.append).server.folder

    assert folder(RankInfo(1, 2)) is None
    first = folder(None)
    assert lines == [f"rows beyond --memory go to {first}, removed at the end"]
    assert folder(RankInfo(0, 2)) == first
    assert folder(RankInfo(1, 2)) == first
    assert [str(path) for path in tmp_path.glob("berth-cold-*")] == [first]
    monkeypatch.delenv("BERTH_TRAIN_COLD")


def test_the_transport_of_rows_is_that_of_all_workers():
    from berth.report.train import _transport

    near, far, no_rows = ({"shared_memory": told} for told in (True, False, None))
    assert _transport(near) == "shared memory"
    assert _transport({**near, "workers": [near, near, no_rows]}) == "shared memory"
    assert _transport({**near, "workers": [near, far]}) == "shared memory (1 of 2 workers) and TCP"
    assert _transport({**far, "workers": [far, far]}) == "TCP"
