"""`berth token`: create, list and remove the tokens of a controller."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.live_options import State, clock
from berth.cli.options import AsJson, argument, option
from berth.cli.verbs import Verbs
from berth.errors import InputError, UnknownNameError
from berth.live.home import existing_state, remote_url
from berth.report import terminal
from berth.units import seconds

if TYPE_CHECKING:
    from berth.live.api.tokens import Tokens

app = Verbs(help="Create, list and remove tokens of the controller's users.")
_SHOWN = ("user", "role", "label", "expires")


def _tokens(state: str | None) -> Tokens:
    """The tokens in a state folder of this machine; a remote controller's can't be reached from here."""
    from berth.live.api.tokens import Tokens

    if not state and (url := remote_url()):
        raise InputError(
            f"tokens are kept where the controller runs, and BERTH_URL names {url}",
            hint="run this there without BERTH_URL, or name a state folder of this machine with --state",
        )
    return Tokens(existing_state(state))


@app.verb("berth token add alice", "berth token add bob --role admin")
def add(
    user: Annotated[str, argument("USER", "Name of the user.")],
    role: Annotated[str, option("user|admin", "user: own jobs only; admin: everything.")] = "user",
    label: Annotated[str, option("TEXT", "Purpose of the token.")] = "",
    expires: Annotated[str | None, option("TIME", "Validity, such as 30d.", shown="never")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Create a token. It is shown only once."""
    from berth.live.api.tokens import Role
    from berth.live.spec import check_name

    if not user.strip():
        raise InputError("the user has no name", hint="write it like: berth token add alice")
    for text in filter(None, (user, label)):
        check_name(text)
    end = time.time() + seconds(expires) if expires else None
    if role not in ("user", "admin"):
        raise UnknownNameError("role", role, ("user", "admin"))
    known: Role = "admin" if role == "admin" else "user"
    token = _tokens(state).add(user, known, label=label, expires=end)
    if as_json:
        terminal.print_json({"user": user, "role": role, "label": label, "expires": end, "token": token})
    else:
        typer.echo(token)


@app.verb("berth token list", name="list")
def list_(state: State = None, as_json: AsJson = False) -> None:
    """List users with tokens."""
    tokens = _tokens(state).listed()
    if as_json:
        terminal.print_json({"users": [{name: getattr(token, name) for name in _SHOWN} for token in tokens]})
    else:
        rows = [
            [one.user, one.role, one.label or "-", clock(one.expires) if one.expires else "never"]
            for one in tokens
        ]
        terminal.console().print(terminal.table("", ["user", "role", "label", "expires"], rows, left=4))


@app.verb("berth token remove alice")
def remove(
    user: Annotated[str, argument("USER", "Name of the user.")],
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Remove all tokens of a user."""
    tokens = _tokens(state)
    removed = tokens.remove(user)
    if not removed:
        raise UnknownNameError("user with a token", user, {one.user for one in tokens.listed()})
    if as_json:
        terminal.print_json({"user": user, "removed": removed})
    else:
        typer.echo(f"{removed} removed")
