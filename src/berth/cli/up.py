"""`berth up`: run a controller on this machine until Ctrl-C."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from berth.cli import complete
from berth.cli.live_options import State
from berth.cli.options import Port, flag, option
from berth.cli.output import check_folder
from berth.cli.progress import note_write_failure
from berth.live.home import state_folder
from berth.units import format_count, seconds

EXAMPLES = ("berth up --cluster 2x2x4", "berth up --backend slurm --policy srtf")


def up(
    cluster: Annotated[
        str | None,
        option(
            "CLUSTER", "A shape, a preset or a file.", complete=complete.clusters, shown="as before, or found"
        ),
    ] = None,
    backend: Annotated[str, option("local|slurm|ray", "What runs the jobs.")] = "local",
    policy: Annotated[
        str | None,
        option("POLICY", "Scheduling policy.", complete=complete.policies, shown="as before, or berth"),
    ] = None,
    state: State = None,
    host: Annotated[
        str, option("ADDRESS", "Address to listen on; see the security guide before using another.")
    ] = "127.0.0.1",
    port: Port = 7070,
    work: Annotated[
        str | None,
        option(
            "DIR",
            "Folder of attempts and logs, shared by all machines of Slurm or Ray.",
            shown="as before, or beside the state",
        ),
    ] = None,
    adopt: Annotated[
        bool, flag("Take over a copied or moved state; running jobs are queued again.", "--adopt")
    ] = False,
    user_priority: Annotated[
        int, option("N", "Highest priority a user may submit with.", min=-1000, max=1000)
    ] = 0,
    user_grace: Annotated[str, option("TIME", "Longest grace a user may submit with.")] = "10m",
    user_restarts: Annotated[
        int, option("N", "Most restarts a user may submit with.", min=0, max=1_000_000)
    ] = 100,
) -> None:
    """Start the controller, which accepts, schedules and runs jobs. Running jobs survive it."""
    from berth.live.server import Options, Server
    from berth.live.spec import Bounds
    from berth.native.cache import package_folder

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder = state_folder(state)
    check_folder(str(folder), option="--state")
    first = "" if package_folder().exists() else " (the first start compiles the scheduler: about a minute)"
    typer.echo(f"state: {folder}\npreparing{first}", err=True)
    bounds = Bounds(user_priority, seconds(user_grace), user_restarts)
    shared = Path(work).expanduser().resolve() if work else None
    server = Server(Options(folder, cluster, backend, policy, host, port, shared, adopt, bounds))
    note_write_failure()
    setup = server.controller.state.setup
    found = server.controller.state

    notes = "".join(f"  note: {note}\n" for note in setup.cluster.notes)

    def ready(url: str) -> None:
        typer.echo(
            f"berth is up: {url}\n"
            "  dashboard: `berth dashboard` opens it\n"
            f"  {setup.cluster.name}: {format_count(setup.cluster.devices, 'device')} on "
            f"{format_count(len(setup.cluster.machines), 'machine')}, tiers {', '.join(setup.tiers)}\n"
            f"{notes}  back end {backend}, policy {setup.policy}, {format_count(len(found.jobs), 'job')} recovered\n"
            f"  jobs run as this account, in {server.work}: all users who may submit are trusted with it\n"
            "  Ctrl-C ends the controller; running jobs continue and are recovered at the next start",
            err=True,
        )

    server.run(ready)
