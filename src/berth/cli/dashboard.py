"""`berth dashboard`: the dashboard of a live cluster in the browser."""

from __future__ import annotations

from typing import Annotated

import typer

from berth.cli.live_options import LiveOptions
from berth.cli.option_groups import expand_options

EXAMPLE = "berth dashboard"


@expand_options
def dashboard(
    *,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
    options: LiveOptions,
) -> None:
    """Open the dashboard with a link that works once, within two minutes."""
    client = options.client()
    link = f"{client.url}/#code={client.post('login-code')['code']}"
    if options.as_json or not open_:
        options.show({"url": link}, link)
        return
    import webbrowser

    typer.echo(f"opening {client.url}", err=True)
    webbrowser.open(link)
