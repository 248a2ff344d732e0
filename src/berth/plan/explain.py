"""The plans to choose from, and the reasons for the chosen one in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from berth.plan.build import restrict_to_types
from berth.plan.certificate import check
from berth.plan.plan import Plan, with_replicas
from berth.plan.problem import UNLIMITED, Problem
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget, Outcome, get_method
from berth.units import format_count, format_rate, format_seconds, format_usd

FIXED_PLANS = ("cpu-only", "gpu-only", "heuristic")
NEXT_BEST = "next best"
_ALL_SUBSETS = 6  # up to this many types, every subset of them is tried
_QUICK = Budget(seconds=2.0)  # for each alternative
_SAME = 1e-9
_LARGE = 500_000  # layers^2 x types
_SHOWN = 5
PLAN_SPACE = (  # what a proof covers
    "plan space: each stage is a maximal run of layers on one device type, so a cut is only possible where the type "
    "changes. Not modelled: devices that share a machine's NIC, the servers' NICs, other batch sizes, tables larger "
    "than the profile's. --objective simulate evaluates a plan with fill, drain and shared links"
)
_CHECKED_LAYERS = 64  # with more layers the checker (plain Python) takes too long


@dataclass(frozen=True)
class Candidate:
    """A plan that could have been chosen; if there is none, the note says why."""

    name: str
    plan: Plan | None
    note: str = ""
    chosen: bool = False


def candidates(problem: Problem, outcome: Outcome, shown: int = _SHOWN) -> list[Candidate]:
    """Return the choice, the best plans with other devices, and the fixed plans; cheapest first, failures last."""
    chosen = outcome.plan
    found = [Candidate(outcome.method, chosen, chosen=True)] if chosen else []
    others = sorted(_with_other_devices(problem, chosen), key=lambda plan: plan.cost_usd)
    found += [Candidate("" if row else NEXT_BEST, plan) for row, plan in enumerate(others[:shown])]
    for name in FIXED_PLANS:
        fixed = get_method(name)(problem, Budget())
        found = _merged(found, Candidate(name, fixed.plan, fixed.note))
    return sorted(found, key=_rank)


def _rank(one: Candidate) -> tuple[float, bool]:
    return (one.plan.cost_usd if one.plan else float("inf"), not one.chosen)


def _merged(found: list[Candidate], new: Candidate) -> list[Candidate]:
    """Add a candidate; if its plan is already there, add only its name."""
    for at, one in enumerate(found):
        if one.plan and new.plan and one.plan.assignment == new.plan.assignment:
            name = ", ".join(filter(None, [one.name.replace(NEXT_BEST, ""), new.name]))
            return [*found[:at], replace(one, name=name, note=new.note), *found[at + 1 :]]
    return [*found, new]


def _with_other_devices(problem: Problem, chosen: Plan | None) -> Iterator[Plan]:
    """Yield the cheapest plan of every other set of types that a plan really uses."""
    seen = {frozenset(chosen.device_counts)} if chosen else set()
    for names in _sets(problem, chosen):
        plan = exact(restrict_to_types(problem, names), _QUICK).plan
        if plan is not None and frozenset(plan.device_counts) not in seen:
            seen.add(frozenset(plan.device_counts))
            yield replace(plan, problem=problem)


def is_large(problem: Problem) -> bool:
    """Return whether solving takes seconds; then it is not repeated for every set of types."""
    return len(problem.layers) ** 2 * len(problem.types) > _LARGE


def _sets(problem: Problem, chosen: Plan | None) -> Iterator[Sequence[str]]:
    names = problem.type_names
    if is_large(problem):
        return
    if len(names) <= _ALL_SUBSETS:
        for size in range(1, len(names) + 1):
            yield from combinations(names, size)
        return
    yield from ((name,) for name in names)
    for left_out in chosen.device_counts if chosen else ():
        yield [name for name in names if name != left_out]


def fixed_plan_costs(problem: Problem, name: str, rates: Sequence[float]) -> list[float | None]:
    """Return the cost of a fixed plan at each throughput; None where it can't hold it."""
    found = (get_method(name)(problem.at(rate), Budget()).plan for rate in rates)
    return [plan.cost_usd if plan else None for plan in found]


