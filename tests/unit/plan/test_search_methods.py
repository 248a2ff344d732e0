"""Every method of search, on the same small problems: what they all promise."""

from __future__ import annotations

import random as python_random
import sys

import numpy as np
import pytest
import torch

from berth.errors import InputError, UnknownNameError
from berth.plan.evaluate import BatchEvaluation, Evaluator
from berth.plan.problem import DevicePool, Problem, make_problem
from berth.plan.search.assignments import AssignmentSpace, cost_score
from berth.plan.search.fixed import cpu_types
from berth.plan.search.method import BLACK_BOX, METHODS, Budget, Outcome, get_method

SEARCHES = ("random", "greedy", "genetic", "bayes", "brute", "rl-lstm", "rl-rnn")
FIXED = ("cpu-only", "gpu-only", "heuristic")


def problem(
    layers: int = 5,
    names: tuple[str, ...] = ("cpu-core", "V100", "T4"),
    seed: int = 0,
    throughput: float = 2000.0,
    allowed: np.ndarray | None = None,
) -> Problem:
    """The first layer moves rows and is cheap on CPUs, the others compute and are not."""
    draw = np.random.default_rng(seed)
    shape = (layers, len(names))
    speed = np.array([1.0, 40.0, 15.0, 25.0])[: len(names)]
    price = (0.04, 2.42, 0.53, 1.2)
    return make_problem(
        batch=512,
        throughput=throughput,
        types=tuple(DevicePool(name, usd) for name, usd in zip(names, price, strict=False)),
        layers=tuple(f"layer{index}" for index in range(layers)),
        kinds=("embedding", *["fully_connected"] * (layers - 1)),
        oct_s=draw.lognormal(0.0, 0.8, (layers, 1)) / speed,
        odt_s=draw.lognormal(-2.0, 1.0, shape),
        alpha=1 - draw.uniform(0, 0.02, shape),
        beta=1 - draw.uniform(0, 0.05, shape),
        cross_s=draw.lognormal(-3.0, 1.0, layers),
        allowed=allowed,
        fixed_usd_per_hour=1.0,
    )


def run(name: str, given: Problem, evaluations: int = 300, seed: int = 0, **more: object) -> Outcome:
    return get_method(name)(given, Budget(evaluations, 60.0, seed), None, **more)


def same(left: Outcome, right: Outcome) -> bool:
    assert left.plan is not None
    assert right.plan is not None
    return (left.plan.assignment, left.evaluations, left.curve, left.note) == (
        right.plan.assignment,
        right.evaluations,
        right.curve,
        right.note,
    )


@pytest.mark.parametrize("name", SEARCHES)
def test_the_same_seed_gives_the_same_outcome_to_the_bit(name):
    given = problem(layers=8)
    count = 60 if name == "bayes" else 200
    assert same(run(name, given, count, seed=3), run(name, given, count, seed=3))


@pytest.mark.parametrize("name", ["random", "genetic", "bayes", "rl-lstm", "rl-rnn"])
def test_another_seed_searches_elsewhere(name):
    given = problem(layers=12, throughput=9000.0)
    count = 40
    assert not same(run(name, given, count, seed=0), run(name, given, count, seed=1))


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("evaluations", [1, 17, 100])
def test_no_method_evaluates_more_than_its_budget(name, evaluations):
    outcome = run(name, problem(layers=9), evaluations)
    assert outcome.evaluations <= evaluations


@pytest.mark.parametrize("name", ["random", "genetic", "bayes", "brute", "rl-lstm", "rl-rnn"])
def test_searches_that_never_finish_early_spend_all_of_it(name):
    assert run(name, problem(layers=9), 77).evaluations == 77


@pytest.mark.parametrize("name", SEARCHES)
def test_the_curve_falls_and_ends_at_the_plan_found(name):
    outcome = run(name, problem(layers=7))
    counts, costs = zip(*outcome.curve, strict=True)
    assert outcome.plan is not None
    assert list(counts) == sorted(counts)
    assert list(costs) == sorted(costs, reverse=True)
    assert len(set(costs)) == len(costs)
    assert counts[-1] <= outcome.evaluations
    assert outcome.plan.cost_usd == pytest.approx(costs[-1], rel=1e-12)
    assert outcome.plan.violations() == []


