"""`berth view`: serve the dashboard over a finished simulation until Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from berth.cli.options import Port
from berth.units import format_count

EXAMPLE = "berth view events.parquet"


def view(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A log written by `berth simulate --log`.")],
    cluster: Annotated[
        str | None,
        typer.Option(metavar="CLUSTER", help="A shape, a preset or a file, if the log has no cluster."),
    ] = None,
    port: Port = 0,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
) -> None:
    """Show a finished simulation in the dashboard: the map, the queue and every job at any time."""
    import webbrowser

    import uvicorn

    from berth.live.api.viewer import READER, SingleToken, make_viewer
    from berth.live.server import listen
    from berth.live.simulation_view import read_simulation

    finished = read_simulation(file, cluster)
    tokens = SingleToken()
    socket = listen("127.0.0.1", port)
    url = f"http://127.0.0.1:{socket.getsockname()[1]}/#"
    shown = (
        f"{format_count(len(finished.records), 'event')} on {finished.cluster.name} under {finished.policy}"
    )
    typer.echo(f"{shown}\n  dashboard: {url}token={tokens.token}\n  Ctrl-C ends it", err=True)
    if open_:
        webbrowser.open(
            f"{url}code={tokens.codes.add(READER)}"
        )  # a code: other users can read the arguments of a process
    config = uvicorn.Config(make_viewer(finished, tokens), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[socket])
