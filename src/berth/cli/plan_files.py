"""The files that `berth plan` writes beside its answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from berth.cli.output import write_text
from berth.errors import InputError

if TYPE_CHECKING:
    from berth.plan.search.method import Outcome
    from berth.plan.wanted import Posed
    from berth.report.plan_story import Story

_MOST_STEPS = 500


def write_files(story: Story, files: dict[str, str]) -> None:
    """Each by the option that names it."""
    from berth.plan.files import write_plan

    if path := files.get("--out"):
        write_plan(path, story.wanted, story.posed, story.final)
    if path := files.get("--certificate"):
        _write_certificate(path, story.outcome)
    if path := files.get("--job-profile"):
        _write_job(path, story.posed, story.final)
    if path := files.get("--html"):
        _write_page(path, story)


def _write_certificate(path: str, outcome: Outcome) -> None:
    from berth.plan.proof import proof_document

    write_text(path, json.dumps(proof_document(outcome), indent=1, allow_nan=False) + "\n")


def _write_job(path: str, posed: Posed, outcome: Outcome) -> None:
    from berth.plan.job import planned_job
    from berth.plan.profile.job import write_job_profile

    if posed.setup is None or outcome.plan is None:
        raise InputError("a bare problem has no job profile", hint="name a model instead of --problem")
    write_job_profile(planned_job(posed.setup, outcome.plan)[0], path)


def _write_page(path: str, story: Story) -> None:
    from berth.plan.frontier import frontier
    from berth.report.plan_frontier import picture
    from berth.report.plan_html import plan_page

    plans = frontier(story.posed.problem, most=_MOST_STEPS)
    write_text(path, plan_page(story, picture(story.posed.problem, plans) if plans else None))
