"""The event simulation: the formula where it must be the formula, and losses where they belong."""

from __future__ import annotations

import numpy as np
import pytest

from berth.errors import InputError
from berth.plan.evaluate import BatchEvaluation, Evaluator
from berth.plan.objective.pipeline import (
    BACKWARD,
    FORWARD,
    LINK,
    OUT_F,
    REDUCE,
    ROWS,
    WORK_COLUMNS,
    ScheduleParams,
    seconds_per_batch,
)
from berth.plan.objective.protocol import Evaluation
from berth.plan.objective.refine import make_objective, refine
from berth.plan.objective.simulate import PipelineOptions, SimulatedObjective
from berth.plan.objective.sizing import evaluate_measured
from berth.plan.plan import cheapest, with_replicas
from berth.plan.problem import DevicePool, Problem, make_problem
from berth.plan.search.assignments import AssignmentSpace
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget

LIKE_THE_FORMULA = PipelineOptions(micro_batches=1, schedule="stream", shared="none", jitter=0.0)


def problem(seed: int = 0, layers: int = 6, types: int = 3, **more: float) -> Problem:
    """A random one, cheap enough to be feasible in many ways."""
    draw = np.random.default_rng(seed)
    times = draw.uniform(0.1, 2.0, (layers, types))
    return make_problem(
        batch=64,
        throughput=more.get("throughput", 30.0),
        types=tuple(DevicePool(f"t{kind}", float(draw.uniform(0.5, 3.0)), 60) for kind in range(types)),
        layers=tuple(f"l{layer}" for layer in range(layers)),
        oct_s=times,
        odt_s=times * draw.uniform(0.0, 0.8, (layers, types)),
        alpha=draw.uniform(0.9, 1.0, (layers, types)),
        beta=draw.uniform(0.8, 1.0, (layers, types)),
        cross_s=more.get("cross", 0.2),
        fixed_usd_per_hour=more.get("fixed", 1.0),
    )


def stages(count: int, forward: float = 1.0, backward: float = 2.0) -> np.ndarray:
    work = np.zeros((count, WORK_COLUMNS))
    work[:, FORWARD], work[:, BACKWARD], work[:, LINK] = forward, backward, -1
    return work


def taken(work: np.ndarray, micro: int, *, group: int = 1, drains: bool = False, flight: int = 2) -> float:
    order = ScheduleParams(micro, group, 3, drains, flight)
    return seconds_per_batch(work, np.ones((micro * group * 3, len(work))), order)


@pytest.mark.parametrize("seed", range(4))
def test_without_waits_noise_and_shared_links_the_simulation_is_the_formula(seed: int) -> None:
    given = problem(seed)
    rows = AssignmentSpace(given, np.random.default_rng(seed)).random_runs(60)
    simulated, formula = SimulatedObjective(given, LIKE_THE_FORMULA)(rows), Evaluator(given)(rows)
    feasible = np.isfinite(formula.cost_usd)
    assert feasible.sum() > 10
    np.testing.assert_allclose(simulated.cost_usd, formula.cost_usd, rtol=1e-9)
    np.testing.assert_allclose(simulated.stage_s[feasible], formula.stage_s[feasible], rtol=1e-9)
    np.testing.assert_array_equal(simulated.shortfall, formula.shortfall)


class OnlyOthers:
    """An objective under which one assignment is too slow and every other costs a dollar."""

    name = "simulate"

    def __init__(self, refused: object, most: float = 1.0) -> None:
        self.refused, self.usd = np.asarray(refused), most

    def __call__(self, assignments: np.ndarray) -> BatchEvaluation:
        refused = (np.atleast_2d(assignments) == self.refused).all(axis=1)
        cost = np.where(refused, np.inf, self.usd)
        late = np.where(np.isfinite(cost), 0.0, 0.5 + ~refused)
        return BatchEvaluation(cost, np.where(refused, 0.1, 0.2), late)

    def evaluate(self, assignment: object) -> Evaluation:
        found = self(np.asarray(assignment)[None])
        stages = 1 + int(np.count_nonzero(np.diff(np.asarray(assignment))))
        held = bool(np.isfinite(found.cost_usd[0]))
        return Evaluation(
            float(found.cost_usd[0]), 1 / float(found.stage_s[0]), (1,) * stages if held else (), ""
        )

    def close(self) -> None:
        """Nothing."""


