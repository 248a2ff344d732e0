"""A plan as the processes of a run: what was planned, and what of it is started on this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from berth.errors import InputError
from berth.train.stages.cut import Layout, StageCut
from berth.units import format_count

if TYPE_CHECKING:
    from berth.plan.check_file import CheckedPlan
    from berth.plan.plan import Plan, Stage
    from berth.plan.request import PlanRequest

_SERVED = ("servers", "disk")  # places of tables that are servers here
_PER_CORE = 4  # processes of a plan that one core takes without --scale
_FEW = 16  # processes that any machine takes
JOB_PLAN = "BERTH_PLAN"  # environment: the plan file of a job


@dataclass(frozen=True)
class PlannedRun:
    """A plan, and the counts that are started: the planned ones, scaled down."""

    path: str
    plan: Plan
    request: PlanRequest
    cuts: tuple[StageCut, ...]
    scale: Fraction = Fraction(1)
    is_scaled: bool = False  # whether the user gave a scale
    ranks: int | None = None  # processes of the environment that run the only stage, instead of those planned
    # stages of this run whose tables are in the memory of its workers
    resident_here: frozenset[int] = frozenset()

    @property
    def layout(self) -> Layout:
        """Return the replicas of each stage that are started."""
        if self.ranks is not None:
            return Layout((self.ranks,))
        return Layout(tuple(self.scaled(stage.replicas) for stage in self.plan.stages))

    @property
    def servers(self) -> tuple[int, ...]:
        """Return the servers of each stage that are started."""
        return tuple(self.scaled(stage.servers) for stage in self.plan.stages)

    @property
    def is_sync(self) -> bool:
        """Whether the plan is for synchronous steps; so is one of a stated problem, which has no mode."""
        from berth.plan.world import SYNC

        return self.plan.problem.source is None or self.request.world.mode == SYNC

    @property
    def batch(self) -> int | None:
        """Return the examples of a global batch; None if a stated problem is planned."""
        if self.plan.problem.source is None:
            return None
        batch = round(self.plan.problem.batch)
        return batch if self.is_sync else batch * self.layout.replicas[0]

    @property
    def micro_batches(self) -> int:
        """Return the micro-batches of a step."""
        return self.plan.micro

    @property
    def resident_stages(self) -> frozenset[int]:
        """Return the stages whose tables are planned in the memory of devices or machines."""
        stages = enumerate(self.plan.stages)
        return frozenset(number for number, one in stages if one.tables and one.tables not in _SERVED)

    @property
    def has_served_tables(self) -> bool:
        """Whether tables of some stage are planned on servers."""
        return any(stage.tables in _SERVED for stage in self.plan.stages)

    def scaled(self, count: int) -> int:
        """Return how many of a planned count are started: at least one, unless none is planned."""
        return math.ceil(count * self.scale)

    def check_size(self, cores: int | None = None) -> None:
        """Raise if the plan has far more processes than this machine has cores, and no scale was given."""
        cores = cores or cores_here()
        processes = self.layout.world_size + sum(self.servers)
        most = max(_FEW, _PER_CORE * cores)
        if not self.is_scaled and processes > most:
            raise InputError(
                f"the plan has {processes:,} processes, this machine {format_count(cores, 'core')}",
                where=self.path,
                hint=f"add --scale 1/{math.ceil(processes / most)} to start fewer, or --scale 1 to start them all",
            )

    def check_mode(self, mode: str) -> None:
        """Raise for a mode that is not the plan's."""
        if (mode == "sync") != self.is_sync:
            own, other = ("sync", "async") if self.is_sync else ("async", "sync")
            raise InputError(
                f"the plan is for mode {own}, not {mode}",
                where=self.path,
                hint=f"use --mode {own}, or make another plan: berth plan ... --mode {other}",
            )

    def describe(self, names: Sequence[str], servers: int, mode: str, *, has_budget: bool) -> list[str]:
        """Return lines on what was planned, what is started, and what is not; `servers` are started."""
        planned = sum(stage.replicas for stage in self.plan.stages)
        stages = format_count(len(self.cuts), "stage")
        pools = f"{format_count(self.plan.servers, 'server')}, {format_count(self.plan.readers, 'reader')}"
        has_tables = any(stage.tables for stage in self.plan.stages)
        tables = format_count(servers, "server")
        if has_tables and not servers:
            tables = f"tables in {'its' if self.layout.world_size == 1 else 'their'} memory"
        elif self.resident_here:
            numbers = ", ".join(str(stage + 1) for stage in sorted(self.resident_here))
            tables += f", tables of stage {numbers} in the memory of its workers"
        at_scale = f" at scale {self.scale}" if self.is_scaled else ""
        lines = [
            f"{self.path}: planned {format_count(planned, 'worker')} in {stages}, {pools}",
            f"  started{at_scale}: {format_count(self.layout.world_size, 'worker')}, {tables} ({mode})",
        ]
        stages_here = zip(self.cuts, self.plan.stages, self.layout.replicas, strict=True)
        for number, (cut, stage, count) in enumerate(stages_here, 1):
            lines.append(f"  stage {number}: {_stage_text(names, cut, stage, count)}")
        return lines + [f"  not started: {text}" for text in self.not_started(servers, has_budget=has_budget)]

    def not_started(self, servers: int, *, has_budget: bool) -> list[str]:
        """Return what the plan has and the run does not; `has_budget`: tables have a limit of memory."""
        found = []
        missing = sum(stage.replicas for stage in self.plan.stages) - self.layout.world_size
        if missing > 0:
            reason = f"--scale {self.scale}" if self.ranks is None else f"{self.ranks} were provided"
            found.append(f"{format_count(missing, 'worker')} ({reason})")
        if self.plan.servers > servers:
            found.append(f"{format_count(self.plan.servers - servers, 'server')} of {self.plan.servers}")
        if not has_budget and any(stage.tables == "disk" for stage in self.plan.stages):
            found.append("files of cold rows; all rows are in memory without --memory")
        if self.resident_stages and not self.resident_here and servers:
            why = "" if self.is_sync else ": mode async excludes them"
            found.append(f"tables in the memory of workers; they are on servers here{why}")
        if self.plan.readers:
            readers = format_count(self.plan.readers, "reader")
            workers = self.layout.readers
            read = "the worker of stage 1 reads" if workers == 1 else f"the {workers} workers of stage 1 read"
            found.append(f"{readers}; {read} in a thread")
        if len(self.cuts) == 1 and self.micro_batches > 1:
            found.append(f"{self.micro_batches} micro-batches; workers of one stage have no pipeline")
        return found


