"""The sharing rules and their fit."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.errors import UnknownNameError

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from contention_rules import RULES, FittedRule, Pairs, find_rule, fit_rule, pair_medians

share = st.floats(0.01, 1.0)
weight = st.floats(0.1, 10.0)


def kept(name: str, own: list[float], other: list[float], shared: tuple[float, ...] = ()) -> float:
    return float(find_rule(name).ratio(np.array([own]), np.array([other]), np.array(shared))[0])


def all_pairs(models: int) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.indices((models, models)).reshape(2, -1))


@pytest.mark.parametrize(
    ("name", "own", "other", "expected"),
    [
        ("none", [], [], 1.0),
        ("max-min fluid", [0.4], [0.5], 1.0),
        ("max-min fluid", [0.8], [0.3], 0.875),
        ("max-min fluid", [1.0], [1.0], 0.5),
        ("proportional fluid", [0.8], [0.8], 0.625),
        ("weighted max-min fluid", [1.0, 3.0], [1.0, 1.0], 0.75),
        ("max-min random phase", [1.0], [1.0], 0.5),
        ("weighted random phase", [1.0, 1.0], [1.0, 3.0], 0.25),
        ("peak-rate random phase", [1.0, 0.5], [1.0, 0.5], 1.0),
        ("rank one 1/(1+sg)", [1.0, 9.0], [9.0, 1.0], 0.5),
    ],
)
def test_a_rule_worked_by_hand(name, own, other, expected):
    assert kept(name, own, other) == pytest.approx(expected)


@given(share, share, weight)
@settings(max_examples=60)
def test_equal_weights_are_max_min_random_phase(own, other, equal):
    weighted = kept("weighted random phase", [own, equal], [other, equal])
    assert weighted == pytest.approx(kept("max-min random phase", [own], [other]))


@given(share, share)
@settings(max_examples=60)
def test_no_penalty_is_max_min_random_phase(own, other):
    assert kept("AdaDUAL penalty", [own], [other], (0.0,)) == pytest.approx(
        kept("max-min random phase", [own], [other])
    )


@given(share, share, weight, weight)
@settings(max_examples=60)
def test_the_random_phases_are_a_fixed_point(m_i, m_j, w_i, w_j):
    r_i = kept("weighted random phase", [m_i, w_i], [m_j, w_j])
    r_j = kept("weighted random phase", [m_j, w_j], [m_i, w_i])
    # ratio = 1 / (1 - m + t), so t and phi of either job follow from what it keeps.
    t_i, t_j = 1 / r_i - 1 + m_i, 1 / r_j - 1 + m_j
    assert t_i == pytest.approx(m_i * (1 + t_j * r_j * w_j / w_i), rel=1e-3)


@given(share, share, weight, weight)
@settings(max_examples=60)
def test_a_heavier_neighbour_takes_more(m_i, m_j, w_i, w_j):
    light = kept("weighted random phase", [m_i, w_i], [m_j, w_j])
    assert kept("weighted random phase", [m_i, w_i], [m_j, 2 * w_j]) <= light + 1e-9


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if "rank" not in name])
def test_two_jobs_alike_keep_the_same(name):
    rule = find_rule(name)
    numbers = np.array([[limit[2] for limit in rule.per_model]] * 2).reshape(2, -1)
    fitted = FittedRule(rule, numbers, np.array([limit[2] for limit in rule.shared]))
    first, second = fitted.predict(np.array([0, 1]), np.array([1, 0]))
    assert first == second
    assert 0 < first <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RULES if name != "none"])
def test_a_rule_is_found_again_in_what_it_made(name):
    rule, rng = find_rule(name), np.random.default_rng(3)
    numbers = np.stack([limit[2] * np.exp(rng.normal(0, 0.3, 5)) for limit in rule.per_model], axis=1)
    made = FittedRule(rule, numbers.clip(0.05, 0.95), np.array([limit[2] for limit in rule.shared]))
    victim, other = all_pairs(5)
    pairs = Pairs(victim, other, made.predict(victim, other))
    found = fit_rule(rule, pairs, 5)
    assert np.median(np.abs(found.predict(victim, other) / pairs.kept - 1)) < 0.01


def test_the_median_of_a_pair_that_was_not_measured_is_unknown():
    table = pair_medians(Pairs(np.array([0, 0, 0]), np.array([1, 1, 1]), np.array([0.2, 0.5, 0.6])), 2)
    assert table[0, 1] == 0.5
    assert np.isnan(table[1, 0])


def test_an_unknown_rule_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="max-min fluid"):
        find_rule("maxmin fluid")


@pytest.mark.shared
def test_on_measured_pairs_weights_miss_by_less_than_max_min_and_that_by_less_than_no_rule(shared_traces):
    with (shared_traces / "deepshare" / "shared_thp_ratio.csv").open(newline="") as file:
        _, *rows = csv.reader(file)
    names = [row[0].split(",")[0] for row in rows]
    measured = np.array([row[0].split(",")[1:] != ["8", "4"] for row in rows])
    models = sorted(set(names))
    model = np.array([models.index(name) for name in names])[measured]
    ratios = np.array([row[1:] for row in rows], dtype=float)[np.ix_(measured, measured)]
    first, second = all_pairs(len(model))
    pairs = Pairs(model[first], model[second], ratios.reshape(-1))
    p90 = {}
    for name in ("none", "max-min random phase", "weighted random phase"):
        found = fit_rule(find_rule(name), pairs, len(models))
        p90[name] = np.quantile(np.abs(found.predict(pairs.victim, pairs.other) / pairs.kept - 1), 0.9)
    assert p90["weighted random phase"] < 0.8 * p90["max-min random phase"] < 0.5 * p90["none"]
