"""Options of the verbs of a live cluster, and how their answers are printed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import complete
from berth.cli.options import AsJson, argument, option
from berth.live.home import find_endpoint
from berth.units import format_count, format_wait

if TYPE_CHECKING:
    from rich.console import Console

    from berth.live.client import Client

State = Annotated[
    str | None, option("DIR", "Folder of the controller's state.", "--state", shown="$BERTH_STATE")
]
Url = Annotated[str | None, option("URL", "URL of a remote controller.", "--url", shown="$BERTH_URL")]
JobName = Annotated[str, argument("JOB", "Id of a job, or a prefix of it.", complete=complete.jobs)]
JobNames = Annotated[
    list[str], argument("JOB...", "Ids of jobs, or prefixes of them.", complete=complete.jobs)
]


@dataclass(frozen=True)
class Controller:
    """Options that name a controller."""

    state: State = None
    url: Url = None

    def client(self) -> Client:
        """Return a client of the controller."""
        from berth.live.client import Client

        return Client(find_endpoint(self.state, self.url))


@dataclass(frozen=True)
class LiveOptions(Controller):
    """Options that name a controller and the format of its answer."""

    as_json: AsJson = False

    def print_json(self, answer: dict[str, Any]) -> bool:
        """Print the answer if --json is given, and return whether it is."""
        if self.as_json:
            from berth.report.terminal import print_json

            print_json(answer)
        return self.as_json

    def show(self, answer: dict[str, Any], text: str, *, err: bool = False) -> None:
        """Print the answer with --json, else a text."""
        if not self.print_json(answer):
            typer.echo(text, err=err)


def print_warnings(console: Console, warnings: list[dict[str, Any]]) -> None:
    """Print what prevents jobs from starting under any policy."""
    for warning in warnings:
        console.print(f"Warning: {warning['sentence']}.", markup=False, soft_wrap=True)


def ago(moment: float | None, now: float) -> str:
    """Return the time since a moment, or a dash."""
    return "-" if moment is None else format_wait(max(0.0, now - moment))


def ahead(moment: float | None, now: float) -> str:
    """Return the time until a moment, or a dash."""
    if moment is None:
        return "-"
    return "now" if moment <= now else f"~{format_wait(moment - now)}"


def in_about(moment: float, now: float) -> str:
    """Return the time until a moment for a sentence."""
    return "now" if moment <= now else f"in about {format_wait(moment - now)}"


def clock(moment: float) -> str:
    """Return the local date and time of a moment."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def short(name: str, most: int = 18) -> str:
    """Return a name shortened for a table; `--json` has the whole name."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def some(words: list[str], most: int) -> str:
    """Return the first words and the number of the others."""
    return ", ".join(words[:most]) + (f" +{len(words) - most}" if len(words) > most else "")


def places(row: dict[str, Any], most: int = 2) -> str:
    """Return the machines of a job with its number of devices on each."""
    counts: dict[str, int] = {}
    for place in row.get("places", []):
        counts[place["machine"]] = counts.get(place["machine"], 0) + len(place["devices"])
    return some([f"{machine}:{count}" for machine, count in counts.items()], most)


def size_text(row: dict[str, Any]) -> str:
    """`4 GPUs and 8 cores`, or `12 devices` of a job that asks for one type."""
    if "cores" not in row:
        return format_count(row["gpus"], "device")
    counted = [(row["gpus"], "GPU"), (row["cores"], "core")]
    return " and ".join(format_count(count, noun) for count, noun in counted if count)
