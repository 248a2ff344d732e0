"""`berth view`, `berth dashboard`: a finished simulation or a live cluster in the browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from berth.cli.live_options import LiveOptions
from berth.cli.option_groups import expand_options
from berth.cli.options import Port, argument, flag, option
from berth.units import format_count

EXAMPLE = "berth view events.parquet"
DASHBOARD_EXAMPLE = "berth dashboard"
Open = Annotated[bool, flag("Open it in the browser.", "--open/--no-open")]


def view(
    file: Annotated[Path, argument("FILE", "A log written by `berth simulate --log`.")],
    cluster: Annotated[
        str | None, option("CLUSTER", "A shape, a preset or a file, if the log has no cluster.")
    ] = None,
    port: Port = 0,
    open_: Open = True,
) -> None:
    """Show a finished simulation in the dashboard: the map, the queue and every job at any time."""
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
        # a code: other users can read the arguments of a process
        webbrowser.open(f"{url}code={tokens.codes.add(READER)}")
    config = uvicorn.Config(make_viewer(finished, tokens), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[socket])


@expand_options
def dashboard(
    *,
    open_: Open = True,
    options: LiveOptions,
) -> None:
    """Open the dashboard with a link that works once, within two minutes."""
    client = options.client()
    link = f"{client.url}/#code={client.post('login-code')['code']}"
    if options.as_json or not open_:
        options.show({"url": link}, link)
        return
    typer.echo(f"opening {client.url}", err=True)
    if not webbrowser.open(link):
        typer.echo(f"no browser here can be started; open this yourself: {link}", err=True)
