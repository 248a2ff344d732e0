"""`berth policies`: list policies and their constants; check a policy."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import complete
from berth.cli.options import AsJson, argument, option
from berth.cli.verbs import NameOrCommand, Verbs
from berth.report import terminal

if TYPE_CHECKING:
    from berth.schedule.policy import Policy


class PolicyOrCommand(NameOrCommand):
    """`berth policies`, `berth policies NAME` and `berth policies check NAME`."""

    name_means = "policy"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let the name be missing: all policies are listed then."""
        return super().parse_args(ctx, args or [""])


EXAMPLES = ("berth policies", "berth policies fifo")
app = Verbs(cls=PolicyOrCommand, invoke_without_command=True, examples=EXAMPLES)

Name = Annotated[str | None, argument("NAME", "One policy with its constants.", complete=complete.policies)]


@app.callback()
def policies(ctx: typer.Context, name: Name = None, as_json: AsJson = False) -> None:
    """List the policies, or one with all its constants; check your own."""
    if ctx.invoked_subcommand is not None:
        return
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
    policy: Annotated[str, argument("POLICY", "A policy, as --policy takes it.", complete=complete.policies)],
    scenarios: Annotated[int, option("N", "Random scenarios to run.", min=1, shown=True)] = 6,
    as_json: AsJson = False,
) -> None:
    """Run a policy on random scenarios, and report the first promise it breaks (exit code 2).

    At every event, `update`, `order`, `allowed_tier` and `wake` of each job are called again: twice at the same
    time, for the same answer, and against `StaticOrder`, `monotone_order` and `wake`. Each run is audited and repeated.
    """
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
    out = terminal.console()
    rows = [[one["name"], one["about"]] for one in facts]
    out.print(terminal.table("", ["policy", ""], rows, left=2))
    out.print("constants: berth policies NAME; your own: --policy path/to/mine.py:MyPolicy", style="dim")


def _print_one(facts: dict[str, Any]) -> None:
    from rich.text import Text

    out = terminal.console()
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
    out.print(terminal.table("", ["constant", "default", ""], rows, left=3))
    first = constants[0]
    out.print(
        f"set it with: --policy {facts['name']}:{first['name']}={first['default']}", style="dim", markup=False
    )
