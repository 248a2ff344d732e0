"""What a plan predicts for the processes that were started, next to what they took."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from berth.plan.check_file import check_plan
from berth.plan.plan import schedule_for, with_counts
from berth.train.plan_comparison import compare_with_plan
from berth.train.planned import planned_run
from berth.zoo import make_model

NAMES = make_model("nce", rows=64).names
PLAN = f"""\
model: nce
devices: [cpu-core, T4]
throughput: 10/s
samples: 1000000
rows: 1000000
batch: 4096
micro_batches: 2
readers: 2
stages:
  - {{layers: {NAMES[0]}, type: cpu-core, replicas: 8, tables: servers, servers: 4}}
  - {{layers: {NAMES[1]} .. {NAMES[-1]}, type: T4, replicas: 4, tables: servers, servers: 2}}
"""


def worker(stage: int, work_s: float | None) -> dict:
    return {"stage": stage, "work_s": work_s}


def compared(planned, *, batch: int = 4096, micro_batches: int = 2, cores: int = 64):
    counts = planned.layout.replicas
    workers = [worker(stage, 0.01 * (1 + one)) for stage, count in enumerate(counts) for one in range(count)]
    statistics = {"servers": [{}] * sum(planned.servers), "workers": workers, "step_s": 0.5}
    result = SimpleNamespace(statistics=statistics, examples_per_s=8000.0)
    return compare_with_plan(
        planned,
        result,
        names=NAMES,
        batch=batch,
        micro_batches=micro_batches,
        has_budget=False,
        cores=cores,
    )


@pytest.fixture
def path(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    return str(tmp_path / "plan.yaml")


@pytest.mark.slow
def test_all_processes_of_a_plan_are_predicted_what_the_plan_predicts(path):
    found = compared(planned_run(path, "nce", NAMES, {}))
    plan = check_plan(path).plan
    assert found.planned_examples_per_s == plan.throughput
    for row, stage in zip(found.stages, plan.stages, strict=True):
        work_s = (stage.compute_s + stage.optimiser_s + stage.sync_s) * 4096
        assert row.predicted_s == pytest.approx(work_s)
        assert row.predicted_s < found.predicted_step_s
    assert [(row.planned, row.started) for row in found.stages] == [(8, 8), (4, 4)]
    assert [row.source for row in found.stages] == ["measured", "modelled"]
    # the slowest
    assert [row.measured_s for row in found.stages] == [pytest.approx(0.08), pytest.approx(0.04)]
    assert (found.measured_step_s, found.measured_examples_per_s) == (0.5, 8000.0)


@pytest.mark.slow
def test_the_prediction_is_for_what_was_started(path):
    """Half of the processes: the formula with their counts, not half of the plan's throughput."""
    found = compared(planned_run(path, "nce", NAMES, {}, "1/2"))
    plan = check_plan(path).plan
    schedule = schedule_for(plan.problem, 2, 2)
    half = with_counts(plan.problem, schedule, plan.cuts, (4, 2), (2, 1), 4)
    assert found.predicted_examples_per_s == pytest.approx(half.throughput)
    assert found.predicted_examples_per_s < found.planned_examples_per_s
    assert (found.servers_planned, found.servers_started) == (6, 3)
    assert found.not_started[:2] == ("6 workers (--scale 1/2)", "3 servers of 6")


@pytest.mark.slow
def test_the_prediction_is_at_the_batch_of_the_run(path):
    planned = planned_run(path, "nce", NAMES, {})
    large, small = compared(planned), compared(planned, batch=512)
    assert small.stages[0].predicted_s < large.stages[0].predicted_s
    assert small.predicted_examples_per_s < large.predicted_examples_per_s  # small calls are less efficient


@pytest.mark.slow
def test_a_batch_that_can_not_be_planned_has_no_prediction_and_says_why(path):
    found = compared(planned_run(path, "nce", NAMES, {}), batch=2_000_000)
    assert found.predicted_examples_per_s is None
    assert {row.predicted_s for row in found.stages} == {None}
    assert found.notes[0].startswith("no prediction: a batch of 2,000,000 is more than")


@pytest.mark.slow
def test_notes_name_sources_emulated_devices_and_shared_cores(path):
    notes = compared(planned_run(path, "nce", NAMES, {}), cores=2).notes
    assert any(note.startswith("cpu-core is measured: one core of") for note in notes)
    assert any(note.startswith("T4 is modelled") for note in notes)
    assert "T4: measured on cores of this machine, which emulate it" in notes
    assert "18 processes share 2 cores here; the prediction has a device for each" in notes
    assert not any("share" in note for note in compared(planned_run(path, "nce", NAMES, {})).notes)


def test_times_of_a_stated_problem_are_called_stated(tmp_path):
    layer = {"oct": [0.01], "odt": [0.001], "alpha": [1.0], "beta": [1.0]}
    problem = {
        "batch": 100,
        "throughput": 10,
        "samples": 1e6,
        "types": [{"name": "cpu-core", "usd_per_hour": 0.04}],
        "layers": [{"name": name, "kind": "layer", **layer} for name in NAMES],
    }
    (tmp_path / "problem.json").write_text(json.dumps(problem))
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "problem: problem.json\nthroughput: 10/s\nsamples: 1000000\nstages:\n"
        f"  - {{layers: {NAMES[0]} .. {NAMES[-1]}, type: cpu-core, replicas: 2}}\n"
    )
    planned = planned_run(str(plan), "nce", NAMES, {})
    assert (planned.batch, planned.is_sync) == (None, True)
    found = compared(planned, batch=200, micro_batches=1)
    assert found.stages[0].source == "stated"
    assert found.stages[0].predicted_s == pytest.approx(len(NAMES) * 0.01)  # 200 examples, two replicas