def test_against_a_start_that_does_not_hold_nothing_is_saved_and_its_rate_is_known() -> None:
    given = problem(1)
    plan = exact(given, Budget()).plan
    assert plan is not None
    found = refine(given, plan, OnlyOthers(plan.assignment), "random", Budget(evaluations=40))
    assert not found.start.feasible
    assert found.start.throughput == pytest.approx(10)
    assert found.best.feasible
    assert found.gain is None


def test_where_no_plan_holds_the_fastest_one_is_reported() -> None:
    given = problem(1)
    plan = exact(given, Budget()).plan
    assert plan is not None
    found = refine(given, plan, OnlyOthers(plan.assignment, np.inf), "random", Budget(evaluations=40))
    assert found.outcome.plan is None
    assert not found.best.feasible
    assert found.best.throughput == pytest.approx(10)  # of the start: the others reach 5
    assert found.gain is None


@pytest.mark.parametrize(("count", "micro"), [(1, 1), (3, 1), (3, 8), (5, 4)])
@pytest.mark.parametrize("drains", [False, True])
def test_equal_stages_fill_and_drain_as_the_textbook_says(count: int, micro: int, drains: bool) -> None:
    flight = 0 if drains else 2
    assert taken(stages(count), micro, drains=drains, flight=flight) == pytest.approx(3 * (micro + count - 1))


def test_one_flight_of_the_slowest_stage_dominates_when_batches_seldom_wait() -> None:
    work = stages(3)
    work[1, [FORWARD, BACKWARD]] *= 2
    often, seldom = taken(work, 4), taken(work, 4, group=16)
    assert seldom < often
    assert seldom == pytest.approx(4 * 6, rel=0.1)


def test_rows_wait_for_their_backward_and_the_next_batch_for_them() -> None:
    work = stages(1)
    work[0, ROWS] = 5.0
    assert taken(work, 1) == pytest.approx(3 + 5)
    assert taken(work, 2) == pytest.approx(max(6 + 5, 3 + 10))


def test_the_reduction_hides_behind_the_last_backward() -> None:
    work = stages(1)
    work[0, REDUCE] = 1.5
    assert taken(work, 1) == pytest.approx(3.0)
    work[0, REDUCE] = 4.0
    assert taken(work, 1) == pytest.approx(1 + 4)


def test_a_crossing_adds_its_time_to_the_fill_only() -> None:
    work = stages(2)
    work[0, OUT_F] = 0.5
    assert taken(work, 8) == pytest.approx(3 * 9 + 0.5)


def test_more_micro_batches_lose_less_to_filling() -> None:
    per_batch = [taken(stages(4, 1 / micro, 2 / micro), micro) for micro in (1, 2, 4, 8)]
    assert per_batch == sorted(per_batch, reverse=True)
    assert per_batch[0] > per_batch[-1]


@pytest.mark.parametrize("shared", ["pair", "all"])
def test_a_slower_shared_link_is_never_faster(shared: str) -> None:
    given = problem(1)
    plan = with_replicas(given, [0, 0, 1, 1, 0, 0], [20, 20, 20])
    rates = [
        SimulatedObjective(given, PipelineOptions(shared=shared, lanes=lanes, jitter=0.0)).throughput_of(plan)
        for lanes in (np.inf, 16.0, 4.0, 1.0, 0.25)
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0]


def test_the_replicas_hold_the_throughput_in_the_simulation() -> None:
    given = problem(2, throughput=20.0)
    objective = SimulatedObjective(given, PipelineOptions(micro_batches=4))
    evaluation = objective.evaluate([0, 0, 0, 1, 1, 1])
    assert evaluation.feasible
    plan = with_replicas(given, [0, 0, 0, 1, 1, 1], evaluation.replicas)
    assert objective.throughput_of(plan) == pytest.approx(evaluation.throughput)
    assert evaluation.throughput >= given.throughput * (1 - 1e-8)
    formula = cheapest(given, [0, 0, 0, 1, 1, 1])
    assert formula is not None
    assert evaluation.cost_usd >= formula.cost_usd


def test_equal_seeds_give_equal_answers_and_other_seeds_others() -> None:
    given = problem(3)
    rows = AssignmentSpace(given, np.random.default_rng(0)).random_runs(30)
    first, again, other = (
        SimulatedObjective(given, PipelineOptions(jitter=0.3), seed=seed)(rows) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.cost_usd, again.cost_usd)
    assert (first.cost_usd != other.cost_usd).any()


