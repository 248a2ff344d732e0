"""What choosing shape, place and time together gains over the best fixed shape of each job.

    python benchmarks/one_job.py [--jobs 300] [--seeds 5] [--mix two] [--load 0.9] [--kind plan]

Three device mixes x three loads x three workloads. Every cell runs the same jobs with all their alternatives, and with
one shape per job fixed beforehand by each of several rules; the rule with the lowest mean JCT in that cell, in
hindsight, is what the choice is compared with: mean JCT of all jobs, dollars per million finished examples (price of
the devices that jobs with alternatives hold; beside it, without a bar, the dollars of all jobs) and the mean JCT of
ordinary gangs. Gangs choose among device types on both sides. The spread is that over seeds. Exits with 1 when a bar is
missed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from berth.cluster.load import load_cluster
from berth.cluster.model import Cluster
from berth.schedule.policies.registry import load_policy
from berth.schedule.records import JobStatus
from berth.simulate.run import Run, Setting, simulate
from berth.workload.flexible import KINDS, FlexibleSpec, generate_flexible
from berth.workload.shapes import Offer, Shape
from berth.workload.trace import Trace
from results import Figure, figure, finish, options, progress

LOADS = (0.6, 0.9, 1.1)
FIRST_SEED = 10  # no rule or weight was chosen by these
_TIERS = """\
tiers:
  - {name: machine, bandwidth: 150GB/s, latency: 1us}
  - {name: rack, bandwidth: 12.5GB/s, latency: 3us}
  - {name: network, bandwidth: 12.5GB/s, latency: 5us, oversubscription: 4}
