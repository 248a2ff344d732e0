"""`berth plan bench`: compare the planning methods on equal terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from berth.cli import quantities
from berth.cli.options import AsJson, Force, Html, flag, option
from berth.cli.output import check_output, write_text
from berth.cli.plan_options import warm_up
from berth.cli.progress import spinner
from berth.errors import InputError, UnknownNameError
from berth.report import terminal
from berth.units import format_count, seconds

if TYPE_CHECKING:
    from berth.plan.search.method import Budget
    from berth.report.plan_bench import Comparison

EXAMPLES = (
    "berth plan bench --quick",
    "berth plan bench --methods exact,reinforce-lstm,genetic --html bench.html",
)
_QUICK = (600, 1.0, 1)  # evaluations, CPU seconds, seeds
_FULL = (6400, 10.0, 3)
_GROUPS = ("models", "layers", "types")


def bench(
    quick: Annotated[bool, flag("Fewer problems and small budgets: a minute or two.", "--quick")] = False,
    methods: Annotated[str | None, option("A,B", "Only these methods.", shown="all")] = None,
    only: Annotated[
        str | None, option("GROUP", "Only one group of problems: models, layers or types.")
    ] = None,
    share: Annotated[
        str, option("SHARE", "Throughput of each problem, as a share of the highest one.")
    ] = "80%",
    budget: Annotated[
        int | None, option("N", "Plans that each method may evaluate.", min=1, shown="6400; quick: 600")
    ] = None,
    cpu_time: Annotated[
        str | None, option("TIME", "CPU time of each method.", shown="10s; quick: 1s")
    ] = None,
    seeds: Annotated[
        int | None, option("N", "Seeds of each randomised method.", min=1, shown="3; quick: 1")
    ] = None,
    html: Html = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compare all methods by model, number of layers and number of types: cost and planning time."""
    from berth.plan.bench import cases, compare
    from berth.plan.search.method import Budget
    from berth.report.plan_bench import Comparison

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
    from berth.plan.search.method import METHODS, canonical_name

    if text is None:
        return list(METHODS)
    names = quantities.names("--methods", text, "exact,greedy") or ()
    return list(dict.fromkeys(["exact", *map(canonical_name, names)]))


def _conditions(budget: Budget, seeds: int, share: float) -> list[str]:
    from berth.plan.bench import CORES_PER_TYPE, DEVICES_PER_TYPE, ROWS

    return [
        f"each search: {budget.evaluations:,} evaluations, {budget.seconds:g} CPU seconds at most; median of "
        f"{format_count(seeds, 'seed')} for randomised methods",
        f"every problem asks for {share:.0%} of the highest throughput that its devices can hold; 1e9 examples",
        f"tables of {ROWS:g} rows in all; times of CPU cores are measured, those of GPUs modelled; models and layers "
        f"on cloud-mix, types with {DEVICES_PER_TYPE} GPUs ({CORES_PER_TYPE:,} cores) each, from the 14th on synthetic "
        "variants (speed x 0.6 to 1.6, price per speed x 0.8 to 1.25)",
        "berth-lstm and berth-rnn: pretrained on exact's answers, started from the greedy plan; reinforce-lstm and "
        "reinforce-rnn: fresh weights, nothing else",
        "static-cpu-gpu: 6 CPU cores for each GPU; static-servers: 1 server core for each CPU core, 6 for each GPU",
    ]


def _show(shown: Comparison, html: str | None, as_json: bool) -> None:
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