@pytest.mark.parametrize("seed", range(4))
def test_brute_force_is_never_beaten_on_small_problems(seed):
    given = problem(layers=5, seed=seed, throughput=4000.0)
    best = run("brute", given, 3**5)
    assert best.plan is not None
    assert best.evaluations == 3**5
    assert best.lower_bound_usd == pytest.approx(best.plan.cost_usd, rel=1e-12)
    others = [run(name, given, 243, seed) for name in (*SEARCHES[:4], "rl-lstm", "rl-rnn", *FIXED)]
    costs = [one.plan.cost_usd for one in others if one.plan is not None]
    assert min(costs) >= best.plan.cost_usd * (1 - 1e-12)


def test_brute_force_says_how_far_it_came_when_there_are_too_many():
    outcome = run("brute", problem(layers=16), 1000)
    assert outcome.evaluations == 1000
    assert outcome.plan is not None
    assert outcome.lower_bound_usd == 0.0
    assert outcome.note.startswith("stopped after 1,000 of 43,046,721 assignments")


def test_brute_force_meets_every_assignment_once():
    allowed = np.array([[True, True, False], [False, True, True], [True, True, True]])
    given = problem(layers=3, allowed=allowed)
    seen: list[tuple[int, ...]] = []
    space = AssignmentSpace(given, np.random.default_rng(0))
    from berth.plan.search.brute import _numbered

    for first in range(0, space.size, 5):
        seen += [tuple(row) for row in _numbered(space, first, min(5, space.size - first))]
    assert len(seen) == len(set(seen)) == 12
    assert all(allowed[range(3), row].all() for row in seen)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_forbidden_type_is_never_evaluated(name, monkeypatch):
    allowed = np.random.default_rng(5).random((7, 3)) < 0.6
    allowed[:, 0] |= ~allowed.any(axis=1)
    given = problem(layers=7, allowed=allowed)
    tried: list[np.ndarray] = []
    inner = Evaluator.__call__

    def watched(self: Evaluator, plans: np.ndarray) -> BatchEvaluation:
        tried.append(np.atleast_2d(plans))
        return inner(self, plans)

    monkeypatch.setattr(Evaluator, "__call__", watched)
    run(name, given, 150)
    plans = np.concatenate(tried)
    assert allowed[np.arange(7), plans].all()


@pytest.mark.parametrize("name", [*SEARCHES, *FIXED])
def test_a_problem_that_nothing_solves_gives_no_plan(name):
    outcome = run(name, problem(throughput=1e9), 100)
    assert outcome.plan is None
    assert outcome.curve == ()


@pytest.mark.parametrize("name", [*SEARCHES, *FIXED])
def test_a_layer_that_may_run_nowhere_is_named(name):
    allowed = np.ones((5, 3), bool)
    allowed[2] = False
    outcome = run(name, problem(allowed=allowed), 100)
    assert outcome.plan is None
    assert outcome.evaluations == 0
    assert "'layer2' may run on no type" in outcome.note


@pytest.mark.parametrize("name", [*SEARCHES, "heuristic"])
def test_one_layer_and_one_type_are_a_problem_too(name):
    single = problem(layers=1, names=("cpu-core",), throughput=10.0)
    outcome = run(name, single, 40)
    if name == "heuristic":
        assert outcome.plan is None
        assert outcome.note == "no type is a GPU"
    else:
        assert outcome.plan is not None
        assert outcome.plan.assignment == (0,)


@pytest.mark.parametrize("name", sorted(BLACK_BOX))
def test_another_objective_is_followed_from_the_plan_to_begin_with(name):
    given = problem(layers=6)
    wanted = np.array([2, 0, 1, 1, 0, 2])
    start = np.array([1, 1, 1, 1, 1, 1])
    tried: list[np.ndarray] = []

    def distance(plans: np.ndarray) -> BatchEvaluation:
        tried.extend(plans)
        cost = 1.0 + (plans != wanted).sum(axis=1)
        return BatchEvaluation(cost, np.ones(len(plans)), np.zeros(len(plans)))

    outcome = run(name, given, 250 if name != "bayes" else 120, objective=distance, start=start)
    assert any((plan == start).all() for plan in tried[:64])
    assert len(tried) == outcome.evaluations
    assert outcome.curve[-1][1] <= 2.0


