"""A comparison of policies as one HTML file: a sentence, a table with intervals, and a heat of changes per policy."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from berth.report.heat import heat_class, heat_style, legend
from berth.report.html import page
from berth.report.simulation import comparison_verdict, difference_row, labels, mean_sentence
from berth.simulate.compared import COMPARED
from berth.simulate.comparison import Comparison, Difference

_WIDTH = 150  # of a drawn interval, in pixels
_LARGEST = math.log(10.0)  # intervals beyond a factor of ten are drawn to the end of the scale


def comparison_page(found: Comparison, trace: str, cluster: str, notes: Sequence[str]) -> str:
    """Return the page."""
    policies = [result.policy for result in found.results[0]]
    names, policy_legend = labels(policies)
    mine = {
        name: [one for one in found.differences if one.policy == policy]
        for name, policy in zip(names[1:], policies[1:], strict=True)
    }
    facts = {"trace": trace, "cluster": cluster, "policies": str(len(policies)), "traces": str(found.seeds)}
    chips = "".join(f"<li><span>{key}</span> {html.escape(value)}</li>" for key, value in facts.items())
    sentences = [
        f"{comparison_verdict(differences, name, names[0])} {mean_sentence(differences, name, names[0])}"
        for name, differences in mine.items()
    ]
    lead = "".join(f"<p>{html.escape(text)}</p>" for text in sentences)
    seeds = [f"seeds of the failures: {', '.join(map(str, found.fault_seeds))}"] if found.fault_seeds else []
    remarks = "".join(f"<li>{html.escape(text)}</li>" for text in [found.how, *seeds, *policy_legend, *notes])
    tables = "\n".join(_table(differences, name, names[0]) for name, differences in mine.items())
    body = (
        f'<header><h1>Comparison</h1><ul class="chips">{chips}</ul></header>\n<main>'
        f'<section class="wide verdict"><h2>In short</h2>{lead}{legend()}'
        '<p class="quiet">Goodput and fairness are coloured the other way round: more is better. The line below an '
        "interval shows it, the dot the change, the mark in the middle no change; left is less.</p></section>\n"
        f'{tables}\n<section class="wide"><p class="quiet">All figures are simulated, not measured.</p>'
        f'<ul class="notes">{remarks}</ul></section></main>'
    )
    data = {"differences": [one.as_json() for one in found.differences]}
    return page(f"berth compare: {trace}", body, data, "sweep", heat_style())


def _table(differences: Sequence[Difference], name: str, base: str) -> str:
    columns = ["metric", base, name, "change", "95 % interval", "verdict"]
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in columns)
    furthest = _furthest(differences)
    rows = "".join(_row(one, furthest) for one in differences)
    return (
        f'<section class="wide"><h2>{html.escape(f"{name} against {base}")}</h2><div class="scroll">'
        f'<table class="heat"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def _furthest(differences: Sequence[Difference]) -> float:
    """Return the logarithm of the ratio at the ends of the scale of all intervals of a table."""
    ends = [
        abs(math.log(end))
        for one in differences
        for end in (one.low, one.high)
        if end is not None and end > 0
    ]
    return min(_LARGEST, max(ends, default=0.0)) or _LARGEST


def _drawn(one: Difference, furthest: float) -> str:
    """Return an interval as a line with a dot at the change, no change in the middle; nothing without an interval."""
    if one.low is None or one.high is None or one.ratio is None:
        return ""
    low, at, high = (
        round(_WIDTH / 2 * (1 + max(-1.0, min(1.0, math.log(max(end, 1e-9)) / furthest))), 1)
        for end in (one.low, one.ratio, one.high)
    )
    middle = _WIDTH / 2
    return (
        f'<svg class="interval" viewBox="0 0 {_WIDTH} 12" aria-hidden="true">'
        f'<line class="axis" x1="0" x2="{_WIDTH}" y1="6" y2="6"/>'
        f'<line class="axis" x1="{middle}" x2="{middle}" y1="0" y2="12"/>'
        f'<line class="curve s0" x1="{low}" x2="{high}" y1="6" y2="6"/><circle cx="{at}" cy="6" r="3.5"/></svg>'
    )


def _row(one: Difference, furthest: float) -> str:
    metric, before, after, change, interval, verdict = (html.escape(text) for text in difference_row(one))
    shade = heat_class(one.ratio, less_is_better=COMPARED[one.metric].less_is_better)
    noise = " noise" if one.verdict == "within noise" else ""
    return (
        f'<tr><th scope="row">{metric}</th><td>{before}</td><td>{after}</td><td class="{shade}{noise}">{change}</td>'
        f"<td>{interval}{_drawn(one, furthest)}</td><td>{verdict}</td></tr>"
    )
