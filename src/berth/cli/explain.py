"""`berth explain`: what happened to one job."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from berth.cli import complete, scenario
from berth.cli.option_groups import expand_options
from berth.cli.options import AsJson, argument, option
from berth.cli.scenario_options import ClusterName, ScenarioOptions, TraceName
from berth.report import terminal

if TYPE_CHECKING:
    from berth.schedule.policy import Policy

EXAMPLES = (
    "berth explain jobs.csv 17 --cluster 4x4x8:H100 --policy required",
    "berth explain jobs.csv longest-wait --cluster 4x4x8:H100",
)

LONGEST = "longest-wait"
Job = Annotated[
    str,
    argument("JOB", f"A job_id; #n for the n-th job, from 0; or {LONGEST}: the job with the longest wait."),
]
OnePolicy = Annotated[
    str | None, option("POLICY", "The policy to simulate.", complete=complete.policies, shown="berth")
]


@expand_options
def explain(
    *,
    trace: TraceName,
    job: Job,
    cluster: ClusterName,
    policy: OnePolicy = None,
    options: ScenarioOptions,
    as_json: AsJson = False,
) -> None:
    """Explain one job: what it waited for and why, where it ran, which jobs moved, what it cost."""
    from berth.report.simulation_story import print_story
    from berth.simulate.explain_job import explain_job, row_of

    name, chosen = next(iter(scenario.load_policies([policy] if policy else None).items()))
    built = scenario.build_scenario(trace, cluster, options, log=True)
    if job != LONGEST:
        row_of(built.trace, job)  # an unknown job is an error before kernels are compiled
    notes = built.notes + built.drawn + scenario.warm_up({name: chosen})
    wanted = _longest_wait(built, chosen) if job == LONGEST else job
    story = explain_job(built.trace, built.cluster, chosen, built.setting, wanted, name)
    if as_json:
        facts = {"policy": name, "reference_device": built.reference.name, "fault_seed": built.fault_seed}
        terminal.print_json({**facts, **asdict(story), "notes": notes})
    else:
        print_story(terminal.console(), story, name, built.cluster, notes)


def _longest_wait(built: scenario.Scenario, policy: Policy) -> str:
    """The id of the job that waited longest under the policy."""
    from berth.simulate.run import simulate

    run = simulate(built.trace, built.cluster, policy, built.setting)
    return built.trace.job_ids[int(run.records["waited_s"].argmax())]
