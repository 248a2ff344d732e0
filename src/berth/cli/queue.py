"""`berth queue`, `berth nodes`: the jobs and the machines of a live cluster."""

from __future__ import annotations

import time
from typing import Annotated, Any

from berth.cli.live_options import LiveOptions, ago, ahead, places, print_warnings, short, some
from berth.cli.option_groups import expand_options
from berth.cli.options import flag, option
from berth.report.terminal import console, table
from berth.units import format_count, format_seconds

EXAMPLES = ("berth queue", "berth queue --over --limit 20")
NODES_EXAMPLE = "berth nodes --json"


@expand_options
def queue(
    *,
    over: Annotated[bool, flag("Jobs that have ended, the last first.", "--over")] = False,
    limit: Annotated[int, option("N", "Maximum number of jobs.", min=1, max=100_000)] = 100,
    options: LiveOptions,
) -> None:
    """List waiting jobs in queue order with their reasons, and running jobs with their machines."""
    answer = options.client().get("jobs", over=str(over).lower(), limit=limit)
    if options.print_json(answer):
        return
    out, now, jobs = console(), time.time(), answer["jobs"]
    print_warnings(out, answer.get("warnings", []))
    if over:
        columns = ["job", "name", "user", "state", "code", "cause", "gpus", "ran", "ended"]
        rows = [_ended(row, now) for row in jobs]
        out.print(table("", columns, rows, left=4) if rows else "nothing has ended yet")
        return
    running = [_running(row, now) for row in jobs if "position" not in row]
    waiting = [_waiting(row, now) for row in jobs if "position" in row]
    if running:
        columns = ["job", "name", "state", "where", "gpus", "prio", "for", "left"]
        out.print(table("", columns, running, left=4))
    if waiting:
        columns = ["#", "job", "name", "why", "gpus", "prio", "waits", "starts"]
        out.print(table("", columns, waiting, left=4))
    more = answer["total"] - len(jobs)
    if more > 0:
        out.print(f"and {format_count(more, 'more job')}: --limit {answer['total']} shows them")
    if not jobs:
        out.print("nothing waits and nothing runs")


def _ended(row: dict[str, Any], now: float) -> list[str]:
    code = "-" if row["code"] is None else str(row["code"])
    ran = "-" if row["ran_s"] is None else format_seconds(row["ran_s"])
    words = [row["id"], short(row["name"]), short(row["user"]), row["state"], code, row["cause"] or "-"]
    return [*words, str(row["gpus"]), ran, ago(row["ended"], now)]


def _running(row: dict[str, Any], now: float) -> list[str]:
    overdue = row.get("overdue_s")
    left = f"{format_seconds(overdue)} overdue" if overdue else ahead(row.get("expected_end"), now)
    words = [row["id"], short(row["name"]), row["state"], places(row)]
    return [*words, str(row["gpus"]), str(row["priority"]), ago(row.get("began"), now), left]


def _waiting(row: dict[str, Any], now: float) -> list[str]:
    why = row.get("blocker") or row["reason"]["sentence"]
    words = [str(row["position"]), row["id"], short(row["name"]), why]
    times = [ago(row["since"], now), ahead(row["expected_start"], now)]
    return [*words, str(row["gpus"]), str(row["priority"]), *times]


@expand_options
def nodes(*, options: LiveOptions) -> None:
    """List the machines with their state, free devices and jobs."""
    answer = options.client().get("cluster")
    if options.print_json(answer):
        return
    rows = []
    for machine in answer["machines"]:
        jobs = some(list(dict.fromkeys(machine["jobs"].values())), 4)
        state = ", ".join(machine["unavailable"]) or ("in use by others" if machine["external"] else "up")
        devices = ", ".join(f"{count}x {kind}" for kind, count in machine["devices"].items())
        groups = "/".join(machine["groups"])
        rows.append([machine["name"], groups, state, devices, jobs, str(machine["free"])])
    console().print(table("", ["machine", "in", "state", "devices", "jobs", "free"], rows, left=5))
