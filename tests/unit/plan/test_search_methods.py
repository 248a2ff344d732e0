"""Every method of search, on the same small problems: what they all promise."""

from __future__ import annotations

import random as python_random
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch

from berth.cluster.load import load_cluster
from berth.errors import InputError, UnknownNameError
from berth.plan.bench import Variant, compare_methods, with_types, with_variants
from berth.plan.evaluate import BatchEvaluation, Evaluator
from berth.plan.plan import with_counts
from berth.plan.problem import SERVED_BYTES, UNLIMITED, DevicePool, Problem, make_problem
from berth.plan.profile.files import load_layer_profile
from berth.plan.search.assignments import AssignmentSpace, cost_score
from berth.plan.search.exact import exact
from berth.plan.search.fixed import cpu_types
from berth.plan.search.method import ALIASES, BLACK_BOX, METHODS, RANDOMISED, Budget, Outcome, get_method
from berth.plan.search.static import CORES_PER_GPU, SERVERS_PER_CORE
from berth.plan.world import SERVERS, WorldOptions
from berth.plan.world_problem import problem_for

LEARNED = ("berth-lstm", "berth-rnn", "reinforce-lstm", "reinforce-rnn")
SEARCHES = ("random", "greedy", "genetic", "bayes", "brute", *LEARNED)
FIXED = ("cpu-only", "gpu-only", "heuristic")
STATIC = ("static-cpu-gpu", "static-servers")


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


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_the_same_seed_gives_the_same_outcome_to_the_bit(name):
    given = problem(layers=8)
    count = 60 if name == "bayes" else 200
    assert same(run(name, given, count, seed=3), run(name, given, count, seed=3))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RANDOMISED))
def test_another_seed_searches_elsewhere(name):
    given = problem(layers=12, throughput=9000.0)

    def tried(seed: int) -> list[list[int]]:
        seen: list[list[int]] = []

        def recorded(plans: np.ndarray) -> BatchEvaluation:
            seen.extend(plans.tolist())
            return Evaluator(given).formula(plans)

        run(name, given, 80, seed, objective=recorded)
        return seen

    first = tried(0)
    assert first == tried(0)
    assert first != tried(1)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("evaluations", [1, 17, 100])
def test_no_method_evaluates_more_than_its_budget(name, evaluations):
    outcome = run(name, problem(layers=9), evaluations)
    assert outcome.evaluations <= evaluations


@pytest.mark.parametrize("name", ["brute", *sorted(RANDOMISED)])
def test_searches_that_never_finish_early_spend_all_of_it(name):
    assert run(name, problem(layers=9), 77).evaluations == 77


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_brute_force_is_never_beaten_on_small_problems(seed):
    given = problem(layers=5, seed=seed, throughput=4000.0)
    best = run("brute", given, 3**5)
    assert best.plan is not None
    assert best.evaluations == 3**5
    assert best.lower_bound_usd == 0.0  # the evaluator's cuts are not proven
    others = [run(name, given, 243, seed) for name in (*SEARCHES[:4], *LEARNED, *FIXED)]
    costs = [one.plan.cost_usd for one in others if one.plan is not None]
    assert min(costs) >= best.plan.cost_usd * (1 - 1e-12)


@pytest.mark.slow
def test_brute_force_says_how_far_it_came_when_there_are_too_many():
    outcome = run("brute", problem(layers=16), 1000)
    assert outcome.evaluations == 1000
    assert outcome.plan is not None
    assert outcome.lower_bound_usd == 0.0
    assert outcome.note.startswith("stopped after 1,000 of 43,046,721 assignments")


@pytest.mark.slow
def test_brute_force_looks_at_the_clock_after_few_assignments():
    looked: list[int] = []
    brute = get_method("brute")
    brute(problem(layers=16), Budget(1000, 60.0), lambda done, *rest: looked.append(done))
    assert len(looked) >= 3
    assert max(after - before for before, after in pairwise([0, *looked])) <= 300


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


@pytest.mark.parametrize("name", [*SEARCHES, *FIXED, *STATIC])
def test_a_problem_that_nothing_solves_gives_no_plan(name):
    outcome = run(name, problem(throughput=1e9), 100)
    assert outcome.plan is None
    assert outcome.curve == ()


