"""`berth policies`: list policies and their constants; check a policy."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import complete
from berth.cli.options import AsJson
from berth.cli.verbs import Group, Verbs
from berth.errors import InputError

if TYPE_CHECKING:
    from berth.schedule.policy import Policy


class NameOrCommand(Group):
    """`berth policies`, `berth policies NAME` and `berth policies check NAME` alike."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a command an empty policy name; a word that is not a command is the name."""
        if args and args[0] in self.commands:
            return super().parse_args(ctx, ["", *args])
        ctx.allow_interspersed_args = True
        rest = super().parse_args(ctx, args or [""])
        if ctx._protected_args:
            words = " ".join([*ctx._protected_args, *rest])
            raise InputError(
                f"nothing is expected after the policy: {words}", hint="see berth policies --help"
            )
        return rest


EXAMPLES = ("berth policies", "berth policies fifo")
app = Verbs(cls=NameOrCommand, invoke_without_command=True, examples=EXAMPLES)

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", autocompletion=complete.policies, help="One policy with its constants."),
]


@app.callback()
def policies(ctx: typer.Context, name: Name = None, as_json: AsJson = False) -> None:
    """List the policies, or one with all its constants; check your own."""
    if ctx.invoked_subcommand is not None:
        return
    from berth.report import terminal
    from berth.schedule.policies.registry import load_policy, policy_names

    name = name or None
    names = policy_names() if name is None else (name,)
    facts = [_facts(one, load_policy(one)) for one in names]
    if as_json:
        terminal.print_json({"policies": facts} if name is None else facts[0])
    elif name is None:
        _print_all(facts)
    else:
        _print_one(facts[0])


@app.verb("berth policies check fifo --scenarios 1")
def check(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY", autocompletion=complete.policies, help="A policy, as --policy takes it."
        ),
    ],
    scenarios: Annotated[
        int, typer.Option(metavar="N", min=1, help="Random scenarios to run.", show_default=True)
    ] = 6,
    as_json: AsJson = False,
) -> None:
    """Run a policy on random scenarios, and report the first promise it breaks (exit code 2).

    At every event, `update`, `order`, `allowed_tier` and `wake` of each job are called again: twice at the same
    time, for the same answer, and against `StaticOrder`, `monotone_order` and `wake`. Each run is audited and repeated.
    """
    from berth.report import terminal
    from berth.schedule.policies.registry import load_policy
    from berth.testing.promises import check_promises

    found = check_promises(load_policy(policy), scenarios)
    if as_json:
        terminal.print_json({"policy": policy, "scenarios": found.scenarios, "moments": found.moments})
    else:
        terminal.console().print(
            f"{policy}: keeps its promises at {found.moments:,} moments of {found.scenarios} scenarios",
            markup=False,
        )


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
    """Join the lines of each paragraph; the terminal wraps them."""
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
        f"set it with: --policy {facts['name']}:{first['name']}={first['default']}", style="dim", markup=False
    )
