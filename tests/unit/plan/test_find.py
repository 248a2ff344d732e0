"""The plan for names and figures, from Python."""

from __future__ import annotations

import pytest

from berth.errors import InputError
from berth.plan import Asked, Wanted, find_plan

WANTED = {"model": "ctrdnn-8", "cluster": "cloud-mix"}


def test_the_cheapest_plan_holds_what_is_wanted_and_is_proven():
    found = find_plan(Wanted(**WANTED, throughput=500_000))
    assert found.plan is not None
    assert found.plan.throughput >= 500_000
    assert found.plan.violations() == []
    assert found.lower_bound_usd == pytest.approx(found.plan.cost_usd)


def test_another_method_is_never_cheaper_than_the_proven_plan():
    exact, greedy = (
        find_plan(Wanted(**WANTED, throughput=500_000), Asked(method=method))
        for method in ("exact", "greedy")
    )
    assert greedy.method == "greedy"
    assert greedy.plan.cost_usd >= exact.plan.cost_usd * (1 - 1e-9)


def test_what_no_plan_can_hold_is_an_error_that_names_the_nearest():
    with pytest.raises(InputError, match="no plan holds") as refused:
        find_plan(Wanted(**WANTED, throughput=1e12))
    assert "the nearest that can be held" in str(refused.value)


def test_under_a_price_it_is_the_fastest_plan():
    cheapest = find_plan(Wanted(**WANTED, throughput=500_000))
    price = 2 * cheapest.plan.cost_usd
    fastest = find_plan(Wanted(**WANTED, throughput=1.0, max_usd=price), Asked())
    assert fastest.plan.cost_usd <= price * (1 + 1e-9)
    assert fastest.plan.throughput > cheapest.plan.throughput


def test_a_price_is_a_limit_wherever_it_is_stated():
    free = find_plan(Wanted(**WANTED, throughput=1.0)).plan
    most = 1.5 * free.cost_usd
    stated = (
        (Wanted(**WANTED, throughput=1.0, max_usd=most), None),
        (Wanted(**WANTED, throughput=1.0), Asked(max_usd=most)),
    )
    for wanted, asked in stated:
        plan = find_plan(wanted, asked).plan
        assert plan.throughput > free.throughput
        assert free.cost_usd < plan.cost_usd <= most
