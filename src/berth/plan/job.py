"""What the scheduler should know of a planned training: the gang that reduces gradients, as a job profile.

The stage with most dense parameters (on GPUs, if any stage is) is the gang whose distance matters. One iteration
is a whole batch: each of its units computes its part of it as planned, reduces the stage's gradients and exchanges
the rows that its part touches.
"""

from __future__ import annotations

from dataclasses import replace

from berth.plan.build import Setup
from berth.plan.plan import Plan, Stage
from berth.plan.profile.job import job_profile
from berth.workload.profile import JobProfile, Number, Provenance


def planned_job(setup: Setup, plan: Plan, name: str | None = None) -> tuple[JobProfile, Stage]:
    """The job profile of the plan's gang, and the stage that it is."""
    stage = _gang(setup, plan)
    profile = setup.profile
    part = replace(profile, layers=profile.layers[stage.first : stage.last + 1], devices=())
    job = job_profile(part, [], name=name or f"{profile.model}-planned")
    times = profile.on(next(device for device in setup.devices if device.name == stage.type_name))
    year = times.compute.year or profile.made.year
    source = Provenance(
        times.compute.kind, f"a stage of a plan, {stage.units} units; {times.compute.note}", year
    )
    rows = sum(2 * layer.touched_bytes / stage.units**layer.touched_growth for layer in part.layers)
    compute_s = stage.compute_s * plan.problem.batch
    return replace(
        job,
        batch=max(1, round(profile.batch / stage.units)),
        compute_s={stage.type_name: Number(compute_s, source)},
        all_to_all_bytes=Number(float(round(rows)), job.all_to_all_bytes.source),
    ), stage


def _gang(setup: Setup, plan: Plan) -> Stage:
    kinds = {device.name: device.kind for device in setup.devices}

    def weight(stage: Stage) -> tuple[bool, int]:
        dense = sum(layer.dense_bytes for layer in setup.profile.layers[stage.first : stage.last + 1])
        return kinds[stage.type_name] == "gpu" and dense > 0, dense

    return max(plan.stages, key=weight)
