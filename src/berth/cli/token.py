"""`berth token`: who may use the controller."""

from __future__ import annotations

from typing import Annotated

import typer

from berth.cli.live_options import AsJson, State
from berth.errors import UnknownNameError

app = typer.Typer(help="Who may use the controller.", no_args_is_help=True)


@app.command(epilog="Example: berth token add alice")
def add(
    user: Annotated[str, typer.Argument(help="Whose it is.")],
    role: Annotated[str, typer.Option(help="user: own jobs only; admin: everything.")] = "user",
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Make a token; it is shown once."""
    from berth.live.api.tokens import Tokens
    from berth.live.home import state_folder
    from berth.report.terminal import print_json

    if role not in ("user", "admin"):
        raise UnknownNameError("role", role, ("user", "admin"))
    token = Tokens(state_folder(state)).add(user, "admin" if role == "admin" else "user")
    if as_json:
        print_json({"user": user, "role": role, "token": token})
    else:
        typer.echo(token)


@app.command("list", epilog="Example: berth token list")
def list_(state: State = None, as_json: AsJson = False) -> None:
    """Everybody who has one."""
    from berth.live.api.tokens import Tokens
    from berth.live.home import state_folder
    from berth.report import terminal

    users = Tokens(state_folder(state)).users()
    if as_json:
        terminal.print_json([{"user": caller.user, "role": caller.role} for caller in users])
    else:
        rows = [[caller.user, caller.role] for caller in users]
        terminal.console().print(terminal.table("", ["user", "role"], rows, left=2))


@app.command(epilog="Example: berth token remove alice")
def remove(user: Annotated[str, typer.Argument(help="Whose tokens end.")], state: State = None) -> None:
    """End all tokens of a user."""
    from berth.live.api.tokens import Tokens
    from berth.live.home import state_folder

    typer.echo(f"{Tokens(state_folder(state)).remove(user)} removed")
