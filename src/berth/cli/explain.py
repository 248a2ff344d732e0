"""`berth explain`: one job's story."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli import complete
from berth.cli import scenario as scene
from berth.cli.options import AsJson

if TYPE_CHECKING:
    from berth.schedule.policy import Policy

EXAMPLES = (
    "berth explain jobs.csv 17 --cluster 4x4x8:H100 --policy required",
    "berth explain jobs.csv longest-wait --cluster 4x4x8:H100",
)

LONGEST = "longest-wait"
Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help=f"Its job_id; #n for the n-th, from 0; or {LONGEST}: the one that waited most."
    ),
]
OnePolicy = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY", autocompletion=complete.policies, help="Under which policy.", show_default="berth"
    ),
]


def explain(
    trace: scene.TraceName,
    job: Job,
    cluster: scene.ClusterName,
    policy: OnePolicy = None,
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
    """Tell what happened to one job: what it waited for and why, where it ran, who moved, what it cost."""
    from dataclasses import asdict

    from berth.report import terminal
    from berth.report.simulation_story import print_story
    from berth.simulate.explain_job import explain_job, row_of

    name, chosen = next(iter(scene.load_policies([policy] if policy else None).items()))
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
        log=True,
    )
    if job != LONGEST:
        row_of(set_.trace, job)  # a slip is told before kernels are compiled
    notes = set_.notes + set_.drawn + scene.warm_up({name: chosen})
    wanted = _longest_wait(set_, chosen) if job == LONGEST else job
    story = explain_job(set_.trace, set_.cluster, chosen, set_.setting, wanted, name)
    if as_json:
        facts = {"policy": name, "reference_device": set_.reference.name, "fault_seed": set_.fault_seed}
        terminal.print_json({**facts, **asdict(story), "notes": notes})
    else:
        print_story(terminal.console(), story, name, set_.cluster, notes)


def _longest_wait(set_: scene.Scene, policy: Policy) -> str:
    """The first of the jobs that waited longest under the policy."""
    from berth.simulate.run import simulate

    run = simulate(set_.trace, set_.cluster, policy, set_.setting)
    return set_.trace.job_ids[int(run.records["waited_s"].argmax())]
