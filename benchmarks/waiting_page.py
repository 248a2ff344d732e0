"""The parts of docs/waiting.md that are made from figures: tables, and sentences that follow from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from berth.units import format_seconds
from waiting_ratios import CELLS, Cell, Ratio, Study, Versus, mean_of
from waiting_runs import (
    BASELINES,
    CLUSTER,
    CONGESTIONS,
    DEFAULT,
    LOADS,
    METRICS,
    MODES,
    OWN,
    SLICES,
    STEPS,
    WORKLOADS,
    dally,
)  # fmt: skip

TUNED = dally("tuned")
SHOWN_CELL: Cell = (1.0, 10.0)
WORDS = {
    "mean_jct_s": "mean JCT",
    "p99_jct_s": "p99 JCT",
    "makespan_s": "makespan",
    "exposed_comm_gpu_s": "exposed communication",
}
_STEP_WORDS = {"wait": "waiting alone (FIFO)", "order": "+ most hurt first", "preempt": "+ preemption"}


def parts(study: Study) -> dict[str, str]:
    """Every generated part of the page by its marker."""
    makers: dict[str, Callable[[Study], str]] = {
        "setup": setup,
        "answer": answer,
        "alone": alone,
        "steps": steps,
        "baselines": baselines,
        "figures": figures,
        "losses": losses,
        "own": own,
    }
    return {name: maker(study) for name, maker in makers.items()}


def fill(page: str, made: dict[str, str]) -> str:
    """The page with the text between its markers replaced; a marker without a part is a mistake."""
    for name, text in made.items():
        begin, end = f"<!-- made: {name} -->", f"<!-- end: {name} -->"
        if begin not in page or end not in page:
            raise ValueError(f"the page has no marker {begin}")
        head, rest = page.split(begin, 1)
        page = f"{head}{begin}\n\n{text.strip()}\n\n{end}{rest.split(end, 1)[1]}"
    return re.sub(r"\n{3,}", "\n\n", page)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def setup(_: Study) -> str:
    """What was played."""
    loads, congestions = ", ".join(f"{load:g}" for load in LOADS), ", ".join(f"x{c:g}" for c in CONGESTIONS)
    rows = [[one.name, one.about, one.mix] for one in WORKLOADS]
    return (
        f"Cluster `{CLUSTER}`. Loads {loads}; congestion {congestions}: {len(CELLS)} cells for each workload, in each "
        f"{SLICES} slices with their own draw of models.\n\n"
        + table(["workload", "a slice", "mix of models"], rows)
    )


def answer(study: Study) -> str:
    """The whole page in a table and two sentences."""
    rows = []
    for workload in WORKLOADS:
        full = study.versus(workload.name, dally("full", "wait"), dally("no-wait", "wait"))
        counts = f"better in {full.count('better')} of {len(CELLS)} cells, worse in {full.count('worse')}"
        rows.append(
            [
                f"**{workload.name}**: {workload.about}",
                f"{_pays(full)}: {full.overall.mean:.2f} times the mean JCT ({counts})",
                *(_ahead(study, workload.name, policy) for policy in (TUNED, DEFAULT)),
            ]
        )
    head = ["jobs", "never giving up, over not waiting", "Dally, all of it", "`berth`"]
    saved = {word: _most_saved(study, metric) for metric, word in WORDS.items() if metric != "p99_jct_s"}
    most = ", ".join(f"{100 * share:.1f} % of the {word}" for word, share in saved.items())
    pairs = len(WORKLOADS) * len(CELLS) * len(BASELINES)
    return (
        f"{table(head, rows)}\n\nAhead and behind: of {len(BASELINES)} other policies in mean JCT, beyond the noise "
        "and on average over the cells. Those that are ahead are named.\n\n"
        f"The most that Dally, tuned, saves in any of {pairs} comparisons of a cell with a baseline (so luck has a "
        f"part in it): {most}. The source reports up to 83 %, 69 % and 98 %, under conditions that we do not know."
    )


def _ahead(study: Study, workload: str, policy: str) -> str:
    found = {base: study.versus(workload, policy, base).overall for base in BASELINES}
    behind = [f"`{base}` ({ratio.mean:.2f})" for base, ratio in found.items() if ratio.verdict == "worse"]
    named = f": {', '.join(behind)}" if behind else ""
    return f"ahead of {sum(one.verdict == 'better' for one in found.values())}, behind {len(behind)}{named}"


def _most_saved(study: Study, metric: str) -> float:
    return max(
        1 - ratio.mean
        for one in WORKLOADS
        for base in BASELINES
        for ratio in study.versus(one.name, TUNED, base, metric).cells.values()
    )


def _pays(versus: Versus) -> str:
    if versus.overall.verdict == "even":
        return "makes no clear difference on average"
    return "pays" if versus.overall.verdict == "better" else "costs"


def alone(study: Study) -> str:
    """Waiting and nothing else: three modes over no-wait, at first come first served."""
    modes = [mode for mode in MODES if mode != "no-wait"]
    found = {
        (one.name, mode): study.versus(one.name, dally(mode, "wait"), dally("no-wait", "wait"))
        for one in WORKLOADS
        for mode in modes
    }
    rows = [[one.name, *(found[one.name, mode].tally for mode in modes)] for one in WORKLOADS]
    text = table(["mean JCT / `no-wait`", *(f"`{mode}`" for mode in modes)], rows) + "\n\n"
    for axis, values, word in ((1, CONGESTIONS, "congestion x{:g}"), (0, LOADS, "load {:g}")):
        rows = [
            [one.name, *(f"{found[one.name, 'full'].over(axis, value):.2f}" for value in values)]
            for one in WORKLOADS
        ]
        text += table(["`full` / `no-wait`", *(word.format(value) for value in values)], rows) + "\n\n"
    learned = [study.versus(one.name, dally("tuned", "wait"), dally("full", "wait")) for one in WORKLOADS]
    behind = sum(versus.count("worse") for versus in learned)
    ahead = sum(versus.count("better") for versus in learned)
    return text + (
        f"Learned timers against never giving up: `tuned` is better than `full` in {ahead} and worse in {behind} of "
        f"the {len(CELLS) * len(WORKLOADS)} cells."
    )


def steps(study: Study) -> str:
    """The source's three ideas one after the other."""
    text = ""
    base = dally("no-wait", "wait")
    rows = [
        [
            f"`{mode}`",
            one.name,
            *(str(study.versus(one.name, dally(mode, step), base).overall) for step in STEPS),
        ]
        for mode in MODES
        for one in WORKLOADS
    ]
    text += table(["mode", "workload", *(_STEP_WORDS[step] for step in STEPS)], rows) + "\n\n"
    text += " ".join(_gain(study, step, before) for before, step in (("wait", "order"), ("order", "preempt")))
    return text


