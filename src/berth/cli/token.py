"""`berth token`: who may use the controller."""

from __future__ import annotations

from typing import Annotated

import typer

from berth.cli.live_options import State
from berth.cli.options import AsJson
from berth.cli.verbs import Verbs
from berth.errors import InputError, UnknownNameError

app = Verbs(help="Say who may use the controller: make, list and remove tokens.")


@app.verb("berth token add alice", "berth token add bob --role admin")
def add(
    user: Annotated[str, typer.Argument(metavar="USER", help="Whose it is.")],
    role: Annotated[
        str, typer.Option(metavar="user|admin", help="user: own jobs only; admin: everything.")
    ] = "user",
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Make a token; it is shown once."""
    from berth.live.api.tokens import Tokens
    from berth.live.home import existing_state
    from berth.report.terminal import print_json

    if not user.strip():
        raise InputError("the user has no name", hint="write it like: berth token add alice")
    if role not in ("user", "admin"):
        raise UnknownNameError("role", role, ("user", "admin"))
    token = Tokens(existing_state(state)).add(user, "admin" if role == "admin" else "user")
    if as_json:
        print_json({"user": user, "role": role, "token": token})
    else:
        typer.echo(token)


@app.verb("berth token list", name="list")
def list_(state: State = None, as_json: AsJson = False) -> None:
    """List everybody who has a token."""
    from berth.live.api.tokens import Tokens
    from berth.live.home import existing_state
    from berth.report import terminal

    users = Tokens(existing_state(state)).users()
    if as_json:
        terminal.print_json({"users": [{"user": caller.user, "role": caller.role} for caller in users]})
    else:
        rows = [[caller.user, caller.role] for caller in users]
        terminal.console().print(terminal.table("", ["user", "role"], rows, left=2))


@app.verb("berth token remove alice")
def remove(
    user: Annotated[str, typer.Argument(metavar="USER", help="Whose tokens end.")],
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """End all tokens of a user."""
    from berth.live.api.tokens import Tokens
    from berth.live.home import existing_state
    from berth.report.terminal import print_json

    tokens = Tokens(existing_state(state))
    removed = tokens.remove(user)
    if not removed:
        raise UnknownNameError("user with a token", user, {caller.user for caller in tokens.users()})
    if as_json:
        print_json({"user": user, "removed": removed})
    else:
        typer.echo(f"{removed} removed")
