"""`berth cancel`, `priority`, `drain`, `undrain`, `what-if`: change a live cluster, or simulate a change."""

from __future__ import annotations

from typing import Annotated, Any

from berth.cli import complete
from berth.cli.live_options import JobName, JobNames, LiveOptions, short
from berth.cli.option_groups import expand_options
from berth.cli.options import argument, option
from berth.errors import InputError
from berth.report import terminal
from berth.units import format_count, format_wait

CANCEL_EXAMPLES = ("berth cancel j17", "berth cancel j17 j18 j21")
PRIORITY_EXAMPLE = "berth priority j17 10"
DRAIN_EXAMPLE = "berth drain r0-m1"
UNDRAIN_EXAMPLE = "berth undrain r0-m1"
_LISTED = 10  # jobs that a what-if changes most
WHAT_IF_EXAMPLES = ("berth what-if --add-racks 2", "berth what-if --policy fifo")
Machine = Annotated[str, argument("MACHINE", "Name of a machine (berth nodes).", complete=complete.machines)]


@expand_options
def cancel(*, jobs: JobNames, options: LiveOptions) -> None:
    """Cancel waiting or running jobs: all of them, or none if one is unknown."""
    client = options.client()
    if len(jobs) == 1:
        answer = client.post("jobs", jobs[0], "cancel")
        options.show(answer, f"{answer['job']} {answer['state']}")
        return
    try:
        answer = client.post("cancel", body={"jobs": jobs})
    except InputError as error:
        raise InputError(f"{error.what}: nothing is cancelled", hint=error.hint) from None
    lines = [
        f"{one['job']} {'is over: ' if 'already_ended' in one else ''}{one['state']}"
        for one in answer["jobs"]
    ]
    options.show(answer, "\n".join(lines))


@expand_options
def priority(
    *,
    job: JobName,
    value: Annotated[int, argument("PRIORITY", "Higher goes first.")],
    options: LiveOptions,
) -> None:
    """Set the priority of a job."""
    answer = options.client().post("jobs", job, "priority", body={"priority": value})
    options.show(answer, f"{answer['job']} has priority {answer['priority']}")


@expand_options
def drain(*, machine: Machine, options: LiveOptions) -> None:
    """Drain a machine: it takes no new jobs, and running jobs continue."""
    options.show(options.client().post("machines", machine, "drain"), f"{machine} takes no new jobs")


@expand_options
def undrain(*, machine: Machine, options: LiveOptions) -> None:
    """Let a machine take jobs again."""
    options.show(options.client().post("machines", machine, "undrain"), f"{machine} takes jobs again")


@expand_options
def what_if(
    *,
    policy: Annotated[str | None, option("POLICY", "Another policy.", complete=complete.policies)] = None,
    add_racks: Annotated[int, option("N", "Racks to add, like the last one.", min=0, max=64)] = 0,
    options: LiveOptions,
) -> None:
    """Simulate the current jobs to their end under another policy, or with more racks."""
    if policy is None and not add_racks:
        raise InputError("nothing would change", hint=f"write it like: {WHAT_IF_EXAMPLES[0]}")
    answer = options.client().post("what-if", body={"policy": policy, "add_racks": add_racks})
    if options.print_json(answer):
        return
    changed = ", ".join(filter(None, (policy, format_count(add_racks, "more rack") if add_racks else None)))
    rows = [_row("as it is", answer["as_it_is"]), _row(changed, answer["changed"])]
    columns = ["", "jobs", "mean time left", "last end"]
    out = terminal.console()
    out.print(terminal.table("from here on (modelled)", columns, rows))
    out.print(f"Ends: {answer['sooner']} sooner, {answer['later']} later, {answer['same']} at the same time.")
    changed_jobs = answer["jobs"][:_LISTED]
    if changed_jobs:
        columns = ["job", "name", "user", "ends in", "instead of"]
        terminal.print_listing(out, columns, [_change(one) for one in changed_jobs], left=3)
    if len(answer["jobs"]) > _LISTED:
        out.print(f"These {_LISTED} change most; --json has more.")


def _change(one: dict[str, Any]) -> list[str]:
    ends = [format_wait(one["changed_end_s"]), format_wait(one["end_s"])]
    return [one["job"], short(one["name"]), short(one["user"]), *ends]


def _row(name: str, outcome: dict[str, Any]) -> list[str]:
    mean = "-" if outcome["mean_left_s"] is None else format_wait(outcome["mean_left_s"])
    more = "" if outcome["whole"] else " of more"
    return [name, f"{outcome['jobs']}{more}", mean, format_wait(outcome["last_end_s"])]