racks:
"""
_RACK = "  - {{count: {racks}, machines: [{{count: {machines}, devices: {{{kind}: {devices}}}}}]}}\n"
MIXES: dict[str, tuple[tuple[str, int, int, int], ...]] = {  # type, racks, machines, devices of each
    "two": (("A100-40", 2, 2, 8), ("V100-16", 2, 2, 8), ("cpu-core", 2, 6, 96)),
    "three": (("A100-40", 1, 2, 8), ("V100-16", 2, 2, 8), ("T4", 2, 3, 8), ("cpu-core", 2, 6, 96)),
    "few-fast": (("H100", 1, 2, 8), ("V100-16", 3, 2, 8), ("cpu-core", 2, 6, 96)),
}
POLICY = "berth"
NO_WORSE, BETTER = 2.0, 15.0  # percent
SPEED_BAR = 20_000
SETTING = Setting(network="static")


@cache
def cluster_of(mix: str) -> Cluster:
    text = _TIERS
    for kind, racks, machines, devices in MIXES[mix]:
        text += _RACK.format(kind=kind, racks=racks, machines=machines, devices=devices)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{mix}.yaml"
        path.write_text(text)
        return load_cluster(str(path))


# Rules that fix a shape beforehand

Rule = Callable[[Offer, dict[str, float], dict[str, float]], Shape]


def usd(shape: Shape, price: dict[str, float]) -> float:
    return sum(price[name] * count for name, count in shape.devices.items())


def fastest(offer: Offer, price: dict[str, float], load: dict[str, float]) -> Shape:
    return min(offer.alternatives, key=offer.near_s)


def cheapest(offer: Offer, price: dict[str, float], load: dict[str, float]) -> Shape:
    return min(offer.alternatives, key=lambda one: offer.near_s(one) * usd(one, price))


def knee(offer: Offer, price: dict[str, float], load: dict[str, float]) -> Shape:
    return min(offer.alternatives, key=lambda one: offer.near_s(one) ** 2 * usd(one, price))


def balanced(power: float) -> Rule:
    """The type whose devices have least to do so far; among its shapes by `knee` (1) or `cheapest` (0)."""

    def rule(offer: Offer, price: dict[str, float], load: dict[str, float]) -> Shape:
        def busy(one: Shape) -> float:
            return max(load[name] + _share(offer, one, name) for name in one.devices if name != "cpu-core")

        def cost(one: Shape) -> float:
            return float(offer.near_s(one) ** (1 + power) * usd(one, price))

        kinds = {next(iter(one.devices)) for one in offer.alternatives}
        best = [
            min((one for one in offer.alternatives if next(iter(one.devices)) == kind), key=cost)
            for kind in sorted(kinds)
        ]
        return min(best, key=busy)

    return rule


_CAPACITY: dict[str, int] = {}


def _share(offer: Offer, shape: Shape, name: str) -> float:
    return offer.near_s(shape) * shape.devices[name] / _CAPACITY[name]


RULES: dict[str, Rule] = {
    "fastest": fastest,
    "cheapest": cheapest,
    "knee": knee,
    "balanced knee": balanced(1.0),
    "balanced cheapest": balanced(0.0),
}


def fixed(trace: Trace, cluster: Cluster, rule: Rule) -> Trace:
    """The trace with one shape per job."""
    price = {kind.name: kind.usd_per_hour or 0.0 for kind in cluster.device_types}
    load = dict.fromkeys(price, 0.0)
    _CAPACITY.update({kind.name: cluster.count_of(row) for row, kind in enumerate(cluster.device_types)})
    offers = {}
    for job in trace.job_ids:
        if (offer := trace.offers.get(job)) is not None:
            shape = rule(offer, price, load)
            for name in shape.devices:
                load[name] += _share(offer, shape, name)
            offers[job] = replace(offer, alternatives=(shape,), where=())
    return replace(trace, offers=offers)


# Cells


@dataclass(frozen=True)
class Measured:
    jct_s: float  # of all jobs
    usd_per_million: float  # examples of jobs with alternatives
    usd: float  # of all jobs, gangs too
    gangs_jct_s: float  # of ordinary gangs; nan: there are none
    reshapes: int


def measure(trace: Trace, cluster: Cluster) -> tuple[Measured, Run]:
    run = simulate(trace, cluster, load_policy(POLICY), SETTING)
    jobs = run.records
    assert (jobs["state"] == JobStatus.DONE).all()
    jct = jobs["end_s"] - jobs["arrival_s"]
    plain = np.array([job not in trace.offers for job in trace.job_ids])
    examples = sum(offer.work.amount for offer in trace.offers.values())
    usd = run.accounts["usd"]
    gangs = float(jct[plain].mean()) if plain.any() else float("nan")
    reshapes = int(run.accounts["reshapes"].sum())
    per_million = float(usd[~plain].sum()) / examples * 1e6
    return Measured(float(jct.mean()), per_million, float(usd.sum()), gangs, reshapes), run


@dataclass(frozen=True)
class Cell:
    mix: str
    load: float
    kind: str
    rule: str  # the best in hindsight
    jct: tuple[float, ...]  # change in percent, by seed
    usd: tuple[float, ...]
    all_usd: tuple[float, ...]
    gangs: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.mix}, load {self.load}, {self.kind}"


def change(after: float, before: float) -> float:
    return 100.0 * (after / before - 1.0)


def measure_cell(mix: str, load: float, kind: str, jobs: int, seeds: int) -> Cell:
    cluster = cluster_of(mix)
    traces = [
        generate_flexible(FlexibleSpec(jobs=jobs, load=load, kind=kind, seed=seed), cluster)
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
    ]
    chosen = [measure(trace, cluster)[0] for trace in traces]
    by_rule = {
        name: [measure(fixed(trace, cluster, rule), cluster)[0] for trace in traces]
        for name, rule in RULES.items()
    }
    best = min(by_rule, key=lambda name: np.mean([one.jct_s for one in by_rule[name]]))
    pairs = list(zip(chosen, by_rule[best], strict=True))
    return Cell(
        mix, load, kind, best,
        tuple(change(one.jct_s, two.jct_s) for one, two in pairs),
        tuple(change(one.usd_per_million, two.usd_per_million) for one, two in pairs),
        tuple(change(one.usd, two.usd) for one, two in pairs),
        tuple(change(one.gangs_jct_s, two.gangs_jct_s) for one, two in pairs),
    )  # fmt: skip


def speed(jobs: int) -> list[float]:
    """Jobs per CPU-second with four alternatives of three parts each."""
    cluster = cluster_of("three")
    trace = generate_flexible(FlexibleSpec(jobs=jobs, load=0.9, kind="plan", seed=1), cluster)
    four = {
        job: replace(offer, alternatives=offer.alternatives[-4:], where=())
        for job, offer in trace.offers.items()
    }
    return [jobs / measure(replace(trace, offers=four), cluster)[1].cpu_s for _ in range(3)]


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--mix", choices=MIXES)
    parser.add_argument("--load", type=float, choices=LOADS)
    parser.add_argument("--kind", choices=KINDS)
    given = parser.parse_args()
    cells = []
    for mix in [given.mix] if given.mix else MIXES:
        for load in [given.load] if given.load else LOADS:
            for kind in [given.kind] if given.kind else KINDS:
                cells.append(measure_cell(mix, load, kind, given.jobs, given.seeds))
                show(cells[-1])
    progress(f"mean over cells: JCT {mean(cells, 'jct'):+.1f} %, dollars {mean(cells, 'usd'):+.1f} %")
    return finish("one_job", figures(cells, speed(20_000)), given.results)


def mean(cells: Sequence[Cell], what: str) -> float:
    return float(np.mean([np.median(getattr(cell, what)) for cell in cells]))


def show(cell: Cell) -> None:
    gangs = f", gangs {np.median(cell.gangs):+.1f} %" if not np.isnan(cell.gangs).any() else ""
    progress(
        f"{cell.name}: JCT {np.median(cell.jct):+.1f} %, "
        f"dollars {np.median(cell.usd):+.1f} % (of all jobs {np.median(cell.all_usd):+.1f} %){gangs}, "
        f"against {cell.rule}"
    )


def figures(cells: Sequence[Cell], speeds: list[float]) -> list[Figure]:
    found: list[Figure] = []
    for cell in cells:
        samples = {"mean JCT": cell.jct, "dollars per example": cell.usd, "ordinary gangs": cell.gangs}
        found += [
            figure(f"{name}, change", cell.name, "%", list(values), at_most={"median": NO_WORSE})
            for name, values in samples.items()
            if not np.isnan(values).any()
        ]
    if len(cells) > 1:
        found += [
            figure("mean over cells", name, "%", [mean(cells, what)], at_most={"median": -BETTER})
            for name, what in (("mean JCT", "jct"), ("dollars per example", "usd"))
        ]
        found.append(figure("mean over cells", "dollars of all jobs", "%", [mean(cells, "all_usd")]))
    found.append(
        figure("speed", "4 alternatives x 3 parts", "jobs/CPU-s", speeds, at_least={"median": SPEED_BAR})
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
