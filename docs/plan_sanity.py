"""Writes docs/plan-sanity.md: what the planner rents for known models, next to a calculation by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from berth.cluster.load import load_cluster
from berth.cluster.model import Cluster
from berth.plan.plan import Plan, Stage
from berth.plan.profile.files import load_layer_profile
from berth.plan.profile.host import host_rates
from berth.plan.profile.layer_profile import LayerProfile
from berth.plan.rental import cost_per_billion
from berth.plan.request import ROWS, PlanRequest, build_problem
from berth.plan.solve import SearchOptions, Solution, solve
from berth.plan.stage_reasons import device_mix, layer_range, stage_reason
from berth.plan.world import WorldOptions
from berth.units import format_bandwidth, format_bytes, format_rate, format_seconds, format_usd

PAGE = Path(__file__).parent / "plan-sanity.md"
CLUSTER = "cloud-mix"
RATE = 3e6
KEY_BYTES, INDEX_BYTES = 8, 58  # of a key in a message; of a row in a server's index
BUSY = 0.7  # share of servers, readers and their NICs that is planned with
CASES = {
    "ctrdnn": (3e5, 3e6, 1e7),
    "matchnet": (3e5, 3e6, 1e7),
    "2emb": (3e5, 3e6, 1e7),
    "nce": (3e5, 3e6, 1e7),
    "transformer": (3e3, 3e4),
    "cnn": (3e3, 3e4),
}
MODES = ("sync", "async")


@dataclass(frozen=True)
class ByHand:
    """Devices that a stage needs at least at a rate, by plain arithmetic: each reason alone."""

    compute: float
    nic: float
    memory: float

    @property
    def devices(self) -> int:
        """The largest of them, rounded up."""
        return ceil(max(self.compute, self.nic, self.memory, 1e-9) * (1 - 1e-9))

    def __str__(self) -> str:
        return f"{self.compute:.2g} compute, {self.nic:.2g} NIC, {self.memory:.2g} memory"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the page."""
    parts = [_HEAD, *envelope(), _CLASSIC, *classic(), _MODELS]
    for model, rates in CASES.items():
        parts += [heading(model), *answers(model, rates)]
    return "\n\n".join(parts) + "\n"


def heading(model: str) -> str:
    """Return the name of a model, and the rows of its tables."""
    profile = load_layer_profile(model)
    if not any(layer.touched_bytes for layer in profile.layers):
        return f"### {model}"
    return f"### {model}, {profile.rows or ROWS:,.0f} rows"


_HEAD = f"""# What the planner rents for known models, and why

For readers who do not believe a planner before they have seen its figures beside their own. Every figure here is
computed by `make docs-plan` (docs/plan_sanity.py) from the shipped profiles and the cluster `{CLUSTER}`; times of CPU
cores are measured, those of GPUs modelled, prices are list prices. The figures "by hand" use the profile, data sheets
and a division, and none of the planner's code: they are what a stage needs **at least**, if computing, the NIC and
memory were each the only limit. A plan needs more where these do not overlap completely, and where calls are small."""

_CLASSIC = f"""## The two classical answers

A recommender of this size is usually trained on GPUs in front of parameter servers, or on hundreds of asynchronous
CPU workers. Asked for exactly that at {format_rate(RATE)}, the planner rents:"""

_MODELS = """## Every model, both modes

The planner chooses the cheapest **whole training**, not the cheapest hour: where a faster plan costs less per example,
it is taken, even if less speed was asked for; `berth plan` also lists what costs least per hour. "Rented" counts
everything: stages, servers, readers. The column x is how many times the devices of the hand calculation the first stage
has, at the throughput that the plan has by the formula; "simulated" is that in the event simulation.
Below 1, calls are larger than the largest one profiled, where the last slope of the curve continues."""


