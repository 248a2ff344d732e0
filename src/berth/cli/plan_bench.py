"""`berth plan bench`: compare the planning methods on equal terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli import quantities
from berth.cli.options import AsJson, Force, Html
from berth.cli.output import check_output, write_text
from berth.cli.plan_options import warm_up
from berth.cli.progress import spinner
from berth.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from berth.plan.search.method import Budget
    from berth.report.plan_bench import Comparison

EXAMPLES = ("berth plan bench --quick", "berth plan bench --methods exact,rl-lstm,genetic --html bench.html")
_QUICK = (600, 1.0, 1)  # evaluations, CPU seconds, seeds
_FULL = (6400, 10.0, 3)
_GROUPS = ("models", "layers", "types")


def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer problems and small budgets: a minute or two.")
    ] = False,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these methods.", show_default="all")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Only one group of problems: models, layers or types.")
    ] = None,
    share: Annotated[
        str, typer.Option(metavar="SHARE", help="Throughput of each problem, as a share of the highest one.")
    ] = "80%",
    budget: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Plans that each method may evaluate.", show_default="6400; quick: 600"
        ),
    ] = None,
    cpu_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="CPU time of each method.", show_default="10s; quick: 1s"),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Seeds of each randomised method.", show_default="3; quick: 1"),
    ] = None,
    html: Html = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compare all methods by model, number of layers and number of types: cost and planning time."""
    from berth.plan.bench import cases, compare
    from berth.plan.search.method import Budget
    from berth.report.plan_bench import Comparison
    from berth.units import seconds

    check_output(html, force, option="--html")
    names = _methods(methods)
    standard = _QUICK if quick else _FULL
    limit = None if cpu_time is None else quantities.read_positive("--cpu-time", seconds, cpu_time)
    count, limit, repeats = (
        value if given is None else given
        for value, given in zip(standard, (budget, limit, seeds), strict=True)
    )
    asked = quantities.share("--share", share)
    if asked <= 0:
        raise InputError("--share is 0", hint="write it like 80%")
    if only not in (None, *_GROUPS):
        raise UnknownNameError("group of problems", str(only), _GROUPS)
    warm_up()
    chosen = list(cases(quick=quick, share=asked, only=only))
    allowance = Budget(int(count), float(limit))
    with spinner("planning") as report:
        results = compare(chosen, names, allowance, int(repeats), report)
    _show(Comparison(results, _conditions(allowance, int(repeats), asked)), html, as_json)


def _methods(text: str | None) -> list[str]:
    from berth.plan.search.method import METHODS

    if text is None:
        return list(METHODS)
    names = quantities.names("--methods", text, "exact,greedy") or ()
    for name in names:
        if name not in list(METHODS):
            raise UnknownNameError("method", name, list(METHODS))
    return list(dict.fromkeys(["exact", *names]))


def _conditions(budget: Budget, seeds: int, share: float) -> list[str]:
    from berth.plan.bench import DEVICES_PER_TYPE
    from berth.units import format_count

    return [
        f"each search: {budget.evaluations:,} evaluations, {budget.seconds:g} CPU seconds at most; median of "
        f"{format_count(seeds, 'seed')} for randomised methods",
        f"every problem asks for {share:.0%} of the highest throughput that its devices can hold; 1e9 examples",
        "times of CPU cores are measured, those of GPUs modelled; models and layers on cloud-mix, "
        f"types with {DEVICES_PER_TYPE} devices each, from the 14th on synthetic variants (speed x 0.6 to 1.6, "
        "price per speed x 0.8 to 1.25)",
    ]


def _show(shown: Comparison, html: str | None, as_json: bool) -> None:
    from berth.report import terminal
    from berth.report.plan_bench import comparison_page, print_comparison

    if html:
        write_text(html, comparison_page(shown))
    if as_json:
        terminal.print_json({"results": shown.as_json(), "conditions": shown.conditions})
        return
    out = terminal.console()
    print_comparison(out, shown)
    if html:
        out.print(f"wrote {html}", markup=False, soft_wrap=True)
