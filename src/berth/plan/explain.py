"""The plans to choose from, and the reasons for the chosen one in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from berth.errors import InputError
from berth.plan.certificate import check
from berth.plan.pins import restrict_to_types
from berth.plan.plan import Plan, Stage, plan_at, slots_of, with_counts
from berth.plan.problem import LARGEST, UNLIMITED, Problem
from berth.plan.rental import host_name, server_needs, table_bytes
from berth.plan.request import ANY_RATE
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget, Outcome, get_method
from berth.plan.shortest_path import min_rate
from berth.plan.world import DISK, MACHINE, REPLICAS, SERVERS
from berth.units import (
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    format_usd,
    format_usd_per_hour,
)

FIXED_PLANS = ("cpu-only", "gpu-only", "heuristic")
NEXT_BEST, LEAST = "next best", "least $/h"
_ALL_SUBSETS = 6  # up to this many types, every subset of them is tried
_QUICK = Budget(seconds=2.0)  # for each alternative
_SAME = 1e-9
_WAITS = 0.9  # a stage that takes less than this share of the time of its servers or readers waits for them
_MUCH_FASTER = 1.2
_CLEARLY_LESS = 0.9  # a price per hour that is worth a line of its own
_FEW_STAGES = 3
_LARGE = 500_000  # layers^2 x types
_SHOWN = 5
# What a proof covers.
PLAN_SPACE = (
    "plan space: the layers are cut into stages anywhere; each stage has one device type, one place for its tables "
    "and any number of replicas, server cores and reader cores{micro}. Devices share their machine's NIC. Not "
    "modelled: contention above the machines' NICs, stragglers and failures, stages that share a device, other "
    "batches than {batch:,.0f} examples{mode}"
)
STATED_SPACE = (
    "plan space: the layers are cut into stages anywhere; each stage has one device type and any number of replicas. "
    "The problem states all times; nothing else is modelled"
)
_QUICK_CHECK = 1200  # choices x proof steps, for few layers: about half a second


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
    slow = least_per_hour(problem)
    if slow and chosen and slow.usd_per_hour < _CLEARLY_LESS * chosen.usd_per_hour:
        found = _merged(found, Candidate(LEAST, slow))
    return sorted(found, key=_rank)


def least_per_hour(problem: Problem) -> Plan | None:
    """Return the plan with the lowest price per hour found at just the throughput asked for, of a few stages."""
    if problem.throughput <= ANY_RATE:
        return None
    found = []
    for stages in range(1, min(_FEW_STAGES, len(problem.layers)) + 1):
        for schedule in problem.schedules(stages):
            _, cuts, used = min_rate(problem.arrays, slots_of(schedule), problem.arrays.slowest, math.inf)
            if len(cuts) and (used <= problem.arrays.limit).all():
                chosen = [(int(first), int(last), int(choice)) for first, last, choice in cuts]
                found.append(plan_at(problem, schedule, chosen, problem.arrays.slowest))
    kept = [plan for plan in found if not plan.violations()]
    return min(kept, key=lambda plan: (round(plan.usd_per_hour, 6), plan.cost_usd), default=None)


def _rank(one: Candidate) -> tuple[float, bool]:
    return (one.plan.cost_usd if one.plan else float("inf"), not one.chosen)


def _merged(found: list[Candidate], new: Candidate) -> list[Candidate]:
    """Add a candidate; if its plan is already there, add only its name."""
    for at, one in enumerate(found):
        if one.plan and new.plan and one.plan.stages == new.plan.stages and one.plan.micro == new.plan.micro:
            name = ", ".join(filter(None, [one.name.replace(NEXT_BEST, ""), new.name]))
            return [*found[:at], replace(one, name=name, note=new.note), *found[at + 1 :]]
    return [*found, new]


def _with_other_devices(problem: Problem, chosen: Plan | None) -> Iterator[Plan]:
    """Yield the cheapest plan of every other set of types that stages really run on."""
    seen = {frozenset(chosen.worker_counts)} if chosen else set()
    for names in _sets(problem, chosen):
        plan = exact(restrict_to_types(problem, names), _QUICK).plan
        if plan is not None and frozenset(plan.worker_counts) not in seen:
            seen.add(frozenset(plan.worker_counts))
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
    for left_out in chosen.worker_counts if chosen else ():
        yield [name for name in names if name != left_out]


def fixed_plan_costs(problem: Problem, name: str, rates: Sequence[float]) -> list[float | None]:
    """Return the cost of a fixed plan at each throughput; None where it can't hold it."""
    found = (get_method(name)(problem.at(rate), Budget()).plan for rate in rates)
    return [plan.cost_usd if plan else None for plan in found]


def limited_by(plan: Plan) -> str:
    """Return what limits the bottleneck: compute, data, all-reduce or servers."""
    return limit_of(plan, plan.stages[slowest(plan)])


def own_s(plan: Plan, stage: Stage) -> float:
    """Return the seconds per example of a stage without its servers, which are sized to keep up with it."""
    one = plan.schedule
    calls = one.w_max * max(stage.compute_s, stage.data_s) + one.w_sum * (
        stage.compute_s + stage.in_s + stage.out_s
    )
    return calls / one.micro + stage.optimiser_s + stage.sync_s


def limit_of(plan: Plan, stage: Stage) -> str:
    """Return what takes longest in a stage; servers only if the stage waits for them."""
    if own_s(plan, stage) < _WAITS * stage.server_s:
        return "servers"
    parts = {"compute": stage.compute_s + stage.optimiser_s, "data": stage.data_s, "all-reduce": stage.sync_s}
    return max(parts, key=lambda part: parts[part])


