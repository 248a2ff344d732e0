"""A plan with its proof in one JSON file that can be checked without anything else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from berth.errors import InputError, SpecError
from berth.plan.certificate import check
from berth.plan.plan import Plan, with_replicas
from berth.plan.problem_json import answer, parse_json, parse_problem, problem_document
from berth.plan.search.exact import Certificate, ProofStep
from berth.plan.search.method import Outcome
from berth.spec import read_text


@dataclass(frozen=True)
class Proof:
    """The plan and certificate of a file, and what is wrong with them."""

    plan: Plan
    certificate: Certificate
    errors: list[str]


def proof_document(outcome: Outcome) -> dict[str, Any]:
    """Return problem, answer and proof steps as JSON data; an infinite bound (no plan is that fast) is null."""
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
    """Read a proof file and check it with the checker, which shares no code with the search."""
    where = str(path)
    try:
        document = parse_json(read_text(path), where)
        problem = parse_problem(json.dumps(document["problem"]), where)
        stages = document["answer"]["stages"]
        devices = [problem.type_index(stage["type"]) for stage in stages for _ in stage["layers"]]
        if [layer for stage in stages for layer in stage["layers"]] != list(problem.layers):
            raise SpecError("its stages do not cover the layers in order", where=where)
        replicas = [int(stage["replicas"] if "replicas" in stage else stage["units"]) for stage in stages]
        plan = with_replicas(problem, devices, replicas)
        certificate = _certificate(document["certificate"])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise SpecError("is not a proof that `berth plan --certificate` wrote", where=where) from None
    return Proof(plan, certificate, check(problem, plan, certificate))


def _certificate(written: Mapping[str, Any]) -> Certificate:
    steps = tuple(
        ProofStep(
            tau=float(step["tau"]),
            next=float(step["next"]),
            bound=math.inf if step["bound"] is None else float(step["bound"]),
            kind=str(step["kind"]),
            prices=tuple(map(float, step["prices"])),
        )
        for step in written["steps"]
    )
    return Certificate(float(written["best"]), float(written["lower"]), steps)
