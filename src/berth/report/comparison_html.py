"""A comparison of policies as one HTML file: a sentence, a table with intervals, and a heat of changes per policy."""

from __future__ import annotations

import html
from collections.abc import Sequence

from berth.report.heat import heat_class, heat_style, legend
from berth.report.html import page
from berth.report.simulation import comparison_verdict, difference_row, labels
from berth.simulate.compared import COMPARED
from berth.simulate.comparison import Comparison, Difference


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
    lead = "".join(
        f"<p>{html.escape(comparison_verdict(differences, name, names[0]))}</p>"
        for name, differences in mine.items()
    )
    seeds = [f"seeds of the failures: {', '.join(map(str, found.fault_seeds))}"] if found.fault_seeds else []
    remarks = "".join(f"<li>{html.escape(text)}</li>" for text in [found.how, *seeds, *policy_legend, *notes])
    tables = "\n".join(_table(differences, name, names[0]) for name, differences in mine.items())
    body = (
        f'<header><h1>Comparison</h1><ul class="chips">{chips}</ul></header>\n<main>'
        f'<section class="wide verdict"><h2>In short</h2>{lead}{legend()}'
        '<p class="quiet">Goodput and fairness are coloured the other way round: more is better.</p></section>\n'
        f'{tables}\n<section class="wide"><p class="quiet">All figures are simulated, not measured.</p>'
        f'<ul class="notes">{remarks}</ul></section></main>'
    )
    data = {"differences": [one.as_json() for one in found.differences]}
    return page(f"berth compare: {trace}", body, data, "sweep", heat_style())


def _table(differences: Sequence[Difference], name: str, base: str) -> str:
    columns = ["", base, name, "change", "95 % interval", ""]
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in columns)
    rows = "".join(_row(one) for one in differences)
    return (
        f'<section class="wide"><h2>{html.escape(f"{name} against {base}")}</h2><div class="scroll">'
        f'<table class="heat"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def _row(one: Difference) -> str:
    metric, before, after, change, interval, verdict = (html.escape(text) for text in difference_row(one))
    shade = heat_class(one.ratio, less_is_better=COMPARED[one.metric].less_is_better)
    noise = " noise" if one.verdict == "within noise" else ""
    return (
        f'<tr><th scope="row">{metric}</th><td>{before}</td><td>{after}</td><td class="{shade}{noise}">{change}</td>'
        f"<td>{interval}</td><td>{verdict}</td></tr>"
    )
