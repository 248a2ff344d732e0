"""Report of a training run: quality, time per layer, tables, stages and servers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from berth.report.terminal import bar, table
from berth.units import format_bytes, format_seconds, format_usd

if TYPE_CHECKING:
    from rich.console import Console

    from berth.train.plan_comparison import PlanComparison
    from berth.train.result import Result

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
    plan: PlanComparison | None = None,
) -> None:
    """Print the report."""
    out.print(f"{name}: {result}", markup=False)
    for label, task in result.tasks.items():
        out.print(f"{label}: AUC {task['auc']:.4f}, log loss {task['log_loss']:.4f}", markup=False)
    if best_auc is not None:
        out.print(f"best possible AUC on this data {best_auc:.4f}", markup=False)
    for line in _evaluations(result):
        out.print(line, markup=False)
    spent = "" if usd is None else f", {format_usd(usd) if usd >= 0.01 else 'less than a cent'} so far"
    if result.examples_per_s:  # 0: it had nothing left to train
        speed = (
            f"{result.examples_per_s:,.0f} examples/s, {result.cpu_ms_per_1000:.1f} CPU ms per 1,000 examples"
        )
        out.print(f"{speed}{spent}", markup=False)
    if layers:
        out.print(_layers(layers, predicted))
    if result.statistics["tables"]:
        out.print(_tables(result.statistics["tables"]))
    caches = {name: info for name, info in _caches(result).items() if info["capacity"]}
    if caches:
        out.print(_device_caches(caches))
    if plan is not None:
        _print_plan(out, plan)
    elif len(result.statistics.get("workers", ())) > 1:
        out.print(_workers(result.statistics["workers"], predicted))
    if "servers" in result.statistics:
        out.print(_servers(result.statistics))
    if "owners" in result.statistics:
        out.print(_owners(result.statistics["owners"]))
    for note in notes:
        out.print(note, markup=False, style="dim", soft_wrap=True)


def _evaluations(result: Result) -> list[str]:
    """Return lines about held-out data: the last evaluation, and the best one if it is another."""
    if result.evaluation is None:
        return []
    lines = [f"{result.evaluation}, on {result.evaluation.examples:,} examples"]
    if result.best is not None and result.best.step != result.evaluation.step:
        lines.append(f"best at step {result.best.step:,}: {result.best}")
    if result.best_checkpoint is not None:
        lines.append(f"best checkpoint: {result.best_checkpoint}")
    return lines


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
    for name, info in statistics.items():
        rows.append(
            [
                name,
                f"{info['rows']:,}",
                format_bytes(info["memory_bytes"]),
                format_bytes(info["cold_bytes"]) if info["cold_bytes"] else "-",
                f"{info['hit_rate']:.1%}",
                f"{info['skew']:.1f}",
                format_bytes(info["moved_bytes"]),
            ]
        )
    columns = ["table", "rows", "memory", "file", "hits", "keys/distinct", "moved"]
    return table("Tables", columns, rows)


def _caches(result: Result) -> Mapping[str, Any]:
    found: Mapping[str, Any] = result.statistics.get("device_cache", {})
    return found


def _device_caches(caches: Mapping[str, Any]) -> Any:
    """Return the use of device memory for rows, over the whole run."""
    rows = [
        [
            name,
            f"{info['rows']:,}",
            f"{info['capacity']:,}",
            f"{info['hit_rate']:.1%}",
            f"{info['misses']:,}",
            f"{info['evictions']:,}",
            format_bytes(info["to_device_bytes"]),
            format_bytes(info["to_host_bytes"]),
        ]
        for name, info in caches.items()
    ]
    columns = ["table", "rows", "places", "hits", "misses", "evicted", "copied there", "back"]
    return table("Rows in device memory, by distinct keys of a batch", columns, rows)


def _workers(workers: Sequence[Mapping[str, Any]], predicted: Mapping[str, float]) -> Any:
    """Return the time of each stage, over all replicas."""
    rows = []
    for stage in sorted({info["stage"] for info in workers}):
        ranks = [info for info in workers if info["stage"] == stage]
        layers = ranks[0].get("layers", ())
        spent = [info["busy_s"] for info in ranks if "busy_s" in info]
        expected = sum(predicted.get(name, 0.0) for name in layers) * ranks[0].get("slowdown", 1.0)
        rows.append(
            [
                " .. ".join(dict.fromkeys((layers[0], layers[-1]))) if layers else "all",
                str(len(ranks)),
                format_seconds(expected) if expected else "-",
                format_seconds(max(spent)) if spent else "-",
                f"{sum(info['cpu_ms_per_1000'] for info in ranks):.1f}",
                format_bytes(sum(info["sent_bytes"] for info in ranks)),
            ]
        )
    columns = ["stage", "procs", "predicted", "measured", "CPU ms/1k", "sent"]
    return table("Stages: time of a batch", columns, rows, left=1)


def _print_plan(out: Console, plan: PlanComparison) -> None:
    """Print predicted against measured times and throughput, and what of the plan was not started."""
    rows = []
    for number, stage in enumerate(plan.stages, 1):
        started = f"{stage.started:,} of {stage.planned:,}"
        both = _predicted_and_measured(stage.predicted_s, stage.measured_s)
        rows.append([str(number), stage.device, started, *both, stage.source])
        if stage.exchange_measured_s:  # not with one replica
            exchange = _predicted_and_measured(stage.exchange_predicted_s, stage.exchange_measured_s)
            rows.append([f"{number}, rows", "", "", *exchange, "modelled"])
    if plan.servers_started or plan.servers_planned:
        rows.append(["servers", "", f"{plan.servers_started:,} of {plan.servers_planned:,}", "", "", "", ""])
    both = _predicted_and_measured(plan.predicted_step_s, plan.measured_step_s)
    rows.append(["whole step", "", "", *both, "modelled"])
    expected, measured = plan.predicted_examples_per_s, plan.measured_examples_per_s
    rates = [f"{expected:,.0f}" if expected else "-", f"{measured:,.0f}"]
    ratio = f"{measured / expected:.2f}" if expected else ""
    rows.append(["examples/s", "", "", *rates, ratio, "modelled"])
    columns = ["stage", "planned on", "started", "predicted", "measured", "ratio", "source"]
    out.print(table(f"Plan: time of a step of {plan.batch:,} examples", columns, rows, left=2))
    for text in plan.not_started:
        out.print(f"not started: {text}", markup=False)
    whole = f"predicted for the whole plan: {plan.planned_examples_per_s:,.0f} examples/s (modelled)"
    for note in (whole, *plan.notes):
        out.print(note, markup=False, style="dim")


def _predicted_and_measured(predicted: float | None, measured: float | None) -> list[str]:
    """Return both times, and measured over predicted."""
    ratio = f"{measured / predicted:.2f}" if predicted and measured else ""
    return [format_seconds(one) if one else "-" for one in (predicted, measured)] + [ratio]


def _servers(statistics: Mapping[str, Any]) -> Any:
    requests = [info["keys_pulled"] + info["keys_pushed"] for info in statistics["servers"]]
    mean = sum(requests) / len(requests)
    rows = []
    for number, info in enumerate(statistics["servers"]):
        stored_rows = sum(table["rows"] for table in info["tables"].values())
        moved = [format_bytes(info[name]) for name in ("bytes_in", "bytes_out")]
        skew = requests[number] / mean if mean else 1.0
        counts = [f"{stored_rows:,}", f"{requests[number]:,}", f"{skew:.2f}", f"{info['requests']:,}"]
        rows.append([f"{number} on {info['host']}", *counts, *moved])
    if len(rows) > 1:
        skews = {name: f"{skew:.2f}" for name, skew in statistics["server_skew"].items()}
        keys = f"{statistics['skew']:.2f}"
        rows.append(["max / mean", skews["rows"], keys, "", skews["requests"], "in + out", skews["bytes"]])
    return table(
        f"Servers, by {_transport(statistics)}",
        ["server", "rows", "keys", "of mean", "requests", "in", "out"],
        rows,
    )


def _owners(owners: Sequence[Mapping[str, Any]]) -> Any:
    """Return the shards of resident tables, by worker."""
    mean = sum(owner["rows"] for owner in owners) / len(owners)
    rows = [
        [
            f"{owner['rank']} of stage {owner['stage'] + 1}",
            f"{owner['rows']:,}",
            f"{owner['rows'] / mean if mean else 1.0:.2f}",
            format_bytes(owner["memory_bytes"]),
            format_bytes(owner["device_bytes"]) if owner["device_bytes"] else "-",
            format_bytes(owner["exchanged_bytes"]),
        ]
        for owner in owners
    ]
    columns = ["worker", "rows", "of mean", "host memory", "device memory", "sent"]
    return table("Tables in the memory of workers", columns, rows)


def _transport(statistics: Mapping[str, Any]) -> str:
    """Return how rows are transferred: shared memory on the host of a server, otherwise TCP, or TLS between hosts."""
    if statistics.get("encrypted"):
        return "shared memory on a host, TLS between hosts"
    workers = statistics.get("workers", [statistics])
    shared = [info["shared_memory"] for info in workers if info.get("shared_memory") is not None]
    if all(shared):
        return "shared memory"
    return f"shared memory ({sum(shared)} of {len(shared)} workers) and TCP" if any(shared) else "TCP"


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
    plan: PlanComparison | None = None,
) -> dict[str, Any]:
    """Return the report as JSON values; NaN is null."""

    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "model": name,
        "step": result.step,
        "examples": result.examples,
        "loss": number(result.loss),
        "auc": number(result.auc),
        "training_auc": number(result.training_auc),
        "tasks": {
            name: {key: number(value) for key, value in task.items()} for name, task in result.tasks.items()
        },
        "best_auc": best_auc,
        "evaluation": result.evaluation and result.evaluation.to_json(),
        "best": result.best and result.best.to_json(),
        "best_checkpoint": result.best_checkpoint,
        "stopped_early": result.stopped_early,
        "preempted": result.preempted,
        "resumed_from": resumed_from,
        "examples_per_s": result.examples_per_s,
        "cpu_ms_per_1000": result.cpu_ms_per_1000,
        "cost_usd": usd,
        "bad_rows": bad_rows,
        **({"plan": plan.to_json()} if plan is not None else {}),
        "layers": [
            {"name": layer, "measured_s": seconds, "predicted_s": predicted.get(layer)}
            for layer, seconds in layers.items()
        ],
        **result.statistics,
    }
