"""The report of a simulation as one self-contained HTML file.

The page contains the figures as JSON and one short script (assets/) that draws them. A content security policy
allows only this script, by its hash, so job names can't inject code.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from berth import __version__
from berth.report.plots import run_data, shared_edges
from berth.report.simulation import best, labels, metrics_of
from berth.report.verdict import idle, tail, verdict
from berth.simulate.metrics import Summary
from berth.simulate.policy_run import PolicyRun
from berth.simulate.reference import reference_device
from berth.simulate.timeline import last_end_s
from berth.units import format_count

_MAX_DRAWN = 8  # runs with curves


def report_page(played: Sequence[PolicyRun], notes: Sequence[str]) -> str:
    """Return the report of runs that kept their logs."""
    run = played[0].run
    names, legend = labels([one.summary.policy for one in played])
    edges = shared_edges([one.run for one in played])
    drawn = played[:_MAX_DRAWN]
    data: dict[str, Any] = {
        "from": float(edges[0]),
        "to": float(edges[-1]),
        "end": max(float(edges[-1]), *(last_end_s(one.run) for one in played)),
        "devices": run.cluster.devices,
        "tiers": [tier.name for tier in run.cluster.tiers],
        "bars": [
            {"label": name, "mean": one.summary.mean_jct_s, "p99": one.summary.p99_jct_s}
            for name, one in zip(names, played, strict=True)
            if one.summary.finished
        ],
        "runs": [run_data(name, one.run, one.timers, edges) for name, one in zip(names, drawn, strict=False)],
    }
    notes = [*notes, *([f"curves: the first {_MAX_DRAWN} policies"] if len(played) > _MAX_DRAWN else [])]
    body = _body(played, names, legend, notes)
    return page(f"berth: {run.trace.source} on {run.cluster.name}", body, data, "report")


def page(title: str, body: str, data: dict[str, Any], script: str, style: str = "") -> str:
    """Return a document with a body, its data, one of the scripts in assets/ and rules of style of its own."""
    style, code = _asset("report.css") + style, _asset("draw.js") + _asset(f"{script}.js")
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(code)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        f'<script type="application/json" id="data">{embedded(data)}</script>\n'
        f"<script>{code}</script>\n</body>\n</html>\n"
    )


def embedded(data: dict[str, Any]) -> str:
    """Return JSON for a script element: without `<`, so nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return resources.files("berth.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _body(
    played: Sequence[PolicyRun], names: Sequence[str], legend: Sequence[str], notes: Sequence[str]
) -> str:
    run = played[0].run
    setting = run.setting
    facts = {
        "trace": run.trace.source,
        "jobs": f"{len(run.trace):,}",
        "cluster": f"{run.cluster.name}, {format_count(run.cluster.devices, 'device')}",
        "network": f"{setting.network}, congestion x{setting.congestion:g}",
        "durations on": reference_device(run.cluster, setting.reference_device).name,
        "mix": f"{setting.mix.text}, seed {setting.seed}",
        "berth": __version__,
    }
    chips = "".join(f"<li><span>{key}</span> {html.escape(value)}</li>" for key, value in facts.items())
    remarks = "".join(f"<li>{html.escape(text)}</li>" for text in [*legend, *notes])
    summaries = [one.summary for one in played]
    sentences = verdict(summaries, names)
    tails = [text for one, name in zip(played, names, strict=True) if (text := tail(one.run, name))]
    sentences += [text] if (text := idle(summaries)) else []
    lead = "".join(f"<p>{html.escape(text)}</p>" for text in sentences)
    behind = "".join(f"<li>{html.escape(text)}</li>" for text in tails)
    charts = _asset("report.html")
    if not any(one.timers and one.timers.times for one in played):
        charts = _without(charts, "timers").replace("<section>", '<section class="wide">', 1)
    return (
        f'<header><h1>Simulation report</h1><ul class="chips">{chips}</ul></header>\n<main>\n'
        f'<section class="wide verdict"><h2>In short</h2>{lead}'
        f'<ul class="tail">{behind}</ul><figure id="bars"></figure>\n'
        '<p class="quiet">One trace is one sample: <code>berth compare</code> shows whether a difference is more '
        "than noise.</p></section>\n"
        f'<section class="wide"><h2>Side by side</h2>{_table(summaries, names)}\n'
        f'<p class="quiet">★ best of its row. JCT: completion time, from submission to end. All figures are '
        f'simulated, not measured.</p>\n<ul class="notes">{remarks}</ul></section>\n{charts}\n</main>'
    )


def _without(charts: str, section: str) -> str:
    head, _, rest = charts.partition(f"<!-- {section} -->")
    return head + rest.partition(f"<!-- /{section} -->")[2]


def _table(results: Sequence[Summary], names: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    rows = []
    for metric in metrics_of(results):
        marks = best(metric, results)
        cells = []
        for result, mark in zip(results, marks, strict=True):
            value = metric.value(result)
            text = "–" if value is None else html.escape(metric.text(value))
            cells.append(f'<td class="best">★ {text}</td>' if mark else f"<td>{text}</td>")
        rows.append(f'<tr><th scope="row">{html.escape(metric.name)}</th>{"".join(cells)}</tr>')
    return (
        f'<div class="scroll"><table><thead><tr><th scope="col">metric</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
