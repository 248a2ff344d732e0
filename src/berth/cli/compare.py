"""`berth compare`: differences between policies, with confidence intervals."""

from __future__ import annotations

from typing import Annotated

from berth.cli import scenario
from berth.cli.option_groups import expand_options
from berth.cli.options import AsJson, Force, Html, option
from berth.cli.output import check_output, write_text
from berth.cli.progress import progress_bar
from berth.cli.scenario_options import ClusterName, PolicyNames, ScenarioOptions, TraceName
from berth.files import write_parquet
from berth.report import terminal
from berth.units import format_count

EXAMPLES = (
    "berth compare jobs.csv --cluster 4x4x8:H100 --policy fifo --policy srtf",
    "berth compare jobs.csv --cluster 4x4x8:H100 --policy fifo --policy srtf --faults mtbf=30d,mttr=4h",
)

Seeds = Annotated[
    int | None,
    option(
        "N",
        "Number of traces: generated, or the given one and traces resampled from it. Each has its own models and "
        "failures. A 95 % interval needs 6 generated traces or 20 with a given one.",
        min=1,
        shown="10 generated, 20 with a given one",
    ),
]
Parquet = Annotated[str | None, option("FILE", "Write a row per run, with every figure, as Parquet.")]


@expand_options
def compare(
    *,
    trace: TraceName,
    cluster: ClusterName,
    policy: PolicyNames = None,
    seeds: Seeds = None,
    options: ScenarioOptions,
    parquet: Parquet = None,
    html: Html = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compare policies with the first one: differences with 95 % confidence intervals."""
    from berth.report.comparison_html import comparison_page
    from berth.report.simulation import print_comparison
    from berth.simulate.comparison import compare as compare_policies

    check_output(parquet, force, option="--parquet")
    check_output(html, force, option="--html")
    policies = scenario.load_policies(policy)
    built = scenario.build_scenario(trace, cluster, options)
    notes = built.notes + scenario.warm_up(policies)
    with progress_bar("simulations") as progress:
        found = compare_policies(
            built.source, built.cluster, policies, built.setting, seeds=seeds, progress=progress
        )
    notes = [*found.warnings, *notes]
    over_quota = found.results[0][0].never_schedulable - len(built.too_large)
    if over_quota > 0:
        notes.append(
            f"never schedulable, larger than the quota: {format_count(over_quota, 'job')}; counted nowhere"
        )
    files = [file for file in (parquet, html) if file is not None]
    if parquet is not None:
        write_parquet(found.frame(), parquet)
    if html is not None:
        write_text(html, comparison_page(found, built.trace.source, built.cluster.name, notes))
    if as_json:
        terminal.print_json(
            {
                "method": found.method,
                "seeds": found.seeds,
                "how": found.how,
                "fault_seeds": list(found.fault_seeds),
                "reference_device": built.reference.name,
                "differences": [difference.as_json() for difference in found.differences],
                "results": [[result.as_json() for result in row] for row in found.results],
                "notes": notes,
            }
        )
    else:
        print_comparison(terminal.console(), found, notes, files)
