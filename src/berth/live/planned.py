"""Jobs that run a plan: the devices of the plan become the demand of the job."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from berth import spec as yaml_spec
from berth.cluster.catalogue import device_type
from berth.errors import InputError, SpecError
from berth.live.spec import JobSpec
from berth.plan.files import PlanSpec


def with_plan(spec: JobSpec, beside: Path) -> JobSpec:
    """Return the job with devices, and a command unless it has one, from its plan; paths are relative to `beside`.

    CPU cores of a plan (stages, servers, readers) come with the machines of its GPUs and are not requested.
    """
    if spec.plan is None:
        return spec
    path = (beside / spec.plan).resolve()
    plan = yaml_spec.load(path, PlanSpec)
    replicas: Counter[str] = Counter()
    for stage in plan.stages:
        replicas[stage.type] += stage.replicas
    gpus = {name: count for name, count in replicas.items() if device_type(name).kind == "gpu"} or replicas
    if len(gpus) > 1:
        raise SpecError(
            f"rents {' and '.join(f'{count} {name}' for name, count in gpus.items())}",
            where=str(path),
            hint="a gang's devices are all of one type: plan it with one GPU type, e.g. --devices cpu-core,T4",
        )
    kind, count = next(iter(gpus.items()))
    changed: dict[str, object] = {"gpus": count, "kind": kind, "plan": str(path)}
    if spec.run is None:
        if plan.model is None:
            raise InputError(f"{path} names no model, so the job needs a `run:`")
        changed |= {"run": ["berth", "train", plan.model, "--plan", str(path)], "per": "machine"}
    return spec.model_copy(update=changed)
