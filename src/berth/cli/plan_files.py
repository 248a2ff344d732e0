"""The files that `berth plan` writes next to its answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from berth.cli.output import write_text
from berth.errors import InputError

if TYPE_CHECKING:
    from berth.report.plan_report import PlanReport

_MAX_FRONTIER_PLANS = 500


def write_files(report: PlanReport, files: dict[str, str]) -> None:
    """Write the files that were asked for; `files` maps an option to its path."""
    from berth.plan.files import write_plan
    from berth.plan.proof import proof_document

    solution = report.solution
    if path := files.get("--out"):
        refinement = solution.refinement
        write_plan(path, solution.request, solution.final, refinement.best if refinement else None)
    if path := files.get("--certificate"):
        document = proof_document(solution.outcome)
        write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
    if path := files.get("--job-profile"):
        _write_job_profile(path, report)
    if path := files.get("--html"):
        _write_page(path, report)


def _write_job_profile(path: str, report: PlanReport) -> None:
    from berth.plan.job import planned_job
    from berth.plan.profile.job import write_job_profile

    plan = report.solution.final.plan
    if plan is None or plan.problem.source is None:
        raise InputError("a JSON problem has no job profile", hint="name a model instead of --problem")
    write_job_profile(planned_job(plan)[0], path)


def _write_page(path: str, report: PlanReport) -> None:
    from berth.plan.frontier import frontier
    from berth.report.plan_frontier import frontier_chart
    from berth.report.plan_html import plan_page

    problem = report.solution.problem
    plans = frontier(problem, limit=_MAX_FRONTIER_PLANS)
    write_text(path, plan_page(report, frontier_chart(problem, plans) if plans else None))