def test_no_method_disturbs_the_random_numbers_and_threads_of_others():
    python_random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    before = python_random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    threads = torch.get_num_threads()
    for name in (*SEARCHES, *FIXED):
        run(name, problem(), 70)
    assert python_random.getstate() == before[0]
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [("bayes", "optuna", "plan"), ("genetic", "deap", "plan"), ("rl-lstm", "torch", "train")],
)
def test_a_missing_library_is_named_with_its_extra(name, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=module) as error:
        run(name, problem(), 10)
    assert f"berth-ml[{extra}]" in str(error.value)


def test_an_unknown_method_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'genetic'"):
        get_method("genetik")


def test_every_method_of_the_list_can_be_fetched():
    assert all(callable(get_method(name)) for name in METHODS)


def test_only_what_is_called_cpu_or_known_as_one_is_a_cpu():
    assert cpu_types(problem(names=("V100", "cpu-fast", "T4"))) == ([1], "")
    assert cpu_types(problem(names=("V100", "core", "T4"))) == ([1], "")
    assert cpu_types(problem(names=("V100", "A100", "T4"))) == ([], "no type is a CPU")
    kinds, note = cpu_types(problem(names=("big", "small", "T4")))
    assert kinds == [0]
    assert note == "no type is called cpu: big, the cheapest, counts as one"


def test_the_fixed_plans_are_what_they_say():
    given = problem(throughput=500.0)
    cpu, gpu, rule = (run(name, given) for name in FIXED)
    assert cpu.plan is not None
    assert gpu.plan is not None
    assert rule.plan is not None
    assert set(cpu.plan.types_of_layers) == {"cpu-core"}
    assert len(set(gpu.plan.types_of_layers)) == 1
    assert "cpu-core" not in gpu.plan.types_of_layers
    assert rule.plan.types_of_layers[0] == "cpu-core"
    assert "cpu-core" not in rule.plan.types_of_layers[1:]
    each = Evaluator(given)(np.array([[1] * 5, [2] * 5])).cost_usd
    assert gpu.plan.cost_usd == pytest.approx(min(each))


def test_cpu_only_without_a_cpu_says_so():
    outcome = run("cpu-only", problem(names=("V100", "A100", "T4")))
    assert outcome.plan is None
    assert outcome.note == "no type is a CPU"


def test_infeasible_plans_are_worse_than_any_feasible_one_and_ordered_by_shortfall():
    found = BatchEvaluation(
        np.array([1e30, np.inf, np.inf, 2.0]), np.zeros(4), np.array([0.0, 0.1, 3.0, 0.0])
    )
    assert np.argsort(cost_score(found)).tolist() == [3, 0, 1, 2]


@pytest.mark.parametrize("draw", ["random_uniform", "random_runs"])
def test_random_plans_respect_what_is_forbidden_and_reach_all_that_is_allowed(draw):
    allowed = np.random.default_rng(1).random((6, 4)) < 0.5
    allowed[:, 1] = True
    given = problem(layers=6, names=("a", "b", "c", "d"), allowed=allowed)
    plans = getattr(AssignmentSpace(given, np.random.default_rng(0)), draw)(2000)
    met = np.zeros_like(allowed)
    met[np.arange(6), plans] = True
    assert (met == allowed).all()


def test_mutated_runs_change_one_run_and_nothing_forbidden():
    allowed = np.random.default_rng(2).random((9, 3)) < 0.7
    allowed[:, 0] = True
    space = AssignmentSpace(problem(layers=9, allowed=allowed), np.random.default_rng(0))
    plans = space.random_runs(500)
    changed = space.mutate_runs(plans)
    assert allowed[np.arange(9), changed].all()
    assert (changed != plans).any(axis=1).mean() > 0.5
    for before, after in zip(plans, changed, strict=True):
        assert len(set(after[before != after].tolist())) <= 1
