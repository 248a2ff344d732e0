"""`berth queue`, `berth nodes`: who waits for what, and what stands where."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from berth.cli.live_options import State, Url, ago, ahead, client, places, print_warnings, short
from berth.cli.options import AsJson
from berth.units import format_count, format_seconds

EXAMPLES = ("berth queue", "berth queue --over --limit 20")
NODES_EXAMPLE = "berth nodes --json"


def queue(
    over: Annotated[bool, typer.Option("--over", help="Jobs that have ended, the last first.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Rows at most.")] = 100,
    state: State = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show who waits, in what order and why, and who runs where."""
    from berth.report import terminal

    told = client(state, url).get("jobs", over=str(over).lower(), limit=limit)
    if as_json:
        terminal.print_json(told)
        return
    console, now = terminal.console(), time.time()
    print_warnings(console, told)
    if over:
        rows = [_over(row, now) for row in told["jobs"]]
        if not rows:
            console.print("nothing has ended yet")
            return
        console.print(
            terminal.table(
                "", ["job", "name", "user", "state", "code", "cause", "gpus", "ran", "ended"], rows, left=4
            )
        )
        return
    running = [row for row in told["jobs"] if "position" not in row]
    waiting = [row for row in told["jobs"] if "position" in row]
    if running:
        rows = [_running(row, now) for row in running]
        columns = ["job", "name", "state", "where", "gpus", "prio", "for", "left"]
        console.print(terminal.table("", columns, rows, left=4))
    if waiting:
        columns = ["#", "job", "name", "why", "gpus", "prio", "waits", "starts"]
        console.print(terminal.table("", columns, [_waiting(row, now) for row in waiting], left=4))
    more = told["total"] - len(told["jobs"])
    if more > 0:
        console.print(f"and {format_count(more, 'more job')}: --limit {told['total']} shows them")
    if not told["jobs"]:
        console.print("nothing waits and nothing runs")


def _over(row: dict[str, Any], now: float) -> list[str]:
    code = "-" if row["code"] is None else str(row["code"])
    ran = "-" if row["ran_s"] is None else format_seconds(row["ran_s"])
    return [
        row["id"],
        short(row["name"]),
        short(row["user"]),
        row["state"],
        code,
        row["cause"] or "-",
        str(row["gpus"]),
        ran,
        ago(row["ended"], now),
    ]


def _running(row: dict[str, Any], now: float) -> list[str]:
    return [
        row["id"],
        short(row["name"]),
        row["state"],
        places(row),
        str(row["gpus"]),
        str(row["priority"]),
        ago(row.get("began"), now),
        _left(row, now),
    ]


def _left(row: dict[str, Any], now: float) -> str:
    """How long a running job should go on."""
    if row.get("overdue_s"):
        return f"{format_seconds(row['overdue_s'])} overdue"
    return ahead(row.get("expected_end"), now)


def _waiting(row: dict[str, Any], now: float) -> list[str]:
    why = row.get("blocker") or row["reason"]["sentence"]
    when = ahead(row["expected_start"], now)
    return [
        str(row["position"]),
        row["id"],
        short(row["name"]),
        why,
        str(row["gpus"]),
        str(row["priority"]),
        ago(row["since"], now),
        when,
    ]


def nodes(state: State = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the machines: what is free, what is shut, who is there."""
    from berth.report import terminal

    told = client(state, url).get("cluster")
    if as_json:
        terminal.print_json(told)
        return
    rows = []
    for machine in told["machines"]:
        jobs = list(dict.fromkeys(machine["jobs"].values()))
        shown = ", ".join(jobs[:4]) + (f" +{len(jobs) - 4}" if len(jobs) > 4 else "")
        state_ = ", ".join(machine["unavailable"]) or ("in use by others" if machine["external"] else "up")
        kinds = ", ".join(f"{count}x {kind}" for kind, count in machine["devices"].items())
        rows.append(
            [machine["name"], "/".join(machine["groups"]), state_, kinds, shown, str(machine["free"])]
        )
    terminal.console().print(
        terminal.table("", ["machine", "in", "state", "devices", "jobs", "free"], rows, left=5)
    )
