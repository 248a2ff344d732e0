"""A plan, a frontier and a comparison of methods as one self-contained HTML file each."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from berth import __version__
from berth.plan.candidates import Candidate
from berth.plan.explain import provenance
from berth.plan.plan import Plan
from berth.plan.problem import COMPUTE, IN, OUT, Problem
from berth.plan.stage_reasons import device_mix, layer_range, limited_by, slowest
from berth.report.html import page
from berth.report.plan import (
    OBJECTIVE_COLUMNS,
    OBJECTIVE_TITLE,
    RENTED_COLUMNS,
    money,
    objective_note,
    objective_rows,
    refused,
    rented_rows,
)
from berth.report.plan_frontier import FrontierChart, chart_data, thinned
from berth.report.plan_report import PlanReport
from berth.units import format_bytes, format_rate, format_seconds, format_usd_per_hour

_WORDS = ("devices", "limited by")


def plan_page(report: PlanReport, frontier: FrontierChart | None) -> str:
    """Return a page with the candidates, the stages, the reasons, the frontier and the layer times."""
    plan, request, refinement = report.plan, report.solution.request, report.solution.refinement
    facts = {
        "model": request.subject,
        "on": request.devices_from,
        "goal": report.goal,
        "training": report.training,
        "chosen": device_mix(plan),
        "cost": money(plan.cost_usd),
        "berth": __version__,
    }
    sections = [
        section("In short", items(in_short(report)), wide=True),
        section("Candidates", _candidates(report.candidates), wide=True),
        section("Stages", _stages(plan, report.crossing_bytes) + items(report.stage_reasons), wide=True),
        section("Rented", grid(RENTED_COLUMNS, rented_rows(report), words=_WORDS), wide=True),
        section("Why", items(report.reasons) + items(report.notes, "notes")),
    ]
    if refinement is not None:
        rows = objective_rows(plan, refinement)
        about = objective_note(plan, refinement)
        sections.insert(2, section(OBJECTIVE_TITLE, grid(OBJECTIVE_COLUMNS, rows, words=_WORDS), about=about))
    charts = {}
    if frontier is not None:
        charts["frontier"] = chart_data(frontier, plan)
        sections.append(section("Cost against throughput", '<figure id="frontier"></figure>'))
    sections.append(section("Times of the layers", layer_times(report.solution.problem), wide=True))
    return document(f"berth plan: {facts['model']}", "Plan", facts, sections, charts)


def in_short(report: PlanReport) -> list[str]:
    """Return two sentences: what to rent and what that gives, and whether something costs less."""
    plan = report.plan
    rented = f"{device_mix(plan)} for {format_usd_per_hour(plan.usd_per_hour)}"
    first = (
        f"Rent {rented}: {format_rate(plan.throughput)}, and {money(plan.cost_usd)} for the whole training."
    )
    return [first, *report.reasons[-1:]]


def frontier_page(facts: dict[str, str], frontier: FrontierChart, problem: Problem) -> str:
    """Return a page with the frontier, its plans and the layer times."""
    rows = [
        [
            format_rate(plan.throughput),
            format_usd_per_hour(plan.usd_per_hour),
            money(plan.cost_usd),
            device_mix(plan),
            limited_by(plan),
        ]
        for plan in thinned(frontier.plans, 40)
    ]
    sections = [
        section("In short", items(frontier_in_short(frontier)), wide=True),
        section("Cost against throughput", '<figure id="frontier"></figure>', wide=True),
        section(
            "Plans on the frontier",
            grid(["up to", "price", "cost", "devices", "limited by"], rows, words=_WORDS),
            wide=True,
        ),
        section("Times of the layers", layer_times(problem), wide=True),
    ]
    facts = facts | {"plans": f"{len(frontier.plans):,}", "berth": __version__}
    return document(
        "berth plan frontier", "Cost of throughput", facts, sections, {"frontier": chart_data(frontier)}
    )


def frontier_in_short(frontier: FrontierChart) -> list[str]:
    """Return two sentences: the least cost and up to which rate it holds, and the highest rate and its cost."""
    least = min(frontier.plans, key=lambda plan: plan.cost_usd)
    most = max(frontier.plans, key=lambda plan: plan.throughput)
    cheapest = f"{money(least.cost_usd)} for the whole training is the least cost: {device_mix(least)}"
    if least is most:
        return [f"{cheapest}, at {format_rate(least.throughput)}, which is also the highest rate."]
    times = f"{most.cost_usd / least.cost_usd:.2f} times as much"
    return [
        f"{cheapest}, up to {format_rate(least.throughput)}.",
        f"The highest rate is {format_rate(most.throughput)}, for {money(most.cost_usd)} ({times}): "
        f"{device_mix(most)}.",
    ]


def document(
    title: str, heading: str, facts: dict[str, str], sections: Iterable[str], charts: dict[str, Any]
) -> str:
    """Return a whole page."""
    chips = "".join(f"<li><span>{key}</span> {html.escape(value)}</li>" for key, value in facts.items())
    body = f'<header><h1>{html.escape(heading)}</h1><ul class="chips">{chips}</ul></header>\n<main>\n'
    return page(title, body + "\n".join(sections) + "\n</main>", {"charts": charts}, "plan")


def section(title: str, content: str, *, wide: bool = False, about: str = "") -> str:
    """Return a section with a heading."""
    said = f'<p class="quiet">{html.escape(about)}</p>' if about else ""
    return f"<section{' class=wide' if wide else ''}><h2>{html.escape(title)}</h2>{said}{content}</section>"


def items(texts: Sequence[str], css: str = "") -> str:
    """Return a list of sentences."""
    return f'<ul class="{css}">' + "".join(f"<li>{html.escape(text)}</li>" for text in texts) + "</ul>"


def grid(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    best: Sequence[int] = (),
    words: Sequence[str] = (),
) -> str:
    """Return a table; rows in `best` are highlighted, columns in `words` are left-aligned like the first one."""
    head = "".join(f'<th scope="col"{_css(name in words)}>{html.escape(name)}</th>' for name in columns)
    body = []
    for at, row in enumerate(rows):
        first, *others = row
        cells = "".join(
            f"<td{_css(name in words, at in best)}>{html.escape(cell)}</td>"
            for name, cell in zip(columns[1:], others, strict=True)
        )
        body.append(f'<tr><th scope="row">{html.escape(first)}</th>{cells}</tr>')
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _css(words: bool, best: bool = False) -> str:
    names = " ".join(name for name, holds in (("words", words), ("best", best)) if holds)
    return f' class="{names}"' if names else ""


def _candidates(found: Sequence[Candidate]) -> str:
    rows, best = [], []
    for at, one in enumerate(found):
        plan = one.plan
        if one.chosen:
            best.append(at)
        if plan is None:
            rows.append([one.name, refused(one), "–", "–", "–", "–"])
            continue
        name = f"▶ {one.name}" if one.chosen else one.name
        figures = [format_rate(plan.throughput), format_usd_per_hour(plan.usd_per_hour), money(plan.cost_usd)]
        rows.append([name, device_mix(plan), *figures, limited_by(plan)])
    columns = ["plan", "devices", "throughput", "price", "whole training", "limited by"]
    return grid(columns, rows, best, _WORDS)


def _stages(plan: Plan, crossing_bytes: Sequence[float] | None) -> str:
    """Return a row per stage, with bars for computing and moving data."""
    rows = []
    for number, stage in enumerate(plan.stages, 1):
        crossing = "–"
        if crossing_bytes is not None and number < len(plan.stages):
            crossing = format_bytes(crossing_bytes[stage.last])
        name = f"{number}. {layer_range(plan.problem, stage.first, stage.last)}"
        bars = _bar(stage.compute_s / plan.stage_s, 0) + _bar(stage.data_s / plan.stage_s, 1)
        both = [format_seconds(stage.compute_s), format_seconds(stage.data_s)]
        cells = [f"{stage.replicas} × {stage.type_name}", *both, crossing]
        written = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        pace = " ◀ bottleneck" if number - 1 == slowest(plan) else ""
        rows.append(f'<tr><th scope="row">{html.escape(name)}{pace}</th>{written}<td>{bars}</td></tr>')
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in (
            "stage",
            "replicas",
            "computing",
            "moving data",
            "output",
            "computing over moving data",
        )
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _bar(share: float, colour: int) -> str:
    width = max(1.0, 160 * share)
    rect = f'<rect class="t{colour}" width="{width:.1f}" height="6" rx="2"/>'
    return f'<svg viewBox="0 0 160 8" width="160" height="8">{rect}</svg>'


def layer_times(problem: Problem) -> str:
    """Return the seconds of every layer on one device of every type, and their provenance."""
    columns = ["layer", *problem.type_names]
    first = [
        next(row for row, one in enumerate(problem.choices) if one.device == at)
        for at in range(len(problem.types))
    ]
    call = 1 if problem.stated is not None or not problem.micro else _nearest_call(problem)
    rows = [
        [layer, *(_layer_cell(problem, choice, row, call) for choice in first)]
        for row, layer in enumerate(problem.layers)
    ]
    what = f"Computing + moving data, for one call of {problem.grid[call]:,.0f} examples on one device."
    about = f'<p class="quiet">{what}</p>'
    if problem.source is None:
        return about + grid(columns, rows)
    sources = [f"{name}: {text}" for name, text in provenance(problem).items()]
    return about + grid(columns, rows) + items(sources, "notes")


def _nearest_call(problem: Problem) -> int:
    """Return the point of the grid that is nearest to the profile's batch."""
    batch = problem.source.profile.batch if problem.source else problem.batch
    return min(range(1, len(problem.grid)), key=lambda point: abs(problem.grid[point] - batch))


def _layer_cell(problem: Problem, choice: int, row: int, call: int) -> str:
    curves = problem.curves[choice, row, :, call]
    return f"{format_seconds(curves[COMPUTE])} + {format_seconds(max(curves[IN], curves[OUT]))}"
