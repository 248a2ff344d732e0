"""`berth compare`: differences between policies, with confidence intervals."""

from __future__ import annotations

from typing import Annotated

import typer

from berth.cli import scenario
from berth.cli.option_groups import expand_options
from berth.cli.options import AsJson
from berth.cli.progress import progress_bar
from berth.cli.scenario_options import ClusterName, PolicyNames, ScenarioOptions, TraceName

EXAMPLES = (
    "berth compare jobs.csv --cluster 4x4x8:H100 --policy fifo --policy srtf",
    "berth compare jobs.csv --cluster 4x4x8:H100 --policy fifo --policy srtf --faults mtbf=30d,mttr=4h",
)

Seeds = Annotated[int, typer.Option(metavar="N", min=1, help="Number of seeds (trace, models, failures).")]


@expand_options
def compare(
    *,
    trace: TraceName,
    cluster: ClusterName,
    policy: PolicyNames = None,
    seeds: Seeds = 5,
    options: ScenarioOptions,
    as_json: AsJson = False,
) -> None:
    """Compare policies with the first one: differences with 95 % confidence intervals."""
    from berth.report import terminal
    from berth.report.simulation_compare import print_comparison
    from berth.simulate.comparison import compare as compare_policies
    from berth.units import format_count

    policies = scenario.load_policies(policy)
    built = scenario.build_scenario(trace, cluster, options)
    notes = built.notes + scenario.warm_up(policies)
    with progress_bar("simulations") as progress:
        found = compare_policies(
            built.source, built.cluster, policies, built.setting, seeds=seeds, progress=progress
        )
    over_quota = found.results[0][0].never_schedulable - len(built.too_large)
    if over_quota > 0:
        notes.append(
            f"never schedulable, larger than the quota: {format_count(over_quota, 'job')}; counted nowhere"
        )
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
        print_comparison(terminal.console(), found, notes)
