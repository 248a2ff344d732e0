"""Everything that is reported about one plan, for the terminal, the HTML page and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from berth.plan.explain import PLAN_SPACE, Candidate, candidates, device_mix, explain, limited_by, provenance
from berth.plan.nics import nic_notes
from berth.plan.objective.protocol import Evaluation
from berth.plan.objective.refine import Refinement
from berth.plan.plan import Plan
from berth.plan.problem_json import stage_documents
from berth.plan.solve import Solution
from berth.units import format_bandwidth, format_rate, format_usd, format_usd_per_hour


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

    def document(self) -> dict[str, Any]:
        """Return what the answer for a model contains beyond that for a JSON problem."""
        refinement = self.solution.refinement
        return {
            "usd_per_hour": self.plan.usd_per_hour,
            "hours": self.plan.hours,
            "candidates": [_candidate_document(one) for one in self.candidates],
            "why": self.reasons,
            "notes": self.notes,
            "provenance": provenance(self.solution.problem),
            **({"objective": objective_document(refinement)} if refinement else {}),
        }


def plan_report(solution: Solution) -> PlanReport:
    """Compare and explain the plan of a solution."""
    outcome = solution.outcome
    assert outcome.plan is not None
    found = candidates(outcome.plan.problem, outcome)
    reasons = explain(outcome, found, max_usd=solution.request.max_usd)
    return PlanReport(solution, found, reasons, _notes(solution, outcome.plan, found))


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


def _notes(solution: Solution, plan: Plan, found: list[Candidate]) -> list[str]:
    outcome, source = solution.outcome, solution.problem.source
    notes = [outcome.note] if outcome.note else []
    notes += dict.fromkeys(one.note for one in found if one.plan and one.note and one.note != outcome.note)
    notes.append(PLAN_SPACE)
    if source is None:
        return notes
    notes += nic_notes(plan)
    measured = [name for name, text in provenance(solution.problem).items() if text.startswith("measured")]
    modelled = [device.name for device in source.devices if device.name not in measured]
    if measured:
        notes.append(
            f"times of {', '.join(measured)} are measured, those of {', '.join(modelled) or 'no other'} modelled"
        )
    else:
        notes.append("all times are modelled")
    return [*notes, _fixed_note(solution), _serving_note(solution, plan)]


def _fixed_note(solution: Solution) -> str:
    source = solution.problem.source
    assert source is not None
    link = f"one device sends {format_bandwidth(source.link_bytes_per_s)} to another type"
    price = format_usd_per_hour(solution.problem.fixed_usd_per_hour)
    if source.fixed is None:
        return f"every price includes a fixed {price}; {link}"
    cores = source.fixed.coordinator_cores + source.fixed.server_cores
    holding = ", tables" if source.fixed.server_cores else ""
    return f"every price includes a fixed {price} ({cores} cores: coordinator{holding}); {link}"


def _serving_note(solution: Solution, plan: Plan) -> str:
    source = solution.problem.source
    assert source is not None
    cores = source.serving_cores(plan.throughput)
    serving_usd = solution.problem.serving_usd(plan.throughput)
    count = f"{cores.reader_cores} + {cores.server_cores} cores at this rate"
    needed = f"{count}, {format_usd(serving_usd)} in all (modelled)"
    if solution.request.max_usd is None:
        return f"not in the prices, because it is the same per example on every plan: reading and serving, {needed}"
    total = format_usd(plan.cost_usd + serving_usd)
    return f"not in the prices above but within the limit: reading and serving, {needed}; together {total}"


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
