"""How far the closed formula is from the event simulation of its plans, and the margins that follow.

Over models of the zoo, clusters with prices, modes and throughputs (some per decade, up to the highest that has a
plan): what the formula's plan reaches in the simulation over what the formula says, and the share by which `solve`
sized it for more until it held. All figures are modelled.

    python benchmarks/plan_objective.py
    python benchmarks/plan_objective.py --models cnn --clusters cloud-mix --each --search 200
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from berth.plan.objective.simulate import simulated_throughput
from berth.plan.request import PlanRequest, build_problem
from berth.plan.search.method import Budget
from berth.plan.solve import SearchOptions, Solution, search, solve
from berth.plan.stage_reasons import device_mix
from berth.plan.world import MODES, WorldOptions
from berth.units import format_rate

MODELS = ("ctrdnn", "ctrdnn-8", "ctrdnn-12", "ctrdnn-20", "matchnet", "2emb", "nce", "transformer", "cnn")
CLUSTERS = ("cloud-mix", "dgx-a100-pod", "hgx-h100-pod")


@dataclass(frozen=True)
class Case:
    """A solved request, and how its plan without a margin does in the simulation."""

    request: PlanRequest
    solution: Solution
    ratio: float  # simulated over formula
    cpu_s: float


def cases(
    models: tuple[str, ...], clusters: tuple[str, ...], decades: tuple[int, int], per_decade: int
) -> Iterator[Case]:
    """Yield every request with a plan."""
    low, high = decades
    rates = [10 ** (step / per_decade) for step in range(low * per_decade, high * per_decade + 1)]
    for cluster in clusters:
        for mode in MODES:
            for model in models:
                for rate in rates:
                    case = solved(
                        PlanRequest(rate, model=model, cluster=cluster, world=WorldOptions(mode=mode))
                    )
                    if case is None:
                        break
                    yield case


def solved(request: PlanRequest) -> Case | None:
    """Return the case of a request; None if the formula has no plan."""
    problem = build_problem(request)
    plan = search(problem, SearchOptions()).plan
    if plan is None:
        return None
    ratio = simulated_throughput(plan) / plan.throughput
    begun = time.process_time()
    solution = solve(request, problem, SearchOptions(), lambda phase: nullcontext(None))
    return Case(request, solution, ratio, time.process_time() - begun)


def main() -> None:
    """Print a line for every cluster and mode, and for every case with a margin if asked for."""
    asked = _arguments()
    found: dict[tuple[str, str], list[Case]] = {}
    decades = (asked.decades[0], asked.decades[1])
    for case in cases(tuple(asked.models), tuple(asked.clusters), decades, asked.per_decade):
        found.setdefault((case.request.devices_from, case.request.world.mode), []).append(case)
        if asked.each and (case.solution.margin or case.solution.error):
            _print_case(case, asked.search)
    for (cluster, mode), group in found.items():
        print(f"{cluster}, {mode}: {_summary(group)}")
    print(f"all: {_summary([case for group in found.values() for case in group])}")


def _summary(group: list[Case]) -> str:
    ratios = [case.ratio for case in group]
    margins = [case.solution.margin for case in group if case.solution.margin and case.solution.error is None]
    refuted = sum(case.solution.error is not None for case in group)
    said = f"median {statistics.median(margins):.1%}, largest {max(margins):.1%}" if margins else "none"
    return (
        f"{len(group)} plans, simulated / formula: median {statistics.median(ratios):.3f}, "
        f"lowest {min(ratios):.3f}; {len(margins)} with a margin: {said}; {refuted} refuted"
    )


def _print_case(case: Case, budget: int) -> None:
    request, solution = case.request, case.solution
    assert solution.outcome.plan is not None
    plan = solution.outcome.plan
    print(
        f"{request.cluster} {request.world.mode} {request.model} {format_rate(request.throughput)}: "
        f"without margin {format_rate(solution.without_margin)}; margin {solution.margin:.1%}: "
        f"{len(plan.stages)} stages, {plan.micro} micro-batches, {device_mix(plan)}, "
        f"{format_rate(solution.simulated_throughput)}; {case.cpu_s:.2f} CPU-s"
        + (" REFUTED" if solution.error else ""),
        flush=True,
    )
    if budget:
        options = SearchOptions(objective="simulate", method="genetic", budget=Budget(evaluations=budget))
        other = solve(request, solution.problem, options, lambda phase: nullcontext(None)).refinement
        if other is not None and other.best.plan is not None:
            saved = "" if other.gain is None else f", saves {other.gain:.1%}"
            print(f"    genetic, {budget} evaluations: {device_mix(other.best.plan)}{saved}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--clusters", nargs="+", default=list(CLUSTERS))
    parser.add_argument(
        "--decades", nargs=2, type=int, default=[3, 9], help="powers of ten of the throughput"
    )
    parser.add_argument("--per-decade", type=int, default=5)
    parser.add_argument("--each", action="store_true", help="print every case with a margin")
    parser.add_argument(
        "--search", type=int, default=0, help="evaluations of a search by simulation in those"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