def _gain(study: Study, step: str, before: str) -> str:
    versus = [
        study.versus(one.name, dally(mode, step), dally(mode, before)) for one in WORKLOADS for mode in MODES
    ]
    ratio = mean_of(one.overall for one in versus)
    better, worse = (sum(one.count(verdict) for one in versus) for verdict in ("better", "worse"))
    word = {"order": "The order (most hurt by the network first)", "preempt": "Preemption on top of it"}[step]
    return (
        f"{word} changes mean JCT by {_percent(ratio)} on average over modes, workloads and cells: better in {better} "
        f"of {len(versus) * len(CELLS)}, worse in {worse}."
    )


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def baselines(study: Study) -> str:
    """Dally, tuned, against every other policy, in four figures."""
    text = ""
    for one in WORKLOADS:
        rows = []
        for base in (*BASELINES, *(dally(mode) for mode in MODES if mode != "tuned")):
            found = [study.versus(one.name, TUNED, base, metric) for metric in WORDS]
            rows.append([f"`{base}`", *(versus.tally for versus in found)])
        text += f"**{one.name}**\n\n" + table(["`dally:mode=tuned` over", *WORDS.values()], rows) + "\n\n"
    return text


def figures(study: Study) -> str:
    """Absolute figures of every policy in one cell."""
    text = ""
    for one in WORKLOADS:
        rows = []
        for policy in (*BASELINES, *(dally(mode) for mode in MODES), *OWN):
            mean = study.values(one.name, policy, SHOWN_CELL).mean(axis=0)
            rows.append(
                [f"`{policy}`", *(_figure(metric, float(mean[METRICS.index(metric)])) for metric in WORDS)]
            )
        head = ["policy", *WORDS.values()]
        text += (
            f"**{one.name}**, load {SHOWN_CELL[0]:g}, congestion x{SHOWN_CELL[1]:g}\n\n"
            + table(head, rows)
            + "\n\n"
        )
    return text


def _figure(metric: str, value: float) -> str:
    return f"{value / 3600:,.0f} GPU-h" if metric == "exposed_comm_gpu_s" else format_seconds(value)


