"""`berth up`: a controller on this machine, until Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer

from berth.cli import complete
from berth.cli.live_options import State
from berth.cli.options import Port
from berth.cli.output import check_folder
from berth.errors import InputError
from berth.units import format_count

EXAMPLES = ("berth up --cluster 2x2x4", "berth up --backend slurm --policy srtf")


def up(
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="CLUSTER",
            autocompletion=complete.clusters,
            help="A shape, a preset or a file.",
            show_default="as before, or found",
        ),
    ] = None,
    backend: Annotated[str, typer.Option(metavar="local|slurm|ray", help="What runs the jobs.")] = "local",
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            autocompletion=complete.policies,
            help="Who goes first and where.",
            show_default="as before, or berth",
        ),
    ] = None,
    state: State = None,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Address to listen on; others than this machine's need care."),
    ] = ("127.0.0.1"),
    port: Port = 7070,
) -> None:
    """Start the controller: it takes jobs, decides, and runs them; what runs survives it."""
    import logging

    from berth.live.api.tokens import read_admin_token
    from berth.live.home import state_folder

    try:
        from berth.live.server import Options, Server
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is not installed", hint="pip install 'berth[live]'") from None
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder = state_folder(state)
    check_folder(str(folder), option="--state")
    typer.echo(
        f"state: {folder}\npreparing (the first start compiles the scheduler: about a minute)", err=True
    )
    server = Server(Options(folder, cluster, backend, policy, host, port))
    setup = server.controller.books.setup
    found = server.controller.books
    token = read_admin_token(folder)

    def ready(url: str) -> None:
        typer.echo(
            f"berth is up: {url}\n"
            f"  dashboard: {url}/#token={token}\n"
            f"  {setup.cluster.name}: {format_count(setup.cluster.devices, 'device')} on "
            f"{format_count(len(setup.cluster.machines), 'machine')}, tiers {', '.join(setup.tiers)}\n"
            f"  back end {backend}, policy {setup.policy}, {format_count(len(found.jobs), 'job')} found again\n"
            "  Ctrl-C ends the controller; what runs goes on and is found again",
            err=True,
        )

    server.run(ready)