def envelope() -> Iterator[str]:
    """Yield the calculation by hand for CTRDNN, the planner's plan beside it."""
    profile, cluster = load_layer_profile("ctrdnn"), load_cluster(CLUSTER)
    table, batch = profile.layers[0], profile.batch
    count = profile.rows or ROWS
    rows = table.touched_bytes / table.row_bytes / batch
    moved = rows * (table.row_bytes + KEY_BYTES)
    held = count * (2 * table.row_bytes + INDEX_BYTES)
    t4, core = (float(profile.on(name).at(batch).sum()) / batch for name in ("T4", "cpu-core"))
    gpu_nic, cpu_nic = (_nic(cluster, name) for name in ("T4", "cpu-core"))
    flow, read = moved * RATE, table.input_bytes / batch * RATE
    decode = host_rates().decode_bytes_per_s["parquet"]
    machines = flow / cpu_nic / BUSY
    gpus = ceil(max(RATE * t4, 4 * flow / gpu_nic))
    per_core = min(decode, cpu_nic / 48)
    yield f"""## By hand first: CTRDNN at {format_rate(RATE)}

* **Rows.** An example needs {rows:.1f} rows that are distinct in a batch of {batch:,}: with keys {format_bytes(moved)}
  in and as much out. In all: **{format_bandwidth(flow)} each way**.
* **Memory.** {count:,.0f} rows x (2 x {table.row_bytes} + {INDEX_BYTES}) bytes, for rows, AdaGrad's accumulators and
  index: **{format_bytes(held)}**. That is {held / _memory("T4"):.1f} T4, {held / _memory("H100"):.1f} H100, or
  {held / (192 * 2**30):.1f} server machines of 192 GiB.
* **Compute.** {format_seconds(t4)} per example on a T4: **{RATE * t4:.1f} T4**. {format_seconds(core)} on a core:
  **{RATE * core:,.0f} cores**.
* **NICs.** A machine of 4 T4 has {format_bandwidth(gpu_nic)}: {flow / gpu_nic:.1f} machines,
  **{4 * flow / gpu_nic:.1f} T4**. A server machine has {format_bandwidth(cpu_nic)}, {BUSY:.0%} of which are planned
  with: **{machines:.1f} machines, {48 * machines:.0f} cores**. Without servers the T4 also serve each other's rows:
  twice as much each way, {8 * flow / gpu_nic:.1f} T4.
* **Readers.** {format_bandwidth(read)} of examples. A core decodes {format_bandwidth(decode)}, its share of the NIC is
  {format_bandwidth(cpu_nic / 48)}: **{read / per_core / BUSY:.0f} cores**.

So a believable answer is of the order of {gpus} T4 or more with {ceil(machines)} server machines, or devices whose
memory holds the tables, without servers, or several hundred asynchronous cores."""


def _nic(cluster: Cluster, device: str) -> float:
    """Return the bytes per second of the NIC of a machine with this device."""
    index = [one.name for one in cluster.device_types].index(device)
    return next(
        machine.nic_bytes_per_s or 0.0
        for machine in cluster.machines
        if index in [kind for kind, _ in machine.devices]
    )


def _memory(device: str) -> float:
    return {one.name: one.memory_bytes or 0.0 for one in load_cluster(CLUSTER).device_types}[device]


def classic() -> Iterator[str]:
    """Yield the plans for the two classical set-ups, and the free choice."""
    gpus = ("V100-16", "A100-40", "H100")
    asked = [
        ("T4 and servers, sync", WorldOptions(tables=("servers",)), gpus),
        ("CPU workers and servers, async", WorldOptions(mode="async", tables=("servers",)), ("T4", *gpus)),
        ("its own choice, sync", WorldOptions(), ()),
    ]
    head = (
        "| asked | rented | throughput | simulated | $/h | per 1e9 examples, by the formula |\n"
        "|---|---|---|---|---|---|\n"
    )
    rows, reasons = [], []
    for name, world, forbid in asked:
        found = solved("ctrdnn", RATE, world, forbid)
        plan = found.outcome.plan
        if plan is None or found.error is not None:
            rows.append(f"| {name} | {_none(found)} | | | | |")
            continue
        rows.append(f"| {name} | {_cells(plan, found.simulated_throughput)} |")
        reasons += [f"* **{name}**: {text}" for text in _reasons(plan)]
    yield head + "\n".join(rows)
    yield "\n".join(reasons)


def _cells(plan: Plan, simulated: float) -> str:
    cells = (
        device_mix(plan),
        format_rate(plan.throughput),
        format_rate(simulated),
        f"{plan.usd_per_hour:,.2f}",
        format_usd(cost_per_billion(plan)),
    )
    return " | ".join(cells)


