"""`berth compare`: is one policy better than another, or was it luck?"""

from __future__ import annotations

from typing import Annotated

import typer

from berth.cli import scenario as scene
from berth.cli.options import AsJson
from berth.cli.progress import progress_bar

EXAMPLES = (
    "berth compare jobs.csv --cluster 4x4x8:H100 --policy fifo --policy srtf",
    "berth compare jobs.csv --cluster 4x4x8:H100 --policy fifo --policy srtf --faults mtbf=30d,mttr=4h",
)

Seeds = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="Traces to run on, with their own models and failures. Intervals need 6 generated or 20 resampled.",
    ),
]


def compare(
    trace: scene.TraceName,
    cluster: scene.ClusterName,
    policy: scene.PolicyNames = None,
    seeds: Seeds = 20,
    network: scene.Network = "on",
    congestion: scene.Congestion = 1.0,
    eviction_cost: scene.EvictionCost = None,
    checkpoint_every: scene.CheckpointEvery = "30m",
    mix: scene.MixName = "balanced",
    seed: scene.Seed = 0,
    reference_device: scene.ReferenceDevice = None,
    doubt: scene.Doubt = "0",
    faults: scene.Faults = None,
    quota: scene.Quota = None,
    quotas: scene.Quotas = None,
    as_json: AsJson = False,
) -> None:
    """Hold policies against the first: differences with 95 % intervals, or that there are none."""
    from berth.report import terminal
    from berth.report.simulation_compare import print_comparison
    from berth.simulate.comparison import compare as compare_policies
    from berth.units import format_count

    policies = scene.load_policies(policy)
    set_ = scene.set_scene(
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
    notes = set_.notes + scene.warm_up(policies)
    with progress_bar("simulations") as tell:
        found = compare_policies(
            set_.source, set_.cluster, policies, set_.setting, seeds=seeds, progress=tell
        )
    notes = [*found.warnings, *notes]
    over = found.results[0][0].never_schedulable - len(set_.too_large)
    if over > 0:
        notes.append(
            f"never schedulable, larger than the quota: {format_count(over, 'job')}; counted nowhere"
        )
    if as_json:
        terminal.print_json(
            {
                "method": found.method,
                "seeds": found.seeds,
                "how": found.how,
                "fault_seeds": list(found.fault_seeds),
                "reference_device": set_.reference.name,
                "differences": [difference.as_json() for difference in found.differences],
                "results": [[result.as_json() for result in row] for row in found.results],
                "notes": notes,
            }
        )
    else:
        print_comparison(terminal.console(), found, notes)
