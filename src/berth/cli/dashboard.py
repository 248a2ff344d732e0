"""`berth dashboard`: the page of a live cluster, in the browser."""

from __future__ import annotations

from typing import Annotated

import typer

from berth.cli.live_options import State, Url, client
from berth.cli.options import AsJson

EXAMPLE = "berth dashboard"


def dashboard(
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
    state: State = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Open the dashboard with a link that works once, within two minutes."""
    asked = client(state, url)
    link = f"{asked.url}/#code={asked.post('login-code')['code']}"
    if as_json:
        from berth.report.terminal import print_json

        print_json({"url": link})
    elif open_:
        import webbrowser

        typer.echo(f"opening {asked.url}", err=True)
        webbrowser.open(link)
    else:
        typer.echo(link)