def slowest(plan: Plan) -> int:
    """Return the index of the stage that takes longest, apart from what servers and readers are rounded to."""
    waits = [
        stage.server_s if limit_of(plan, stage) == "servers" else own_s(plan, stage) for stage in plan.stages
    ]
    return max(range(len(waits)), key=lambda row: waits[row])


def device_mix(plan: Plan) -> str:
    """Return the devices of a plan in the order of its stages, cores of servers and readers included."""
    counts = dict(plan.device_counts)
    if plan.problem.host.device < 0 and plan.host_cores:
        counts[host_name(plan.problem)] = plan.host_cores
    return " + ".join(f"{count} {name}" for name, count in counts.items())


def layer_range(problem: Problem, first: int, last: int) -> str:
    """Return `embedding .. pooling`, or the name of a single layer."""
    names = problem.layers
    return names[first] if first == last else f"{names[first]} .. {names[last]}"


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
    optimum = outcome if _is_proven(outcome) else exact(plan.problem, _QUICK)
    least_usd = optimum.plan.cost_usd if optimum.plan else plan.cost_usd
    return [
        _bottleneck(plan),
        _one_more(plan),
        *(_faster_than_asked(plan, found) if max_usd is None else ()),
        _throughput(plan, least_usd) if max_usd is None else _price(plan, max_usd),
        *_limits(plan, least_usd),
        *_memory(plan),
        *_pins(plan, least_usd),
        *_next_best(plan, found),
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
    if _readers_bind(plan):
        return f"The {plan.readers} reader cores are the bottleneck: {format_seconds(plan.reader_s)} per example."
    row = slowest(plan)
    stage = plan.stages[row]
    layers = layer_range(plan.problem, stage.first, stage.last)
    which = "The one stage" if len(plan.stages) == 1 else f"Stage {row + 1}"
    return (
        f"{which} ({layers} on {stage.replicas} {stage.type_name}) is the bottleneck: "
        f"{format_seconds(stage.time_s)} per example, most of it {_DOING[limit_of(plan, stage)]}."
    )


def _readers_bind(plan: Plan) -> bool:
    return max(stage.time_s for stage in plan.stages) < _WAITS * plan.reader_s


def stage_reason(plan: Plan, row: int) -> str:
    """Return in one line why a stage has this place for its tables and this many replicas."""
    stage = plan.stages[row]
    parts = [*_tables_reason(plan, stage), *_count_reason(plan, stage), _time_reason(plan, stage)]
    return "; ".join(parts)


def _tables_reason(plan: Plan, stage: Stage) -> Iterator[str]:
    memory = plan.problem.types[plan.problem.type_index(stage.type_name)].memory_bytes
    if stage.tables in (MACHINE, REPLICAS):
        fit = f" fit into {stage.replicas} x {format_bytes(memory)}" if memory else " are in its memory"
        way = "rows stay inside one machine" if stage.tables == MACHINE else "rows move over the NICs"
        yield f"tables of {format_bytes(table_bytes(plan, stage))}{fit}, {way}"
    if stage.servers:
        needs = server_needs(plan, stage)
        held = {SERVERS: "tables", DISK: "the tables' hot rows"}.get(stage.tables, "dense parameters")
        yield (
            f"{held} of {format_bytes(needs.bytes)} on {format_count(stage.servers, 'server core')}: "
            f"{_cores(needs.lookups)} by lookups, {_cores(needs.nic)} by NIC, {_cores(needs.memory)} by memory"
        )


def _cores(needed: float) -> int:
    return math.ceil(needed * (1 - _SAME))


def replica_cap(problem: Problem, stage: Stage) -> int:
    """Return the most replicas that a stage may have: by the staleness, and by the devices of a machine."""
    return min(problem.max_replicas, problem.choices[stage.choice].cap if stage.tables else UNLIMITED)


def _count_reason(plan: Plan, stage: Stage) -> Iterator[str]:
    cap = replica_cap(plan.problem, stage)
    if stage.replicas == stage.min_replicas > 1:
        yield f"{stage.replicas} is the least that its memory needs"
    elif stage.replicas == cap == plan.problem.max_replicas:
        yield f"the staleness allows no more than {cap}"
    elif stage.replicas == cap:
        yield f"a machine has no more than {cap}"


def _time_reason(plan: Plan, stage: Stage) -> str:
    """Return what takes longest, and the shares of a step: of computation and of data, which may overlap."""
    shares = {
        "compute": stage.compute_s + stage.optimiser_s,
        "data in": stage.in_s,
        "data out": stage.out_s,
        "all-reduce": stage.sync_s,
    }
    taken = [f"{part} {s / plan.stage_s:.0%}" for part, s in shares.items() if s >= 0.005 * plan.stage_s]
    return f"limited by {limit_of(plan, stage)} ({', '.join(taken)} of a step)"


def _one_more(plan: Plan) -> str:
    if _readers_bind(plan):
        return f"One more reader core: {_change(plan, replace(plan, readers=plan.readers + 1))}."
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
    return f"One more {stage.type_name} there: {_change(plan, replace(fast, problem=plan.problem))}."


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
        f"It is {plan.throughput / wanted:.2g} times as fast as asked, because the whole training costs less that "
        f"way{hourly}."
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
        f"{format_usd(faster.cost_usd)}, above {format_usd(max_usd)}."
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
    free = exact(problem.allowing(problem.allowed | True), _QUICK).plan
    if free and free.cost_usd < least_usd * (1 - _SAME):
        yield f"The pins cost {format_usd(least_usd - free.cost_usd)}: without them {device_mix(free)} would be enough."
    else:
        yield "The pins cost nothing: the best plan satisfies them anyway."


def _next_best(plan: Plan, found: Sequence[Candidate]) -> Iterator[str]:
    others = [
        one.plan for one in found if one.plan and set(one.plan.worker_counts) != set(plan.worker_counts)
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
