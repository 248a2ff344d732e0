"""Everything that is reported about one plan, for the terminal, the HTML page and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from berth.plan.candidates import Candidate, candidates
from berth.plan.explain import explain, plan_space, provenance
from berth.plan.objective.protocol import Evaluation
from berth.plan.objective.refine import Refinement
from berth.plan.plan import Plan
from berth.plan.problem import Problem
from berth.plan.problem_json import stage_documents
from berth.plan.rental import RentedPool, cost_per_billion, rented_pools, throughput_range
from berth.plan.solve import Solution
from berth.plan.stage_reasons import device_mix, limited_by, stage_reason
from berth.units import format_rate, format_usd


@dataclass(frozen=True)
class PlanReport:
    """A solution with its alternatives and reasons."""

    solution: Solution
    candidates: list[Candidate]
    reasons: list[str]
    notes: list[str]

    @property
    def plan(self) -> Plan:
        """The formula's plan."""
        assert self.solution.outcome.plan is not None
        return self.solution.outcome.plan

    @property
    def heading(self) -> str:
        """The request in one line."""
        request = self.solution.request
        return f"{request.subject} on {request.devices_from}: {self.goal}, {request.examples:,.0f} examples"

    @property
    def goal(self) -> str:
        """The throughput, or the price."""
        request = self.solution.request
        if request.max_usd is not None:
            return f"the fastest for {format_usd(request.max_usd)}"
        return f"at least {format_rate(request.throughput)}"

    @property
    def crossing_bytes(self) -> list[float] | None:
        """Bytes per example that cross after each layer, if known."""
        source = self.solution.problem.source
        return None if source is None else (source.profile.cross_bytes / source.profile.batch).tolist()

    @property
    def training(self) -> str:
        """How the model is trained, in one line: mode, batch, rows."""
        problem = self.solution.problem
        source = problem.source
        if source is None:
            return f"stated problem, batch {problem.batch:,.0f}"
        per = (
            f"in {self.plan.micro} micro-batch{'es' if self.plan.micro > 1 else ''}"
            if problem.micro
            else "of each replica"
        )
        rows = f", {source.rows:,.0f} rows" if source.rows else ""
        return f"{source.options.mode}, batch {problem.batch:,.0f} {per}{rows}"

    @property
    def rented(self) -> list[RentedPool]:
        """Everything that is rented."""
        return rented_pools(self.plan)

    @property
    def stage_reasons(self) -> list[str]:
        """The reason of each stage in one line."""
        return [stage_reason(self.plan, row) for row in range(len(self.plan.stages))]

    @property
    def simulation(self) -> str | None:
        """The throughput in the event simulation, the cost at that, and the margin that was added, if known."""
        rate, margin = self.solution.simulated_throughput, self.solution.margin
        if not rate:
            return None
        sized = f", with a margin of {margin:.1%}" if margin else ""
        problem = self.plan.problem
        cost = self.plan.usd_per_hour * problem.epochs * problem.samples / rate / 3600
        return f"event simulation: {format_rate(rate)}, {format_usd(cost)} for the whole training{sized}"

    def document(self) -> dict[str, Any]:
        """Return what the answer for a model contains beyond that for a JSON problem."""
        refinement = self.solution.refinement
        problem = self.solution.problem
        span = throughput_range(self.plan)
        return {
            "usd_per_hour": self.plan.usd_per_hour,
            "hours": self.plan.hours,
            "usd_per_billion": cost_per_billion(self.plan),
            "mode": problem.source.options.mode if problem.source else None,
            "batch": problem.batch,
            "rows": problem.source.rows if problem.source else None,
            "throughput_range": list(span) if span else None,
            "simulated_throughput": self.solution.simulated_throughput or None,
            "margin": self.solution.margin,
            "rented": [asdict(pool) | {"machines": pool.machines} for pool in self.rented],
            "stage_reasons": self.stage_reasons,
            "candidates": [_candidate_document(one) for one in self.candidates],
            "why": self.reasons,
            "notes": self.notes,
            "provenance": provenance(self.solution.problem),
            **({"objective": objective_document(refinement)} if refinement else {}),
        }


def plan_report(solution: Solution, *, checked: bool = False) -> PlanReport:
    """Compare and explain the plan of a solution; `checked`: check its proof however long it takes."""
    outcome = solution.outcome
    assert outcome.plan is not None
    found = candidates(outcome.plan.problem, outcome)
    reasons = explain(
        outcome, found, max_usd=solution.request.max_usd, checked=checked, margin=solution.margin
    )
    return PlanReport(solution, found, reasons, _notes(solution, found))


def objective_document(found: Refinement) -> dict[str, Any]:
    """Return what an objective other than the formula says, as JSON data."""

    def evaluation(one: Evaluation) -> dict[str, Any]:
        return {
            "holds": one.feasible,
            "cost_usd": one.cost_usd if one.feasible else None,
            "throughput": one.throughput,
            "replicas": list(one.replicas),
            "units": list(one.replicas),  # the former name
            "note": one.note,
        }

    return {"start": evaluation(found.start), "best": evaluation(found.best), "gain": found.gain}


def _notes(solution: Solution, found: list[Candidate]) -> list[str]:
    outcome, problem = solution.outcome, solution.problem
    notes = [outcome.note] if outcome.note else []
    notes += dict.fromkeys(one.note for one in found if one.plan and one.note and one.note != outcome.note)
    notes.append(plan_space(problem))
    if problem.source is not None:
        notes.append(_times_note(problem))
    return notes


def _times_note(problem: Problem) -> str:
    """Say which times are measured and which modelled, with their uncertainty."""
    assert problem.source is not None
    profile = problem.source.profile
    by_kind: dict[str, list[str]] = {}
    for device in problem.source.devices:
        times = profile.on(device)
        by_kind.setdefault(times.compute.kind, []).append(f"{device.name} ±{times.uncertainty:.0%}")
    return "times: " + "; ".join(f"{kind}: {', '.join(names)}" for kind, names in by_kind.items())


def _candidate_document(one: Candidate) -> dict[str, Any]:
    plan = one.plan
    facts: dict[str, Any] = {
        "name": one.name,
        "chosen": one.chosen,
        "feasible": plan is not None,
        "note": one.note,
    }
    if plan is not None:
        facts |= {
            "devices": device_mix(plan),
            "stages": stage_documents(plan),
            "throughput": plan.throughput,
            "usd_per_hour": plan.usd_per_hour,
            "cost_usd": plan.cost_usd,
            "limited_by": limited_by(plan),
        }
    return facts