@pytest.mark.parametrize("method", ["genetic", "greedy", "rl-lstm", "random"])
def test_refining_keeps_the_budget_and_is_never_worse_than_its_start(method: str) -> None:
    given = problem(4, throughput=15.0)
    plan = exact(given, Budget()).plan
    assert plan is not None
    found = refine(given, plan, make_objective("simulate", given), method, Budget(evaluations=80))
    assert found.outcome.evaluations <= 80
    assert found.outcome.plan is not None
    assert found.best.cost_usd <= found.start.cost_usd
    assert [stage.replicas for stage in found.outcome.plan.stages] == list(found.best.replicas)
    assert found.gain == pytest.approx(1 - found.best.cost_usd / found.start.cost_usd)


def test_passes_and_noise_of_a_run_are_replayed_as_the_simulation_would_take_them() -> None:
    given = problem(2, throughput=20.0)
    objective = SimulatedObjective(given, PipelineOptions(micro_batches=4, jitter=0.0))
    kinds = np.array([0, 0, 0, 1, 1, 1])
    noise = np.ones((len(objective.settings.normals), 2))
    cost, time_s, units = evaluate_measured(
        kinds, given.arrays, objective.settings, objective.passes[:2], noise
    )
    evaluation = objective.evaluate(kinds)
    assert cost * given.samples / 3600 == pytest.approx(evaluation.cost_usd)
    assert 1 / time_s == pytest.approx(evaluation.throughput)
    assert units[:2].tolist() == list(evaluation.replicas)
    slower, _, _ = evaluate_measured(
        kinds, given.arrays, objective.settings, 1.2 * objective.passes[:2], noise
    )
    uneven, _, _ = evaluate_measured(
        kinds, given.arrays, objective.settings, objective.passes[:2], 1.2 * noise
    )
    assert slower > cost * 1.05
    assert uneven == pytest.approx(slower, rel=0.05)


def test_what_the_formula_holds_and_the_simulation_does_not_says_by_how_much() -> None:
    highest = next(
        rate for rate in range(400, 0, -1) if cheapest(problem(2, throughput=rate), [0, 0, 0, 1, 1, 1])
    )
    given = problem(2, throughput=float(highest))
    found = SimulatedObjective(given, PipelineOptions(micro_batches=1))(np.array([[0, 0, 0, 1, 1, 1]]))
    assert found.cost_usd[0] == np.inf
    assert found.stage_s[0] > 1 / highest
    assert found.shortfall[0] == pytest.approx(np.log(found.stage_s[0] * highest))


def test_what_the_formula_refuses_is_refused_with_its_shortfall() -> None:
    given = problem(5, throughput=1e6)
    rows = np.zeros((1, 6), np.int64)
    found = SimulatedObjective(given)(rows)
    assert np.isinf(found.cost_usd[0])
    assert found.shortfall[0] == Evaluator(given)(rows).shortfall[0] > 0


def test_options_may_follow_the_name() -> None:
    objective = make_objective("simulate:lanes=2,schedule=fill-drain,micro-batches=8", problem())
    assert isinstance(objective, SimulatedObjective)
    assert (objective.pipeline.lanes, objective.pipeline.schedule, objective.pipeline.micro_batches) == (
        2,
        "fill-drain",
        8,
    )


def test_the_former_prefix_of_an_option_is_read() -> None:
    objective = make_objective("simulate:most-micro-batches=16", problem())
    assert isinstance(objective, SimulatedObjective)
    assert objective.pipeline.max_micro_batches == 16


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("guess", "no objective is called 'guess'"),
        ("simulate:lane=2", "no option of the objective is called 'lane'"),
        ("simulate:lanes", "'lanes' is not KEY=VALUE"),
        ("simulate:lanes=0", "lanes is 0"),
        ("simulate:lanes=many", "lanes is 'many'"),
        ("simulate:schedule=zigzag", "no schedule is called 'zigzag'"),
        ("simulate:micro_batches=-1", "micro_batches is -1"),
        ("simulate:micro_batches=1.5", "micro_batches is 1.5"),
        ("simulate:jitter=7", "jitter is 7"),
        ("measure", "a JSON problem can't be measured"),
    ],
)
def test_an_invalid_objective_is_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_objective(name, problem())


def test_exact_and_fixed_methods_do_not_search_a_black_box() -> None:
    given = problem(4, throughput=15.0)
    plan = exact(given, Budget()).plan
    assert plan is not None
    with pytest.raises(InputError, match="brute can't search under simulate"):
        refine(given, plan, make_objective("simulate", given), "brute")
