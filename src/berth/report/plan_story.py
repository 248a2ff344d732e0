"""Everything that is said about one plan, for the terminal, the page and JSON alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from berth.plan.document import stage_documents
from berth.plan.explain import PLAN_SPACE, Candidate, candidates, limited_by, mix, provenance, why
from berth.plan.objective.judged import Judged
from berth.plan.objective.refine import Refined
from berth.plan.plan import Plan
from berth.plan.ports import port_notes
from berth.plan.search.method import Outcome
from berth.plan.wanted import Posed, Wanted
from berth.units import format_bandwidth, format_rate, format_usd, format_usd_per_hour


@dataclass(frozen=True)
class Story:
    """A choice with its alternatives and reasons."""

    wanted: Wanted
    posed: Posed
    outcome: Outcome
    found: list[Candidate]
    why: list[str]
    notes: list[str]
    refined: Refined | None = None  # under another truth than the formula

    @property
    def plan(self) -> Plan:
        """The chosen one."""
        assert self.outcome.plan is not None
        return self.outcome.plan

    @property
    def final(self) -> Outcome:
        """What is kept: the plan that the other truth prefers, if one was asked, else the formula's."""
        return self.outcome if self.refined is None else self.refined.outcome

    @property
    def heading(self) -> str:
        """What was asked, in one line."""
        what = self.wanted.model or self.wanted.problem or "problem"
        return f"{what} on {self.wanted.place}: {self.goal}, {self.wanted.examples:,.0f} examples"

    @property
    def goal(self) -> str:
        """The throughput, or the price."""
        if self.wanted.max_usd is not None:
            return f"the fastest for {format_usd(self.wanted.max_usd)}"
        return f"at least {format_rate(self.wanted.throughput)}"

    @property
    def crossing_bytes(self) -> list[float] | None:
        """Per example, behind each layer."""
        setup = self.posed.setup
        return None if setup is None else (setup.profile.cross_bytes / setup.profile.batch).tolist()

    def judged(self, reason: str) -> dict[str, Any]:
        """What another truth says of plans that it refutes, as JSON."""
        assert self.refined is not None
        return {"reason": reason, "objective": _objective(self.refined)}

    def document(self) -> dict[str, Any]:
        """What a model's answer says beyond a bare problem's."""
        return {
            "usd_per_hour": self.plan.usd_per_hour,
            "hours": self.plan.hours,
            "candidates": [_candidate(one) for one in self.found],
            "why": self.why,
            "notes": self.notes,
            "provenance": provenance(self.posed.setup) if self.posed.setup else {},
            **({"objective": _objective(self.refined)} if self.refined else {}),
        }


def tell(wanted: Wanted, posed: Posed, outcome: Outcome) -> Story:
    """Compares, explains and notes."""
    plan = outcome.plan
    assert plan is not None
    problem = plan.problem
    found = candidates(problem, outcome)
    reasons = why(outcome, found, max_usd=wanted.max_usd, serving_usd=posed.serving_usd)
    return Story(wanted, posed, outcome, found, reasons, _notes(wanted, posed, outcome, found))


def _notes(wanted: Wanted, posed: Posed, outcome: Outcome, found: list[Candidate]) -> list[str]:
    plan = outcome.plan
    assert plan is not None
    notes = [outcome.note] if outcome.note else []
    notes += dict.fromkeys(one.note for one in found if one.plan and one.note and one.note != outcome.note)
    notes.append(PLAN_SPACE)
    setup = posed.setup
    if setup is None:
        return notes
    notes += port_notes(setup, plan)
    measured = [name for name, text in provenance(setup).items() if text.startswith("measured")]
    modelled = [device.name for device in setup.devices if device.name not in measured]
    if measured:
        notes.append(
            f"times of {', '.join(measured)} are measured, those of {', '.join(modelled) or 'no other'} modelled"
        )
    else:
        notes.append("all times are modelled")
    return [*notes, _paid(posed), _fed(posed, plan, wanted.max_usd)]


def _paid(posed: Posed) -> str:
    setup = posed.setup
    assert setup is not None
    link = f"one unit sends {format_bandwidth(setup.link_bytes_per_s)} to another type"
    price = format_usd_per_hour(posed.problem.fixed_usd_per_hour)
    if setup.fixed is None:
        return f"a fixed {price} is in every price; {link}"
    cores = setup.fixed.coordinator_cores + setup.fixed.server_cores
    holding = ", tables" if setup.fixed.server_cores else ""
    return f"a fixed {price} is in every price ({cores} cores: coordinator{holding}); {link}"


def _fed(posed: Posed, plan: Plan, max_usd: float | None) -> str:
    assert posed.setup is not None
    fed = posed.setup.feeding(plan.throughput)
    cores = (
        f"{fed.reader_cores} + {fed.server_cores} cores at this rate, {format_usd(fed.usd)} in all (modelled)"
    )
    if max_usd is None:
        return (
            f"not in the prices, since it is the same per example on every plan: reading and serving, {cores}"
        )
    both = format_usd(plan.cost_usd + fed.usd)
    return f"not in the prices above but within the limit: reading and serving, {cores}; together {both}"


def _objective(found: Refined) -> dict[str, Any]:
    def judged(one: Judged) -> dict[str, Any]:
        return {
            "holds": one.feasible,
            "cost_usd": one.cost_usd if one.feasible else None,
            "throughput": one.throughput,
            "units": list(one.units),
            "note": one.note,
        }

    return {"start": judged(found.start), "best": judged(found.best), "gain": found.gain}


def _candidate(one: Candidate) -> dict[str, Any]:
    plan = one.plan
    facts: dict[str, Any] = {
        "name": one.name,
        "chosen": one.chosen,
        "feasible": plan is not None,
        "note": one.note,
    }
    if plan is not None:
        facts |= {
            "devices": mix(plan),
            "stages": stage_documents(plan),
            "throughput": plan.throughput,
            "usd_per_hour": plan.usd_per_hour,
            "cost_usd": plan.cost_usd,
            "limited_by": limited_by(plan),
        }
    return facts
