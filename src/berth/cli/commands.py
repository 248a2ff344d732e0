"""All commands by name, and the app that has them. A module is imported when its command is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated

import typer

from berth import __version__
from berth.cli.options import flag
from berth.cli.verbs import Group, Verbs

LOOK = "Look up"
PLAN = "Plan and train"
TRY = "Simulate"
LIVE = "Run a cluster"
FIRST = (
    "berth simulate generate:jobs=500,load=1 --cluster 2x2x8 --html report.html",
    "berth plan ctrdnn --cluster cloud-mix --throughput 100k/s",
    "berth up --cluster 2x2x4",
)
_WELCOME = f"""berth {__version__}: plan, train, schedule and simulate deep-learning jobs.

Start with one of these:

  Compare schedulers on generated jobs; open the report in a browser
    {FIRST[0]}

  Find the cheapest devices that train a model at this rate
    {FIRST[1]}

  Run a cluster on this machine, and submit a job in another terminal
    {FIRST[2]}
    berth submit --gpus 2 -- python train.py
    berth dashboard

berth --help lists all commands. berth COMMAND --help has examples of each."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is defined: `module:attribute`; a group without examples, a verb with the name of its."""

    place: str
    panel: str
    examples: str | None = None


_ENTRIES = {
    "cluster": Entry("cluster:app", LOOK),
    "network": Entry("network:app", LOOK),
    "trace": Entry("trace:app", LOOK),
    "models": Entry("models:models", LOOK, "EXAMPLES"),
    "policies": Entry("policies:app", LOOK),
    "profile": Entry("profile:profile", PLAN, "EXAMPLES"),
    "plan": Entry("plan:app", PLAN),
    "train": Entry("train:train", PLAN, "EXAMPLES"),
    "data": Entry("data:app", PLAN),
    "evaluate": Entry("evaluate:evaluate", PLAN, "EXAMPLES"),
    "predict": Entry("predict:predict", PLAN, "EXAMPLES"),
    "export": Entry("export:export", PLAN, "EXAMPLES"),
    "table": Entry("table:app", PLAN),
    "simulate": Entry("simulate:simulate", TRY, "EXAMPLES"),
    "compare": Entry("compare:compare", TRY, "EXAMPLES"),
    "sweep": Entry("sweep:sweep", TRY, "EXAMPLES"),
    "explain": Entry("explain:explain", TRY, "EXAMPLES"),
    "view": Entry("view:view", TRY, "EXAMPLE"),
    "up": Entry("up:up", LIVE, "EXAMPLES"),
    "submit": Entry("submit:submit", LIVE, "EXAMPLES"),
    "queue": Entry("queue:queue", LIVE, "EXAMPLES"),
    "why": Entry("why:why", LIVE, "EXAMPLE"),
    "history": Entry("why:history", LIVE, "HISTORY_EXAMPLE"),
    "logs": Entry("logs:logs", LIVE, "EXAMPLE"),
    "wait": Entry("logs:wait", LIVE, "WAIT_EXAMPLE"),
    "cancel": Entry("act:cancel", LIVE, "CANCEL_EXAMPLES"),
    "priority": Entry("act:priority", LIVE, "PRIORITY_EXAMPLE"),
    "nodes": Entry("queue:nodes", LIVE, "NODES_EXAMPLE"),
    "dashboard": Entry("view:dashboard", LIVE, "DASHBOARD_EXAMPLE"),
    "drain": Entry("act:drain", LIVE, "DRAIN_EXAMPLE"),
    "undrain": Entry("act:undrain", LIVE, "UNDRAIN_EXAMPLE"),
    "what-if": Entry("act:what_if", LIVE, "WHAT_IF_EXAMPLES"),
    "replay": Entry("replay:replay", LIVE, "EXAMPLES"),
    "token": Entry("token:app", LIVE),
}
NAMES = frozenset(_ENTRIES)


class Root(Group):
    """`berth`: without a command it shows what to do first."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Print the first steps if there is nothing to parse."""
        if not args and not ctx.resilient_parsing:
            typer.echo(_WELCOME)
            ctx.exit()
        return super().parse_args(ctx, args)


def build(*names: str) -> Verbs:
    """Return the app with these commands, or with all."""
    app = Verbs(
        name="berth",
        cls=Root,
        help="Plan, train, schedule and simulate deep-learning jobs on shared GPU clusters.",
        examples=FIRST,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in names or _ENTRIES:
        _add(app, name, _ENTRIES[name])
    return app


def _add(app: Verbs, name: str, entry: Entry) -> None:
    file, _, attribute = entry.place.partition(":")
    module = import_module(f"berth.cli.{file}")
    if entry.examples is None:
        app.add_typer(getattr(module, attribute), name=name, rich_help_panel=entry.panel)
        return
    examples = getattr(module, entry.examples)
    examples = (examples,) if isinstance(examples, str) else examples
    app.verb(*examples, name=name, panel=entry.panel)(getattr(module, attribute))


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"berth {__version__}")
        raise typer.Exit


def _options(
    debug: Annotated[bool, flag("Show the traceback of an error in your input too.", "--debug")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""
