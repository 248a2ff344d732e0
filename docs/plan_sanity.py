"""Writes docs/plan-sanity.md: what the planner rents for known models, next to calculations by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path

from plan_by_hand import (
    BUSY,
    CLUSTER,
    CORE,
    INDEX_BYTES,
    by_hand,
    envelope,
    machine_of,
    memory_of,
    nic_share,
    reader_cores,
    seconds_per_example,
    server_cores,
)
from plan_detours import detours

from berth.cluster.load import load_cluster
from berth.plan.plan import Plan
from berth.plan.profile.files import load_layer_profile
from berth.plan.profile.host import host_rates
from berth.plan.rental import cost_per_billion, server_needs
from berth.plan.request import ROWS, PlanRequest, build_problem
from berth.plan.solve import SearchOptions, Solution, solve
from berth.plan.stage_reasons import device_mix, layer_range, limit_of, slowest, stage_reason
from berth.plan.world import WorldOptions
from berth.units import format_bandwidth, format_bytes, format_rate, format_seconds, format_usd

PAGE = Path(__file__).parent / "plan-sanity.md"
RATE = 3e6
CASES = {
    "ctrdnn": (3e5, 3e6, 1e7),
    "matchnet": (3e5, 3e6, 1e7),
    "2emb": (3e5, 3e6, 1e7),
    "nce": (3e5, 3e6, 1e7),
    "transformer": (3e3, 3e4),
    "cnn": (3e3, 3e4),
}
MODES = ("sync", "async")
GPUS = ("T4", "V100-16", "A100-40", "H100")
ON_SERVERS = WorldOptions(tables=("servers",))
T4_ONLY = GPUS[1:]


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the page."""
    parts = [
        _HEAD,
        needs_table(),
        devices_table(),
        ctrdnn_by_hand(),
        _CLASSIC,
        *classic(),
        _MODELS,
        models_table(),
    ]
    plans = [
        (found.outcome.plan, found.simulated_throughput)
        for model, rates in CASES.items() for mode in MODES for rate in rates
        if (found := solved(model, rate, WorldOptions(mode=mode))).error is None
    ]  # fmt: skip
    return "\n\n".join([*parts, detours(solved, RATE, plans)]) + "\n"


_HEAD = f"""---
hide: [toc]  # room for wide tables
---

# What the planner rents for known models, and why

For readers who do not believe a planner before they have seen its figures beside their own. `make docs-plan`
(docs/plan_sanity.py) computes every figure here from the shipped profiles and the cluster `{CLUSTER}`. Times of CPU
cores are measured, those of GPUs modelled. Prices are per device: those of A100 and H100 are list prices of the
machines in the cluster, that of the T4 is the list price of a smaller machine with one T4, and those of V100 and CPU
core are berth's defaults, which no list has. **By hand** means: the profile, data sheets and a division, and none of
the planner's code (docs/plan_by_hand.py).

## The envelope

What one example needs, forward and backward. *Rows* are distinct within the profile's batch; their bytes, with keys,
move once each way. *Tables* are rows, AdaGrad's accumulators and {INDEX_BYTES} bytes of index for each row. Computing
is at the batch at which a device is fastest."""

_CLASSIC = f"""## The two classical answers

A recommender of this size is usually trained on GPUs in front of parameter servers, or on hundreds of asynchronous CPU
workers. Asked for exactly that at {format_rate(RATE)}, and then for whatever is cheapest, the planner rents:"""

_MODELS = """## Every model, both modes

In each pair **by hand → rented**: the least that the throughput of the plan needs by hand, and what the plan has.
Workers are those of the first stage, with the reason that needs most of them. Rented is more where computing and data
do not overlap completely, where calls are small, and where a plan has to be a whole number of devices; it is less where
calls are larger than the largest one profiled, or have fewer distinct rows than the profile's batch. Several rates in a
row have the same plan: the planner chooses the cheapest **whole training**, so a faster plan is taken where it costs
less per example. `berth plan` also lists what costs least per hour."""


