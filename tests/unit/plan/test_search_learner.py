"""The learned scheduler from inside: what it sees, how it draws, what it is paid, what it remembers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from berth.cluster.load import load_cluster
from berth.plan.evaluate import BatchEvaluation
from berth.plan.problem import SERVED_BYTES, DevicePool, Problem, make_problem
from berth.plan.profile.files import load_layer_profile
from berth.plan.search.learned import DEFAULT_CONFIG, LearnerConfig, Rewards, learned
from berth.plan.search.learned_cache import EvaluationCache
from berth.plan.search.learned_features import Features, features
from berth.plan.search.learned_policy import Policy, PolicyInputs
from berth.plan.search.learned_weights import load, save
from berth.plan.search.method import Budget, Search
from berth.plan.world import TABLES, WorldOptions
from berth.plan.world_problem import problem_for


def problem(
    layers: int = 6,
    kinds: int = 3,
    seed: int = 0,
    throughput: float = 3000.0,
    seconds: float = 1.0,
    moved: float = 1.0,
) -> Problem:
    draw = np.random.default_rng(seed)
    shape = (layers, kinds)
    return make_problem(
        batch=512,
        throughput=throughput,
        types=tuple(DevicePool(f"t{kind}", float(draw.uniform(0.1, 4.0)), 500) for kind in range(kinds)),
        layers=tuple(f"layer{index}" for index in range(layers)),
        oct_s=seconds * draw.lognormal(-2.0, 1.0, shape),
        odt_s=seconds * moved * draw.lognormal(-4.0, 1.0, shape),
        alpha=1 - draw.uniform(0, 0.1, shape),
        beta=1 - draw.uniform(0, 0.1, shape),
        cross_s=seconds * moved * draw.lognormal(-4.0, 1.0, layers),
    )


def policy(cell: str = "lstm", seed: int = 0) -> Policy:
    return Policy(cell, torch.Generator().manual_seed(seed))


def permuted(seen: Features, order: list[int]) -> Features:
    return Features(seen.place[:, order], seen.layer, seen.serial[:, order], seen.allowed[:, order])


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["lstm", "rnn"])
def test_plans_are_drawn_as_often_as_their_probability_says(cell):
    inputs, net = PolicyInputs.of(features(problem(layers=3, kinds=2))), policy(cell)
    count = 40_000
    drawn = net.sample(inputs, count, torch.Generator().manual_seed(1), temperature=1.3)
    every = torch.tensor([[row >> 2 & 1, row >> 1 & 1, row & 1] for row in range(8)])
    share = [(drawn == plan).all(dim=1).float().mean().item() for plan in every]
    likely = net(inputs, every, temperature=1.3)[0].sum(dim=0).exp().detach().numpy()
    assert likely.sum() == pytest.approx(1.0, abs=1e-5)
    assert share == pytest.approx(likely, abs=5 * 0.5 / count**0.5)


@pytest.mark.parametrize("cell", ["lstm", "rnn"])
def test_the_order_of_the_types_does_not_matter(cell):
    seen, order = features(problem(kinds=4)), [2, 0, 3, 1]
    net = policy(cell)
    plans = torch.randint(4, (10, 6), generator=torch.Generator().manual_seed(0))
    renamed = torch.tensor(np.argsort(order))[plans]
    logs, entropy = net(PolicyInputs.of(seen), plans)
    other_logs, other_entropy = net(PolicyInputs.of(permuted(seen, order)), renamed)
    assert torch.allclose(logs, other_logs, atol=1e-5)
    assert torch.allclose(entropy, other_entropy, atol=1e-5)


def test_a_forbidden_place_has_no_probability():
    given = problem()
    allowed = given.allowed.copy()
    allowed[2, 1] = allowed[4, 0] = allowed[4, 2] = False
    inputs = PolicyInputs.of(features(given.allowing(allowed)))
    drawn = policy().sample(inputs, 500, torch.Generator().manual_seed(0), temperature=8.0)
    assert (drawn[:, 2] != 1).all()
    assert (drawn[:, 4] == 1).all()


def test_features_do_not_depend_on_the_units_of_money_and_time():
    given = problem()
    slower = problem(seconds=60.0, throughput=given.throughput / 60)
    prices = tuple(replace(one, usd_per_hour=one.usd_per_hour * 7) for one in slower.types)
    slower = replace(slower, types=prices)
    assert np.allclose(features(given).place, features(slower).place, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2, 30])
def test_features_are_finite_whatever_is_missing(layers):
    given = problem(layers=layers, throughput=1e9, moved=0.0)
    nowhere = np.zeros_like(given.allowed)
    for one in (given, given.with_limits({"t0": 0}), given.allowing(nowhere)):
        seen = features(one)
        assert np.isfinite(seen.place).all()
        assert np.isfinite(seen.serial).all()
        assert abs(seen.place).max() <= 2.0


def built(model: str, mode: str) -> Problem:
    options = WorldOptions(mode=mode, rows=1e9)
    return problem_for(load_layer_profile(model), load_cluster("cloud-mix"), 1e5, options=options)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_features_of_built_problems_are_finite_and_use_the_cheapest_place_of_tables(mode):
    given = built("ctrdnn", mode)
    seen = features(given)
    assert np.isfinite(seen.place).all()
    assert abs(seen.place).max() <= 2.0
    per_type = len(given.choices) // len(given.types)
    expensive = given.facts.copy()
    expensive[1::per_type, :, SERVED_BYTES] *= 1e6  # a place that no plan takes changes nothing
    assert given.choices[1].tables == "disk"
    without_disk = replace(given, facts=expensive)
    others = [place for place in TABLES if place != "disk"]
    options = WorldOptions(mode=mode, rows=1e9, tables=tuple(others))
    fewer = problem_for(load_layer_profile("ctrdnn"), load_cluster("cloud-mix"), 1e5, options=options)
    assert np.allclose(features(without_disk).place, features(fewer).place, atol=1e-6)


def test_an_infeasible_plan_is_paid_less_the_more_it_falls_short():
    found = BatchEvaluation(
        np.array([10.0, 5.0, np.inf, np.inf]), np.zeros(4), np.array([0.0, 0.0, 0.1, 2.0])
    )
    graded = Rewards(DEFAULT_CONFIG).advantages(found)
    assert graded[1] > graded[0] > graded[2] > graded[3]
    flat = Rewards(replace(DEFAULT_CONFIG, graded_penalty=False)).advantages(found)
    assert flat[2] == flat[3]


def test_a_round_of_equal_rewards_teaches_nothing():
    found = BatchEvaluation(np.full(3, np.inf), np.zeros(3), np.full(3, 0.7))
    assert (Rewards(DEFAULT_CONFIG).advantages(found) == 0).all()


def test_no_plan_is_paid_for_twice():
    search = Search(problem(), Budget(evaluations=4))
    memory = EvaluationCache(search, elites=2)
    plans = np.array([[0] * 6, [1] * 6, [0] * 6, [2] * 6])
    known, found = memory.evaluate(plans, at_most=2)
    assert known.tolist() == plans[:3].tolist()
    assert found.cost_usd[0] == found.cost_usd[2]
    assert search.evaluate.evaluations == 2
    assert memory.new_share(plans) == 0.25
    more = np.array([[0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1], [2] * 6])
    known, _ = memory.evaluate(more)
    assert search.evaluate.evaluations == 4
    assert known.tolist() == more[:2].tolist()


def test_the_best_plans_seen_are_kept_in_order_and_once():
    search = Search(problem(), Budget())
    memory = EvaluationCache(search, elites=3)
    plans = np.random.default_rng(0).integers(0, 3, (40, 6))
    for _ in range(2):
        memory.evaluate(plans)
    unique = np.unique(plans, axis=0)
    cost = search.evaluate.formula(unique).cost_usd
    assert memory.elites.tolist() == unique[np.argsort(cost)][:3].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["lstm", "rnn"])
def test_shipped_weights_fit_and_know_more_than_fresh_ones(cell):
    """Of the plans of the very first rounds, the best is cheaper with them."""
    shipped, fresh = DEFAULT_CONFIG, replace(DEFAULT_CONFIG, pretrained=False)
    bare = {"mutations": 0, "greedy": False}
    gains = []
    for seed in range(4):
        given = problem(layers=14, kinds=4, seed=seed, throughput=1000.0)
        with_them, without = (
            learned(cell, replace(config, **bare))(given, Budget(64, 60.0, 0)).curve[-1][1]
            for config in (shipped, fresh)
        )
        gains.append(without / with_them)
    assert np.median(gains) > 1.05


def test_weights_survive_being_written_and_read(tmp_path):
    net = policy(seed=4)
    save(net, tmp_path / "weights.npz")
    with np.load(tmp_path / "weights.npz") as arrays:
        for name, weights in net.state_dict().items():
            assert np.allclose(arrays[name], weights.numpy(), atol=1e-3)
    load(net, "lstm")


@pytest.mark.slow
def test_a_space_that_is_exhausted_ends_the_search():
    outcome = learned("lstm")(problem(layers=3, kinds=2), Budget(6400, 60.0, 0))
    assert outcome.evaluations <= 8 + 3 * 2 + 2
    assert outcome.note == "pretrained on exact's answers; no new plans were found any more"
    fresh = learned("lstm", LearnerConfig(pretrained=False))(problem(layers=3, kinds=2), Budget(20))
    assert "pretrained" not in fresh.note