@pytest.mark.parametrize("name", [*SEARCHES, *FIXED, *STATIC])
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
    # each is computed once
    assert len(tried) == len({plan.tobytes() for plan in tried}) <= outcome.evaluations
    if name.startswith("reinforce"):  # fresh weights learn slowly: better than most plans is enough
        assert outcome.curve[-1][1] <= 4.0
    else:
        assert outcome.curve[-1][1] <= 2.0


@pytest.mark.slow
def test_no_method_disturbs_the_random_numbers_and_threads_of_others():
    python_random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    before = python_random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    threads = torch.get_num_threads()
    for name in (*SEARCHES, *FIXED, *STATIC):
        run(name, problem(), 70)
    assert python_random.getstate() == before[0]
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("bayes", "optuna", "plan"),
        ("genetic", "deap", "plan"),
        ("berth-lstm", "torch", "train"),
        ("reinforce-lstm", "torch", "train"),
    ],
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


@pytest.mark.parametrize(("old", "new"), ALIASES.items())
def test_an_earlier_name_runs_the_method_and_says_its_new_name(old, new):
    given = problem()
    by_old, by_new = run(old, given, 40), run(new, given, 40)
    assert by_old.method == new
    assert by_old.note.endswith(f"{old} is now called {new}")
    assert by_old.curve == by_new.curve


def test_the_learned_scheduler_as_published_has_no_other_source_of_plans(monkeypatch):
    """Neither weights of other problems, nor a greedy plan, nor mutations: what is drawn is what is evaluated."""

    def unused(*_: object, **__: object) -> None:
        raise AssertionError("not a part of the published method")

    monkeypatch.setattr("berth.plan.search.learned_weights.load", unused)
    monkeypatch.setattr("berth.plan.search.greedy.construct_greedily", unused)
    monkeypatch.setattr(AssignmentSpace, "mutate_runs", unused)
    outcome = run("reinforce-lstm", problem(layers=8), 640)
    assert outcome.plan is not None
    assert outcome.evaluations == 640


@pytest.mark.slow
def test_reinforce_learns_what_is_cheap(monkeypatch):
    """The last plans drawn cost less than the first, in the median."""
    costs: list[float] = []
    known = Evaluator._known

    def counted(self: Evaluator, plans: np.ndarray) -> BatchEvaluation:
        found = known(self, plans)
        costs.extend(found.cost_usd.tolist())
        return found

    monkeypatch.setattr(Evaluator, "_known", counted)
    run("reinforce-lstm", problem(layers=8), 1920)
    assert len(costs) == 1920
    assert np.median(costs[-320:]) < 0.8 * np.median(costs[:320])


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


# --- problems built from a profile and a cluster ---


@cache
def built(model: str = "nce", mode: str = "sync", throughput: float = 4e5) -> Problem:
    options = WorldOptions(mode=mode, rows=1e8)
    return problem_for(load_layer_profile(model), load_cluster("cloud-mix"), throughput, options=options)


def unlimited(given: Problem) -> Problem:
    return given.with_limits(dict.fromkeys(given.type_names, UNLIMITED))


def optimum(given: Problem) -> Outcome:
    outcome = exact(given, Budget())
    assert outcome.plan is not None
    assert outcome.lower_bound_usd == pytest.approx(outcome.plan.cost_usd, rel=1e-8)
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", [name for name in METHODS if name != "exact"])
def test_every_plan_is_feasible_and_costs_at_least_the_optimum(name, mode):
    given = built(mode=mode)
    outcome = run(name, given, 40)
    if outcome.plan is None:
        assert name in (*FIXED, *STATIC)
        assert outcome.note
        return
    assert outcome.plan.violations() == []
    assert outcome.plan.cost_usd >= optimum(given).lower_bound_usd * (1 - 1e-9)


