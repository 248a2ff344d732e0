"""A plan, a frontier and a comparison of methods as one HTML file each: offline, nothing asked of anybody."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from berth import __version__
from berth.plan.explain import Candidate, layers_of, limited_by, mix, provenance
from berth.plan.plan import Plan
from berth.plan.wanted import Posed
from berth.report.html import page
from berth.report.plan import JUDGED_COLUMNS, JUDGED_TITLE, judged_note, judged_rows, money, refused
from berth.report.plan_frontier import Picture, chart, thinned
from berth.report.plan_story import Story
from berth.units import format_bytes, format_rate, format_seconds, format_usd_per_hour

_WORDS = ("devices", "limited by")


def plan_page(story: Story, shown: Picture | None) -> str:
    """The candidates, the stages, why, the frontier and the times that all of it rests on."""
    plan = story.plan
    facts = {
        "model": story.wanted.model or story.wanted.problem or "",
        "on": story.wanted.place,
        "wanted": story.goal,
        "chosen": mix(plan),
        "cost": money(plan.cost_usd),
        "berth": __version__,
    }
    sections = [
        section("What there was to choose from", _candidates(story.found), wide=True),
        section("Stages", _stages(plan, story.crossing_bytes), wide=True),
        section("Why", items(story.why) + items(story.notes, "notes")),
    ]
    if story.refined is not None:
        rows = judged_rows(plan, story.refined)
        about = judged_note(plan, story.refined)
        sections.insert(1, section(JUDGED_TITLE, grid(JUDGED_COLUMNS, rows, words=_WORDS), about=about))
    charts = {}
    if shown is not None:
        charts["frontier"] = chart(shown, plan)
        sections.append(section("Cost against throughput", '<figure id="frontier"></figure>'))
    sections.append(section("Times of the layers", times(story.posed), wide=True))
    return document(f"berth plan: {facts['model']}", "Plan", facts, sections, charts)


def frontier_page(heading: dict[str, str], shown: Picture, posed: Posed) -> str:
    """The frontier, its plans, and what they rest on."""
    rows = [
        [
            format_rate(plan.throughput),
            format_usd_per_hour(plan.usd_per_hour),
            money(plan.cost_usd),
            mix(plan),
            limited_by(plan),
        ]
        for plan in thinned(shown.plans, 40)
    ]
    sections = [
        section("Cost against throughput", '<figure id="frontier"></figure>', wide=True),
        section(
            "Plans on the frontier",
            grid(["up to", "price", "cost", "devices", "limited by"], rows, words=_WORDS),
            wide=True,
        ),
        section("Times of the layers", times(posed), wide=True),
    ]
    facts = heading | {"plans": f"{len(shown.plans):,}", "berth": __version__}
    return document(
        "berth plan frontier", "What throughput costs", facts, sections, {"frontier": chart(shown)}
    )


def document(
    title: str, heading: str, facts: dict[str, str], sections: Iterable[str], charts: dict[str, Any]
) -> str:
    """A whole page."""
    chips = "".join(f"<li><span>{key}</span> {html.escape(value)}</li>" for key, value in facts.items())
    body = f'<header><h1>{html.escape(heading)}</h1><ul class="chips">{chips}</ul></header>\n<main>\n'
    return page(title, body + "\n".join(sections) + "\n</main>", {"charts": charts}, "plan")


def section(title: str, content: str, *, wide: bool = False, about: str = "") -> str:
    """A card."""
    said = f'<p class="quiet">{html.escape(about)}</p>' if about else ""
    return f"<section{' class=wide' if wide else ''}><h2>{html.escape(title)}</h2>{said}{content}</section>"


def items(texts: Sequence[str], css: str = "") -> str:
    """A list of sentences."""
    return f'<ul class="{css}">' + "".join(f"<li>{html.escape(text)}</li>" for text in texts) + "</ul>"


def grid(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    best: Sequence[int] = (),
    words: Sequence[str] = (),
) -> str:
    """A table; rows in `best` are marked, columns in `words` begin at the left as the first one does."""
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
        rows.append([name, mix(plan), *figures, limited_by(plan)])
    columns = ["plan", "devices", "throughput", "price", "whole training", "limited by"]
    return grid(columns, rows, best, _WORDS)


def _stages(plan: Plan, crossing_bytes: Sequence[float] | None) -> str:
    """A row per stage, with bars of computing and moving data next to each other."""
    rows = []
    for number, stage in enumerate(plan.stages, 1):
        crossing = "–"
        if crossing_bytes is not None and number < len(plan.stages):
            crossing = format_bytes(crossing_bytes[stage.last])
        name = f"{number}. {layers_of(plan.problem, stage.first, stage.last)}"
        bars = _bar(stage.compute_s / plan.stage_s, 0) + _bar(stage.data_s / plan.stage_s, 1)
        both = [format_seconds(stage.compute_s), format_seconds(stage.data_s)]
        cells = [f"{stage.units} × {stage.type_name}", *both, crossing]
        written = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        pace = " ◀ sets the pace" if number - 1 == plan.bottleneck else ""
        rows.append(f'<tr><th scope="row">{html.escape(name)}{pace}</th>{written}<td>{bars}</td></tr>')
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in (
            "stage",
            "units",
            "computing",
            "moving data",
            "handed on",
            "computing over moving data",
        )
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _bar(share: float, colour: int) -> str:
    width = max(1.0, 160 * share)
    rect = f'<rect class="t{colour}" width="{width:.1f}" height="6" rx="2"/>'
    return f'<svg viewBox="0 0 160 8" width="160" height="8">{rect}</svg>'


def times(posed: Posed) -> str:
    """Seconds per batch of every layer on one unit of every type, and where they are from."""
    problem = posed.problem
    columns = ["layer", *problem.type_names]
    rows = []
    for row, layer in enumerate(problem.layers):
        cells = [
            f"{format_seconds(compute)} + {format_seconds(data)}"
            for compute, data in zip(problem.oct_s[row], problem.odt_s[row], strict=True)
        ]
        rows.append([layer, *cells])
    what = f"Computing + synchronising parameters, for a batch of {problem.batch:,.0f} on one unit."
    about = f'<p class="quiet">{what}</p>'
    if posed.setup is None:
        return about + grid(columns, rows)
    sources = [f"{name}: {text}" for name, text in provenance(posed.setup).items()]
    return about + grid(columns, rows) + items(sources, "notes")
