"""`berth`: the verbs, and what happens when one fails."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from berth import __version__
from berth.cli import (
    act,
    cluster,
    compare,
    explain,
    logs,
    models,
    network,
    plan,
    policies,
    profile,
    queue,
    replay,
    simulate,
    submit,
    sweep,
    table,
    token,
    trace,
    train,
    up,
    view,
    why,
)
from berth.errors import InputError

app = typer.Typer(
    name="berth",
    help="A place for every layer and for every job, and the time to take it.",
    epilog="Try: berth cluster show 4x20x8   |   berth network bert-large --gpus 16 --cluster 4x20x8",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cluster.app, name="cluster")
app.add_typer(network.app, name="network")
app.add_typer(trace.app, name="trace")
app.add_typer(plan.app, name="plan")
app.add_typer(table.app, name="table")
app.command(epilog=models.EPILOG)(models.models)
app.command(epilog=profile.EPILOG)(profile.profile)
app.command(epilog=train.EPILOG)(train.train)
app.command(epilog=simulate.EPILOG)(simulate.simulate)
app.command(epilog=compare.EPILOG)(compare.compare)
app.command(epilog=sweep.EPILOG)(sweep.sweep)
app.command(epilog=explain.EPILOG)(explain.explain)
app.command(epilog=policies.EPILOG)(policies.policies)
app.command(epilog=up.EPILOG)(up.up)
app.command(epilog=view.EPILOG)(view.view)
app.command(epilog=submit.EPILOG)(submit.submit)
app.command(epilog=queue.EPILOG)(queue.queue)
app.command(epilog=why.EPILOG)(why.why)
app.command(epilog=logs.EPILOG)(logs.logs)
app.command(epilog=logs.WAIT_EPILOG)(logs.wait)
app.command(epilog=why.HISTORY_EPILOG)(why.history)
app.command(epilog=queue.NODES_EPILOG)(queue.nodes)
app.command(epilog=act.CANCEL_EPILOG)(act.cancel)
app.command(epilog=act.PRIORITY_EPILOG)(act.priority)
app.command(epilog=act.DRAIN_EPILOG)(act.drain)
app.command(epilog=act.DRAIN_EPILOG)(act.undrain)
app.command("what-if", epilog=act.WHAT_IF_EPILOG)(act.what_if)
app.command(epilog=replay.EPILOG)(replay.replay)
app.add_typer(token.app, name="token")


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"berth {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error in your input too.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that stand before the verb."""


def main() -> Any:
    """Runs the command line: a mistake in the input is one message and exit code 2, never a traceback."""
    try:
        return app()
    except InputError as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        # The reader (head, less) has gone; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except Exception as error:
        place = _in_own_policy(error)
        if place is None or "--debug" in sys.argv:
            raise
        typer.echo(f"error: {type(error).__name__}: {error}\n  {place}", err=True)
        sys.exit(2)


def _in_own_policy(error: Exception) -> str | None:
    """Where in a user's policy it was raised; None: it is a bug of berth's own."""
    notes = getattr(error, "__notes__", [])
    if not notes:
        return None
    from berth.simulate.blame import RAISED

    return next((note for note in notes if note.startswith(RAISED)), None)


if __name__ == "__main__":
    main()
