"""`berth token`: create, list and remove the tokens of a controller."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from berth.cli.live_options import State, clock
from berth.cli.options import AsJson
from berth.cli.verbs import Verbs
from berth.errors import InputError, UnknownNameError
from berth.units import seconds

app = Verbs(help="Create, list and remove tokens of the controller's users.")
_SHOWN = ("user", "role", "label", "expires")


@app.verb("berth token add alice", "berth token add bob --role admin")
def add(
    user: Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")],
    role: Annotated[
        str, typer.Option(metavar="user|admin", help="user: own jobs only; admin: everything.")
    ] = "user",
    label: Annotated[str, typer.Option(metavar="TEXT", help="Purpose of the token.")] = "",
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Validity, such as 30d.", show_default="never")
    ] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Create a token. It is shown only once."""
    from berth.live.api.tokens import Role, Tokens
    from berth.live.home import existing_state
    from berth.live.spec import check_name
    from berth.report.terminal import print_json

    if not user.strip():
        raise InputError("the user has no name", hint="write it like: berth token add alice")
    for text in filter(None, (user, label)):
        check_name(text)
    end = time.time() + seconds(expires) if expires else None
    if role not in ("user", "admin"):
        raise UnknownNameError("role", role, ("user", "admin"))
    known: Role = "admin" if role == "admin" else "user"
    token = Tokens(existing_state(state)).add(user, known, label=label, expires=end)
    if as_json:
        print_json({"user": user, "role": role, "label": label, "expires": end, "token": token})
    else:
        typer.echo(token)


@app.verb("berth token list", name="list")
def list_(state: State = None, as_json: AsJson = False) -> None:
    """List users with tokens."""
    from berth.live.api.tokens import Tokens
    from berth.live.home import existing_state
    from berth.report import terminal

    tokens = Tokens(existing_state(state)).listed()
    if as_json:
        terminal.print_json({"users": [{name: getattr(token, name) for name in _SHOWN} for token in tokens]})
    else:
        rows = [[one.user, one.role, one.label or "-", _end(one.expires)] for one in tokens]
        terminal.console().print(terminal.table("", ["user", "role", "label", "expires"], rows, left=4))


@app.verb("berth token remove alice")
def remove(
    user: Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")],
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Remove all tokens of a user."""
    from berth.live.api.tokens import Tokens
    from berth.live.home import existing_state
    from berth.report.terminal import print_json

    tokens = Tokens(existing_state(state))
    removed = tokens.remove(user)
    if not removed:
        raise UnknownNameError("user with a token", user, {one.user for one in tokens.listed()})
    if as_json:
        print_json({"user": user, "removed": removed})
    else:
        typer.echo(f"{removed} removed")


def _end(expires: float | None) -> str:
    return "never" if expires is None else clock(expires)