def _none(found: Solution) -> str:
    """Return why there is no plan: none exists, or the simulation refutes those that do."""
    if found.outcome.plan is None:
        return "no plan: the cluster is too small"
    return f"none: the best reaches {format_rate(found.simulated_throughput)} in the simulation"


def _reasons(plan: Plan) -> Iterator[str]:
    for row, stage in enumerate(plan.stages):
        layers = layer_range(plan.problem, stage.first, stage.last)
        yield f"{stage.replicas} {stage.type_name} for {layers}: {stage_reason(plan, row)}."


def solved(model: str, rate: float, world: WorldOptions, forbid: tuple[str, ...] = ()) -> Solution:
    """Return what `berth plan` answers."""
    request = PlanRequest(throughput=rate, model=model, cluster=CLUSTER, world=world, forbid=forbid)
    return solve(request, build_problem(request), SearchOptions(), lambda phase: nullcontext(None))


def answers(model: str, rates: tuple[float, ...]) -> Iterator[str]:
    """Yield a table of what is rented for a model, and the reasons; rates with the same plan are one row."""
    head = (
        "| mode | asked | rented | throughput | simulated | $/h "
        "| per 1e9 examples, by the formula | by hand, first stage | x |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    rows, reasons = [], []
    for mode in MODES:
        found: dict[str, tuple[list[str], Plan]] = {}
        for rate in rates:
            one = solved(model, rate, WorldOptions(mode=mode))
            plan = one.outcome.plan
            if plan is None or one.error is not None:
                rows.append(f"| {mode} | {format_rate(rate)} | {_none(one)} | | | | | | |")
                continue
            cells = _cells(plan, one.simulated_throughput)
            found.setdefault(cells, ([], plan))[0].append(format_rate(rate))
        for cells, (asked, plan) in found.items():
            hand = by_hand(plan, plan.stages[0])
            times = plan.stages[0].replicas / hand.devices
            rows.append(f"| {mode} | {', '.join(asked)} | {cells} | {hand} | {times:.1f} |")
            reasons += [f"* {mode}, {', '.join(asked)}: {text}" for text in _reasons(plan)]
    yield head + "\n".join(rows)
    yield "\n".join(reasons)


def by_hand(plan: Plan, stage: Stage) -> ByHand:
    """Return what a stage needs at least, from the profile and the cluster's file alone."""
    cluster, profile = load_cluster(CLUSTER), _profile(plan)
    layers = profile.layers[stage.first : stage.last + 1]
    rate = plan.throughput
    times = profile.on(stage.type_name)
    example_s = min(
        float(times.at(batch)[stage.first : stage.last + 1].sum()) / batch for batch in profile.batches
    )
    rows = sum(layer.touched_bytes / layer.row_bytes * (layer.row_bytes + KEY_BYTES) for layer in layers)
    ways = {"machine": 0, "replicas": 2}.get(
        stage.tables or "", 1
    )  # a device with a part of the tables also serves
    bytes_ = ways * rows / profile.batch
    if stage.first == 0:
        bytes_ += layers[0].input_bytes / profile.batch
    if stage.last + 1 < len(profile.layers):
        bytes_ += layers[-1].gradient_bytes / profile.batch
    if (
        plan.problem.source and plan.problem.source.options.mode == "async"
    ):  # parameters are pulled with every batch
        bytes_ += sum(layer.dense_bytes for layer in layers) / profile.batch
    machine = next(
        machine for machine in cluster.machines
        if stage.type_name in [cluster.device_types[kind].name for kind, _ in machine.devices]
    )  # fmt: skip
    share = (machine.nic_bytes_per_s or 0.0) / machine.size
    count = profile.rows or ROWS
    sparse = sum(layer.sparse_bytes for layer in profile.layers) or 1
    held = sum(
        count * layer.sparse_bytes / sparse * (2 * layer.row_bytes + INDEX_BYTES)
        for layer in layers
        if layer.touched_bytes
    )
    own = _memory(stage.type_name) or (machine.memory_bytes or 0.0) / machine.size
    memory = held / own if stage.tables in ("machine", "replicas") else 0.0
    return ByHand(rate * example_s, rate * bytes_ / share, memory)


def _profile(plan: Plan) -> LayerProfile:
    assert plan.problem.source is not None
    return plan.problem.source.profile


if __name__ == "__main__":
    main()
