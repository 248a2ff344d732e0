"""`berth why`, `berth history`: why a job waits or runs where it does, and its past."""

from __future__ import annotations

import time
from typing import Any

import typer

from berth.cli.live_options import (
    JobName,
    LiveOptions,
    ago,
    clock,
    in_about,
    places,
    print_warnings,
    size_text,
)
from berth.cli.option_groups import expand_options
from berth.report import terminal
from berth.units import format_count, format_usd, format_usd_per_hour, format_wait

EXAMPLE = "berth why j17"
HISTORY_EXAMPLE = "berth history j17"


@expand_options
def why(*, job: JobName, options: LiveOptions) -> None:
    """Explain why a job waits or runs where it does: the reason, what is free, what waiting saves."""
    answer = options.client().get("jobs", job, "why")
    if options.print_json(answer):
        return
    console, reason = terminal.console(), answer["reason"]
    if reason["code"] == "over":
        console.print(f"{answer['job']} {reason['sentence'].removeprefix('it ')}.", markup=False)
        if answer["state"] == "failed":
            console.print(f"Its output: berth logs {answer['job']}", markup=False)
        return
    console.print(_head(answer), markup=False)
    print_warnings(console, [w for w in answer.get("warnings", ()) if w["sentence"] != reason["sentence"]])
    if answer.get("last_end") and reason["code"] != "delayed":
        console.print(f"Its last attempt ended: {answer['last_end']['sentence']}.", markup=False)
    _print_waiting(answer)
    if answer.get("overdue_s"):
        console.print(f"It is {format_wait(answer['overdue_s'])} overdue: it runs longer than expected.")
    elif answer.get("expected_end") is not None:
        console.print(f"It should end {in_about(answer['expected_end'], time.time())} (modelled).")
    if answer.get("places"):
        shape = f", as {answer['shape']}" if answer.get("shape") else ""
        console.print(f"It is on {places(answer, most=8)}, within one {answer['tier']}{shape}.", markup=False)
    if answer.get("waits_for_release"):
        console.print(f"It waits for these attempts to end: {', '.join(answer['waits_for_release'])}.")
    if answer.get("free"):
        by_type = ["type"] if "type" in answer["free"][0] else []
        columns = ["group", *by_type, "devices", "free", "most_on_one_machine"]
        rows = [[row["name"], *(str(row[column]) for column in columns[1:])] for row in answer["free"]]
        titles = [column.replace("_", " ") for column in columns]
        console.print(terminal.table("", titles, rows, left=1 + len(by_type)))
    if answer.get("alternatives"):
        _print_alternatives(answer["alternatives"])
    if answer.get("slowdown_by_tier"):
        slow = ", ".join(f"{tier} {value:.2f}x" for tier, value in answer["slowdown_by_tier"].items())
        console.print(f"Step time by spread: {slow}.")


def _head(answer: dict[str, Any]) -> str:
    """Its state, its place in the queue, and the reason unless the blocker repeats it."""
    head = f"{answer['job']} is {answer['state']}"
    if answer.get("position"):
        head += f", number {answer['position']} in the queue at priority {answer['priority']}, "
        head += size_text(answer)
    return f"{head}." if _blocked(answer) else f"{head}: {answer['reason']['sentence']}."


def _blocked(answer: dict[str, Any]) -> bool:
    """Whether the blocker says all that the reason and the summary of what is free would."""
    return bool(answer["reason"]["code"] == "no-room" and answer.get("blocker"))


def _print_alternatives(alternatives: list[dict[str, Any]]) -> None:
    rows = [
        [
            one["name"],
            one["devices"],
            format_wait(one["run_s"]),
            "-" if one["fits_now"] is None else f"within one {one['fits_now']}",
            "-" if one["run_now_s"] is None else format_wait(one["run_now_s"]),
            "-" if one["usd_per_hour"] is None else format_usd_per_hour(one["usd_per_hour"]),
            "-" if one.get("usd") is None else format_usd(one["usd"]),
        ]
        for one in alternatives
    ]
    columns = ["alternative", "devices", "takes", "fits now", "takes there", "price", "costs"]
    if all(one["usd_per_hour"] is None for one in alternatives):
        columns, rows = columns[:-2], [row[:-2] for row in rows]
    terminal.console().print(terminal.table("", columns, rows, left=2))


