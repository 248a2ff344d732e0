"""`berth queue`, `berth nodes`: the jobs and the machines of a live cluster."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

from berth.cli.live_options import LiveOptions, ago, ahead, places, print_warnings, short, some
from berth.cli.option_groups import expand_options
from berth.cli.options import flag, option
from berth.report.terminal import NO_BREAK, console, print_listing, state_text
from berth.units import format_count, format_wait

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

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
        _print_ended(out, jobs, now)
        return
    running = [row for row in jobs if "position" not in row]
    waiting = [row for row in jobs if "position" in row]
    if running:
        columns = ["job", "name", "user", "state", *_size_columns(running), "prio", "for", "left"]
        rows = [_running(row, now, cores=_have_cores(running)) for row in running]
        print_listing(out, columns, rows, left=4, note="where", notes=[places(row) for row in running])
    if running and waiting:
        out.print()
    if waiting:
        columns = ["#", "job", "name", "user", *_size_columns(waiting), "prio", "waits", "starts"]
        rows = [_waiting(row, now, cores=_have_cores(waiting)) for row in waiting]
        print_listing(out, columns, rows, left=4, note="why", notes=_reasons(waiting))
    more = answer["total"] - len(jobs)
    if more > 0:
        out.print(f"and {format_count(more, 'more job')}: --limit {answer['total']} shows them")
    if not jobs:
        out.print("nothing waits and nothing runs")


def _reasons(waiting: list[dict[str, Any]]) -> list[str]:
    """Return why each job waits; one that waits for the same as the job before it refers to the first of them."""
    notes: list[str] = []
    same_as, before = "", None
    for row in waiting:
        reason = _untimed(row.get("blocker") or row["reason"]["sentence"])
        notes.append(f"as {same_as}" if reason == before else reason)
        if reason != before:
            same_as, before = row["id"], reason
    return notes


def _untimed(blocker: str) -> str:
    """Leave out the time of the start, which has a column of its own."""
    text = re.sub(r"; starts (?:now|in [^\s;]+)(?= |;|$)", "; starts", blocker)
    return re.sub(r"; starts(?=;|$)", "", text)


def _print_ended(out: Console, jobs: list[dict[str, Any]], now: float) -> None:
    columns = ["job", "name", "user", "state", "code", *_size_columns(jobs), "ran", "ended"]
    rows = [_ended(row, now, cores=_have_cores(jobs)) for row in jobs]
    failed = [_cause(row) if row["cause"] and row["state"] != "finished" else "" for row in jobs]
    if rows:
        print_listing(out, columns, rows, left=4, note="cause", notes=failed)
    else:
        out.print("nothing has ended yet")


def _cause(row: dict[str, Any]) -> str:
    from berth.live.lifecycle import sentence

    logs = f"; its output: berth{NO_BREAK}logs{NO_BREAK}{row['id']}" if row["state"] == "failed" else ""
    return sentence(row["cause"], row["detail"]) + logs


def _ended(row: dict[str, Any], now: float, *, cores: bool) -> list[str | Text]:
    code = "-" if row["code"] is None else str(row["code"])
    ran = "-" if row["ran_s"] is None else format_wait(row["ran_s"])
    return [
        *_who(row),
        state_text(row["state"]),
        code,
        *_size(row, cores),
        ran,
        f"{ago(row['ended'], now)} ago",
    ]


def _running(row: dict[str, Any], now: float, *, cores: bool) -> list[str | Text]:
    overdue = row.get("overdue_s")
    left = f"{format_wait(overdue)} overdue" if overdue else ahead(row.get("expected_end"), now)
    facts = [*_size(row, cores), str(row["priority"]), ago(row.get("began"), now), left]
    return [*_who(row), state_text(row["state"]), *facts]


def _waiting(row: dict[str, Any], now: float, *, cores: bool) -> list[str | Text]:
    late_s = row.get("start_overdue_s")
    starts = f"{format_wait(late_s)} overdue" if late_s else ahead(row["expected_start"], now)
    times = [ago(row["since"], now), starts]
    return [str(row["position"]), *_who(row), *_size(row, cores), str(row["priority"]), *times]


def _have_cores(rows: list[dict[str, Any]]) -> bool:
    """Whether some job asks for CPU cores beside GPUs: these are counted in a column of their own."""
    return any(row.get("cores") for row in rows)


def _size_columns(rows: list[dict[str, Any]]) -> list[str]:
    return ["gpus", "cores"] if _have_cores(rows) else ["gpus"]


def _size(row: dict[str, Any], cores: bool) -> list[str]:
    return [str(row["gpus"]), *([str(row.get("cores", 0))] if cores else [])]


def _who(row: dict[str, Any]) -> list[str]:
    """The id of a job, never shortened: it is there to be copied; then its name and its user."""
    return [row["id"], short(row["name"], max(8, 20 - len(row["id"]))), short(row["user"], 10)]


@expand_options
def nodes(*, options: LiveOptions) -> None:
    """List the machines with their state, free devices and jobs."""
    answer = options.client().get("cluster")
    if options.print_json(answer):
        return
    rows, jobs = [], []
    for machine in answer["machines"]:
        jobs.append(some(list(dict.fromkeys(machine["jobs"].values())), 4))
        state = ", ".join(machine["unavailable"]) or ("in use by others" if machine["external"] else "up")
        devices = ", ".join(f"{count}x {kind}" for kind, count in machine["devices"].items())
        groups = "/".join(machine["groups"])
        rows.append([machine["name"], groups, state_text(state), devices, str(machine["free"])])
    columns = ["machine", "in", "state", "devices", "free"]
    print_listing(console(), columns, rows, left=4, note="jobs", notes=jobs)
