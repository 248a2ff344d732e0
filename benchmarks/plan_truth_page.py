"""Makes docs/plan-truth.md and its picture from the runs that `plan_truth.py --store` stored.

python benchmarks/plan_truth_page.py
"""

from __future__ import annotations

import json
import math
import statistics
from html import escape
from typing import Any

from berth.testing.accelerator import NAME as STANDIN
from plan_truth import STORED, WAITED, made
from plan_truth_cases import (
    HELD_OUT,
    HELD_OUT_BATCHES,
    HELD_OUT_MODELS,
    MEDIAN_BAR,
    SAMPLE,
    SPEED_OF_STANDIN,
    WORST_BAR,
    Run,
)

DOCS = STORED.parents[1]
PICTURE = STORED.with_suffix(".svg")
_COLOURS = ("#4c8dd6", "#d6824c", "#5aa873", "#a06cc8", "#c2512c", "#3a9a9a", "#b58a1d")
_GREY = "#8a8f98"
_SIZE, _MARGIN = 420, 60


def write_page() -> None:
    """Write both files."""
    stored = json.loads(STORED.read_text())
    runs = [made(run) for run in stored["runs"]]
    PICTURE.write_text(picture(runs))
    (DOCS / "plan-truth.md").write_text(page(runs, stored["machine"]))


