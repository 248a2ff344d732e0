"""The job profile of a planned training, for the scheduler: the gang that all-reduces gradients.

The gang is the stage with most dense parameters (on GPUs, if any stage is). One iteration is a whole batch: each
replica computes its share of it as planned, all-reduces the stage's gradients and exchanges the rows that its share
touches.
"""

from __future__ import annotations

from dataclasses import replace

from berth.plan.plan import Plan, Stage
from berth.plan.profile.job import job_profile
from berth.plan.world import ProblemSource
from berth.workload.profile import JobProfile, Number, Provenance


def planned_job(plan: Plan, name: str | None = None) -> tuple[JobProfile, Stage]:
    """Return the job profile of the plan's gang, and its stage."""
    origin = plan.problem.source
    assert origin is not None, "only a plan for a model has a job profile"
    stage = _gang(origin, plan)
    profile = origin.profile
    part = replace(profile, layers=profile.layers[stage.first : stage.last + 1], devices=())
    job = job_profile(part, [], name=name or f"{profile.model}-planned")
    times = profile.on(next(device for device in origin.devices if device.name == stage.type_name))
    year = times.compute.year or profile.made.year
    source = Provenance(
        times.compute.kind, f"a stage of a plan, {stage.replicas} replicas; {times.compute.note}", year
    )
    examples = plan.problem.batch / stage.replicas
    rows = sum(
        2 * layer.row_bytes * layer.touched_rows(examples, profile.batch)
        for layer in part.layers
        if layer.touched_bytes
    )
    compute_s = stage.compute_s * plan.problem.batch
    return replace(
        job,
        batch=max(1, round(examples)),
        compute_s={stage.type_name: Number(compute_s, source)},
        all_to_all_bytes=Number(float(round(rows)), job.all_to_all_bytes.source),
    ), stage


def _gang(source: ProblemSource, plan: Plan) -> Stage:
    kinds = {device.name: device.kind for device in source.devices}

    def weight(stage: Stage) -> tuple[bool, int]:
        dense = sum(layer.dense_bytes for layer in source.profile.layers[stage.first : stage.last + 1])
        return kinds[stage.type_name] == "gpu" and dense > 0, dense

    return max(plan.stages, key=weight)
