"""What every verb of a live cluster takes: where its controller is, and how the answer is printed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import complete
from berth.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from berth.live.client import Client

State = Annotated[
    str | None,
    typer.Option(
        "--state", metavar="DIR", help="Folder of the controller's state.", show_default="$BERTH_STATE"
    ),
]
Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="A controller elsewhere.", show_default="$BERTH_URL"),
]
JobName = Annotated[
    str, typer.Argument(metavar="JOB", autocompletion=complete.jobs, help="Id of a job, or its beginning.")
]
JobNames = Annotated[
    list[str],
    typer.Argument(metavar="JOB...", autocompletion=complete.jobs, help="Ids of jobs, or their beginnings."),
]


def client(state: str | None, url: str | None) -> Client:
    """Whoever answers there."""
    from berth.live.client import Client
    from berth.live.home import find_endpoint

    return Client(find_endpoint(state, url))


def print_warnings(console: Console, told: dict[str, Any]) -> None:
    """Prints what keeps jobs from starting, whatever the policy decides."""
    for warning in told.get("warnings", ()):
        console.print(f"Warning: {warning['sentence']}.", markup=False, soft_wrap=True)


def ago(moment: float | None, now: float) -> str:
    """How long since a moment; a dash where there is none."""
    return "-" if moment is None else format_seconds(max(0.0, now - moment))


def ahead(moment: float | None, now: float) -> str:
    """How long until a moment; a dash where nobody knows."""
    if moment is None:
        return "-"
    return "now" if moment <= now else f"~{format_seconds(moment - now)}"


def in_about(moment: float, now: float) -> str:
    """The same within a sentence."""
    return "now" if moment <= now else f"in about {format_seconds(moment - now)}"


def clock(moment: float) -> str:
    """A moment as people write it here."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def short(name: str, most: int = 18) -> str:
    """A name that leaves room for what stands beside it; `--json` has all of it."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def places(row: dict[str, Any], most: int = 2) -> str:
    """Machines of a job with the devices it has on each."""
    found = [f"{place['machine']}:{len(place['devices'])}" for place in row.get("places", [])]
    return ", ".join(found[:most]) + (f" +{len(found) - most}" if len(found) > most else "")