def _stage_text(names: Sequence[str], cut: StageCut, stage: Stage, count: int) -> str:
    """Return the layers of a stage, and its planned and started replicas."""
    layers = names[cut.first] if cut.first == cut.last else f"{names[cut.first]} .. {names[cut.last]}"
    started = f"{count} process{'' if count == 1 else 'es'}"
    slower = f", {cut.slowdown:g} times slower" if cut.slowdown > 1 else ""
    emulated = "" if cut.device_type.startswith("cpu") else ", emulated on cores"
    if cut.device != "cpu":
        emulated = f" on {cut.device}"
    return f"{layers}; planned {stage.replicas} x {cut.device_type}, started {started}{emulated}{slower}"


def planned_devices(planned: PlannedRun, device: str, device_map: Mapping[str, str]) -> tuple[StageCut, ...]:
    """Return the stages with their torch devices: as mapped; `device` or a GPU of this machine for types that are not
    CPUs; else cores, which emulate them."""
    from berth.train.devices import available_devices

    used = {cut.device_type for cut in planned.cuts}
    for device_type in device_map:
        if device_type not in used:
            raise _unused(planned.path, device_type, used)
    others = {device_type for device_type in used if not device_type.startswith("cpu")}
    if device != "cpu" and not others - device_map.keys():
        raise InputError(
            f"--device {device}: all stages of the plan are on CPUs or mapped",
            where=planned.path,
            hint=f"drop it, or use --map {sorted(used)[0]}={device}",
        )
    here = [name for name in ("cuda", "xpu") if any(one.startswith(name) for one in available_devices())]
    for_others = device if device != "cpu" else (here or ["cpu"])[0]
    cuts = []
    for cut in planned.cuts:
        name = device_map.get(cut.device_type, for_others if cut.device_type in others else "cpu")
        if name != "cpu" and cut.slowdown > 1:
            raise InputError(
                f"--emulate {cut.device_type}: it runs on {name}, not on cores that emulate it",
                hint=f"drop one of them, or use --map {cut.device_type}=cpu",
            )
        cuts.append(replace(cut, device=name))
    return tuple(cuts)


def _unused(path: str, device_type: str, used: Iterable[str]) -> InputError:
    return InputError(
        f"the plan does not use {device_type}", where=path, hint=f"it uses {', '.join(sorted(used))}"
    )


def cores_here() -> int:
    """Return the cores that processes of this run may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def job_plan() -> str | None:
    """Return the plan file of the job that this process belongs to, if it runs a plan."""
    return os.environ.get(JOB_PLAN) or None


def is_job_plan(path: str | None) -> bool:
    """Whether a plan is that of the job, so that every process of the plan has a rank."""
    return path is not None and path == job_plan()


def read_scale(text: str) -> Fraction:
    """Return a scale such as 1/10."""
    try:
        scale = Fraction(text.replace(" ", ""))
    except (ValueError, ZeroDivisionError):
        scale = Fraction(0)
    if not 0 < scale <= 1:
        raise InputError(
            f'--scale: expected a fraction above 0 and up to 1, got "{text}"', hint="for example --scale 1/10"
        )
    return scale


def planned_run(
    path: str, model: str, layers: Sequence[str], slowdowns: Mapping[str, float], scale: str | None = None
) -> PlannedRun:
    """Return the run of a plan file, checked against the model."""
    fraction = read_scale(scale) if scale is not None else Fraction(1)
    checked = _checked(path)
    if checked.violations:
        where, what = checked.violations[0]
        raise InputError(what, where=where, hint="`berth plan check` lists all problems")
    names = list(checked.plan.problem.layers)
    planned = checked.request.model
    by_profile = planned is not None and planned.endswith((".yaml", ".yml"))  # a file, which names no model
    if (not by_profile and planned not in (None, model)) or list(layers) != names:
        again = f"berth profile ... --out {planned}, then " if by_profile else ""
        raise InputError(
            f"this plan is for {planned or 'another model'} with {len(names)} layers,"
            f" not for {model} with {len(layers)}",
            where=path,
            hint=f"make one: {again}berth plan {planned if by_profile else model} --out plan.yaml ...",
        )
    device_types = {stage.type_name for stage in checked.plan.stages}
    unknown = [device_type for device_type in slowdowns if device_type not in device_types]
    if unknown:
        raise _unused(path, unknown[0], device_types)
    cuts = [
        StageCut(stage.first, stage.last, stage.type_name, slowdowns.get(stage.type_name, 1.0))
        for stage in checked.plan.stages
    ]
    return PlannedRun(path, checked.plan, checked.request, tuple(cuts), fraction, scale is not None)


@lru_cache(maxsize=1)
def _checked(path: str) -> CheckedPlan:
    """Return the plan of a file, which the command line and the run both need."""
    from berth.plan.check_file import check_plan

    return check_plan(path)