def limited_by(plan: Plan) -> str:
    """Return whether the bottleneck is limited by computation or data, and its type if there are several stages."""
    stage = plan.stages[plan.bottleneck]
    return stage.limited_by if len(plan.stages) == 1 else f"{stage.limited_by}, {stage.type_name}"


def device_mix(plan: Plan) -> str:
    """Return the devices of a plan in the order of its stages: `27 T4 + 6 V100-16`."""
    return " + ".join(f"{count} {name}" for name, count in plan.device_counts.items())


def layer_range(problem: Problem, first: int, last: int) -> str:
    """Return `embedding .. pooling`, or the name of a single layer."""
    names = problem.layers
    return names[first] if first == last else f"{names[first]} .. {names[last]}"


def explain(outcome: Outcome, found: Sequence[Candidate], *, max_usd: float | None = None) -> list[str]:
    """Return the reasons for the choice as sentences."""
    plan = outcome.plan
    if plan is None:
        return []
    optimum = outcome if _is_proven(outcome) else exact(plan.problem, _QUICK)
    least_usd = optimum.plan.cost_usd if optimum.plan else plan.cost_usd
    return [
        _bottleneck(plan),
        _one_more(plan),
        _throughput(plan, least_usd) if max_usd is None else _price(plan, max_usd),
        *_limits(plan, least_usd),
        *_memory(plan),
        *_pins(plan, least_usd),
        *_next_best(plan, found),
        _proof(outcome, optimum),
    ]


def _is_proven(outcome: Outcome) -> bool:
    return outcome.plan is not None and outcome.lower_bound_usd >= outcome.plan.cost_usd * (1 - _SAME)


def _bottleneck(plan: Plan) -> str:
    stage = plan.stages[plan.bottleneck]
    layers = layer_range(plan.problem, stage.first, stage.last)
    replicas = f"{stage.replicas} {stage.type_name}"
    doing = "computing" if stage.limited_by == "compute" else "moving data"
    other, less = ("moving data", stage.data_s) if doing == "computing" else ("computing", stage.compute_s)
    meanwhile = f"{other} takes {format_seconds(less)} in parallel" if less else "there is nothing else to do"
    which = "The one stage" if len(plan.stages) == 1 else f"Stage {plan.bottleneck + 1}"
    return (
        f"{which} ({layers} on {replicas}) is the bottleneck: {format_seconds(stage.time_s)} per example, {doing}; "
        f"{meanwhile}."
    )


def _one_more(plan: Plan) -> str:
    row = plan.bottleneck
    stage = plan.stages[row]
    limit = plan.problem.types[plan.problem.type_index(stage.type_name)].limit
    if plan.device_counts[stage.type_name] >= limit:
        return f"It can't get another replica: there are only {limit} {stage.type_name}."
    replicas = [one.replicas + (at == row) for at, one in enumerate(plan.stages)]
    more = with_replicas(plan.problem, plan.assignment, replicas)
    faster = more.throughput / plan.throughput - 1
    return (
        f"One more {stage.type_name} there: {format_rate(more.throughput)} ({faster:+.1%}) for "
        f"{format_usd(more.cost_usd)} ({more.cost_usd / plan.cost_usd - 1:+.1%})."
    )


def _throughput(plan: Plan, least_usd: float) -> str:
    """Say whether the throughput makes the optimum more expensive."""
    problem = plan.problem
    free = exact(problem.at(problem.throughput * 1e-6), _QUICK).plan
    wanted = format_rate(problem.throughput)
    if free is None or free.cost_usd >= least_usd * (1 - _SAME):
        return f"The throughput does not bind: nothing slower than {wanted} would cost less."
    return (
        f"The throughput binds: at {format_rate(free.throughput)} the training would cost "
        f"{format_usd(free.cost_usd)}, with {device_mix(free)}."
    )


def _price(plan: Plan, max_usd: float) -> str:
    """Say what the next faster plan would cost."""
    faster = exact(plan.problem.at(plan.throughput * (1 + 1e-6)), _QUICK).plan
    if faster is None:
        return "The price does not bind: no plan is faster."
    return (
        f"The price binds: the next faster plan, {format_rate(faster.throughput)}, costs "
        f"{format_usd(faster.cost_usd + plan.problem.serving_usd(faster.throughput))} with reading and serving, above "
        f"{format_usd(max_usd)}."
    )


