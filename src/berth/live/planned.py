"""Jobs with a plan or alternatives, as `berth submit` sends them: all files are read here, and their contents sent.

A plan names its model and its cluster, which may be files too. In what is sent their names are absolute, because the
job finds the plan in another folder.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from berth import spec as yaml_spec
from berth.cluster.model import Cluster
from berth.cluster.serialize import cluster_from_dict
from berth.errors import InputError, SpecError
from berth.live.demand import bind_requested
from berth.live.offer import digest_of, sent_offer
from berth.live.spec import JobSpec
from berth.plan.files import FILES, PlanSpec
from berth.plan.request import file_in
from berth.plan.shape import read_plan_shape
from berth.plan.yaml_text import yaml_word
from berth.workload.shape_spec import OfferSpec, ShapeSpec, offer_of
from berth.workload.shapes import TOO_LONG_HINT, Offer, Shape, Work, parse_work, too_long

Position = Callable[..., str]  # where the value at a path of keys is


@dataclass(frozen=True, slots=True)
class PlanReader:
    """Reads plan files, and keeps their contents by SHA-256."""

    folder: Path  # of relative paths
    cluster: Cluster
    plans: dict[str, str] = field(default_factory=dict)
    specs: list[PlanSpec] = field(default_factory=list)

    def __call__(self, path: str, where: str) -> Shape:
        """Return the shape of a plan file."""
        file = (self.folder / path).resolve()
        shape = read_plan_shape(file, self.cluster, path, where)
        text = with_absolute_names(yaml_spec.read_text(file), file.parent)
        self.specs.append(yaml_spec.parse(text, PlanSpec, str(file)))
        digest = digest_of(text)
        self.plans[digest] = text
        return replace(shape, name=file.stem, plan=str(file), plan_digest=digest)


def with_absolute_names(text: str, folder: Path) -> str:
    """Return the text of a plan in which the files that it names have absolute paths."""

    def absolute(found: re.Match[str]) -> str:
        name = found["name"].strip().strip("\"'")
        if name.startswith("{"):  # a cluster that is written in the plan itself
            return found[0]
        for place in (folder, Path.cwd()):
            if (split := file_in(name, place)) is not None:
                path = str((place / split[0]).resolve()) + split[1]
                return f"{found['key']}: {yaml_word(path)}  "
        return found[0]

    return re.sub(rf"^(?P<key>{'|'.join(FILES)}):(?P<name>[^#\n]+)", absolute, text, flags=re.MULTILINE)


def sent_job(job: JobSpec, position: Position, folder: Path, cluster: Cluster, cwd: str) -> dict[str, Any]:
    """Return a job that has a plan or alternatives as the API takes it; errors have positions.

    `folder`: of relative paths. `cluster`: the controller's. `cwd`: where a job without one runs.
    """
    reader = PlanReader(folder, cluster)
    offer = _offer(job, position, reader)
    bind_requested(offer, cluster)
    given = job.to_dict()
    for name in ("plan", "batch", "alternatives"):
        given.pop(name, None)
    given |= sent_offer(offer) | ({"plans": reader.plans} if reader.plans else {})
    if job.run is None:
        given |= {"run": _command(offer, reader, position), "cwd": job.cwd or cwd}
    return given


def _offer(job: JobSpec, position: Position, reader: PlanReader) -> Offer:
    if job.alternatives is None:
        assert job.plan is not None
        where = position("plan")
        shape = reader(job.plan, where)
        [plan] = reader.specs
        work = parse_work(job.work) if job.work else Work(plan.samples * plan.epochs)
        offer = Offer(work, (shape,), job.deadline, (where,))
        if (wrong := too_long(offer)) is not None:
            raise SpecError(wrong[0], where=position("work") if job.work else where, hint=TOO_LONG_HINT)
        return offer
    if job.plan is not None:
        raise SpecError(
            "give a `plan` or `alternatives`, not both",
            where=position("plan"),
            hint="add it to the alternatives: - plan: FILE",
        )
    shapes: list[ShapeSpec] = job.alternatives
    written = OfferSpec.model_construct(
        work=parse_work(job.work) if job.work else None,
        batch=job.batch,
        deadline=job.deadline,
        alternatives=shapes,
    )
    return offer_of(written, position, reader)


def _command(offer: Offer, reader: PlanReader, position: Position) -> str:
    """Return the command of a job that says none: train the model of its plans, from its checkpoint if there is one."""
    models = {plan.model for plan in reader.specs}
    model = models.pop() if len(models) == 1 else None
    if model is None or model.endswith((".yaml", ".yml")) or len(reader.specs) < len(offer.alternatives):
        raise InputError(
            "its plans name no model to train, so the job needs a `run`",
            where=position("alternatives"),
            hint="for example run: berth train mine.py:make_model --checkpoint saved",
        )
    return training_command(model, offer.work.unit, offer.work.amount)


def training_command(model: str, unit: str, amount: float) -> str:
    """Return the command that trains a model, and resumes from the checkpoint of its job."""
    return (
        f"exec berth train {shlex.quote(model)} --{unit} {round(amount)} --checkpoint checkpoint-$BERTH_JOB"
    )


def cluster_of(answer: dict[str, Any]) -> Cluster:
    """Return the cluster that the API describes, as far as the shapes of a job depend on it."""
    kinds = [kind["name"] for kind in answer["device_types"]]
    machines = [
        {
            "name": machine["name"],
            "devices": [(kinds.index(name), count) for name, count in machine["devices"].items()],
        }
        for machine in answer["machines"]
    ]
    return cluster_from_dict(answer | {"machines": machines})
