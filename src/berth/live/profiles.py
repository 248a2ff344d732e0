"""The profile of a submitted job, in plain numbers.

A job names a model of the catalogue, or carries its profile with it; files are read by `berth submit`, never here.
The numbers are found once, when the job is submitted, and are in the journal from then on.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any

from pydantic import Field, JsonValue

from berth.cluster.catalogue import known_devices, resolve
from berth.errors import UnknownNameError
from berth.network.traffic import Collective
from berth.spec import Spec
from berth.workload.profile import DEFAULT_OVERLAP, REFERENCE_DEVICE, JobProfile, Number, Provenance
from berth.workload.profiles import catalogue_profile

_log = logging.getLogger("berth.live")
_SENT = Provenance("stated", "sent with the job")
Numbers = dict[str, Any]  # an InlineProfile as JSON holds it
DEFAULT_MODEL = "resnet50"  # the profile of a job that names none

NO_OTHER_KEYS: dict[str, JsonValue] = {"additionalProperties": False}  # than those of the pattern
Amount = Annotated[float, Field(ge=1, le=1e15, strict=True)]
DeviceName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$")]
ProfileName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$")]


class InlineProfile(Spec):
    """One iteration of a model on one device: what it computes and what it sends."""

    name: ProfileName = "inline"
    parameter_bytes: Amount  # gradients reduced over all devices
    skew: Annotated[float, Field(gt=0, le=1, strict=True)] = 0.1  # largest tensor over all gradients
    all_to_all_bytes: Annotated[float, Field(ge=0, le=1e15, strict=True)] = 0.0
    overlap: Annotated[float, Field(ge=1, le=1000, strict=True)] = DEFAULT_OVERLAP
    collective: Collective = "ring"
    compute_s: Annotated[
        dict[DeviceName, Annotated[float, Field(ge=1e-6, le=1e6, strict=True)]],
        Field(min_length=1, max_length=64, json_schema_extra=NO_OTHER_KEYS),
    ]  # seconds of an iteration by device type


def inline_of(profile: JobProfile) -> InlineProfile:
    """Return a profile as numbers; one that states operations only has its time on the reference device."""
    known = profile.compute_s or {REFERENCE_DEVICE: profile.compute(REFERENCE_DEVICE)}
    return InlineProfile.model_construct(
        name=profile.name,
        parameter_bytes=profile.parameter_bytes.value,
        skew=profile.skew,
        all_to_all_bytes=profile.all_to_all_bytes.value,
        overlap=profile.overlap.value,
        collective=profile.collective,
        compute_s={device: number.value for device, number in known.items()},
    )


def numbers_of(model: str | InlineProfile | None) -> Numbers:
    """Return the numbers of a job's profile: of the catalogue's model, or of the profile it carries."""
    found = (
        model if isinstance(model, InlineProfile) else inline_of(catalogue_profile(model or DEFAULT_MODEL))
    )
    return found.model_dump(mode="json")


def journalled_numbers(job: str, model: Any) -> Numbers:
    """Return the numbers of a job that was submitted before they were in the journal.

    A file that such a job names is not read, whether it exists or not: the job is placed as if it named no model.
    """
    try:
        return numbers_of(str(model) if model is not None else None)
    except UnknownNameError:
        _log.warning(
            "job %s: its profile %r is not in the catalogue; it is placed like %s until its step times are known",
            job,
            model,
            DEFAULT_MODEL,
        )
        return numbers_of(None)


def profile_of(numbers: Numbers) -> JobProfile:
    """Return the profile that these numbers describe.

    Where the speed of none of its devices is known, the first of its times is taken as the reference device's: a job
    must be placed on any cluster.
    """
    compute_s = {device: Number(float(value), _SENT) for device, value in numbers["compute_s"].items()}
    if not any(_has_speed(device) for device in compute_s):
        compute_s[REFERENCE_DEVICE] = next(iter(compute_s.values()))
    size = float(numbers["parameter_bytes"])
    return JobProfile(
        name=numbers["name"],
        title=numbers["name"],
        family="other",
        batch=1,
        sample="sample",
        parameter_bytes=Number(size, _SENT),
        largest_tensor_bytes=Number(size * float(numbers["skew"]), _SENT),
        overlap=Number(float(numbers["overlap"]), _SENT),
        all_to_all_bytes=Number(float(numbers["all_to_all_bytes"]), _SENT),
        compute_s=compute_s,
        collective=numbers["collective"],
    )


def _has_speed(device: str) -> bool:
    key = resolve(device)
    return key is not None and known_devices()[key].device.flops is not None
