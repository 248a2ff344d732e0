"""`berth why`, `berth history`: why a job stands where it stands, and all that happened to it."""

from __future__ import annotations

import time
from typing import Any

import typer

from berth.cli.live_options import JobName, State, Url, ago, client, clock, in_about, places, print_warnings
from berth.cli.options import AsJson
from berth.units import format_count, format_seconds

EXAMPLE = "berth why j17"
HISTORY_EXAMPLE = "berth history j17"


def why(job: JobName, state: State = None, url: Url = None, as_json: AsJson = False) -> None:
    """Say why a job waits or runs where it does: the reason, what is free, what waiting saves."""
    from berth.report import terminal

    told = client(state, url).get("jobs", job, "why")
    if as_json:
        terminal.print_json(told)
        return
    console, reason = terminal.console(), told["reason"]
    head = f"{told['job']} is {told['state']}"
    if told.get("position"):
        head += f", number {told['position']} in the queue at priority {told['priority']}, "
        head += format_count(told["gpus"], "device")
    console.print(f"{head}: {reason['sentence']}.", markup=False)
    print_warnings(
        console, {"warnings": [w for w in told.get("warnings", ()) if w["sentence"] != reason["sentence"]]}
    )
    if told.get("last_end") and reason["code"] != "delayed":
        console.print(f"Its last attempt ended: {told['last_end']['sentence']}.", markup=False)
    _print_waiting(told)
    if told.get("overdue_s"):
        console.print(f"It is {format_seconds(told['overdue_s'])} overdue: it takes longer than expected.")
    elif told.get("expected_end") is not None:
        console.print(f"It should end {in_about(told['expected_end'], time.time())} (modelled).")
    if told.get("places"):
        console.print(f"It is on {places(told, most=8)}, within one {told['tier']}.")
    if told.get("waits_for_release"):
        console.print(f"It waits until these have left: {', '.join(told['waits_for_release'])}.")
    if told.get("free"):
        rows = [
            [row["name"], str(row["devices"]), str(row["free"]), str(row["most_on_one_machine"])]
            for row in told["free"]
        ]
        console.print(terminal.table("", ["group", "devices", "free", "most on one machine"], rows))
    if told.get("slowdown_by_tier"):
        slow = ", ".join(f"{tier} {value:.2f}x" for tier, value in told["slowdown_by_tier"].items())
        console.print(f"A step takes, by how far it is spread: {slow}.")


def _print_waiting(told: dict[str, Any]) -> None:
    from berth.report import terminal

    reason = told["reason"]
    if told.get("blocker"):
        terminal.console().print(f"It {told['blocker']} (modelled).", markup=False)
    if told.get("summary"):
        typer.echo(f"{told['summary'][0].upper()}{told['summary'][1:]}.")
    if reason.get("seconds_left") and reason.get("tier") is None:
        typer.echo(f"It is tried again in {format_seconds(reason['seconds_left'])}.")
    elif reason.get("seconds_left"):
        saved = f"; waiting saves it {format_seconds(reason['saves_s'])}" if reason.get("saves_s") else ""
        typer.echo(
            f"It holds out for one {reason['tier']} for {format_seconds(reason['seconds_left'])} more{saved}."
        )
    if told.get("expected_start") is not None:
        typer.echo(f"It should start {in_about(told['expected_start'], time.time())} (modelled).")


def history(job: JobName, state: State = None, url: Url = None, as_json: AsJson = False) -> None:
    """Tell all that happened to a job: attempts, evictions and their reasons, step times by tier."""
    from berth.report import terminal

    told = client(state, url).get("jobs", job, "history")
    if as_json:
        terminal.print_json(told)
        return
    console = terminal.console()
    rows = [[clock(event["time"]), event["kind"], _event(event)] for event in told["events"]]
    console.print(terminal.table(f"job {told['job']}", ["when", "what", "details"], rows, left=3))
    attempts = [
        [
            str(one["number"]),
            ", ".join(f"{name}:{count}" for name, count in one["places"].items()),
            one["tier"],
            _ended_by(one),
            ago(one.get("began", one["placed"]), one.get("ended", time.time())),
            format_seconds(one["cost_device_s"]) if "cost_device_s" in one else "-",
        ]
        for one in told["attempts"]
    ]
    if attempts:
        console.print(
            terminal.table(
                "", ["attempt", "where", "tier", "ended by", "ran", "cost, GPU time"], attempts, left=4
            )
        )
    for row in told["steps_by_tier"]:
        steps = format_count(row["count"], "step")
        console.print(f"{steps} within one {row['tier']}: {row['seconds']:.4g} s each (measured)")


def _ended_by(one: dict[str, Any]) -> str:
    """Who or what ended an attempt."""
    if "left_for" not in one:
        return _code(one)
    by = one.get("by") or []
    whom = f" by {', '.join(by[:3])}" + (" ..." if len(by) > 3 else "") if by else ""
    return f"{one['left_for']}{whom}"


def _code(one: dict[str, Any]) -> str:
    """How an attempt ended; a dash while it has not."""
    exit_ = f"exit {one['code']}" if one.get("code") is not None else "lost" if "codes" in one else "-"
    if not one.get("cause") or one["cause"] == "exit":
        return exit_
    said = f"{one['cause']} ({one['detail']})" if one.get("detail") else str(one["cause"])
    return f"{said}, {exit_}" if one.get("code") else said


def _event(event: dict[str, Any]) -> str:
    parts = []
    if "places" in event:
        parts.append(", ".join(f"{name}:{count}" for name, count in event["places"].items()))
    if "reason" in event:
        parts.append(event["reason"])
    if event.get("by"):
        parts.append(f"by {', '.join(event['by'][:3])}")
    if "codes" in event:
        parts.append(_code(event))
    parts += [word for word in ("stopped", "done", "lost") if event.get(word)]
    if "priority" in event:
        parts.append(str(event["priority"]))
    return "; ".join(parts)
