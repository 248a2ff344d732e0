"""`berth compare`: differences between policies, with confidence intervals."""

from __future__ import annotations

from typing import Annotated

import typer

from berth.cli import scenario
from berth.cli.options import AsJson
from berth.cli.progress import progress_bar

EXAMPLES = (
    "berth compare jobs.csv --cluster 4x4x8:H100 --policy fifo --policy srtf",
    "berth compare jobs.csv --cluster 4x4x8:H100 --policy fifo --policy srtf --faults mtbf=30d,mttr=4h",
)

Seeds = Annotated[int, typer.Option(metavar="N", min=1, help="Number of seeds (trace, models, failures).")]


def compare(
    trace: scenario.TraceName,
    cluster: scenario.ClusterName,
    policy: scenario.PolicyNames = None,
    seeds: Seeds = 5,
    network: scenario.Network = "on",
    congestion: scenario.Congestion = 1.0,
    eviction_cost: scenario.EvictionCost = None,
    checkpoint_every: scenario.CheckpointEvery = "30m",
    mix: scenario.MixName = "balanced",
    seed: scenario.Seed = 0,
    reference_device: scenario.ReferenceDevice = None,
    doubt: scenario.Doubt = "0",
    faults: scenario.Faults = None,
    quota: scenario.Quota = None,
    quotas: scenario.Quotas = None,
    as_json: AsJson = False,
) -> None:
    """Compare policies with the first one: differences with 95 % confidence intervals."""
    from berth.report import terminal
    from berth.report.simulation_compare import print_comparison
    from berth.simulate.comparison import compare as compare_policies
    from berth.units import format_count

    policies = scenario.load_policies(policy)
    built = scenario.build_scenario(
        trace,
        cluster,
        network=network,
        congestion=congestion,
        eviction_cost=eviction_cost,
        checkpoint_every=checkpoint_every,
        mix=mix,
        seed=seed,
        reference=reference_device,
        doubt=doubt,
        faults=faults,
        quota=quota,
        quotas=quotas,
    )
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