def _limits(plan: Plan, least_usd: float) -> Iterator[str]:
    for one in plan.problem.types:
        if one.limit >= UNLIMITED or plan.device_counts.get(one.name, 0) < one.limit:
            continue
        free = exact(plan.problem.with_limits({one.name: UNLIMITED}), _QUICK).plan
        if free and free.cost_usd < least_usd * (1 - _SAME):
            yield (
                f"The limit of {one.limit} {one.name} binds: with {free.device_counts.get(one.name, 0)} of them the "
                f"training would cost {format_usd(free.cost_usd)}."
            )


def _memory(plan: Plan) -> Iterator[str]:
    for number, stage in enumerate(plan.stages, 1):
        if stage.replicas == stage.min_replicas > 1:
            yield f"Memory binds: stage {number} needs at least {stage.replicas} {stage.type_name}."


def _pins(plan: Plan, least_usd: float) -> Iterator[str]:
    problem = plan.problem
    if problem.allowed.all():
        return
    free = exact(replace(problem, allowed=problem.allowed | True), _QUICK).plan
    if free and free.cost_usd < least_usd * (1 - _SAME):
        yield f"The pins cost {format_usd(least_usd - free.cost_usd)}: without them {device_mix(free)} would be enough."
    else:
        yield "The pins cost nothing: the best plan satisfies them anyway."


def _next_best(plan: Plan, found: Sequence[Candidate]) -> Iterator[str]:
    others = [
        one.plan for one in found if one.plan and set(one.plan.device_counts) != set(plan.device_counts)
    ]
    if others:
        second = min(others, key=lambda other: other.cost_usd)
        yield (
            f"Next best with other devices: {device_mix(second)} for {format_usd(second.cost_usd)}, "
            f"{times_as_much(second.cost_usd / plan.cost_usd)}."
        )


def times_as_much(ratio: float) -> str:
    """Return `+12.3%`, or `4.1 times as much`."""
    return f"{ratio:.3g} times as much" if ratio >= 2 else f"{ratio - 1:+.1%}"


def _proof(outcome: Outcome, optimum: Outcome) -> str:
    plan, bound = outcome.plan, outcome.lower_bound_usd
    assert plan is not None
    if _is_proven(outcome):
        how = f"{outcome.evaluations:,} {'shortest paths' if outcome.method == 'exact' else 'plans'}"
        return (
            f"No plan in the plan space below costs less: the lower bound is {format_usd(bound)} too "
            f"({how}{_checked(outcome)})."
        )
    if bound > 0:
        gap = 1 - bound / plan.cost_usd
        return (
            f"No plan in the plan space below costs less than {format_usd(bound)}: this one is within {gap:.2%} "
            "of the best."
        )
    best = optimum.plan if _is_proven(optimum) else None
    tried = f"{outcome.method} tried {format_count(outcome.evaluations, 'plan')}"
    if best is None:
        return f"Nothing is proven: {tried}."
    ratio = plan.cost_usd / best.cost_usd - 1
    above = "the optimum" if ratio < _SAME else f"{ratio:.2%} above the optimum ({format_usd(best.cost_usd)})"
    return f"{tried}; its best is {above}, as exact proves."


def _checked(outcome: Outcome) -> str:
    """Check the proof with the checker, which shares no code with the search, and say so."""
    plan = outcome.plan
    if outcome.certificate is None or plan is None or len(plan.problem.layers) > _CHECKED_LAYERS:
        return ""
    wrong = check(plan.problem, plan, outcome.certificate)
    assert not wrong, f"the proof does not hold: {wrong[0]}"
    return f", {format_count(len(outcome.certificate.steps), 'step')} checked independently"


def provenance(problem: Problem) -> dict[str, str]:
    """Return for each type of a model's problem whether its times were measured or modelled, and how."""
    found: dict[str, str] = {}
    for device in problem.source.devices if problem.source else ():
        assert problem.source is not None
        times = problem.source.profile.on(device)
        kinds = {source.kind for source in (times.compute, times.data, times.scaling)}
        how = (
            times.compute.kind
            if len(kinds) == 1
            else f"computation {times.compute.kind}, data {times.data.kind}"
        )
        found[device.name] = f"{how}: {times.compute.note}"
    return found


def round_down(rate: float) -> float:
    """Round to three digits, never up, so that the printed throughput has a plan."""
    step = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return float(f"{math.floor(rate / step * (1 + 1e-12)) * step:.12g}")
