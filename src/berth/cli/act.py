"""`berth cancel`, `priority`, `drain`, `undrain`, `what-if`: what changes a live cluster, or asks what would."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from berth.cli import complete
from berth.cli.live_options import JobName, JobNames, State, Url, client
from berth.cli.options import AsJson
from berth.errors import InputError
from berth.units import format_count, format_seconds

CANCEL_EXAMPLES = ("berth cancel j17", "berth cancel j17 j18 j21")
PRIORITY_EXAMPLE = "berth priority j17 10"
DRAIN_EXAMPLE = "berth drain r0-m1"
UNDRAIN_EXAMPLE = "berth undrain r0-m1"
WHAT_IF_EXAMPLES = ("berth what-if --add-racks 2", "berth what-if --policy fifo")
Machine = Annotated[
    str,
    typer.Argument(
        metavar="MACHINE", autocompletion=complete.machines, help="Name of a machine (berth nodes)."
    ),
]


def _told(answer: dict[str, Any], line: str, as_json: bool) -> None:
    if as_json:
        from berth.report.terminal import print_json

        print_json(answer)
    else:
        typer.echo(line)


def cancel(jobs: JobNames, state: State = None, url: Url = None, as_json: AsJson = False) -> None:
    """Cancel jobs, whether they wait or run; of several all, or none if one of them is unknown."""
    asked = client(state, url)
    if len(jobs) == 1:
        answer = asked.post("jobs", jobs[0], "cancel")
        _told(answer, f"{answer['job']} {answer['state']}", as_json)
        return
    try:
        answer = asked.post("cancel", body={"jobs": jobs})
    except InputError as error:
        raise InputError(f"{error.what}: nothing is cancelled", hint=error.hint) from None
    lines = [
        f"{one['job']} {'is over: ' if 'already_ended' in one else ''}{one['state']}"
        for one in answer["jobs"]
    ]
    _told(answer, "\n".join(lines), as_json)


def priority(
    job: JobName,
    value: Annotated[int, typer.Argument(metavar="PRIORITY", help="Higher goes first.")],
    state: State = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Change how soon a job goes."""
    answer = client(state, url).post("jobs", job, "priority", body={"priority": value})
    _told(answer, f"{answer['job']} has priority {answer['priority']}", as_json)


def drain(machine: Machine, state: State = None, url: Url = None, as_json: AsJson = False) -> None:
    """Close a machine to new jobs; what runs there goes on."""
    answer = client(state, url).post("machines", machine, "drain")
    _told(answer, f"{machine} takes no new jobs", as_json)


def undrain(machine: Machine, state: State = None, url: Url = None, as_json: AsJson = False) -> None:
    """Open a machine to jobs again."""
    answer = client(state, url).post("machines", machine, "undrain")
    _told(answer, f"{machine} takes jobs again", as_json)


def what_if(
    policy: Annotated[
        str | None, typer.Option(metavar="POLICY", autocompletion=complete.policies, help="Another policy.")
    ] = None,
    add_racks: Annotated[int, typer.Option(metavar="N", min=0, max=64, help="More racks like the last.")] = 0,
    state: State = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Simulate from the live state: the same jobs under another policy, or on more racks."""
    if policy is None and not add_racks:
        raise InputError("nothing would change", hint=f"write it like: {WHAT_IF_EXAMPLES[0]}")
    told = client(state, url).post("what-if", body={"policy": policy, "add_racks": add_racks})
    if as_json:
        _told(told, "", True)
        return
    from berth.report import terminal

    changed = ", ".join(filter(None, (policy, format_count(add_racks, "more rack") if add_racks else None)))
    rows = [_result("as it is", told["as_it_is"]), _result(changed, told["changed"])]
    terminal.console().print(
        terminal.table("from here on (modelled)", ["", "jobs", "mean time left", "last end"], rows)
    )


def _result(name: str, told: dict[str, Any]) -> list[str]:
    mean = "-" if told["mean_left_s"] is None else format_seconds(told["mean_left_s"])
    more = "" if told["whole"] else " of more"
    return [name, f"{told['jobs']}{more}", mean, format_seconds(told["last_end_s"])]
