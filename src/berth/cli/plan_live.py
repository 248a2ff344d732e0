"""`berth plan --against-live`: plans for what is free on a live cluster, now and in the next hours."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

from berth.cli.live_options import State, Url, in_about
from berth.cli.options import flag
from berth.cli.output import write_text
from berth.cli.plan_options import GoalOptions, MethodOptions, OutputOptions, ProblemOptions, SourceOptions
from berth.cli.quantities import dollars, read_positive
from berth.errors import InputError
from berth.report import terminal
from berth.units import amount, format_seconds, format_usd_per_hour, per_second, seconds

_EXAMPLES = 1e9
_USED = ("examples", "rows", "out", "force", "as_json")


@dataclass(frozen=True)
class LivePlanOptions:
    """Where the devices of a live cluster come from."""

    against_live: Annotated[
        bool,
        flag("Plan on what is free on a live cluster, now and in the next hours.", "--against-live"),
    ] = False
    state: State = None
    url: Url = None


def plan_against_live(
    source: SourceOptions,
    goal: GoalOptions,
    problem: ProblemOptions,
    method: MethodOptions,
    output: OutputOptions,
    live: LivePlanOptions,
) -> None:
    """Ask the controller for plans and print them, the first to end first; write the best one."""
    from berth.live.client import Client
    from berth.live.home import find_endpoint

    if source.model is None or source.cluster or source.devices or source.problem:
        raise InputError(
            "--against-live plans a model on the controller's cluster",
            hint="write it like: berth plan ctrdnn --against-live --deadline 6h",
        )
    _refuse_unused(problem, method, output)
    body = {"model": source.model, "against_free": True} | _goal(goal, problem)
    answer = Client(find_endpoint(live.state, live.url)).post("plans", body=body)
    best = answer["plans"][0]
    if output.out is not None:
        write_text(output.out, best["plan"])
    if output.as_json:
        terminal.print_json(answer)
        return
    rows = [_row(one, answer["now"]) for one in answer["plans"]]
    console = terminal.console()
    console.print(terminal.table("", ["starts", "takes", "ends", "devices", "price"], rows, left=4))
    if output.out is not None:
        console.print(f"wrote {output.out}: the plan that ends first", markup=False)


def _refuse_unused(*groups: ProblemOptions | MethodOptions | OutputOptions) -> None:
    """Refuse options that the controller's planner does not take."""
    given = [
        f"--{one.name.replace('_', '-')}"
        for group in groups
        for one in fields(group)
        if one.name not in _USED and getattr(group, one.name) != one.default
    ]
    if given:
        raise InputError(
            f"--against-live does not take {' or '.join(given)}",
            hint="leave it out, or plan on a description of the cluster: --cluster FILE",
        )


def _goal(goal: GoalOptions, problem: ProblemOptions) -> dict[str, Any]:
    from berth.workload.shapes import parse_work

    text = problem.examples
    found: dict[str, Any] = {"examples": _EXAMPLES if text is None else parse_work(f"{text} examples").amount}
    if goal.deadline is not None:
        found["deadline_s"] = read_positive("--deadline", seconds, goal.deadline)
    if goal.throughput is not None:
        found["examples_per_s"] = read_positive("--throughput", per_second, goal.throughput)
    if goal.max_usd is not None:
        found["budget_usd"] = dollars("--max-usd", goal.max_usd)
    if problem.rows is not None:
        found["rows"] = read_positive("--rows", amount, problem.rows)
    if (goal.deadline, goal.throughput, goal.max_usd).count(None) != 2:
        raise InputError("give one goal", hint="--throughput 100k/s, --deadline 24h or --max-usd 500")
    return found


def _row(one: dict[str, Any], now: float) -> list[str]:
    price = "-" if one["usd_per_hour"] is None else format_usd_per_hour(one["usd_per_hour"])
    start, end = one["start"], one["end"]
    return [
        in_about(start, now),
        format_seconds(end - start),
        in_about(end, now),
        one["shape"]["name"],
        price,
    ]
