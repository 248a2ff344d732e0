"""Candidates and reasons: every sentence is held against a computation of its own."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace

import pytest

from berth.cluster.load import load_cluster
from berth.errors import InputError
from berth.plan.candidates import (
    FIXED_PLANS,
    LEAST,
    NEXT_BEST,
    Candidate,
    _merged,
    candidates,
    fixed_plan_costs,
)
from berth.plan.explain import explain, plan_space, provenance, round_down
from berth.plan.frontier import fastest_under
from berth.plan.job import planned_job
from berth.plan.pins import apply_pins
from berth.plan.plan import schedule_for, with_counts
from berth.plan.problem import LARGEST, DevicePool, make_problem
from berth.plan.problem_json import parse_problem
from berth.plan.profile import load_layer_profile
from berth.plan.profile.job import job_profile_yaml
from berth.plan.rental import cost_per_billion, rented_pools, throughput_range, with_times_scaled
from berth.plan.request import PlanRequest
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget, get_method
from berth.plan.sensitivity import flips
from berth.plan.solve import SearchOptions, Solution, no_plan_error, no_plan_reason, search
from berth.plan.stage_reasons import device_mix, limit_of, limited_by, own_s, stage_reason
from berth.plan.world import KEY_BYTES, WorldOptions
from berth.plan.world_problem import problem_for
from berth.report.plan import figure_lines
from berth.report.plan_report import PlanReport
from berth.units import format_bytes, format_rate, format_usd

CTRDNN = load_layer_profile("ctrdnn")
CLOUD = load_cluster("cloud-mix")
ROWS = WorldOptions(rows=1e9)
ON_SERVERS = WorldOptions(rows=1e9, tables=("servers",))
FAST = problem_for(CTRDNN, CLOUD, 4e6, options=ROWS)
SLOW = problem_for(CTRDNN, CLOUD, 1e5, options=ROWS)


class Answer:
    """The plan for a problem, and what is computed about it for those tests that ask."""

    def __init__(self, problem):
        self.problem = problem

    @cached_property
    def outcome(self):
        return exact(self.problem, Budget())

    @cached_property
    def found(self):
        return candidates(self.problem, self.outcome)

    @cached_property
    def sentences(self):
        return explain(self.outcome, self.found)


@pytest.fixture(scope="module")
def fast():
    return Answer(FAST)


@pytest.fixture(scope="module")
def slow():
    return Answer(SLOW)


@pytest.mark.slow
def test_the_choice_comes_first_and_no_candidate_is_cheaper(fast):
    found = fast.found
    costs = [one.plan.cost_usd for one in found if one.plan]
    assert found[0].chosen
    assert sum(one.chosen for one in found) == 1
    assert costs == sorted(costs)


def test_candidates_differ_in_their_devices_and_all_hold(fast):
    found = fast.found
    sets = [
        frozenset(one.plan.worker_counts)
        for one in found
        if one.plan and one.name not in (*FIXED_PLANS, LEAST)
    ]
    assert len(sets) == len(set(sets)) > 2
    assert not [what for one in found if one.plan for what in one.plan.violations()]


@pytest.mark.slow
def test_the_fixed_plans_are_always_there_and_say_when_they_fail(fast, slow):
    for answer in (fast, slow):
        names = " ".join(one.name for one in answer.found)
        assert all(name in names for name in ("cpu-only", "gpu-only", "heuristic"))
    assert all(one.note for one in fast.found if one.plan is None)


@pytest.mark.slow
def test_a_fixed_plan_that_is_the_optimum_lends_its_name():
    problem = problem_for(CTRDNN, ["T4"], 1e6, options=ON_SERVERS)
    found = candidates(problem, exact(problem, Budget()))
    assert found[0].name == "exact, gpu-only"


def test_equal_plans_with_other_micro_batches_are_one_candidate():
    problem = problem_for(CTRDNN, ["T4"], 1e6, options=ON_SERVERS)
    plan = exact(problem, Budget()).plan
    shifted = tuple(replace(stage, compute_s=0.9 * stage.compute_s) for stage in plan.stages)
    other = replace(plan, schedule=replace(plan.schedule, micro=2 * plan.schedule.micro), stages=shifted)
    assert [one.name for one in _merged([Candidate("exact", plan)], Candidate("gpu-only", other))] == [
        "exact, gpu-only"
    ]


@pytest.mark.slow
def test_one_more_replica_is_computed_with_the_servers_and_readers_it_needs(slow):
    outcome, sentences = slow.outcome, slow.sentences
    plan = outcome.plan
    assert len(plan.stages) == 1
    more = with_counts(SLOW.at(LARGEST), plan.schedule, plan.cuts, [plan.stages[0].replicas + 1])
    said = next(text for text in sentences if text.startswith("One more"))
    assert more.throughput > plan.throughput
    assert more.readers > plan.readers
    assert format_rate(more.throughput) in said
    assert format_usd(more.cost_usd) in said


@pytest.mark.slow
def test_whether_the_throughput_binds_is_true_in_both_cases(slow):
    free = exact(FAST.at(1.0), Budget()).plan
    more = explain(exact(FAST.at(1.05 * free.throughput), Budget()), [])
    said = next(text for text in more if text.startswith("The throughput"))
    assert "binds" in said
    assert format_usd(free.cost_usd) in said
    assert any(text.startswith("The throughput does not bind") for text in slow.sentences)
    assert exact(SLOW.at(1.0), Budget()).plan.cost_usd == pytest.approx(slow.outcome.plan.cost_usd)


@pytest.mark.slow
def test_a_limit_that_binds_is_named_with_what_it_costs():
    few = problem_for(CTRDNN, CLOUD, 5e5, forbid=["V100", "A100-40", "H100"], options=ON_SERVERS)
    limited = few.with_limits({"T4": 2})
    outcome = exact(limited, Budget())
    free = exact(limited.with_limits({"T4": 10**9}), Budget()).plan
    said = [text for text in explain(outcome, []) if text.startswith("The limit of 2 T4")]
    assert outcome.plan.device_counts["T4"] == 2
    assert said == [
        f"The limit of 2 T4 binds: with {free.device_counts['T4']} of them "
        f"the training would cost {format_usd(free.cost_usd)}."
    ]


@pytest.mark.slow
def test_one_more_replica_whose_servers_exceed_the_limit_is_not_offered():
    problem = problem_for(CTRDNN, CLOUD, 1.0, options=ON_SERVERS).with_limits({"cpu-core": 200})
    plan = fastest_under(problem, 2.0).plan
    assert plan.device_counts["cpu-core"] <= 200
    said = next(text for text in explain(fastest_under(problem, 2.0), []) if text.startswith("One more"))
    assert "is not possible" in said
    assert "there are only 200" in said


@pytest.mark.slow
def test_a_bottleneck_at_its_limit_is_reported():
    only = problem_for(CTRDNN, CLOUD, 1e5, forbid=["V100", "A100-40", "H100"], options=ON_SERVERS)
    outcome = exact(only.with_limits({"T4": 1}).without("cpu-core"), Budget())
    assert "It can't get another replica: there are only 1 T4." in explain(outcome, [])


@pytest.mark.slow
def test_what_pins_cost_is_the_difference():
    pinned = apply_pins(SLOW, ["emb=cpu"])
    outcome = exact(pinned, Budget())
    extra = outcome.plan.cost_usd - exact(SLOW, Budget()).plan.cost_usd
    assert any(f"The pins cost {format_usd(extra)}" in text for text in explain(outcome, []))
    kept = apply_pins(SLOW, [f"emb={exact(SLOW, Budget()).plan.stages[0].type_name}"])
    assert "The pins cost nothing: the best plan satisfies them anyway." in explain(exact(kept, Budget()), [])


def test_the_next_best_has_other_devices_and_its_own_price(fast):
    outcome, found, sentences = fast.outcome, fast.found, fast.sentences
    second = min(
        (
            one.plan
            for one in found
            if one.plan and set(one.plan.worker_counts) != set(outcome.plan.worker_counts)
        ),
        key=lambda plan: plan.cost_usd,
    )
    said = next(text for text in sentences if text.startswith("Next best"))
    assert device_mix(second) in said
    assert format_usd(second.cost_usd) in said


@pytest.mark.slow
def test_a_proof_that_was_not_checked_is_not_called_checked(fast):
    outcome, sentences = fast.outcome, fast.sentences
    steps = outcome.certificate.steps
    assert f"shortest paths, {steps} steps that --certificate checks independently)" in sentences[-1]
    assert f"{steps} steps checked independently" in explain(outcome, [], checked=True)[-1]


def test_a_short_proof_is_checked_at_once():
    problem = problem_for(CTRDNN, ["T4"], 1e6, options=ON_SERVERS)
    assert re.search(r"\d+ steps? checked independently", explain(exact(problem, Budget()), [])[-1])


@pytest.mark.slow
def test_a_false_proof_is_never_printed(fast):
    outcome = fast.outcome
    false = replace(outcome.certificate, lower=outcome.certificate.lower * 2)
    with pytest.raises(InputError, match="the proof of this plan does not hold"):
        explain(replace(outcome, certificate=false), [], checked=True)


def test_the_plan_space_names_the_micro_batches_and_the_batch():
    assert "a step has 1, 2, 4, 8, 16 or 32 micro-batches" in plan_space(FAST)
    assert "65,536 examples" in plan_space(FAST)
    own = problem_for(CTRDNN, CLOUD, 1e6, options=WorldOptions(mode="async", batch_per_replica=512))
    assert "micro-batch" not in plan_space(own)
    assert "512 examples per replica" in plan_space(own)


@pytest.mark.slow
def test_a_search_that_proves_nothing_is_held_against_the_optimum():
    outcome = get_method("cpu-only")(SLOW, Budget())
    best = exact(SLOW, Budget()).plan
    said = explain(outcome, [])[-1]
    assert f"{outcome.plan.cost_usd / best.cost_usd - 1:.2%} above the optimum" in said


def test_a_stage_takes_what_its_parts_take_in_its_schedule(fast, slow):
    for outcome in (fast.outcome, slow.outcome):
        for stage in outcome.plan.stages:
            alone = with_counts(
                outcome.plan.problem,
                outcome.plan.schedule,
                outcome.plan.cuts,
                [one.replicas for one in outcome.plan.stages],
                [10**6] * len(outcome.plan.stages),
            )
            row = outcome.plan.stages.index(stage)
            assert own_s(outcome.plan, stage) == pytest.approx(alone.stages[row].time_s)


def test_servers_limit_a_stage_only_if_it_waits_for_them():
    problem = problem_for(CTRDNN, CLOUD, 3e6, options=ON_SERVERS)
    plan = exact(problem, Budget()).plan
    stage = plan.stages[0]
    assert limit_of(plan, stage) != "servers"
    counts = [one.replicas for one in plan.stages]
    starved = with_counts(problem, plan.schedule, plan.cuts, counts, [stage.servers // 2], plan.readers)
    assert limit_of(starved, starved.stages[0]) == "servers"
    assert limited_by(starved) == "servers"


# --- the reason of each stage ---


def test_the_reason_of_a_stage_says_where_its_tables_fit():
    problem = problem_for(CTRDNN, CLOUD, 3e6, forbid=["T4", "A100-40"], options=ROWS)
    plan = exact(problem, Budget()).plan
    stage = plan.stages[0]
    assert (stage.type_name, stage.tables) == ("H100", "machine")
    table_bytes = 1e9 * (2 * CTRDNN.layers[0].row_bytes + 58)
    said = stage_reason(plan, 0)
    assert f"tables of {format_bytes(table_bytes)} fit into {stage.replicas} x 80GiB" in said
    assert "rows stay inside one machine" in said
    assert f"{stage.replicas} is the least that its memory needs" in said
    assert stage.replicas == math.ceil(table_bytes / (80 * 2**30))
    assert "limited by compute" in said


def test_the_reason_of_a_count_is_the_machine_or_the_staleness():
    world = WorldOptions(rows=1e6, mode="async", staleness=2, tables=("machine",))
    plan = exact(problem_for(CTRDNN, ["T4"], 1e6, options=world), Budget()).plan
    assert plan.stages[0].replicas == 3
    assert "the staleness allows no more than 3" in stage_reason(plan, 0)
    assert "It can't get another replica: it may have 3 at most." in explain(
        exact(plan.problem, Budget()), []
    )
    free = exact(problem_for(CTRDNN, ["T4"], 1e6, options=replace(world, staleness=None)), Budget()).plan
    assert free.stages[0].replicas == 8
    assert "a machine has no more than 8" in stage_reason(free, 0)


@pytest.mark.slow
def test_what_costs_least_per_hour_is_listed_and_holds(slow):
    found = slow.found
    least = next(one.plan for one in found if one.name == "least $/h")
    assert not least.violations()
    assert least.usd_per_hour == min(one.plan.usd_per_hour for one in found if one.plan)


@pytest.mark.slow
def test_whole_machines_at_the_same_price_are_listed_once():
    problem = problem_for(CTRDNN, CLOUD, 3e6, options=WorldOptions(whole_machines=True))
    found = candidates(problem, exact(problem, Budget()))
    rented = [(device_mix(one.plan), round(one.plan.usd_per_hour, 6)) for one in found if one.plan]
    assert len(rented) == len(set(rented))
    least = next(one.plan for one in found if LEAST in one.name)
    assert least.usd_per_hour == min(one.plan.usd_per_hour for one in found if one.plan)


@pytest.mark.slow
def test_servers_of_a_stage_without_tables_hold_dense_parameters():
    async_mode = WorldOptions(mode="async", tables=("servers",))
    one = exact(problem_for(CTRDNN, ["T4"], 1e6, options=async_mode), Budget()).plan
    assert "tables and dense parameters of" in stage_reason(one, 0)
    problem = one.problem
    cut = CTRDNN.names.index("concat")
    cuts = [(0, cut - 1, 0), (cut, len(CTRDNN.names) - 1, 0)]
    two = with_counts(problem, schedule_for(problem, 2, 1), cuts, [8, 8])
    assert stage_reason(two, 1).startswith("dense parameters of")
    assert "tables" in stage_reason(two, 0)
    world = WorldOptions(rows=1e6, mode="async", tables=("machine",))
    resident = exact(problem_for(CTRDNN, ["T4"], 1e6, options=world), Budget()).plan
    assert "; dense parameters of" in stage_reason(resident, 0)


def test_the_server_cores_of_a_stage_are_counted_by_lookups_nic_and_memory():
    problem = problem_for(CTRDNN, CLOUD, 3e6, options=ON_SERVERS)
    plan = exact(problem, Budget()).plan
    stage, layer = plan.stages[0], CTRDNN.layers[0]
    said = re.search(
        r"on (\d+) server cores: (\d+) by lookups, (\d+) by NIC, (\d+) by memory", stage_reason(plan, 0)
    )
    cores, lookups, nic, memory = map(int, said.groups())
    assert cores == stage.servers == max(lookups, nic, memory)
    call = problem.batch / stage.replicas / plan.micro
    rows_per_s = layer.touched_rows(call, CTRDNN.batch) / call * plan.throughput
    bytes_per_s = rows_per_s * (layer.row_bytes + 2 * KEY_BYTES)
    assert nic == pytest.approx(bytes_per_s / (25e9 / 8 / 48) / 0.7, rel=0.1)  # 48 cores share 25 Gbit/s
    assert memory == math.ceil(1e9 * (2 * layer.row_bytes + 58) / (192 * 2**30 / 48))
    assert 1 <= lookups < nic


def test_a_stated_problem_has_reasons_too():
    problem = make_problem(
        batch=1, throughput=2, types=(DevicePool("x", 1.0),), layers=("a",), oct_s=1, odt_s=3, alpha=1, beta=1
    )
    plan = exact(problem, Budget()).plan
    assert stage_reason(plan, 0) == "limited by data (compute 33%, data in 100% of a step)"
    assert "states all times" in plan_space(problem)


@pytest.mark.slow
def test_a_plan_that_is_faster_than_asked_says_why(slow):
    outcome, found, sentences = slow.outcome, slow.found, slow.sentences
    times = outcome.plan.throughput / 1e5
    said = next(text for text in sentences if text.startswith("It is"))
    assert f"It is {times:.2g} times as fast as asked" in said
    least = min((one.plan for one in found if one.plan), key=lambda plan: plan.usd_per_hour)
    assert device_mix(least) in said


# --- what is rented ---


@pytest.mark.parametrize(
    "world",
    [
        ROWS,
        ON_SERVERS,
        WorldOptions(rows=1e9, mode="async"),
        WorldOptions(rows=1e9, whole_machines=True),
        WorldOptions(rows=1e9, tables=("disk", "servers"), whole_machines=True),
    ],
)
def test_what_is_rented_adds_up_to_the_price(world):
    plan = exact(problem_for(CTRDNN, CLOUD, 2e6, options=world), Budget()).plan
    pools = rented_pools(plan)
    assert sum(pool.usd_per_hour for pool in pools) == pytest.approx(plan.usd_per_hour)
    paid = Counter()
    for pool in pools:
        paid[pool.type_name] += pool.paid
    assert paid["cpu-core"] - 1 == plan.device_counts["cpu-core"]  # the coordinator has the fixed price
    assert all(0 <= pool.nic_load <= 1 + 1e-6 for pool in pools if pool.nic_load is not None)
    if world.whole_machines:
        assert all(pool.machines == int(pool.machines) for pool in pools if pool.machines)


def test_the_nics_of_a_stage_carry_rows_and_inputs():
    plan = exact(problem_for(CTRDNN, CLOUD, 3e6, options=ON_SERVERS), Budget()).plan
    stage, layer = plan.stages[0], CTRDNN.layers[0]
    call = plan.problem.batch / stage.replicas / plan.micro
    rows = layer.touched_rows(call, CTRDNN.batch) / call
    into = rows * (layer.row_bytes + KEY_BYTES) + layer.input_bytes / CTRDNN.batch
    out = rows * (layer.row_bytes + 2 * KEY_BYTES)
    assert stage.type_name == "H100"
    expected = max(into, out) * plan.throughput / (stage.replicas * 3200e9 / 8 / 8)
    assert rented_pools(plan)[0].nic_load == pytest.approx(expected)


def test_the_range_of_the_throughput_is_that_of_slower_and_faster_devices(slow):
    plan = slow.outcome.plan
    low, high = throughput_range(plan)
    assert low < plan.throughput <= high * (1 + 1e-9)
    spread = CTRDNN.on(plan.stages[0].type_name).uncertainty
    assert low > plan.throughput / (1 + spread) * (1 - 1e-9)


@pytest.mark.parametrize(("share", "missed"), [(1.0, True), (0.5, False)])
def test_a_range_that_ends_below_the_throughput_says_so(share, missed):
    outcome = exact(problem_for(CTRDNN, ["T4"], 1e6, options=ON_SERVERS), Budget())
    low, _ = throughput_range(outcome.plan)
    asked = outcome.plan.problem.at(1e6 * share)
    assert (low < asked.throughput) is missed
    request = PlanRequest(throughput=asked.throughput, model="ctrdnn", devices=("T4",))
    report = PlanReport(Solution(request, asked, outcome), [], [], [])
    line = next(text for text in figure_lines(report) if text.startswith("within the uncertainty"))
    assert line.endswith("; the lower end misses the 1M/s asked for") is missed


def test_a_stated_problem_has_no_uncertain_times_also_if_another_plan_costs_less_by_rounding():
    layers = [{"name": f"fc{at}", "oct": [one, 4 * one], "odt": [0, 0]} for at, one in enumerate((0.3, 0.7))]
    for layer in layers:
        layer |= {"alpha": [0.9, 0.9], "beta": [0.9, 0.9]}
    types = [{"name": "a", "usd_per_hour": 4.0}, {"name": "b", "usd_per_hour": 1.0}]
    stated = {"batch": 100, "throughput": 50, "samples": 36000, "types": types, "layers": layers}
    plan = exact(parse_problem(json.dumps(stated), "p.json"), Budget()).plan
    cheaper = SimpleNamespace(cost_usd=plan.cost_usd * (1 - 1e-12), worker_counts=plan.worker_counts)
    assert list(flips(plan, cheaper)) == []


def test_the_choice_flips_where_the_sentence_says(fast):
    outcome, sentences = fast.outcome, fast.sentences
    said = next(text for text in sentences if text.startswith("That is within the uncertainty"))
    mix, name, percent = re.search(r"flips to (.*) if those of (\S+) are about (\d+)% longer", said).groups()
    used = set(outcome.plan.worker_counts)
    assert name in used
    below, above = (
        exact(with_times_scaled(FAST, {name: 1 + (int(percent) + more) / 100}), Budget()).plan
        for more in (-3, 1)
    )
    assert set(below.worker_counts) == used
    assert set(above.worker_counts) != used
    assert mix.split()[1] in above.worker_counts


def test_the_row_next_best_is_the_plan_of_the_sentence():
    problem = make_problem(
        batch=4096,
        throughput=1e5,
        fixed_usd_per_hour=0.08,
        types=(DevicePool("cpu-core", 0.04, 768), DevicePool("T4", 0.526, 40), DevicePool("V", 2.0, 8)),
        layers=("embedding", "fc1", "fc2"),
        kinds=("embedding", "fc", "fc"),
        oct_s=[[0.0125, 0.00068, 0.0005], [0.2, 0.004, 0.001], [0.1, 0.002, 0.0005]],
        odt_s=[[0.019, 0.0061, 0.006], [0.01, 0.001, 0.001], [0.01, 0.001, 0.001]],
        alpha=[1, 0.97, 0.97],
        beta=[0.86, 0.89, 0.9],
        cross_s=[0.0131, 0.001, 0.0],
    )
    outcome = exact(problem, Budget())
    found = candidates(problem, outcome)
    used = set(outcome.plan.worker_counts)
    others = [one for one in found if one.plan and set(one.plan.worker_counts) != used]
    row = min(others, key=lambda one: one.plan.cost_usd)
    assert [one.name for one in found if NEXT_BEST in one.name] == [row.name] == [f"{NEXT_BEST}, heuristic"]
    said = next(text for text in explain(outcome, found) if text.startswith("Next best"))
    assert f"{device_mix(row.plan)} for {format_usd(row.plan.cost_usd)}" in said


def test_cores_of_readers_are_named_where_only_gpus_were_asked_for():
    plan = exact(problem_for(CTRDNN, ["T4"], 1e6, options=ON_SERVERS), Budget()).plan
    cores = plan.servers + plan.readers
    assert device_mix(plan) == f"{plan.stages[0].replicas} T4 + {cores} cpu-core"


def test_a_cost_per_billion_is_the_cost_of_a_billion(slow):
    assert cost_per_billion(slow.outcome.plan) == pytest.approx(slow.outcome.plan.cost_usd)


def test_every_device_says_measured_or_modelled():
    sources = provenance(FAST)
    assert sources["cpu-core"].startswith("measured")
    assert all(text.startswith("modelled") for name, text in sources.items() if name != "cpu-core")


def test_a_fixed_plan_has_gaps_where_it_is_too_slow():
    costs = fixed_plan_costs(SLOW, "gpu-only", [1e4, 1e9])
    assert costs[0] > 0
    assert costs[1] is None


@pytest.mark.parametrize("rate", [1.0, 999.9, 123456.7, 4290270.3, 5e-7])
def test_rates_are_rounded_down_to_three_digits(rate):
    assert rate * 0.989 <= round_down(rate) <= rate
    assert len(f"{round_down(rate):e}".split("e")[0].rstrip("0")) <= 4


# --- choosing ---


def refusal(problem, outcome):
    return no_plan_error(problem, outcome, no_plan_reason(problem, outcome))


@pytest.mark.slow
def test_the_fastest_under_a_price_is_under_it_and_nothing_faster_is():
    most = exact(SLOW.at(1.0), Budget()).plan.cost_usd * 1.1
    outcome = search(SLOW.at(1.0), SearchOptions(), most)
    plan = outcome.plan
    assert plan.cost_usd <= most
    assert exact(SLOW.at(plan.throughput * 1.00001), Budget()).plan.cost_usd > most
    said = explain(outcome, [], max_usd=most)
    assert any(text.startswith("The price binds") for text in said)


@pytest.mark.slow
def test_a_price_below_the_cheapest_is_refused_with_the_cheapest():
    best = exact(SLOW.at(1.0), Budget()).plan
    with pytest.raises(InputError, match=re.escape(format_usd(best.cost_usd))):
        search(SLOW.at(1.0), SearchOptions(), best.cost_usd / 2)


@pytest.mark.slow
def test_a_preferred_type_is_taken_if_it_costs_little_more():
    best = exact(SLOW, Budget()).plan
    (own,) = best.worker_counts
    assert own != "A100-40"
    dear = search(SLOW, SearchOptions(prefer=("A100-40",), within=0.01))
    assert set(dear.plan.worker_counts) == {own}
    assert "no plan on A100-40 alone is within 1%" in dear.note
    taken = search(SLOW, SearchOptions(prefer=("A100-40",), within=10.0))
    assert set(taken.plan.worker_counts) == {"A100-40"}
    assert taken.lower_bound_usd == pytest.approx(best.cost_usd)
    both = search(SLOW, SearchOptions(prefer=("A100-40", own), within=0.0))
    assert set(both.plan.worker_counts) == {own}


@pytest.mark.slow
def test_an_impossible_throughput_is_refused_with_the_nearest():
    problem = SLOW.at(1e9)
    error = refusal(problem, exact(problem, Budget()))
    nearest = re.search(r"the highest throughput with a plan: ([\d.]+)M/s", str(error))
    rate = float(nearest[1]) * 1e6
    assert exact(SLOW.at(rate), Budget()).plan is not None
    assert exact(SLOW.at(rate * 1.02), Budget()).plan is None


@pytest.mark.slow
def test_a_method_that_misses_a_plan_does_not_call_the_problem_infeasible():
    problem = SLOW.at(3e6)
    outcome = get_method("cpu-only")(problem, Budget())
    assert outcome.plan is None
    assert "exact finds one" in no_plan_reason(problem, outcome).reason
    assert "cpu-only found no plan" in str(refusal(problem, outcome))


# --- the job that falls out ---


def test_the_job_is_the_gang_that_reduces_gradients():
    plan = exact(FAST, Budget()).plan
    job, stage = planned_job(plan)
    layers = CTRDNN.layers[stage.first : stage.last + 1]
    assert job.parameter_bytes.value == sum(layer.dense_bytes for layer in layers)
    assert job.compute_s[stage.type_name].value == pytest.approx(stage.compute_s * plan.problem.batch)
    assert job.batch == round(plan.problem.batch / stage.replicas)
    assert job.compute_s[stage.type_name].source.kind == "modelled"


@pytest.mark.slow
def test_the_job_profile_reads_back(tmp_path):
    from berth.workload.profiles import load_profile

    job, _ = planned_job(exact(SLOW, Budget()).plan)
    path = tmp_path / "job.yaml"
    path.write_text(job_profile_yaml(job))
    again = load_profile(path)
    assert again.parameter_bytes.value == job.parameter_bytes.value
    assert again.all_to_all_bytes.value == job.all_to_all_bytes.value > 0
    assert again.compute_s == job.compute_s


@pytest.mark.slow
def test_binding_constraints_are_those_of_the_optimum_not_of_an_expensive_plan():
    dear = get_method("cpu-only")(SLOW, Budget())
    said = explain(dear, [])
    assert dear.plan.cost_usd > exact(SLOW, Budget()).plan.cost_usd * 1.01
    assert any(text.startswith("The throughput does not bind") for text in said)


@pytest.mark.slow
def test_what_pins_cost_is_not_what_a_search_missed():
    best = exact(SLOW, Budget()).plan
    kept = apply_pins(SLOW, [f"emb={best.stages[0].type_name}"])
    dear = get_method("random")(kept, Budget(evaluations=1))
    assert dear.plan.cost_usd > best.cost_usd * 1.01
    assert "The pins cost nothing: the best plan satisfies them anyway." in explain(dear, [])


def test_a_search_that_missed_a_barely_feasible_plan_asks_for_a_larger_budget():
    just = FAST.at(exact(FAST, Budget()).plan.throughput * (1 + 5e-10))
    missed = get_method("cpu-only")(just, Budget())
    assert missed.plan is None
    assert "exact finds one" in str(refusal(just, missed))
    assert "larger --budget" in str(refusal(just, missed))
