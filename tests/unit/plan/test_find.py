"""The plan for names and figures, from Python."""

from __future__ import annotations

import pytest

from berth.errors import InputError
from berth.plan import Asked, Wanted, find_plan
from berth.plan.choose import reason, refusal
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget, Outcome
from berth.plan.wanted import pose

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


@pytest.mark.parametrize("most", [0.6, 0.75, 1.5])
def test_a_price_covers_readers_and_servers_too_and_the_next_faster_plan_is_above_it(most):
    wanted = Wanted(**WANTED, throughput=1.0, max_usd=most)
    posed = pose(wanted)
    plan = find_plan(wanted).plan
    fed = posed.setup.feeding(plan.throughput)
    assert fed.reader_cores > 0
    assert plan.cost_usd + fed.usd <= most * (1 + 1e-9)
    faster = exact(posed.problem.at(plan.throughput * (1 + 1e-6)), Budget()).plan
    assert faster.cost_usd + posed.setup.feeding(faster.throughput).usd > most


def test_a_price_that_pays_for_devices_but_not_for_readers_is_refused_with_the_sum():
    cheapest = find_plan(Wanted(**WANTED, throughput=1.0)).plan
    with pytest.raises(InputError, match="reading and serving"):
        find_plan(Wanted(**WANTED, throughput=1.0, max_usd=cheapest.cost_usd * 1.01))


def test_exact_that_ran_out_of_time_does_not_say_that_there_is_no_plan():
    problem = pose(Wanted(**WANTED, throughput=500_000)).problem
    late = Outcome("exact", None, 7, 1.0, lower_bound_usd=0.0, note="no plan was found in the time allowed")
    assert "in the time allowed" in reason(problem, late).reason
    said = str(refusal(problem, late))
    assert "no plan holds" not in said
    assert "--cpu-time" in said


def test_a_price_is_a_limit_wherever_it_is_stated():
    free = find_plan(Wanted(**WANTED, throughput=1.0)).plan
    most = 4 * free.cost_usd
    stated = (
        (Wanted(**WANTED, throughput=1.0, max_usd=most), None),
        (Wanted(**WANTED, throughput=1.0), Asked(max_usd=most)),
    )
    for wanted, asked in stated:
        plan = find_plan(wanted, asked).plan
        assert plan.throughput > free.throughput
        assert free.cost_usd < plan.cost_usd <= most
