"""What a training came to: how it learned, where its time went, what its tables hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from berth.report.terminal import bar, table
from berth.units import format_bytes, format_seconds, format_usd

if TYPE_CHECKING:
    from rich.console import Console

    from berth.train.session import Result

_BAR = 14


def print_training(
    out: Console,
    name: str,
    result: Result,
    *,
    best_auc: float | None,
    layers: Mapping[str, float],
    predicted: Mapping[str, float],
    usd: float | None,
    notes: list[str],
) -> None:
    """All of it."""
    out.print(f"{name}: {result}", markup=False)
    if best_auc is not None:
        out.print(f"best AUC that these data allow {best_auc:.4f}", markup=False)
    spent = "" if usd is None else f", {format_usd(usd) if usd >= 0.01 else 'less than a cent'} so far"
    out.print(
        f"{result.examples_per_s:,.0f} examples/s, {result.cpu_ms_per_1000:.1f} CPU ms per 1,000 examples{spent}",
        markup=False,
    )
    if layers:
        out.print(_layers(layers, predicted))
    if result.statistics["tables"]:
        out.print(_tables(result.statistics["tables"]))
    if len(result.statistics.get("workers", ())) > 1:
        out.print(_workers(result.statistics["workers"], predicted))
    if "servers" in result.statistics:
        out.print(_servers(result.statistics))
    for note in notes:
        out.print(note, markup=False, style="dim", soft_wrap=True)


def _layers(seconds: Mapping[str, float], predicted: Mapping[str, float]) -> Any:
    largest = max(seconds.values(), default=0.0)
    rows = []
    for name, measured in seconds.items():
        expected = predicted.get(name)
        ratio = f"{measured / expected:.2f}" if expected else ""
        shown = format_seconds(expected) if expected else "-"
        rows.append([name, bar(measured, largest, _BAR), shown, format_seconds(measured), ratio])
    both = [value for name, value in seconds.items() if name in predicted]
    total = sum(seconds.values())
    expected = sum(predicted.get(name, 0.0) for name in seconds)
    ratio = f"{sum(both) / expected:.2f}" if expected else ""
    rows.append(["all", "", format_seconds(expected) if expected else "-", format_seconds(total), ratio])
    columns = ["layer", "", "predicted", "measured", "ratio"]
    return table("Time of a batch, forward and backward", columns, rows, left=2)


def _tables(statistics: Mapping[str, Any]) -> Any:
    rows = []
    for name, told in statistics.items():
        rows.append(
            [
                name,
                f"{told['rows']:,}",
                format_bytes(told["memory_bytes"]),
                format_bytes(told["cold_bytes"]) if told["cold_bytes"] else "-",
                f"{told['hit_rate']:.1%}",
                f"{told['skew']:.1f}",
                format_bytes(told["moved_bytes"]),
            ]
        )
    columns = ["table", "rows", "memory", "file", "hits", "keys/distinct", "moved"]
    return table("Tables", columns, rows)


def _workers(workers: Sequence[Mapping[str, Any]], predicted: Mapping[str, float]) -> Any:
    """Time of each stage, where a model is cut; lanes of the same stage together."""
    rows = []
    for stage in sorted({told["stage"] for told in workers}):
        mine = [told for told in workers if told["stage"] == stage]
        layers = mine[0].get("layers", ())
        spent = [told["busy_s"] for told in mine if "busy_s" in told]
        expected = sum(predicted.get(name, 0.0) for name in layers) * mine[0].get("slow_down", 1.0)
        rows.append(
            [
                " .. ".join(dict.fromkeys((layers[0], layers[-1]))) if layers else "all",
                str(len(mine)),
                format_seconds(expected) if expected else "-",
                format_seconds(max(spent)) if spent else "-",
                f"{sum(told['cpu_ms_per_1000'] for told in mine):.1f}",
                format_bytes(sum(told["sent_bytes"] for told in mine)),
            ]
        )
    columns = ["stage", "procs", "predicted", "measured", "CPU ms/1k", "sent"]
    return table("Stages: time of a batch", columns, rows, left=1)


def _servers(statistics: Mapping[str, Any]) -> Any:
    asked = [told["keys_pulled"] + told["keys_pushed"] for told in statistics["servers"]]
    mean = sum(asked) / len(asked)
    rows = []
    for number, told in enumerate(statistics["servers"]):
        held = sum(table["rows"] for table in told["tables"].values())
        moved = [format_bytes(told[name]) for name in ("bytes_in", "bytes_out")]
        skew = asked[number] / mean if mean else 1.0
        rows.append([str(number), f"{held:,}", f"{asked[number]:,}", f"{skew:.2f}", *moved])
    return table(f"Servers, by {_way(statistics)}", ["server", "rows", "keys", "of mean", "in", "out"], rows)


def _way(statistics: Mapping[str, Any]) -> str:
    """How rows travel: to workers on the machine of the servers, and to others."""
    workers = statistics.get("workers", [statistics])
    near = [told["shared_memory"] for told in workers if told.get("shared_memory") is not None]
    if all(near):
        return "shared memory"
    return f"shared memory ({sum(near)} of {len(near)} workers) and TCP" if any(near) else "TCP"


def training_document(
    name: str,
    result: Result,
    *,
    best_auc: float | None,
    layers: Mapping[str, float],
    predicted: Mapping[str, float],
    usd: float | None,
    bad_rows: int,
    resumed_from: int | None,
) -> dict[str, Any]:
    """The same for programs; what is not a number is null."""

    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "model": name,
        "step": result.step,
        "examples": result.examples,
        "loss": number(result.loss),
        "auc": number(result.auc),
        "training_auc": number(result.training_auc),
        "best_auc": best_auc,
        "preempted": result.preempted,
        "resumed_from": resumed_from,
        "examples_per_s": result.examples_per_s,
        "cpu_ms_per_1000": result.cpu_ms_per_1000,
        "cost_usd": usd,
        "bad_rows": bad_rows,
        "layers": [
            {"name": layer, "measured_s": seconds, "predicted_s": predicted.get(layer)}
            for layer, seconds in layers.items()
        ],
        **result.statistics,
    }
