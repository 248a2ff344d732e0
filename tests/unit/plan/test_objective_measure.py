"""A tiny model really trained in stages, one process each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from berth.errors import InputError
from berth.plan.objective.measure import MeasuredObjective, MeasureOptions, stage_ranges
from berth.plan.objective.refine import make_objective, refine
from berth.plan.objective.stage_processes import StageProcesses
from berth.plan.objective.stage_worker import StageTask
from berth.plan.plan import cheapest
from berth.plan.problem import DevicePool, Problem, make_problem
from berth.plan.search.method import Budget

TINY = """
import torch
from torch import nn

BATCH = 32

class Broken(nn.Module):
    def forward(self, x):
        raise ValueError("no such thing")

def make_model():
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 4))

def make_broken():
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), Broken(), nn.Linear(64, 4))

def example_batch(batch, seed):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 8, generator=draw), torch.zeros(batch, dtype=torch.long)
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.py"
    path.write_text(TINY)
    return str(path)


@pytest.fixture
def given() -> Problem:
    return make_problem(
        batch=32,
        throughput=1000.0,
        types=(DevicePool("cpu-core", 0.04, 100), DevicePool("T4", 0.5, 8)),
        layers=("linear0", "relu1", "linear2", "linear3"),
        oct_s=[[2e-4, 2e-5]] * 4,
        odt_s=1e-5,
        alpha=0.95,
        beta=1.0,
        cross_s=1e-5,
    )


@pytest.fixture
def measured(tiny: str, given: Problem) -> Iterator[MeasuredObjective]:
    with MeasuredObjective(
        given, tiny, MeasureOptions(micro_batches=2, batches=2, max_stages=2)
    ) as objective:
        yield objective


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_a_model_runs_in_stages_is_refined_within_budget_and_leaves_no_process(
    measured: MeasuredObjective, given: Problem
) -> None:
    start = cheapest(given, [0, 0, 0, 0])
    assert start is not None
    found = refine(given, start, measured, "random", Budget(evaluations=8))
    assert found.outcome.evaluations <= 8
    assert found.best.cost_usd <= found.start.cost_usd < np.inf
    assert found.best.note.startswith("emulated")
    two = measured.record(((0, 1), (2, 3)))
    assert len(two.wall_s) == 2
    assert (two.passes_s > 0).all()
    assert two.noise.shape == (2 * 3, 2)
    assert np.isfinite(two.losses).all()
    one = measured.record(((0, 3),))
    assert one.losses[0] == pytest.approx(two.losses[0], rel=0.05)  # the same weights, the same examples
    assert one.losses[-1] < one.losses[0]  # the gradients are real
    assert not np.isfinite(measured(np.array([[0, 1, 0, 1]])).cost_usd[0])  # more stages than processes
    runs = len(measured.records)
    measured(np.array([[1, 1, 0, 0], [0, 0, 1, 1]]))
    assert len(measured.records) == runs
    pids = measured.processes.pids
    assert pids
    measured.close()
    assert not any(alive(pid) for pid in pids)


@pytest.mark.slow
def test_a_layer_that_fails_is_named_and_every_process_ends(tiny: str, given: Problem) -> None:
    objective = MeasuredObjective(
        given, f"{tiny}:make_broken", MeasureOptions(micro_batches=2, batches=1, max_stages=2)
    )
    with pytest.raises(InputError, match="layer 'broken2' of tiny fails: no such thing"):
        objective(np.array([[0, 0, 1, 1]]))
    assert objective.processes.pids == []


@pytest.mark.slow
def test_an_unknown_model_is_reported_by_the_stage_process() -> None:
    processes = StageProcesses("nonsense", 2)
    with pytest.raises(InputError, match="no model is called 'nonsense'"):
        processes.run([(0, 1)], StageTask(0, 0, 0, 1, 1, 4, 1, 0))
    assert processes.pids == []


def test_a_profile_alone_can_not_be_run_and_the_hint_says_how(given: Problem) -> None:
    with pytest.raises(InputError, match="is a layer profile") as refused:
        MeasuredObjective(given, "mine.yaml")
    assert "measure:model=path.py:make_model" in str(refused.value)


def test_a_profile_of_ones_own_is_run_as_the_model_that_is_named(tiny: str, given: Problem) -> None:
    with closing(make_objective(f"measure:model={tiny}", given, model="mine.yaml")) as objective:
        assert isinstance(objective, MeasuredObjective)
        assert objective.processes.model == tiny


def test_a_model_with_other_layers_than_the_profile_is_refused(tiny: str, given: Problem) -> None:
    with pytest.raises(InputError, match=f"has 4 layers, but the profile has {len(given.layers) - 1}"):
        MeasuredObjective(replace_layers(given), tiny)


def replace_layers(given: Problem) -> Problem:
    """The same problem without its last layer."""
    return make_problem(
        batch=32, throughput=1000.0, types=given.types, layers=given.layers[:-1],
        oct_s=given.oct_s[:-1], odt_s=given.odt_s[:-1], alpha=0.95, beta=1.0, cross_s=1e-5,
    )  # fmt: skip


class _Gone:
    """The end of a pipe whose process died before it was told anything."""

    def send(self, piece: object) -> None:
        raise BrokenPipeError

    def close(self) -> None:
        """Nothing to close."""


def test_a_dead_process_is_reported_and_the_others_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = StageProcesses("nce", 1)
    monkeypatch.setattr(processes, "_start", lambda count: processes.commands.append(_Gone()))
    with pytest.raises(InputError, match="a stage's process died"):
        processes.run([(0, 1)], StageTask(0, 0, 0, 1, 1, 4, 1, 0))
    assert processes.commands == []


@pytest.mark.parametrize(
    ("kinds", "ranges"),
    [([0, 0, 0], ((0, 2),)), ([0, 1, 1], ((0, 0), (1, 2))), ([2, 1, 2], ((0, 0), (1, 1), (2, 2)))],
)
def test_stages_are_maximal_runs(kinds: list[int], ranges: tuple[tuple[int, int], ...]) -> None:
    assert stage_ranges(kinds) == ranges


def test_without_a_cpu_among_the_types_this_machine_must_be_named() -> None:
    bare = make_problem(
        batch=4, throughput=1, types=(DevicePool("x", 1.0),), layers=("a",), oct_s=1, odt_s=0, alpha=1, beta=1
    )
    with pytest.raises(InputError, match="no device type of the problem is a CPU"):
        MeasuredObjective(bare, "ctrdnn")
    assert MeasuredObjective(bare, "ctrdnn", MeasureOptions(here="x")).here_s.tolist() == [1.0]
