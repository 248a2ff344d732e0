"""A plan as a shape of a job: its stages, servers and readers as parts, their traffic, and a step's time by tier."""

from __future__ import annotations

import hashlib
from pathlib import Path

from berth.cluster.model import Cluster
from berth.errors import InputError, SpecError
from berth.plan.check_file import check_plan
from berth.plan.plan import Plan, Stage
from berth.plan.problem import SYNC_BYTES
from berth.plan.rental import host_name
from berth.workload.binding import device_index
from berth.workload.shapes import EVERY, Part, Shape, devices_text


def read_plan_shape(file: Path, cluster: Cluster, name: str | None = None, where: str | None = None) -> Shape:
    """The shape of a plan file on a cluster; a plan that breaks its own limits is refused."""
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        hint = (
            f"`berth plan ... --out {name or file}` makes one"
            if isinstance(error, FileNotFoundError)
            else None
        )
        raise SpecError(f"{name or file} can't be read: {error.strerror}", where=where, hint=hint) from None
    checked = check_plan(file)
    if checked.violations:
        place, what = checked.violations[0]
        raise InputError(what, where=place, hint=f"`berth plan check {name or file}` lists all that is wrong")
    return plan_shape(checked.plan, cluster, name=name or str(file), digest=digest)


def plan_shape(plan: Plan, cluster: Cluster, *, name: str | None = None, digest: str | None = None) -> Shape:
    """The shape of a plan on a cluster; its times of a step are those of its own network terms at each tier."""
    parts = tuple(_parts(plan))
    total: dict[str, int] = {}
    for part in parts:
        for kind, count in part.devices:
            total[kind] = total.get(kind, 0) + count
    return Shape(
        name=name or devices_text(total),
        parts=parts,
        step_s=_step_by_tier(plan, cluster),
        examples_per_step=float(plan.problem.batch),
        usd_per_hour=plan.usd_per_hour,
        between_bytes=sum(_bytes_in(plan, stage) for stage in plan.stages),
        plan=name if digest else None,
        plan_digest=digest,
    )


def _parts(plan: Plan) -> list[Part]:
    """One part for each stage, for the servers of each, and for the readers."""
    found, cores = [], host_name(plan.problem)
    for number, stage in enumerate(plan.stages, 1):
        layers = slice(stage.first, stage.last + 1)
        dense = float(plan.problem.facts[stage.choice, layers, SYNC_BYTES].sum())
        reduced = dense if stage.replicas > 1 else 0.0
        found.append(Part(f"stage-{number}", ((stage.type_name, stage.replicas),), collective_bytes=reduced))
        if stage.servers:
            found.append(Part(f"servers-{number}", ((cores, stage.servers),)))
    if plan.readers:
        found.append(Part("readers", ((cores, plan.readers),)))
    return found


def _bytes_in(plan: Plan, stage: Stage) -> float:
    """Bytes that all replicas of a stage receive in a step; 0 where the rate of their NICs is not known."""
    nic = _nic(plan, stage)
    return stage.in_s * plan.problem.batch * stage.replicas * nic if nic else 0.0


def _nic(plan: Plan, stage: Stage) -> float | None:
    source = plan.problem.source
    if source is None:
        return None
    return source.rented[plan.problem.type_index(stage.type_name)].nic_bytes_per_s


def _step_by_tier(plan: Plan, cluster: Cluster) -> tuple[tuple[str, float], ...]:
    """Seconds of a step where all parts lie within one group of a tier.

    The plan's own time is that of machines connected by their NICs. Inside a machine what is moved takes the rate of
    that tier instead; beyond the first network tier over-subscription divides the rate.
    """
    if plan.problem.source is None:
        return ((EVERY, plan.stage_s * plan.problem.batch),)
    found = []
    for tier in range(len(cluster.tiers)):
        stages = [_stage_s(plan, stage, _factor(plan, stage, cluster, tier)) for stage in plan.stages]
        found.append((cluster.tiers[tier].name, max(plan.reader_s * plan.problem.batch, *stages)))
    return tuple(found)


def _factor(plan: Plan, stage: Stage, cluster: Cluster, tier: int) -> float:
    """How much longer than in the plan a byte takes at a tier."""
    nic = _nic(plan, stage)
    assert nic is not None
    index = device_index(cluster, stage.type_name)
    if tier == 0:
        return min(1.0, nic / cluster.tiers[0].bytes_per_s)
    rate = nic
    for level in range(2, tier + 1):
        above = cluster.tiers[level]
        rate = min(rate, min(nic, above.bytes_per_s) / above.oversubscription)
    return 1.0 if index is None else nic / rate


def _stage_s(plan: Plan, stage: Stage, factor: float) -> float:
    """Seconds of a stage's step if what it moves takes `factor` times as long: the terms of `problem.Schedule`."""
    batch, schedule = plan.problem.batch, plan.schedule
    per_call = batch / schedule.micro
    compute, into, out = (value * per_call for value in (stage.compute_s, stage.in_s, stage.out_s))
    into, out = into * factor, out * factor
    calls = schedule.w_max * max(compute, into, out) + schedule.w_sum * (compute + into + out)
    own_s = calls + (stage.optimiser_s + stage.sync_s) * batch
    return max(own_s, stage.server_s * batch)
