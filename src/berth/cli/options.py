"""Options shared by many commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def option(metavar: str, text: str, *names: str, **rest: Any) -> Any:
    """Describe an option that takes a value: its metavar and its help; `complete` and `shown` as in `argument`."""
    return typer.Option(*names, metavar=metavar, help=text, **_spelled_out(rest))


def flag(text: str, *names: str) -> Any:
    """Describe an option without a value."""
    return typer.Option(*names, help=text)


def argument(metavar: str, text: str, **rest: Any) -> Any:
    """Describe an argument; `complete`: how a shell completes it, `shown`: the default that its help shows."""
    return typer.Argument(metavar=metavar, help=text, **_spelled_out(rest))


def _spelled_out(rest: dict[str, Any]) -> dict[str, Any]:
    return {{"complete": "autocompletion", "shown": "show_default"}.get(key, key): rest[key] for key in rest}


_MAX_EXAMPLES = 10_000_000  # of a batch: more would not fit into memory

AsJson = Annotated[bool, flag("Print one JSON document instead of tables.", "--json")]
Force = Annotated[bool, flag("Overwrite existing files.", "--force")]
Batch = Annotated[
    int | None,
    option("N", "Examples per batch.", "--batch", min=1, max=_MAX_EXAMPLES, shown="depends on the model"),
]
Html = Annotated[str | None, option("FILE", "Write a report as one HTML file.", "--html")]
JobProfileFile = Annotated[
    str | None,
    option("FILE", "Write a job profile for `berth simulate` and `berth models` (YAML).", "--job-profile"),
]
Port = Annotated[int, option("PORT", "Port to listen on; 0: any.", "--port", min=0, max=65535)]