def _print_waiting(answer: dict[str, Any]) -> None:
    reason = answer["reason"]
    if answer.get("blocker"):
        terminal.console().print(f"It {answer['blocker']} (modelled).", markup=False)
    if answer.get("summary") and not _blocked(answer):
        typer.echo(f"{answer['summary'][0].upper()}{answer['summary'][1:]}.")
    if reason.get("seconds_left") and reason.get("tier") is None:
        typer.echo(f"It is tried again in {format_wait(reason['seconds_left'])}.")
    elif reason.get("seconds_left"):
        saved = f"; waiting saves it {format_wait(reason['saves_s'])}" if reason.get("saves_s") else ""
        typer.echo(
            f"It waits for one {reason['tier']} for up to {format_wait(reason['seconds_left'])} more{saved}."
        )
    if answer.get("expected_start") is not None and "; starts " not in (answer.get("blocker") or ""):
        typer.echo(f"It should start {in_about(answer['expected_start'], time.time())} (modelled).")


@expand_options
def history(*, job: JobName, options: LiveOptions) -> None:
    """Print the past of a job: attempts, evictions and their reasons, step times by tier."""
    answer = options.client().get("jobs", job, "history")
    if options.print_json(answer):
        return
    console = terminal.console()
    rows = [[clock(event["time"]), event["kind"], _event(event)] for event in answer["events"]]
    console.print(terminal.table(f"job {answer['job']}", ["when", "what", "details"], rows, left=3))
    attempts = [
        [
            str(one["number"]),
            _places(one),
            one["tier"],
            _ended_by(one),
            ago(one.get("began", one["placed"]), one.get("ended", time.time())),
            format_wait(one["cost_device_s"]) if "cost_device_s" in one else "-",
        ]
        for one in answer["attempts"]
    ]
    if attempts:
        columns = ["attempt", "where", "tier", "ended by", "ran", "cost, GPU time"]
        console.print(terminal.table("", columns, attempts, left=4))
    for row in answer["steps_by_tier"]:
        steps = format_count(row["count"], "step")
        console.print(f"{steps} within one {row['tier']}: {row['seconds']:.4g} s each (measured)")


def _ended_by(one: dict[str, Any]) -> str:
    """What ended an attempt."""
    if "left_for" not in one:
        return _code(one)
    by = one.get("by") or []
    jobs = f" by {', '.join(by[:3])}" + (" ..." if len(by) > 3 else "") if by else ""
    return f"{one['left_for']}{jobs}"


def _code(one: dict[str, Any]) -> str:
    """The exit code and cause of an attempt, or a dash."""
    exit_ = f"exit {one['code']}" if one.get("code") is not None else "lost" if "codes" in one else "-"
    if not one.get("cause") or one["cause"] == "exit":
        return exit_
    said = f"{one['cause']} ({one['detail']})" if one.get("detail") else str(one["cause"])
    return f"{said}, {exit_}" if one.get("code") else said


def _places(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}:{count}" for name, count in row["places"].items())


def _event(event: dict[str, Any]) -> str:
    parts = []
    if "places" in event:
        parts.append(_places(event))
    if "shape" in event:
        parts.append(f"as {event['shape']}")
    if "reason" in event:
        parts.append(event["reason"])
    if event.get("by"):
        parts.append(f"by {', '.join(event['by'][:3])}")
    if "codes" in event:
        parts.append(_code(event))
    parts += [word for word in ("stopped", "done", "lost") if event.get(word) and word not in parts]
    if "priority" in event:
        parts.append(str(event["priority"]))
    return "; ".join(parts)