def losses(study: Study) -> str:
    """Every policy that is ahead of Dally, tuned, somewhere: how far, and whether by waits or by runs."""
    rows = []
    kinds = {"waiting": 0, "running": 0, "both": 0}
    for one in WORKLOADS:
        for base in (*BASELINES, *(dally(mode) for mode in MODES if mode != "tuned")):
            versus = study.versus(one.name, TUNED, base)
            lost = versus.where("worse")
            if lost:
                wait_s, run_s = _longer(study, one.name, base, lost)
                kinds[_kind(wait_s, run_s)] += 1
                loads = sorted({load for load, _ in lost})
                spread = " to ".join(f"{load:g}" for load in dict.fromkeys((loads[0], loads[-1])))
                ratio = mean_of(versus.cells[cell] for cell in lost)
                shown = [
                    f"{len(lost)} of {len(CELLS)}",
                    spread,
                    f"{ratio:.2f}",
                    _signed(wait_s),
                    _signed(run_s),
                ]
                rows.append((len(lost), [one.name, f"`{base}`", *shown]))
    if not rows:
        return "In no cell is another policy ahead in mean JCT beyond the noise."
    rows.sort(key=lambda row: -row[0])
    head = ["workload", "ahead of it", "cells", "loads", "mean JCT", "Dally waits", "Dally runs"]
    where = (
        f"Of these {len(rows)} losses {kinds['waiting']} lie in waiting, {kinds['running']} in running, "
        f"{kinds['both']} in both."
    )
    return table(head, [row for _, row in rows]) + "\n\n" + where


def _longer(study: Study, workload: str, base: str, cells: list[Cell]) -> tuple[float, float]:
    """By how much a job of Dally's waits longer, and runs longer, than one of the other's."""
    at = [METRICS.index("mean_jct_s"), METRICS.index("mean_wait_s")]
    mine, other = (
        np.mean([study.values(workload, name, cell)[:, at] for cell in cells], axis=(0, 1))
        for name in (TUNED, base)
    )
    jct_s, wait_s = mine - other
    return float(wait_s), float(jct_s - wait_s)


def _kind(wait_s: float, run_s: float) -> str:
    """Where a loss lies: one part counts alone if it is more than twice the other."""
    if wait_s > 2 * run_s:
        return "waiting"
    return "running" if run_s > 2 * wait_s else "both"


def _signed(value_s: float) -> str:
    return f"{'+' if value_s >= 0 else '-'}{format_seconds(abs(value_s))}"


def own(study: Study) -> str:
    """What berth's own policy adds."""
    at_fifo = [dally(mode, "wait") for mode in MODES]
    all_modes = [dally(mode, step) for step in STEPS for mode in MODES]
    rows = []
    for one in WORKLOADS:
        for policy in OWN:
            named = [
                study.versus(one.name, policy, base).tally for base in (TUNED, dally("full"), "tiresias")
            ]
            best = [_tally(study.versus_best(one.name, policy, names)) for names in (at_fifo, all_modes)]
            rows.append([one.name, f"`{policy}`", *named, *best])
    head = [
        "workload",
        "mean JCT of",
        "/ `dally:mode=tuned`",
        "/ `dally:mode=full`",
        "/ `tiresias`",
        "/ best of four, FIFO",
        "/ best of twelve",
    ]
    same = [mean_of(study.versus_best(one.name, OWN[0], at_fifo).values()) for one in WORKLOADS]
    shown = ", ".join(f"{ratio:.2f} ({one.name})" for ratio, one in zip(same, WORKLOADS, strict=True))
    lines = [
        f"- At one and the same order, first come first served, `{OWN[0]}` over the best of the modes: {shown}."
    ]
    return table(head, rows) + "\n\n" + "\n".join([*lines, *(_tails(study, policy) for policy in OWN)])


def _tally(ratios: dict[Cell, Ratio]) -> str:
    counts = "/".join(str(sum(r.verdict == v for r in ratios.values())) for v in ("better", "even", "worse"))
    return f"{mean_of(ratios.values()):.2f} · {counts}"


def _tails(study: Study, policy: str) -> str:
    p99, makespan, comm = (
        mean_of(study.versus(one.name, policy, TUNED, metric).overall for one in WORKLOADS)
        for metric in ("p99_jct_s", "makespan_s", "exposed_comm_gpu_s")
    )
    return (
        f"- `{policy}` against `{TUNED}`, over all workloads: p99 {p99:.2f}, makespan {makespan:.2f}, exposed "
        f"communication {comm:.2f}."
    )
