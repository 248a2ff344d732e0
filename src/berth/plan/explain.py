"""The reasons for a plan, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from berth.errors import InputError
from berth.plan.candidates import QUICK, Candidate, next_best
from berth.plan.certificate import check
from berth.plan.plan import Plan, with_counts
from berth.plan.problem import LARGEST, UNLIMITED, Problem
from berth.plan.request import ANY_RATE
from berth.plan.search.exact import exact
from berth.plan.search.method import Outcome
from berth.plan.sensitivity import flips
from berth.plan.stage_reasons import device_mix, layer_range, limit_of, readers_bind, replica_cap, slowest
from berth.units import (
    format_count,
    format_rate,
    format_seconds,
    format_usd,
    format_usd_per_hour,
)

_SAME = 1e-9
_MUCH_FASTER = 1.2
# What a proof covers.
PLAN_SPACE = (
    "plan space: the layers are cut into stages anywhere; each stage has one device type, one place for its tables "
    "and any number of replicas, server cores and reader cores{micro}. Devices share their machine's NIC. Not "
    "modelled: contention above the machines' NICs, stragglers and failures, start-up of machines, loading of "
    "tables, minimum billing times, stages that share a device, other batches than {batch:,.0f} examples{mode}"
)
STATED_SPACE = (
    "plan space: the layers are cut into stages anywhere; each stage has one device type and any number of replicas. "
    "The problem states all times; nothing else is modelled"
)
_QUICK_CHECK = 1200  # choices x proof steps, for few layers: about half a second


def explain(
    outcome: Outcome,
    found: Sequence[Candidate],
    *,
    max_usd: float | None = None,
    checked: bool = False,
    margin: float = 0.0,
) -> list[str]:
    """Return the reasons for the choice as sentences; `checked`: check the proof however long it takes.

    `margin` is the share by which the plan is sized for more than asked.
    """
    plan = outcome.plan
    if plan is None:
        return []
    optimum = outcome if _is_proven(outcome) else exact(plan.problem, QUICK)
    least_usd = optimum.plan.cost_usd if optimum.plan else plan.cost_usd
    return [
        _bottleneck(plan),
        _one_more(plan),
        *(_faster_than_asked(plan, found) if max_usd is None else ()),
        _throughput(plan, least_usd) if max_usd is None else _price(plan, max_usd),
        *_limits(plan, least_usd),
        *_memory(plan),
        *_pins(plan, least_usd),
        *_next_best(plan, found, sensitive=max_usd is None and _is_proven(outcome)),
        _proof(outcome, optimum, checked, max_usd is not None, margin),
    ]


def _is_proven(outcome: Outcome) -> bool:
    return outcome.plan is not None and outcome.lower_bound_usd >= outcome.plan.cost_usd * (1 - _SAME)


_DOING = {
    "compute": "computing",
    "data": "moving data",
    "servers": "waiting for its servers",
    "all-reduce": "in the all-reduce",
}


def _bottleneck(plan: Plan) -> str:
    if readers_bind(plan):
        return f"The {plan.readers} reader cores are the bottleneck: {format_seconds(plan.reader_s)} per example."
    row = slowest(plan)
    stage = plan.stages[row]
    layers = layer_range(plan.problem, stage.first, stage.last)
    which = "The one stage" if len(plan.stages) == 1 else f"Stage {row + 1}"
    return (
        f"{which} ({layers} on {stage.replicas} {stage.type_name}) is the bottleneck: "
        f"{format_seconds(stage.time_s)} per example, most of it {_DOING[limit_of(plan, stage)]}."
    )


def _one_more(plan: Plan) -> str:
    if readers_bind(plan):
        more = replace(plan, readers=plan.readers + 1)
        return (
            _too_many_cores("One more reader core", more) or f"One more reader core: {_change(plan, more)}."
        )
    row = slowest(plan)
    stage = plan.stages[row]
    limit = plan.problem.types[plan.problem.type_index(stage.type_name)].limit
    cap = replica_cap(plan.problem, stage)
    if plan.device_counts[stage.type_name] >= limit:
        return f"It can't get another replica: there are only {limit} {stage.type_name}."
    if stage.replicas >= cap:
        return f"It can't get another replica: it may have {cap} at most."
    replicas = [one.replicas + (at == row) for at, one in enumerate(plan.stages)]
    # Sized for the fastest step that these replicas allow, then judged at the throughput wanted.
    fast = with_counts(plan.problem.at(LARGEST), plan.schedule, plan.cuts, replicas)
    more, which = replace(fast, problem=plan.problem), f"One more {stage.type_name} there"
    return _too_many_cores(which, more) or f"{which}: {_change(plan, more)}."


def _too_many_cores(which: str, plan: Plan) -> str | None:
    """Return the limit on the cores of servers and readers if the plan exceeds it."""
    problem = plan.problem
    if problem.host.device < 0:
        return None
    one = problem.types[problem.host.device]
    count = plan.device_counts[one.name]
    if count <= one.limit:
        return None
    return f"{which} is not possible: at full speed it takes {count} {one.name}, there are only {one.limit}."


def _change(plan: Plan, more: Plan) -> str:
    """Return throughput and cost of another plan, and by how much they differ."""
    return (
        f"{format_rate(more.throughput)} ({more.throughput / plan.throughput - 1:+.1%}) for "
        f"{format_usd(more.cost_usd)} ({more.cost_usd / plan.cost_usd - 1:+.1%})"
    )


def _faster_than_asked(plan: Plan, found: Sequence[Candidate]) -> Iterator[str]:
    """Say why a plan is much faster than it has to be, and what costs less per hour."""
    wanted = plan.problem.throughput
    if wanted <= ANY_RATE or plan.throughput < _MUCH_FASTER * wanted:
        return
    slow = [one.plan for one in found if one.plan and one.plan.usd_per_hour < plan.usd_per_hour]
    least = min(slow, key=lambda other: other.usd_per_hour, default=None)
    hourly = (
        f"; least per hour: {device_mix(least)}, {format_usd_per_hour(least.usd_per_hour)}" if least else ""
    )
    yield (
        f"It is {_times(plan.throughput / wanted)} times as fast as asked, because the whole training costs less that "
        f"way{hourly}."
    )


def _times(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 99.5 else f"{ratio:,.0f}"


def _throughput(plan: Plan, least_usd: float) -> str:
    """Say whether the throughput makes the optimum more expensive."""
    problem = plan.problem
    free = exact(problem.at(problem.throughput * 1e-6), QUICK).plan
    wanted = format_rate(problem.throughput)
    if free is None or free.cost_usd >= least_usd * (1 - _SAME):
        return f"The throughput does not bind: nothing slower than {wanted} would cost less."
    return (
        f"The throughput binds: at {format_rate(free.throughput)} the training would cost "
        f"{format_usd(free.cost_usd)}, with {device_mix(free)}."
    )


def _price(plan: Plan, max_usd: float) -> str:
    """Say what the next faster plan would cost."""
    faster = exact(plan.problem.at(plan.throughput * (1 + 1e-6)), QUICK).plan
    if faster is None:
        return "The price does not bind: no plan is faster."
    return (
        f"The price binds: the next faster plan, {format_rate(faster.throughput)}, costs "
        f"{format_usd(faster.cost_usd)}, above {format_usd(max_usd)}."
    )


def _limits(plan: Plan, least_usd: float) -> Iterator[str]:
    for one in plan.problem.types:
        if one.limit >= UNLIMITED or plan.device_counts.get(one.name, 0) < one.limit:
            continue
        free = exact(plan.problem.with_limits({one.name: UNLIMITED}), QUICK).plan
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
    free = exact(problem.allowing(problem.allowed | True), QUICK).plan
    if free and free.cost_usd < least_usd * (1 - _SAME):
        yield f"The pins cost {format_usd(least_usd - free.cost_usd)}: without them {device_mix(free)} would be enough."
    else:
        yield "The pins cost nothing: the best plan satisfies them anyway."


def _next_best(plan: Plan, found: Sequence[Candidate], sensitive: bool) -> Iterator[str]:
    second = next_best(plan, found)
    if second and second.plan:
        cost = second.plan.cost_usd
        yield (
            f"Next best in the table with other devices: {device_mix(second.plan)} for {format_usd(cost)}, "
            f"{times_as_much(cost / plan.cost_usd)}."
        )
        if sensitive:
            yield from flips(plan, second.plan)


def times_as_much(ratio: float) -> str:
    """Return `+12.3%`, or `4.1 times as much`."""
    return f"{ratio:.3g} times as much" if ratio >= 2 else f"{ratio - 1:+.1%}"


def _proof(outcome: Outcome, optimum: Outcome, checked: bool, fastest: bool, margin: float) -> str:
    plan, bound = outcome.plan, outcome.lower_bound_usd
    assert plan is not None
    space = "in the plan space below"
    if margin:
        space += f" that reaches {format_rate(plan.problem.throughput)}, the throughput with its margin,"
    if _is_proven(outcome):
        how = f"{outcome.evaluations:,} {'shortest paths' if outcome.method == 'exact' else 'plans'}"
        return (
            f"No plan {space} {'is as fast and ' if fastest else ''}costs less: the lower bound "
            f"is {format_usd(bound)} too "
            f"({how}{_checked(outcome, checked)})."
        )
    if bound > 0:
        gap = 1 - bound / plan.cost_usd
        return (
            f"No plan {space} costs less than {format_usd(bound)}: this one is within {gap:.2%} of the best."
        )
    best = optimum.plan if _is_proven(optimum) else None
    tried = f"{outcome.method} tried {format_count(outcome.evaluations, 'plan')}"
    if best is None:
        return f"Nothing is proven: {tried}."
    ratio = plan.cost_usd / best.cost_usd - 1
    above = "the optimum" if ratio < _SAME else f"{ratio:.2%} above the optimum ({format_usd(best.cost_usd)})"
    return f"{tried}; its best is {above}, as exact proves."


def _checked(outcome: Outcome, wanted: bool) -> str:
    """Check the proof with the checker, which shares no code with the search, and say so; only if that is quick."""
    plan, proof = outcome.plan, outcome.certificate
    if proof is None or plan is None:
        return ""
    work = len(plan.problem.choices) * proof.steps * (1 + len(plan.problem.layers) ** 2 / 700)
    if work > _QUICK_CHECK and not wanted:
        return f", {format_count(proof.steps, 'step')} that --certificate checks independently"
    wrong = check(plan.problem, plan, proof)
    if wrong:
        raise InputError(
            f"the proof of this plan does not hold: {wrong[0]}",
            hint="this is a defect of berth, not of your input; --method greedy plans without a proof",
        )
    return f", {format_count(proof.steps, 'step')} checked independently"


def plan_space(problem: Problem) -> str:
    """Return what a proof about the problem covers, and what it leaves out."""
    if problem.source is None:
        return STATED_SPACE
    if not problem.micro:
        return PLAN_SPACE.format(micro="", batch=problem.batch, mode=" per replica")
    *others, last = problem.micro
    count = f"{', '.join(map(str, others))} or {last}" if others else str(last)
    micro = f"; a step has {count} micro-batch{'es' if last > 1 else ''}"
    return PLAN_SPACE.format(micro=micro, batch=problem.batch, mode="")


def provenance(problem: Problem) -> dict[str, str]:
    """Return for each type of a model's problem whether its times were measured or modelled, and how."""
    found: dict[str, str] = {}
    for device in problem.source.devices if problem.source else ():
        assert problem.source is not None
        times = problem.source.profile.on(device)
        found[device.name] = f"{times.compute.kind}: {times.compute.note}"
    return found


def round_down(rate: float) -> float:
    """Round to three digits, never up, so that the printed throughput has a plan."""
    step = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return float(f"{math.floor(rate / step * (1 + 1e-12)) * step:.12g}")
