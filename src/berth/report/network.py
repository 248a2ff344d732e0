"""The tables of `berth network`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from berth.network.distances import Distance
from berth.network.fabric import Fabric
from berth.report import terminal
from berth.units import format_seconds
from berth.workload.profile import Provenance

_MARKS = {"measured": "*", "scaled": "~", "formula": " "}


@dataclass(frozen=True, slots=True)
class Answer:
    """One model at every distance."""

    model: str
    gpus: int
    device: str
    compute_source: Provenance
    rows: list[Distance]
    others: int = 0  # gangs like it on the same links
    shared: list[tuple[float, float]] = field(default_factory=list)  # seconds alone and beside those, by row

    @property
    def sensitivity(self) -> float:
        """Slowdown at the widest spread."""
        return self.rows[-1].slowdown

    @property
    def sources(self) -> set[str]:
        """Where the iterations are from: formula, scaled, measured."""
        return {row.iteration.source for row in self.rows}


def print_answers(answers: list[Answer], fabric: Fabric, *, as_json: bool) -> None:
    """One model in full, or several compared."""
    if as_json:
        documents = [_document(answer, fabric) for answer in answers]
        terminal.print_json(documents[0] if len(documents) == 1 else {"models": documents})
    elif len(answers) == 1:
        _print_one(answers[0], fabric)
    else:
        _print_many(sorted(answers, key=lambda answer: -answer.sensitivity), fabric)


def _print_one(answer: Answer, fabric: Fabric) -> None:
    console = terminal.console()
    compute_s = answer.rows[0].iteration.compute_s
    console.print(f"[bold]{answer.model}[/] on {_setting(answer.gpus, answer.device, fabric)}")
    console.print(f"computation {format_seconds(compute_s)} per iteration ({answer.compute_source})")
    columns = ["spread", "tier", "iteration", "exposed", "share", "slowdown"]
    console.print(terminal.table("", columns, [_cells(row, fabric) for row in answer.rows], left=2))
    if answer.shared:
        _print_shared(answer, fabric)
    console.print(sentence(answer))
    console.print(_legend(answer), style="dim")


def _print_shared(answer: Answer, fabric: Fabric) -> None:
    """The iteration while the links are otherwise idle, and beside other gangs, as the simulator has it."""
    rows = [
        (
            row.spread.words(fabric.cluster),
            format_seconds(alone),
            format_seconds(beside),
            f"{beside / alone:.2f}x",
        )
        for row, (alone, beside) in zip(answer.rows, answer.shared, strict=True)
    ]
    names = ("spread", "links idle", f"beside {answer.others}", "slowdown")
    terminal.console().print(terminal.table("", names, rows, left=1))


def _print_many(answers: list[Answer], fabric: Fabric) -> None:
    console = terminal.console()
    near, wide = answers[0].rows[0].spread, answers[0].rows[-1].spread
    devices = " or ".join(dict.fromkeys(answer.device for answer in answers))
    console.print(f"[bold]{len(answers)} models[/] on {_setting(answers[0].gpus, devices, fabric)}")
    console.print(f"nearest: {near.words(fabric.cluster)}; widest: {wide.words(fabric.cluster)}")
    largest = max(answer.sensitivity for answer in answers)
    rows = [
        (
            answer.model,
            format_seconds(answer.rows[0].iteration.seconds),
            format_seconds(answer.rows[-1].iteration.seconds),
            f"{answer.sensitivity:.2f}x",
            terminal.bar(answer.sensitivity, largest, 20),
        )
        for answer in answers
    ]
    table = terminal.table("", ("model", "nearest", "widest", "sensitivity", ""), rows)
    table.columns[-1].justify = "left"
    console.print(table)
    console.print("Sensitivity: the iteration at the widest spread over that at the nearest.", style="dim")


def sentence(answer: Answer) -> str:
    """The sensitivity, and what it means."""
    value = answer.sensitivity
    if len(answer.rows) == 1:
        return "Sensitivity 1.00: there is only one way to place it."
    if value < 0.98:
        verdict = (
            f"spread out it is faster: an iteration takes {value:.2f} times as long at the widest spread."
        )
    elif value < 1.05:
        verdict = "distance hardly matters to it."
    else:
        verdict = f"an iteration takes {value:.2f} times as long at the widest spread as at the nearest."
    return f"Sensitivity {value:.2f}: {verdict}"


def _setting(gpus: int, device: str, fabric: Fabric) -> str:
    text = f"{gpus} x {device}, cluster {fabric.cluster.name}"
    return text if fabric.congestion == 1 else f"{text}, congestion x{fabric.congestion:g}"


def _legend(answer: Answer) -> str:
    if answer.sources == {"formula"}:
        return "Iterations are modelled, not measured."
    return "* measured   ~ modelled, corrected by the nearest measurement   others modelled"


def _cells(row: Distance, fabric: Fabric) -> list[str]:
    iteration = row.iteration
    share = iteration.exposed_s / iteration.seconds if iteration.seconds > 0 else 0.0
    return [
        row.spread.words(fabric.cluster),
        fabric.cluster.tiers[iteration.tier].name,
        format_seconds(iteration.seconds) + _MARKS[iteration.source],
        format_seconds(iteration.exposed_s),
        f"{share:.0%}",
        f"{row.slowdown:.2f}x",
    ]


def _document(answer: Answer, fabric: Fabric) -> dict[str, Any]:
    return {
        "model": answer.model,
        "gpus": answer.gpus,
        "device": answer.device,
        "cluster": fabric.cluster.name,
        "congestion": fabric.congestion,
        "compute_source": str(answer.compute_source),
        "sensitivity": answer.sensitivity,
        "spreads": [
            _row_document(row, fabric) | _shared_document(answer, i) for i, row in enumerate(answer.rows)
        ],
    }


def _shared_document(answer: Answer, row: int) -> dict[str, Any]:
    if not answer.shared:
        return {}
    alone_s, beside_s = answer.shared[row]
    return {"beside": answer.others, "links_idle_s": alone_s, "beside_s": beside_s}


def _row_document(row: Distance, fabric: Fabric) -> dict[str, Any]:
    iteration = row.iteration
    return {
        "spread": row.spread.words(fabric.cluster),
        "tier": fabric.cluster.tiers[iteration.tier].name,
        "groups": list(row.spread.groups),
        "devices_per_machine": row.placement.counts.tolist(),
        "seconds": iteration.seconds,
        "compute_s": iteration.compute_s,
        "comm_s": iteration.comm_s,
        "exposed_s": iteration.exposed_s,
        "slowdown": row.slowdown,
        "source": iteration.source,
    }
