"""`berth policies`: the policies that berth knows, and what can be set in each."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import complete
from berth.cli.options import AsJson

if TYPE_CHECKING:
    from berth.schedule.policy import Policy

EXAMPLES = ("berth policies", "berth policies fifo")

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", autocompletion=complete.policies, help="One policy with its constants."),
]


def policies(name: Name = None, as_json: AsJson = False) -> None:
    """List the policies, or one with all its constants."""
    from berth.report import terminal
    from berth.schedule.policies.registry import load_policy, policy_names

    names = policy_names() if name is None else (name,)
    facts = [_facts(one, load_policy(one)) for one in names]
    if as_json:
        terminal.print_json({"policies": facts} if name is None else facts[0])
    elif name is None:
        _print_all(facts)
    else:
        _print_one(facts[0])


def _facts(name: str, policy: Policy) -> dict[str, Any]:
    from berth.schedule.policies.constant import constants_of

    lines = (inspect.getdoc(type(policy)) or "").strip().splitlines()
    return {
        "name": name,
        "about": " ".join(lines[: lines.index("")] if "" in lines else lines),
        "text": _paragraphs("\n".join(lines)),
        "constants": [
            {"name": one.name, "default": one.default, "help": one.help, "words": list(one.words)}
            for one in constants_of(type(policy))
        ],
    }


def _paragraphs(text: str) -> str:
    """Lines were broken for the source: a terminal breaks them anew."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _print_all(facts: list[dict[str, Any]]) -> None:
    from berth.report.terminal import console, table

    out = console()
    rows = [[one["name"], one["about"]] for one in facts]
    out.print(table("", ["policy", ""], rows, left=2))
    out.print("constants: berth policies NAME; your own: --policy path/to/mine.py:MyPolicy", style="dim")


def _print_one(facts: dict[str, Any]) -> None:
    from rich.text import Text

    from berth.report.terminal import console, table

    out = console()
    out.print(Text(facts["name"], style="bold"))
    out.print(facts["text"], markup=False)
    constants = facts["constants"]
    if not constants:
        out.print("It has no constants.", style="dim")
        return
    rows = [
        [one["name"], one["default"], one["help"] + (f" ({', '.join(one['words'])})" if one["words"] else "")]
        for one in constants
    ]
    out.print(table("", ["constant", "default", ""], rows, left=3))
    first = constants[0]
    out.print(
        f"set it so: --policy {facts['name']}:{first['name']}={first['default']}", style="dim", markup=False
    )
