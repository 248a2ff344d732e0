"""Candidates and reasons: every sentence is held against a computation of its own."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from berth.cluster.load import load_cluster
from berth.errors import InputError
from berth.plan.build import apply_pins, problem_for
from berth.plan.explain import (
    candidates,
    device_mix,
    explain,
    fixed_plan_costs,
    limited_by,
    provenance,
    round_down,
)
from berth.plan.job import planned_job
from berth.plan.nics import nic_notes
from berth.plan.plan import with_replicas
from berth.plan.profile import load_layer_profile
from berth.plan.profile.job import job_profile_yaml
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget, get_method
from berth.plan.solve import SearchOptions, no_plan_error, no_plan_reason, search
from berth.units import format_rate, format_usd

CTRDNN = load_layer_profile("ctrdnn")
CLOUD = load_cluster("cloud-mix")
FAST = problem_for(CTRDNN, CLOUD, 4e6)
SLOW = problem_for(CTRDNN, CLOUD, 1e5)


@pytest.fixture(scope="module")
def fast():
    outcome = exact(FAST, Budget())
    found = candidates(FAST, outcome)
    return outcome, found, explain(outcome, found)


@pytest.fixture(scope="module")
def slow():
    outcome = exact(SLOW, Budget())
    found = candidates(SLOW, outcome)
    return outcome, found, explain(outcome, found)


def test_the_choice_comes_first_and_no_candidate_is_cheaper(fast):
    _, found, _ = fast
    costs = [one.plan.cost_usd for one in found if one.plan]
    assert found[0].chosen
    assert sum(one.chosen for one in found) == 1
    assert costs == sorted(costs)


def test_candidates_differ_in_their_devices_and_all_hold(fast):
    _, found, _ = fast
    sets = [frozenset(one.plan.device_counts) for one in found if one.plan and not one.name.endswith("-only")]
    assert len(sets) == len(set(sets)) > 2
    assert not [what for one in found if one.plan for what in one.plan.violations()]


def test_the_fixed_plans_are_always_there_and_say_when_they_fail(fast, slow):
    for _, found, _ in (fast, slow):
        names = " ".join(one.name for one in found)
        assert all(name in names for name in ("cpu-only", "gpu-only", "heuristic"))
    assert all(one.note for one in fast[1] if one.plan is None)


def test_a_fixed_plan_that_is_the_optimum_lends_its_name(slow):
    assert slow[1][0].name == "exact, gpu-only"


def test_one_more_unit_is_computed_not_guessed(fast):
    outcome, _, sentences = fast
    plan = outcome.plan
    units = [stage.replicas + (row == plan.bottleneck) for row, stage in enumerate(plan.stages)]
    more = with_replicas(FAST, plan.assignment, units)
    said = next(text for text in sentences if text.startswith("One more"))
    assert format_rate(more.throughput) in said
    assert format_usd(more.cost_usd) in said


def test_whether_the_throughput_binds_is_true_in_both_cases(fast, slow):
    free = exact(FAST.at(1.0), Budget()).plan
    said = next(text for text in fast[2] if text.startswith("The throughput"))
    assert "binds" in said
    assert format_usd(free.cost_usd) in said
    assert any(text.startswith("The throughput does not bind") for text in slow[2])
    assert exact(SLOW.at(1.0), Budget()).plan.cost_usd == pytest.approx(slow[0].plan.cost_usd)


def test_a_limit_that_binds_is_named_with_what_it_costs():
    few = problem_for(CTRDNN, CLOUD, 1.1e6, forbid=["V100", "A100-40", "H100"])
    limited = few.with_limits({"T4": 2})
    outcome = exact(limited, Budget())
    free = exact(limited.with_limits({"T4": 10**9}), Budget()).plan
    said = [text for text in explain(outcome, []) if text.startswith("The limit")]
    assert outcome.plan.device_counts["T4"] == 2
    assert said == [
        f"The limit of 2 T4 binds: with {free.device_counts['T4']} of them "
        f"the training would cost {format_usd(free.cost_usd)}."
    ]


def test_a_bottleneck_at_its_limit_is_reported():
    only = (
        SLOW.without("cpu-core").without("V100-16").without("A100-40").without("H100").with_limits({"T4": 1})
    )
    outcome = exact(only, Budget())
    assert "It can't get another replica: there are only 1 T4." in explain(outcome, [])


def test_what_pins_cost_is_the_difference():
    pinned = apply_pins(SLOW, ["emb=cpu"])
    outcome = exact(pinned, Budget())
    extra = outcome.plan.cost_usd - exact(SLOW, Budget()).plan.cost_usd
    assert any(f"The pins cost {format_usd(extra)}" in text for text in explain(outcome, []))
    kept = apply_pins(SLOW, ["emb=T4"])
    assert "The pins cost nothing: the best plan satisfies them anyway." in explain(exact(kept, Budget()), [])


def test_the_next_best_has_other_devices_and_its_own_price(fast):
    outcome, found, sentences = fast
    second = min(
        (
            one.plan
            for one in found
            if one.plan and set(one.plan.device_counts) != set(outcome.plan.device_counts)
        ),
        key=lambda plan: plan.cost_usd,
    )
    said = next(text for text in sentences if text.startswith("Next best"))
    assert device_mix(second) in said
    assert format_usd(second.cost_usd) in said


def test_the_proof_is_stated_and_was_checked(fast):
    assert re.search(r"the lower bound is \$[\d.]+ too \(\d+ shortest paths, \d+ steps? checked", fast[2][-1])


def test_a_search_that_proves_nothing_is_held_against_the_optimum():
    outcome = get_method("cpu-only")(SLOW, Budget())
    best = exact(SLOW, Budget()).plan
    said = explain(outcome, [])[-1]
    assert f"{outcome.plan.cost_usd / best.cost_usd - 1:.2%} above the optimum" in said


def test_what_limits_a_plan_is_its_slowest_stage(fast):
    plan = fast[0].plan
    slowest = max(plan.stages, key=lambda stage: max(stage.compute_s, stage.data_s))
    assert limited_by(plan).endswith(slowest.type_name)


def test_nics_that_are_too_slow_are_noted(fast):
    flow = CTRDNN.cross_bytes[fast[0].plan.stages[0].last] / CTRDNN.batch * fast[0].plan.throughput
    notes = nic_notes(fast[0].plan)
    assert flow > 4 * 25e9 / 8  # four machines of V100 with a port of 25 Gbit/s each
    assert any("all 4 machines of V100-16 carry 12.5GB/s" in note for note in notes)
    assert not nic_notes(exact(SLOW, Budget()).plan)


def test_every_device_says_measured_or_modelled():
    sources = provenance(problem_for(CTRDNN, CLOUD, 1))
    assert sources["cpu-core"].startswith("measured")
    assert all(text.startswith("modelled") for name, text in sources.items() if name != "cpu-core")


def test_a_fixed_plan_has_gaps_where_it_is_too_slow():
    costs = fixed_plan_costs(SLOW, "cpu-only", [1e4, 1e9])
    assert costs[0] > 0
    assert costs[1] is None


@pytest.mark.parametrize("rate", [1.0, 999.9, 123456.7, 4290270.3, 5e-7])
def test_rates_are_rounded_down_to_three_digits(rate):
    assert rate * 0.989 <= round_down(rate) <= rate
    assert len(f"{round_down(rate):e}".split("e")[0].rstrip("0")) <= 4


# --- choosing ---


def refusal(problem, outcome):
    return no_plan_error(problem, outcome, no_plan_reason(problem, outcome))


def test_the_fastest_under_a_price_is_under_it_and_nothing_faster_is():
    outcome = search(SLOW.at(1.0), SearchOptions(), 1.0)
    plan = outcome.plan
    assert plan.cost_usd + SLOW.serving_usd(plan.throughput) <= 1.0
    faster = exact(SLOW.at(plan.throughput * 1.00001), Budget()).plan
    assert faster.cost_usd + SLOW.serving_usd(faster.throughput) > 1.0
    said = explain(outcome, [], max_usd=1.0)
    assert any(text.startswith("The price binds") for text in said)


def test_a_price_below_the_cheapest_is_refused_with_the_cheapest():
    best = exact(SLOW.at(1.0), Budget()).plan
    with pytest.raises(InputError, match=re.escape(format_usd(best.cost_usd))):
        search(SLOW.at(1.0), SearchOptions(), best.cost_usd / 2)


def test_a_preferred_type_is_taken_if_it_costs_little_more():
    dear = search(SLOW, SearchOptions(prefer=("cpu",), within=0.5))
    assert set(dear.plan.device_counts) == {"T4"}
    assert "no plan on cpu-core alone is within 50%" in dear.note
    taken = search(SLOW, SearchOptions(prefer=("cpu",), within=10.0))
    assert set(taken.plan.device_counts) == {"cpu-core"}
    assert taken.lower_bound_usd == pytest.approx(dear.plan.cost_usd)
    both = search(SLOW, SearchOptions(prefer=("cpu", "T4"), within=0.0))
    assert set(both.plan.device_counts) == {"T4"}


def test_an_impossible_throughput_is_refused_with_the_nearest():
    problem = SLOW.at(1e9)
    error = refusal(problem, exact(problem, Budget()))
    nearest = re.search(r"the highest throughput with a plan: ([\d.]+)M/s", str(error))
    rate = float(nearest[1]) * 1e6
    assert exact(SLOW.at(rate), Budget()).plan is not None
    assert exact(SLOW.at(rate * 1.02), Budget()).plan is None


def test_a_method_that_misses_a_plan_does_not_call_the_problem_infeasible():
    problem = SLOW.at(3e6)
    outcome = get_method("cpu-only")(problem, Budget())
    assert outcome.plan is None
    assert "exact finds one" in no_plan_reason(problem, outcome).reason
    assert "cpu-only found no plan" in str(refusal(problem, outcome))


# --- the job that falls out ---


def test_the_job_is_the_gang_that_reduces_gradients():
    plan = exact(problem_for(CTRDNN, CLOUD, 4e6), Budget()).plan
    job, stage = planned_job(plan)
    layers = CTRDNN.layers[stage.first : stage.last + 1]
    assert job.parameter_bytes.value == sum(layer.dense_bytes for layer in layers)
    assert job.compute_s[stage.type_name].value == pytest.approx(stage.compute_s * CTRDNN.batch)
    assert job.batch == round(CTRDNN.batch / stage.replicas)
    assert job.compute_s[stage.type_name].source.kind == "modelled"


def test_the_job_profile_reads_back(tmp_path):
    from berth.workload.profiles import load_profile

    job, _ = planned_job(exact(problem_for(CTRDNN, CLOUD, 1e5), Budget()).plan)
    path = tmp_path / "job.yaml"
    path.write_text(job_profile_yaml(job))
    again = load_profile(path)
    assert again.parameter_bytes.value == job.parameter_bytes.value
    assert again.all_to_all_bytes.value == job.all_to_all_bytes.value > 0
    assert again.compute_s == job.compute_s


def test_binding_constraints_are_those_of_the_optimum_not_of_an_expensive_plan():
    dear = get_method("cpu-only")(SLOW, Budget())
    said = explain(dear, [])
    assert dear.plan.cost_usd > exact(SLOW, Budget()).plan.cost_usd * 1.01
    assert any(text.startswith("The throughput does not bind") for text in said)


def test_what_pins_cost_is_not_what_a_search_missed():
    kept = apply_pins(SLOW, ["emb=T4"])
    best = exact(SLOW, Budget()).plan
    dear = get_method("random")(kept, Budget(evaluations=1))
    assert dear.plan.cost_usd > best.cost_usd * 1.01
    assert "The pins cost nothing: the best plan satisfies them anyway." in explain(dear, [])


def test_a_search_that_missed_a_barely_feasible_plan_asks_for_a_larger_budget():
    just = FAST.at(exact(FAST, Budget()).plan.throughput * (1 + 5e-10))
    missed = get_method("cpu-only")(just, Budget())
    assert missed.plan is None
    assert "exact finds one" in str(refusal(just, missed))
    assert "larger --budget" in str(refusal(just, missed))


def test_nics_of_some_of_the_machines_are_counted(fast):
    plan = fast[0].plan
    few = with_replicas(FAST, plan.assignment, [1] * len(plan.stages))
    crowded = replace(few, stages=tuple(replace(stage, compute_s=1e-9, data_s=1e-9) for stage in few.stages))
    notes = nic_notes(crowded)
    assert any(re.search(r"but 1 machines? for the V100-16 carry", note) for note in notes)
