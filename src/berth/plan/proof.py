"""A plan with its proof in one JSON file that can be checked without anything else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from berth.errors import InputError, SpecError
from berth.plan.certificate import check
from berth.plan.plan import Plan, schedule_for, with_counts
from berth.plan.problem import Problem
from berth.plan.problem_json import answer, parse_json, parse_problem, problem_document
from berth.plan.search.exact import Certificate, ProofStep
from berth.plan.search.method import Outcome
from berth.spec import read_text

_CLOSE = 1e-6  # relative: figures of a file are written with nine digits


@dataclass(frozen=True)
class Proof:
    """The plan and certificate of a file, and what is wrong with them."""

    plan: Plan
    certificate: Certificate
    errors: list[str]

    @property
    def lower_bound_usd(self) -> float:
        """What no plan costs less than, if the proof holds."""
        problem = self.plan.problem
        return self.certificate.lower * problem.epochs * problem.samples / problem.batch / 3600


def proof_document(outcome: Outcome) -> dict[str, Any]:
    """Return problem, answer and proof steps as JSON data; an infinite bound (no plan is that fast) is null."""
    plan, proof = outcome.plan, outcome.certificate
    if plan is None or proof is None:
        raise InputError(
            "there is no proof to write", hint="--certificate goes with --method exact, without --prefer"
        )
    parts = [
        {"schedule": asdict(part.schedule), "steps": [_step_document(step) for step in part.steps]}
        for part in proof.parts
    ]
    return {
        "problem": problem_document(plan.problem),
        "answer": answer(outcome),
        "certificate": {"best": proof.best, "lower": proof.lower, "parts": parts},
    }


def _step_document(step: ProofStep) -> dict[str, Any]:
    return {
        "at": step.at,
        "next": step.next,
        "bound": step.bound if math.isfinite(step.bound) else None,
        "kind": step.kind,
        "prices": list(step.prices),
    }


def check_proof(path: str | Path) -> Proof:
    """Read a proof file and check it with the checker, which shares no code with the search."""
    where = str(path)
    try:
        document = parse_json(read_text(path), where)
        problem = parse_problem(json.dumps(document["problem"]), where)
        plan = _plan(problem, document["answer"], where)
        certificate = _certificate(document["certificate"])
        proof = Proof(plan, certificate, check(problem, plan, certificate))
        return replace(proof, errors=[*proof.errors, *_false_claims(proof, document["answer"])])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise SpecError("is not a proof that `berth plan --certificate` wrote", where=where) from None


def _false_claims(proof: Proof, written: Mapping[str, Any]) -> list[str]:
    """Return the figures of the answer that are not those of the plan and its proof."""
    found = {"cost_usd": proof.plan.cost_usd, "lower_bound_usd": proof.lower_bound_usd}
    return [
        f"the answer claims {name} {written[name]}, but it is {value:.9g}"
        for name, value in found.items()
        if written.get(name) is not None and not math.isclose(float(written[name]), value, rel_tol=_CLOSE)
    ] + ([] if written.get("feasible", True) is True else ["the answer claims that no plan is feasible"])


def _count(written: Mapping[str, Any], key: str, least: int, where: str, default: int | None = None) -> int:
    value = written.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SpecError(f"{key} must be a whole number of at least {least}, got {value!r}", where=where)
    return value


def _plan(problem: Problem, written: Mapping[str, Any], where: str) -> Plan:
    stages = written["stages"]
    if [layer for stage in stages for layer in stage["layers"]] != list(problem.layers):
        raise SpecError("its stages do not cover the layers in order", where=f"{where}: answer.stages")
    cuts = []
    for stage in stages:
        first, last = (problem.layer_index(stage["layers"][end]) for end in (0, -1))
        cuts.append((first, last, problem.choice_index(stage["type"], stage.get("tables", ""))))
    places = [f"{where}: answer.stages[{number}]" for number in range(len(stages))]
    replicas = [
        _count(stage, "replicas" if "replicas" in stage else "units", 1, place)
        for stage, place in zip(stages, places, strict=True)
    ]
    servers = [_count(stage, "servers", 0, place, 0) for stage, place in zip(stages, places, strict=True)]
    schedule = schedule_for(problem, len(stages), _count(written, "micro_batches", 1, f"{where}: answer", 1))
    readers = _count(written, "readers", 0, f"{where}: answer", 0)
    return with_counts(problem, schedule, cuts, replicas, servers, readers)


def _certificate(written: Mapping[str, Any]) -> Certificate:
    parts = [
        part | {"steps": [step | {"bound": _bound(step["bound"])} for step in part["steps"]]}
        for part in written["parts"]
    ]
    return TypeAdapter(Certificate).validate_python({**written, "parts": parts})


def _bound(written: float | None) -> float:
    return math.inf if written is None else written