def page(runs: list[Run], machine: dict[str, Any]) -> str:
    """The page: what was compared, the figures, a line for each run."""
    by_wall = sum(run.judged == "wall" for run in runs)
    emulated = sum(run.device == STANDIN for run in runs)
    off = [abs(run.server_s[0] / run.server_s[1] - 1) for run in runs if run.server_s[1]]
    served = statistics.median(off or [0.0])
    lines = [
        "# Are predictions true?",
        "",
        "A plan is worth as much as its predicted step times. So real trainings run on one machine, and their",
        "steps are compared with the planner's own formula for their workers and servers, put on the cores of that",
        "machine (`make bench-plan-truth` does it again; this page is made from its stored results).",
        "",
        f"On {machine['cores']} cores of {machine['cpu']}, {machine['date']}:",
        "",
        "| trainings | number | median error | worst error |",
        "|---|---|---|---|",
        summary("developed on", [run for run in runs if run.case in SAMPLE], len(SAMPLE)),
        summary("held out", [run for run in runs if run.case in HELD_OUT], len(HELD_OUT)),
        "",
        "*Developed on*: the formula was written while these cases were looked at, and one constant is fitted to",
        "them (3 ms where processes outnumber cores). Everything else is measured apart from them: layer curves, and",
        "host rates by `berth profile --here`, which also measures how much slower a core gets while the others are",
        "busy. *Held out*: models and batches that were not looked at meanwhile",
        f"({', '.join(HELD_OUT_MODELS)}; of the others, batches of {' and '.join(map(str, HELD_OUT_BATCHES))}).",
        "",
        f"{by_wall} of them are judged by wall-clock time, and {len(runs) - by_wall} by CPU time, because other",
        f"programs made work on these cores wait for more than {WAITED:.0%} of its time. {emulated} run on the",
        f"[stand-in accelerator](guides/devices.md) at {SPEED_OF_STANDIN:g} times the speed of a core: an emulated",
        "device, whose curves and rows are measured on it; with no case of 256 examples, where its wrapper in Python",
        "costs more than the work. With two workers there are more busy processes than cores here, which a planned",
        "cluster avoids; they share the cores in the prediction too.",
        f"The CPU time of a server is {served:.0%} off in the median.",
        "",
        "Every training here has one stage. Pipelines are compared after each planned run, see",
        "[run a plan](guides/training-processes.md#run-a-plan).",
        "",
        "A prediction knows three things from the run itself: how long its examples take to draw, how many of its",
        "rows are new (a short run has many, a long one few), and what new memory costs on that machine.",
        "",
        "![predicted against measured milliseconds of a step](assets/plan-truth.svg)",
        "",
        '<details markdown="1">',
        "<summary>Every training</summary>",
        "",
        "Milliseconds of one step; of worker, server and reader, the CPU milliseconds of one, predicted / measured.",
        "",
        "| part | model | device | workers | servers | batch of a worker "
        "| predicted | measured | error | by | worker | server | reader |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        part = "held out" if run.case in HELD_OUT else ""
        parts = " | ".join(pair(both) for both in (run.worker_s, run.server_s, run.reader_s))
        lines.append(
            f"| {part} | {run.model} | {run.device} | {run.workers} | {run.servers} | {run.batch:,} "
            f"| {run.predicted_s * 1e3:.1f} | {run.measured_s * 1e3:.1f} | {run.error:+.0%} | {run.judged} | {parts} |"
        )
    return "\n".join([*lines, "", "</details>"]) + "\n"


def summary(name: str, runs: list[Run], cases: int) -> str:
    """A line on the errors of some runs, with the bars."""
    if not runs:
        return f"| {name} | 0 of {cases} | - | - |"
    errors = [abs(run.error) for run in runs]
    median, worst = statistics.median(errors), max(errors)
    whole = len(runs) >= cases
    both = (median, MEDIAN_BAR), (worst, WORST_BAR)
    columns = [f"{error:.0%} (bar: {bar:.0%}{verdict(error <= bar, whole)})" for error, bar in both]
    return f"| {name} | {len(runs)} of {cases} | {' | '.join(columns)} |"


def verdict(met: bool, whole: bool) -> str:
    """What a bar says; it is not met by some of the cases."""
    return ", MISSED" if not met else ", met" if whole else ", met by these"


def pair(both: tuple[float, float]) -> str:
    """Predicted / measured, in milliseconds."""
    return f"{both[0] * 1e3:.1f} / {both[1] * 1e3:.1f}" if both[1] else "-"


def picture(runs: list[Run]) -> str:
    """Predicted over measured, both logarithmic, with lines at the bars."""
    values = [value for run in runs for value in (run.predicted_s, run.measured_s)]
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1

    def at(seconds: float) -> float:
        return (math.log10(seconds) - low) / (high - low) * _SIZE

    def point(x: float, y: float) -> tuple[float, float]:
        return _MARGIN + at(x), 10 + _SIZE - at(y)

    parts = [f'<rect x="{_MARGIN}" y="10" width="{_SIZE}" height="{_SIZE}" fill="none" stroke="{_GREY}"/>']
    for factor, dash in ((1.0, ""), (1 + WORST_BAR, "4 4"), (1 - WORST_BAR, "4 4")):
        shift = math.log10(factor)
        ends = [point(10**x, 10 ** (x + shift)) for x in (max(low, low - shift), min(high, high - shift))]
        (x1, y1), (x2, y2) = ends
        parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_GREY}" '
            f'stroke-dasharray="{dash}"/>'
        )
    for power in range(math.ceil(low), math.floor(high) + 1):
        x, y = point(10.0**power, 10.0**power)
        parts.append(text(x, _SIZE + 26, _milliseconds(power), "middle"))
        parts.append(text(_MARGIN - 6, y + 4, _milliseconds(power), "end"))
    models = list(dict.fromkeys(run.model for run in runs))
    for run in runs:
        x, y = point(run.measured_s, run.predicted_s)
        colour = _COLOURS[models.index(run.model) % len(_COLOURS)]
        title = f"{run.model} on {run.device}, {run.workers} + {run.servers}, {run.batch:,}: {run.error:+.0%}"
        filled = "0.8" if run.device != STANDIN else "0"
        dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}" fill-opacity="{filled}" stroke="{colour}">'
        parts.append(f"{dot}<title>{escape(title)}</title></circle>")
    for number, model in enumerate(models):
        y = 28 + 18 * number
        parts.append(
            f'<circle cx="{_MARGIN + 14}" cy="{y - 4}" r="4.5" fill="{_COLOURS[number % len(_COLOURS)]}"/>'
        )
        parts.append(text(_MARGIN + 24, y, model, "start"))
    parts.append(text(_MARGIN + _SIZE / 2, _SIZE + 44, "measured step", "middle"))
    parts.append(
        text(
            _MARGIN + _SIZE / 2,
            _SIZE + 62,
            "upwards: predicted step; dashed: 30 % off; hollow: stand-in device",
            "middle",
        )
    )
    size = f'width="{_SIZE + 2 * _MARGIN}" height="{_SIZE + 72}" viewBox="0 0 {_SIZE + 2 * _MARGIN} {_SIZE + 72}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">{"".join(parts)}</svg>\n'


def _milliseconds(power: int) -> str:
    """A power of ten seconds."""
    return f"{10.0 ** (power + 3):,.0f} ms" if power >= -3 else f"{10.0 ** (power + 3):g} ms"


def text(x: float, y: float, words: str, anchor: str) -> str:
    """Small grey words."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" text-anchor="{anchor}" fill="{_GREY}">{escape(words)}</text>'


if __name__ == "__main__":
    write_page()
