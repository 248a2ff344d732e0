"""A plan with its proof in one JSON file, which anybody can check who has the file alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from berth.errors import InputError, SpecError
from berth.plan.certificate import check
from berth.plan.document import answer, parse_json, parse_problem, problem_document
from berth.plan.plan import Plan, with_units
from berth.plan.search.exact import Certificate, Step
from berth.plan.search.method import Outcome
from berth.spec import read_text


@dataclass(frozen=True)
class Proof:
    """What a file claims, and what is wrong with it."""

    plan: Plan
    certificate: Certificate
    wrong: list[str]


def proof_document(outcome: Outcome) -> dict[str, Any]:
    """Problem, answer and the steps of the proof; an infinite bound (no plan is as fast) is null."""
    plan, proof = outcome.plan, outcome.certificate
    if plan is None or proof is None:
        raise InputError(
            "there is no proof to write", hint="--certificate goes with --method exact, without --prefer"
        )
    steps = [
        {
            "tau": step.tau,
            "next": step.next,
            "bound": step.bound if math.isfinite(step.bound) else None,
            "kind": step.kind,
            "prices": list(step.prices),
        }
        for step in proof.steps
    ]
    return {
        "problem": problem_document(plan.problem),
        "answer": answer(outcome),
        "certificate": {"best": proof.best, "lower": proof.lower, "steps": steps},
    }


def check_proof(path: str | Path) -> Proof:
    """Reads such a file and checks plan and proof with the checker, which shares no code with the search."""
    where = str(path)
    try:
        document = parse_json(read_text(path), where)
        problem = parse_problem(json.dumps(document["problem"]), where)
        stages = document["answer"]["stages"]
        kinds = [problem.type_index(stage["type"]) for stage in stages for _ in stage["layers"]]
        if [layer for stage in stages for layer in stage["layers"]] != list(problem.layers):
            raise SpecError("its stages do not cover the layers in their order", where=where)
        plan = with_units(problem, kinds, [int(stage["units"]) for stage in stages])
        certificate = _certificate(document["certificate"])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise SpecError("is not a proof that `berth plan --certificate` wrote", where=where) from None
    return Proof(plan, certificate, check(problem, plan, certificate))


def _certificate(written: Mapping[str, Any]) -> Certificate:
    steps = tuple(
        Step(
            tau=float(step["tau"]),
            next=float(step["next"]),
            bound=math.inf if step["bound"] is None else float(step["bound"]),
            kind=str(step["kind"]),
            prices=tuple(map(float, step["prices"])),
        )
        for step in written["steps"]
    )
    return Certificate(float(written["best"]), float(written["lower"]), steps)