def needs_table() -> str:
    """Return what an example of each model needs."""
    lines = [
        "| model | rows | bytes of rows, each way | of input | FLOP | tables | dense | a core | a T4 | an H100 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for model in CASES:
        profile = load_layer_profile(model)
        each = envelope(profile)
        tables = f"{profile.rows or ROWS:,.0f} rows, {format_bytes(each.table_bytes)}" if each.rows else "-"
        cells = [
            model,
            f"{each.rows:.1f}" if each.rows else "-",
            format_bytes(each.row_bytes) if each.rows else "-",
            format_bytes(each.input_bytes),
            f"{each.flops:.2g}",
            tables,
            format_bytes(each.dense_bytes),
            *(format_seconds(seconds_per_example(profile, device)) for device in (CORE, "T4", "H100")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def devices_table() -> str:
    """Return what a device of the cluster has."""
    prices = {one.name: one.usd_per_hour or 0.0 for one in load_cluster(CLUSTER).device_types}
    lines = [
        "And what a device has. Devices of a machine share its NIC.",
        "",
        "| device | in a machine | memory | NIC of the machine | its share | $/h |",
        "|---|---|---|---|---|---|",
    ]
    for device in (CORE, *GPUS):
        machine = machine_of(device)
        nic = format_bandwidth(machine.nic_bytes_per_s or 0.0)
        lines.append(
            f"| {device} | {machine.size} | {format_bytes(memory_of(device))} | {nic} | "
            f"{format_bandwidth(nic_share(device))} | {prices[device]:.2f} |"
        )
    return "\n".join(lines)


def ctrdnn_by_hand() -> str:
    """Return the calculation for CTRDNN."""
    profile = load_layer_profile("ctrdnn")
    each = envelope(profile)
    flow, read = each.row_bytes * RATE, each.input_bytes * RATE
    t4, core = (seconds_per_example(profile, device) for device in ("T4", CORE))
    servers = flow / nic_share(CORE) / BUSY
    decode = host_rates().decode_bytes_per_s["parquet"]
    readers = read / min(decode, nic_share(CORE)) / BUSY
    on = {device: format_bandwidth(nic_share(device)) for device in ("T4", CORE)}
    held = {device: each.table_bytes / memory_of(device) for device in ("T4", "H100", CORE)}
    gpus = ceil(max(RATE * t4, flow / nic_share("T4")))
    rows = [
        ("what", "calculation", "needs at least"),
        ("---", "---", "---"),
        (
            "computing",
            f"{format_rate(RATE)} x {format_seconds(t4)}, or x {format_seconds(core)}",
            f"**{RATE * t4:.1f} T4**, or **{RATE * core:,.0f} cores**",
        ),
        (
            "rows to T4",
            f"{format_bandwidth(flow)} each way, over {on['T4']} of a T4",
            f"**{flow / nic_share('T4'):.1f} T4**",
        ),
        (
            "rows from servers",
            f"the same over {BUSY:.0%} of {on[CORE]} of a core",
            f"**{servers:.0f} server cores**",
        ),
        (
            "memory of tables",
            format_bytes(each.table_bytes),
            f"{held['T4']:.1f} T4, {held['H100']:.1f} H100 or {held[CORE]:.0f} server cores",
        ),
        (
            "examples",
            f"{format_bandwidth(read)}; a core decodes {format_bandwidth(decode)}, its NIC is slower",
            f"**{readers:.0f} reader cores**",
        ),
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"""## CTRDNN at {format_rate(RATE)}, by hand

{table}

So a believable answer is some {gpus} T4 or more in front of {ceil(servers / 48)} server machines; or a few devices
whose memory holds the tables, without servers; or several hundred asynchronous cores."""


def classic() -> Iterator[str]:
    """Yield the plans for the two classical set-ups, and the free choice."""
    asked = [
        ("T4 and servers, sync", ON_SERVERS, T4_ONLY),
        ("CPU workers and servers, async", replace(ON_SERVERS, mode="async"), GPUS),
        ("its own choice, sync", WorldOptions(), ()),
    ]
    rows = [f"| asked | {_CELLS} |", "|---|---|---|---|---|---|---|---|---|"]
    reasons = []
    for name, world, forbid in asked:
        found = solved("ctrdnn", RATE, world, forbid)
        plan = found.outcome.plan
        if plan is None or found.error is not None:
            rows.append(f"| {name} | {_none(found)} | | | | | | | |")
            continue
        rows.append(f"| {name} | {_cells(plan, found.simulated_throughput)} |")
        reasons += [f"* **{name}**: {text}" for text in _reasons(plan)]
    yield "\n".join(rows)
    yield "\n".join(reasons)


_CELLS = (
    "rented | workers | server cores | reader cores | binds | throughput, simulated | $/h | per 1e9 examples"
)


def _cells(plan: Plan, simulated: float) -> str:
    first = plan.stages[0]
    hand = by_hand(plan, first)
    cells = (
        device_mix(plan),
        f"{hand.devices} ({hand.reason}) → {first.replicas}",
        _pair(server_cores(plan), plan.servers),
        _pair(reader_cores(plan), plan.readers),
        binds(plan),
        f"{format_rate(plan.throughput)}, {format_rate(simulated)}",
        f"{plan.usd_per_hour:,.2f}",
        format_usd(cost_per_billion(plan)),
    )
    return " | ".join(cells)


def _pair(hand: float, rented: int) -> str:
    return f"{ceil(hand * (1 - 1e-9))} → {rented}" if rented else "-"


def binds(plan: Plan) -> str:
    """Return what limits the slowest stage, and what its servers are sized by."""
    stage = plan.stages[slowest(plan)]
    reasons = ["memory"] if stage.replicas == stage.min_replicas > 1 else []
    reasons.append(limit_of(plan, stage))
    if stage.servers:
        needs = server_needs(plan, stage)
        most = max(("lookups", "nic", "memory"), key=lambda name: getattr(needs, name))
        reasons.append(f"servers by {most.replace('nic', 'NIC')}")
    return ", ".join(reasons)


def _none(found: Solution) -> str:
    """Return why there is no plan: none exists, or the simulation refutes those that do."""
    if found.outcome.plan is None:
        return "no plan: the cluster is too small"
    return f"none: the best reaches {format_rate(found.simulated_throughput)} in the simulation"


def _reasons(plan: Plan) -> Iterator[str]:
    for row, stage in enumerate(plan.stages):
        layers = layer_range(plan.problem, stage.first, stage.last)
        yield f"{stage.replicas} {stage.type_name} for {layers}: {stage_reason(plan, row)}."


@cache
def solved(
    model: str,
    rate: float,
    world: WorldOptions,
    forbid: tuple[str, ...] = (),
    pins: tuple[str, ...] = (),
) -> Solution:
    """Return what `berth plan` answers."""
    request = PlanRequest(
        throughput=rate, model=model, cluster=CLUSTER, world=world, forbid=forbid, pins=pins
    )
    return solve(request, build_problem(request), SearchOptions(), lambda phase: nullcontext(None))


def models_table() -> str:
    """Return what is rented for every model; rates with the same plan are one row. Pipelines are explained below."""
    rows, stages = (
        [f"| model | mode | asked | {_CELLS} |", "|---|---|---|---|---|---|---|---|---|---|---|"],
        [],
    )
    for model, rates in CASES.items():
        for mode in MODES:
            same: dict[str, tuple[list[str], Plan]] = {}
            for rate in rates:
                found = solved(model, rate, WorldOptions(mode=mode))
                plan = found.outcome.plan
                if plan is None or found.error is not None:
                    rows.append(f"| {model} | {mode} | {format_rate(rate)} | {_none(found)} | | | | | | | |")
                    continue
                cells = _cells(plan, found.simulated_throughput)
                same.setdefault(cells, ([], plan))[0].append(format_rate(rate))
            for cells, (asked, plan) in same.items():
                rows.append(f"| {model} | {mode} | {', '.join(asked)} | {cells} |")
                if len(plan.stages) > 1:
                    stages += [f"* {model}, {mode}, {', '.join(asked)}: {text}" for text in _reasons(plan)]
    below = ["", "With more than one stage:", "", *stages] if stages else []
    return "\n".join([*rows, *below])


if __name__ == "__main__":
    main()