@pytest.mark.parametrize(
    "given", [problem(seed=2), built(), built(mode="async")], ids=["stated", "sync", "async"]
)
def test_a_type_under_two_names_changes_no_optimum(given):
    free = unlimited(given)
    twice = with_variants(free, [Variant(device, "~") for device in range(len(free.types))])
    assert optimum(twice).plan.cost_usd == pytest.approx(optimum(free).plan.cost_usd, rel=1e-9)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_limit_split_over_two_names_costs_nothing_where_the_optimum_still_fits_and_never_gains(mode):
    """A stage has one name, so a part that is too small for its replicas may cost more, but never less."""
    given = built(mode=mode)
    best = optimum(given).plan
    used = best.device_counts
    kept = {one.name: used.get(one.name, 0) for one in given.types}
    variants = [Variant(device, "~") for device in range(len(given.types))]

    def split(first: dict[str, int]) -> Problem:
        rest = {f"{one.name}~": one.limit - first[one.name] for one in given.types}
        return with_variants(given, variants).with_limits(first | rest)

    assert optimum(split(kept)).plan.cost_usd == pytest.approx(best.cost_usd, rel=1e-9)
    halves = {one.name: (one.limit + 1) // 2 for one in given.types}
    assert optimum(split(halves)).plan.cost_usd >= best.cost_usd * (1 - 1e-9)


def reordered(given: Problem, order: list[int]) -> Problem:
    """The problem with its types in another order, and their choices with them."""
    at = {device: place for place, device in enumerate(order)}
    rows = sorted(range(len(given.choices)), key=lambda row: at[given.choices[row].device])
    host = given.host.device
    return replace(
        given,
        types=tuple(given.types[device] for device in order),
        allowed=given.allowed[:, order],
        choices=tuple(replace(given.choices[row], device=at[given.choices[row].device]) for row in rows),
        facts=given.facts[rows],
        curves=given.curves[rows],
        cross=given.cross[rows],
        message=None if given.message is None else given.message[rows],
        ring=given.ring[order],
        host=replace(given.host, device=at[host] if host >= 0 else -1),
        stated=None,
        source=None,
    )


@pytest.mark.parametrize(
    "given", [problem(seed=2), built(), built(mode="async")], ids=["stated", "sync", "async"]
)
def test_the_order_of_the_types_does_not_matter(given):
    order = [int(device) for device in np.random.default_rng(3).permutation(len(given.types))]
    other = reordered(given, order)
    assert optimum(other).plan.cost_usd == pytest.approx(optimum(given).plan.cost_usd, rel=1e-9)
    plans = AssignmentSpace(given, np.random.default_rng(0)).random_runs(20)
    renamed = np.argsort(order)[plans]
    costs, others = Evaluator(given)(plans).cost_usd, Evaluator(other)(renamed).cost_usd
    assert others == pytest.approx(costs, rel=1e-9)


def test_static_plans_have_their_ratios():
    given = unlimited(built("ctrdnn-8", throughput=1e5))
    mixed, workers = run("static-cpu-gpu", given), run("static-servers", given)
    assert mixed.plan is not None
    assert workers.plan is not None
    cores = {stage.replicas for stage in mixed.plan.stages if stage.type_name == "cpu-core"}
    gpus = {stage.replicas for stage in mixed.plan.stages if stage.type_name != "cpu-core"}
    assert len(cores) == len(gpus) == 1
    assert cores.pop() == CORES_PER_GPU * gpus.pop()
    (stage,) = workers.plan.stages
    each = SERVERS_PER_CORE if stage.type_name == "cpu-core" else CORES_PER_GPU
    assert stage.servers == each * stage.replicas
    assert given.facts[stage.choice, :, SERVED_BYTES].any()
    assert given.choices[stage.choice].tables in (SERVERS, "disk")


def test_a_static_plan_is_the_smallest_that_holds():
    given = unlimited(built("ctrdnn-8", throughput=2e6))
    plan = run("static-servers", given).plan
    (stage,) = plan.stages
    each = stage.servers // stage.replicas
    assert stage.replicas > 1
    fewer = stage.replicas - 1
    assert with_counts(given, plan.schedule, plan.cuts, [fewer], [each * fewer]).violations()


@pytest.mark.slow
def test_variants_scale_with_their_speed_and_price():
    given = unlimited(built())
    faster = with_variants(given, [Variant(device, "~", speed=2.0) for device in range(len(given.types))])
    expensive = with_variants(given, [Variant(device, "~", markup=3.0) for device in range(len(given.types))])
    assert faster.types[-1].usd_per_hour == pytest.approx(2 * given.types[-1].usd_per_hour)
    assert optimum(faster).plan.cost_usd <= optimum(given).plan.cost_usd * (1 + 1e-9)
    assert optimum(expensive).plan.cost_usd == pytest.approx(optimum(given).plan.cost_usd, rel=1e-9)


@pytest.mark.slow
def test_many_types_are_the_catalogues_and_then_synthetic_ones():
    given = with_types("nce", 16)
    assert len(given.types) == len(set(given.type_names)) == 16
    assert given.type_names[13:] == ("cpu-core~1", "V100-16~1", "T4~1")
    assert len(given.choices) == 16 * len({choice.tables for choice in given.choices})


@pytest.mark.slow
def test_all_methods_on_one_problem_side_by_side():
    from berth.report.plan_bench import compare_document, compare_table
    from berth.report.terminal import console

    given = built()
    results = compare_methods(given, Budget(40, 5.0), ["greedy", "rl-lstm", "static-cpu-gpu", "cpu-only"])
    assert [one.method for one in results] == ["exact", "greedy", "berth-lstm", "static-cpu-gpu", "cpu-only"]
    rows = {row["method"]: row for row in compare_document(results)}
    assert rows["exact"]["ratio_to_exact"] == 1.0
    for row in rows.values():
        assert row["note"] or row["cost_usd"] is not None, "a method without a plan says why"
        assert row["ratio_to_exact"] is None or row["ratio_to_exact"] >= 1 - 1e-9
        assert row["cpu_s"] >= 0
    out = console()
    with out.capture() as text:
        out.print(compare_table(results))
    for one in results:
        assert one.method in text.get()


def test_methods_without_a_plan_say_why():
    results = compare_methods(
        problem(throughput=1e9), Budget(20, 5.0), ["random", "greedy", "static-servers"]
    )
    assert all(one.cost_usd is None and one.note for one in results)


def test_the_page_of_a_comparison_begins_with_a_verdict_and_says_why_there_is_no_plan():
    from berth.plan.bench import Case, Result
    from berth.report.plan_bench import Comparison, comparison_page

    def result(method, group, label, cost, note=""):
        case = Case(group, label, int(label), problem())
        return Result(case, method, cost, cost, int(cost is not None), 1, 10, 0.5, note)

    results = [
        result(name, group, "8", cost, "" if cost else "too few <cores>")
        for group in ("layers", "types")
        for name, cost in (("exact", 2.0), ("near", 2.01), ("far", 3.0), ("none", None))
    ]
    shown = Comparison(results, [])
    assert shown.in_short() == [
        "exact finds the optimum of 2 of 2 problems, each in 500ms of CPU time at most.",
        "Of the 3 other methods, 1 (near) is within 1 % of it on all of them, and 1 (none) finds no plan for at least "
        "one.",
    ]
    assert shown.without_plan() == ["none: too few <cores> (8 layers, 8 types)"]
    page = comparison_page(shown)
    assert page.index("In short") < page.index("By number of layers")
    assert "too few &lt;cores&gt; (8 layers, 8 types)" in page


def test_an_assignment_is_computed_once_however_often_a_search_comes_back_to_it():
    given = problem_for(load_layer_profile("nce"), load_cluster("cloud-mix"), 1e5)
    asked = []

    def objective(rows):
        asked.append(len(rows))
        return Evaluator(given).formula(rows)

    evaluator = Evaluator(given, objective=objective)
    rows = np.zeros((4, len(given.layers)), np.int64)
    rows[2] = 1
    first, again = evaluator(rows), evaluator(rows[::-1])
    assert asked == [2]
    assert evaluator.evaluations == 8
    assert first.cost_usd.tolist() == again.cost_usd[::-1].tolist()
    assert first.cost_usd[0] == first.cost_usd[1] == Evaluator(given)(rows[:1]).cost_usd[0]
