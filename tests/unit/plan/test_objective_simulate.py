"""The event simulation: the formula where it must be the formula, and losses where they belong."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from berth.errors import InputError
from berth.plan.evaluate import BatchEvaluation, Evaluator
from berth.plan.infeasible import highest_throughput
from berth.plan.objective import pipeline as tasks
from berth.plan.objective.protocol import Evaluation
from berth.plan.objective.refine import make_objective, refine
from berth.plan.objective.simulate import (
    STREAM_PRECISION,
    SimulatedObjective,
    SimulationOptions,
    holds,
    simulated_throughput,
    task_seconds,
)
from berth.plan.plan import Plan, schedule_for, with_counts
from berth.plan.problem import DevicePool, Problem, make_problem
from berth.plan.request import PlanRequest, build_problem
from berth.plan.search.assignments import AssignmentSpace
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget
from berth.plan.solve import SearchOptions, find_plan, solve
from berth.plan.world import UTILISATION, WorldOptions
from berth.units import format_rate

STEADY = SimulationOptions(variation=0.0)


def problem(seed: int = 0, layers: int = 6, types: int = 3, **more: float) -> Problem:
    """A random one that is stated, cheap enough to be feasible in many ways."""
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


def built(
    model: str = "ctrdnn", throughput: float = 1e6, cluster: str = "cloud-mix", **world: object
) -> Problem:
    return build_problem(
        PlanRequest(throughput, model=model, cluster=cluster, world=WorldOptions(**world))  # type: ignore[arg-type]
    )


def one_stage(given: Problem, kind: str, tables: str, replicas: int, micro: int, servers: int = 0) -> Plan:
    """All layers on one type, with as many readers as never to wait for them."""
    choice = given.choice_index(kind, tables)
    cut = [(0, len(given.layers) - 1, choice)]
    return with_counts(given, schedule_for(given, 1, micro), cut, [replicas], [servers], 10_000)


def seconds(**given: list[float]) -> np.ndarray:
    """The seconds of tasks by name, one for each stage."""
    found = np.zeros((tasks.TASKS, len(next(iter(given.values())))))
    for name, values in given.items():
        found[getattr(tasks, name)] = values
    return found


def ends(
    work: np.ndarray, micro: int, *, flight: int = 99, steps: int = 3, streams: bool = False
) -> np.ndarray:
    factors = np.ones((1, work.shape[1]))
    return tasks.step_ends(work, factors, micro=micro, flight=flight, ahead=99, steps=steps, streams=streams)


def taken(work: np.ndarray, micro: int, *, flight: int = 99) -> float:
    """Seconds of the second of two steps."""
    both = ends(work, micro, flight=flight, steps=2)
    return float(both[1] - both[0])


# --- the events, by hand ---


@pytest.mark.parametrize(("count", "micro"), [(1, 1), (1, 5), (3, 1), (3, 8), (5, 4)])
def test_equal_stages_fill_and_drain_as_the_textbook_says(count: int, micro: int) -> None:
    work = seconds(FORWARD=[1.0] * count, BACKWARD=[2.0] * count)
    assert taken(work, micro, flight=count) == pytest.approx(3 * (micro + count - 1))


def test_in_out_and_device_overlap_except_for_the_first_and_last_micro_batch() -> None:
    for into, device, out in ((2.0, 3.0, 1.0), (5.0, 3.0, 1.0), (2.0, 3.0, 4.0)):
        work = seconds(PULL=[into], FORWARD=[device / 3], BACKWARD=[device * 2 / 3], PUSH=[out])
        expected = into + device + out + 7 * max(into, device, out)
        assert taken(work, 8, flight=1) == pytest.approx(expected)


def test_two_stages_by_hand() -> None:
    # One micro-batch: 1 (pull) + 1 + 0.5 + 0.25 (to the right) + 2 + 4 + 0.25 + 0.5 (and back) + 2 + 3 (push) = 14.5.
    work = seconds(
        PULL=[1.0, 0.0],
        FORWARD=[1.0, 2.0],
        BACKWARD=[2.0, 4.0],
        SEND_F=[0.5, 0.0],
        ARRIVE_F=[0.0, 0.25],
        SEND_B=[0.0, 0.25],
        ARRIVE_B=[0.5, 0.0],
        PUSH=[3.0, 0.0],
    )
    assert taken(work, 1) == pytest.approx(14.5)
    # The second stage is the slowest: the others wait for its 6 seconds.
    assert taken(work, 4) == pytest.approx(14.5 + 3 * 6)


def test_all_reduce_and_optimiser_follow_the_last_push_and_the_slowest_stage_ends_the_step() -> None:
    work = seconds(FORWARD=[1.0], BACKWARD=[2.0], PUSH=[0.5], REDUCE=[4.0], OPTIMISE=[0.25])
    assert taken(work, 2) == pytest.approx(6 + 0.5 + 4 + 0.25)
    two = seconds(FORWARD=[1.0, 1.0], BACKWARD=[2.0, 2.0], OPTIMISE=[0.5, 10.0])
    assert taken(two, 1) == pytest.approx(1 + 1 + 2 + 10.0)  # the first stage's backward is hidden


def test_servers_are_waited_for_before_and_after() -> None:
    work = seconds(LOOKUP=[2.0], PULL=[1.0], FORWARD=[1.0], BACKWARD=[2.0], PUSH=[1.0], UPDATE=[5.0])
    assert taken(work, 1) == pytest.approx(12.0)
    # Four look-ups until the first push is there, at 7; its update and the next three until 28; two look-ups until
    # 32; then a wait for the push of the fifth, at 35, and two updates.
    assert taken(work, 6) == pytest.approx(45.0)


def test_readers_work_ahead_of_the_barrier() -> None:
    work = seconds(READ=[2.0], FORWARD=[1.0], BACKWARD=[2.0])
    late = ends(work, 2, steps=4)
    assert late[-1] - late[-2] == pytest.approx(6)
    slow = ends(seconds(READ=[5.0], FORWARD=[1.0], BACKWARD=[2.0]), 2, steps=4)
    assert slow[-1] - slow[-2] == pytest.approx(10)


def test_too_few_micro_batches_in_flight_leave_a_stage_waiting() -> None:
    work = seconds(
        FORWARD=[1.0, 1.0],
        BACKWARD=[2.0, 2.0],
        SEND_F=[2.0, 0.0],
        ARRIVE_F=[0.0, 2.0],
        SEND_B=[0.0, 2.0],
        ARRIVE_B=[2.0, 0.0],
    )
    times = [taken(work, 8, flight=flight) for flight in (1, 2, 3, 8)]
    assert times[0] == pytest.approx(8 * 14)
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[1]


@pytest.mark.slow
def test_streams_have_the_rate_of_the_busiest_resource() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        work = draw.uniform(0.1, 1.0, (tasks.TASKS, 3))
        work[[tasks.REDUCE, tasks.OPTIMISE]] = 0.0
        work[[tasks.ARRIVE_F, tasks.SEND_B], 0] = work[[tasks.SEND_F, tasks.ARRIVE_B], -1] = 0.0
        work[tasks.READ, 1:] = 0.0
        busy = [work[kind == tasks.RESOURCE].sum(axis=0).max() for kind in range(5)]
        stream = ends(work, 1, flight=20, steps=500, streams=True)
        assert (stream[-1] - stream[99]) / 400 == pytest.approx(max(busy), rel=0.02)


# --- plans ---


@pytest.mark.parametrize(("replicas", "micro"), [(1, 1), (1, 8), (3, 4), (16, 32)])
@pytest.mark.parametrize("tables", ["machine", "replicas"])
def test_a_one_stage_plan_without_variation_takes_exactly_the_formulas_step(
    replicas: int, micro: int, tables: str
) -> None:
    plan = one_stage(built(), "T4", tables, replicas, micro)
    assert plan.stages[0].time_s > plan.reader_s
    assert simulated_throughput(plan, STEADY) == pytest.approx(plan.throughput, rel=1e-9)


def test_servers_add_the_first_look_up_and_what_the_last_update_takes_beyond_the_all_reduce() -> None:
    given = built(tables=("servers",))
    for servers in (100, 200):
        plan = one_stage(given, "T4", "servers", 4, 8, servers)
        work = task_seconds(plan)[:, 0]
        stage = plan.stages[0]
        assert stage.server_s < stage.time_s  # its device or its NIC is the bottleneck
        after = max(0.0, work[tasks.UPDATE] - work[tasks.REDUCE] - work[tasks.OPTIMISE])
        step = stage.time_s * given.batch + work[tasks.LOOKUP] + after
        assert given.batch / simulated_throughput(plan, STEADY) == pytest.approx(step, rel=1e-6)
        assert (work[tasks.LOOKUP] + work[tasks.UPDATE]) * 8 == pytest.approx(
            stage.server_s * given.batch * UTILISATION
        )


def test_half_of_the_servers_halve_a_throughput_that_they_limit() -> None:
    given = built(mode="async", tables=("servers",))
    rates = [
        simulated_throughput(one_stage(given, "H100", "servers", 8, 1, servers), STEADY)
        for servers in (4, 8, 16)
    ]
    assert rates[1] == pytest.approx(2 * rates[0], rel=1e-3)
    assert rates[2] == pytest.approx(4 * rates[0], rel=1e-3)


def test_no_servers_or_readers_train_nothing() -> None:
    given = built(tables=("servers",))
    plan = one_stage(given, "T4", "servers", 4, 8, 0)
    assert simulated_throughput(plan) == 0.0
    assert simulated_throughput(replace(one_stage(given, "T4", "servers", 4, 8, 9), readers=0)) == 0.0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_more_servers_or_readers_are_never_slower(mode: str) -> None:
    given = built(mode=mode, tables=("servers",))
    micro = 8 if mode == "sync" else 1
    rates = [
        simulated_throughput(one_stage(given, "T4", "servers", 6, micro, servers))
        for servers in (5, 10, 20, 40, 80, 160, 320)
    ]
    assert all(right >= left * (1 - 1e-9) for left, right in pairwise(rates))
    assert rates[-1] > 2 * rates[0]
    plan = one_stage(given, "T4", "servers", 6, micro, 160)
    rates = [simulated_throughput(replace(plan, readers=readers)) for readers in (1, 2, 4, 8, 16, 400)]
    assert all(right >= left * (1 - 1e-9) for left, right in pairwise(rates))
    assert rates[1] == pytest.approx(2 * rates[0], rel=0.01)


def test_a_synchronous_step_waits_for_the_slowest_replica_and_a_stream_does_not() -> None:
    varied, many = SimulationOptions(steps=64, variation=0.1), 50
    one, more = (one_stage(built(), "T4", "replicas", count, 1) for count in (1, many))
    assert simulated_throughput(one, varied) == pytest.approx(one.throughput, rel=0.01)
    slower = simulated_throughput(more, STEADY) / simulated_throughput(more, varied)
    draws = np.random.default_rng(0).standard_normal((20_000, many)).max(axis=1).mean()
    work = task_seconds(more)
    share = (work[tasks.FORWARD, 0] + work[tasks.BACKWARD, 0]) * more.throughput / more.problem.batch
    assert slower - 1 == pytest.approx(0.1 * draws * share, rel=0.05)
    stream = one_stage(built(mode="async"), "cpu-core", "servers", many, 1, 1000)
    assert simulated_throughput(stream, varied) == pytest.approx(stream.throughput, rel=0.01)


def test_calls_vary_less_over_more_micro_batches() -> None:
    varied = SimulationOptions(variation=0.2)
    loss = []
    for micro in (1, 4, 16):
        plan = one_stage(built(batch=1 << 20), "T4", "machine", 8, micro)
        loss.append(1 - simulated_throughput(plan, varied) / simulated_throughput(plan, STEADY))
    assert loss[0] > loss[1] > loss[2] > 0


@pytest.mark.parametrize("seed", range(4))
def test_stated_problems_overlap_computation_and_data_as_the_formula_says(seed: int) -> None:
    given = problem(seed)
    plan = exact(given, Budget()).plan
    assert plan is not None
    assert simulated_throughput(plan) == pytest.approx(plan.throughput, rel=STREAM_PRECISION)


def test_equal_seeds_give_equal_answers_and_other_seeds_others() -> None:
    plan = exact(built("cnn", 3e4), Budget()).plan
    assert plan is not None
    first, again, other = (simulated_throughput(plan, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


# --- solving ---


def sold(request: PlanRequest, **options: object) -> object:
    return solve(request, build_problem(request), SearchOptions(**options), lambda phase: nullcontext(None))  # type: ignore[arg-type]


def throughput_that_does_not_hold() -> float:
    """A throughput for cnn between what the optimum reaches in the simulation and what the formula promises.

    The optimum for a throughput is the optimum for all throughputs up to its own.
    """
    plan = exact(built("cnn", 3e4), Budget()).plan
    assert plan is not None
    simulated = simulated_throughput(plan)
    assert simulated < 0.999 * plan.throughput
    return (simulated + plan.throughput) / 2


def test_a_plan_that_does_not_hold_is_sized_for_more_and_the_answer_says_so() -> None:
    wanted = throughput_that_does_not_hold()
    request = PlanRequest(wanted, model="cnn", cluster="cloud-mix")
    found = sold(request)
    assert found.error is None
    assert found.margin > 0
    assert found.without_margin < wanted <= found.simulated_throughput * 1.001
    plan = found.outcome.plan
    assert simulated_throughput(plan) == found.simulated_throughput
    assert plan.problem.throughput == pytest.approx(wanted * (1 + found.margin))  # what the proof covers
    assert found.outcome.lower_bound_usd == pytest.approx(plan.cost_usd, rel=0.01)
    assert "sized for " in found.outcome.note
    assert (
        "more than asked: the event simulation of the plan without that margin reaches " in found.outcome.note
    )
    assert find_plan(request).plan.device_counts == plan.device_counts


@pytest.mark.slow
def test_a_plan_that_holds_has_no_margin() -> None:
    found = sold(PlanRequest(1e5, model="ctrdnn", cluster="cloud-mix"))
    assert (found.margin, found.outcome.note) == (0.0, "")
    assert found.simulated_throughput == found.without_margin > 1e5


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["formula", "simulate:variation=0.05"])
def test_where_nothing_holds_the_error_says_what_was_reached(objective: str) -> None:
    # Two devices that the formula says are just enough, and none to add.
    given = built("transformer", 1.0).with_limits(
        {"H100": 2, "A100-40": 0, "V100-16": 0, "T4": 0, "cpu-core": 10}
    )
    highest = highest_throughput(given)
    request = PlanRequest(highest, model="transformer", cluster="cloud-mix")
    options = SearchOptions(objective=objective, budget=Budget(evaluations=20))
    found = solve(request, given.at(highest), options, lambda phase: nullcontext(None))
    assert found.error is not None
    assert "in the event simulation: 2 H100" in str(found.error)
    assert format_rate(found.without_margin) in str(found.error)
    assert found.without_margin < highest * 0.999


def test_a_price_is_a_limit_and_the_simulated_rate_is_reported() -> None:
    found = sold(PlanRequest(1.0, model="cnn", cluster="cloud-mix", samples=1e9, max_usd=40.0))
    assert found.margin == 0.0
    assert found.simulated_throughput == simulated_throughput(found.outcome.plan)


# --- as an objective of searches ---


class OnlyOthers:
    """An objective under which one assignment is too slow and every other costs the same."""

    name = "simulate"

    def __init__(self, refused: Plan, usd: float = 1.0) -> None:
        self.refused, self.usd = refused, usd

    def __call__(self, assignments: np.ndarray) -> BatchEvaluation:
        refused = (np.atleast_2d(assignments) == np.array(self.refused.assignment)).all(axis=1)
        cost = np.where(refused, np.inf, self.usd)
        late = np.where(np.isfinite(cost), 0.0, 0.5 + ~refused)
        return BatchEvaluation(cost, np.where(refused, 0.1, 0.2), late)

    def evaluate(self, assignment: object) -> Evaluation:
        found = self(np.asarray(assignment)[None])
        held = bool(np.isfinite(found.cost_usd[0]))
        return Evaluation(
            float(found.cost_usd[0]), 1 / float(found.stage_s[0]), self.refused if held else None, ""
        )

    def evaluate_plan(self, plan: Plan) -> Evaluation:
        return self.evaluate(plan.assignment)


@pytest.mark.parametrize("usd", [1.0, np.inf])
def test_against_a_start_that_does_not_hold_nothing_is_saved_and_its_rate_is_known(usd: float) -> None:
    given = problem(1)
    plan = exact(given, Budget()).plan
    assert plan is not None
    found = refine(given, plan, OnlyOthers(plan, usd), "random", Budget(evaluations=40))
    assert not found.start.feasible
    assert found.start.throughput == pytest.approx(10)
    assert found.best.feasible == np.isfinite(usd)
    assert found.gain is None
    if not found.best.feasible:
        assert found.outcome.plan is None
        assert found.best.throughput == pytest.approx(10)  # of the start: the others reach 5


def test_an_assignment_is_sized_until_it_holds() -> None:
    given = built("cnn", throughput_that_does_not_hold())
    objective = SimulatedObjective(given)
    plan = exact(given, Budget()).plan
    assert plan is not None
    assert not objective.evaluate_plan(plan).feasible
    found = objective.evaluate(plan.assignment)
    assert found.feasible
    assert holds(given, found.throughput)
    hours = given.samples / found.throughput / 3600
    assert found.cost_usd == pytest.approx(hours * found.plan.usd_per_hour)
    assert objective.throughput_of(found.plan) == found.throughput


@pytest.mark.slow
def test_a_batch_is_evaluated_like_its_rows_and_what_the_formula_refuses_is_refused() -> None:
    given = problem(5, throughput=60.0)
    rows = AssignmentSpace(given, np.random.default_rng(0)).random_runs(20)
    objective = SimulatedObjective(given)
    found, formula = objective(rows), Evaluator(given)(rows)
    refused = formula.shortfall > 0
    np.testing.assert_array_equal(found.shortfall[refused], formula.shortfall[refused])
    assert np.isinf(found.cost_usd[refused]).all()
    for row in np.flatnonzero(~refused):
        assert found.cost_usd[row] == objective.evaluate(rows[row]).cost_usd


@pytest.mark.slow
@pytest.mark.parametrize("method", ["genetic", "greedy", "berth-lstm", "random"])
def test_refining_keeps_the_budget_and_is_never_worse_than_its_start(method: str) -> None:
    given = problem(4, throughput=15.0)
    plan = exact(given, Budget()).plan
    assert plan is not None
    found = refine(given, plan, make_objective("simulate", given), method, Budget(evaluations=80))
    assert found.outcome.evaluations <= 80
    assert found.outcome.plan is found.best.plan is not None
    assert found.best.cost_usd <= found.start.cost_usd
    assert found.gain == pytest.approx(1 - found.best.cost_usd / found.start.cost_usd)


def test_options_may_follow_the_name() -> None:
    objective = make_objective("simulate:steps=20,variation=0.1", problem())
    assert objective.options == SimulationOptions(20, 0.1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("guess", "no objective is called 'guess'"),
        ("measure", "no objective is called 'measure'"),
        ("simulate:step=2", "no option of the objective is called 'step'"),
        ("simulate:steps", "'steps' is not KEY=VALUE"),
        ("simulate:steps=0", "steps is 0"),
        ("simulate:steps=many", "steps is 'many'"),
        ("simulate:steps=1.5", "steps is 1.5"),
        ("simulate:variation=7", "variation is 7"),
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
