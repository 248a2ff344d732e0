"""The job profile of a profiled model, for `berth simulate` and the network model.

Gradients are the dense parameters. Rows of embedding tables travel between workers and servers, which the network
model treats as an all-to-all exchange.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from berth.cluster.catalogue import known_devices, resolve
from berth.errors import InputError
from berth.plan.profile.layer_profile import LayerProfile
from berth.spec import write_text
from berth.workload.profile import DEFAULT_OVERLAP, REFERENCE_DEVICE, JobProfile, Number, Provenance


def job_profile(
    profile: LayerProfile, devices: Sequence[str] | None = None, *, name: str | None = None
) -> JobProfile:
    """Return the profile of one iteration on one device, for the given devices (default: all of the profile)."""
    gradients = sum(layer.dense_bytes for layer in profile.layers)
    if not gradients:
        raise InputError(
            f"{profile.model} has no dense parameters, so its workers have nothing to all-reduce",
            hint="the scheduler's job profiles are for models that synchronise gradients",
        )
    rows = sum(2 * layer.touched_bytes for layer in profile.layers)
    counted = Provenance(
        profile.facts.kind, f"layer profile of {profile.model}: {profile.facts.note}", profile.made.year
    )
    return JobProfile(
        name=name or profile.model,
        title=name or profile.model,
        family="planned",
        batch=profile.batch,
        sample=profile.sample,
        parameter_bytes=Number(float(gradients), counted),
        largest_tensor_bytes=Number(float(_largest_tensor(profile, gradients)), counted),
        overlap=Number(
            DEFAULT_OVERLAP, Provenance("modelled", "berth's default (docs/design/network-fit.md)", 2026)
        ),
        all_to_all_bytes=Number(float(rows), counted),
        compute_s={device: _compute(profile, device) for device in devices or _reference_first(profile)},
    )


def job_profile_yaml(job: JobProfile) -> str:
    """Return YAML that `berth models FILE` and every option that takes a model can read."""
    lines = [f"# One iteration of {job.name} on one device, from its layer profile."]
    lines += [f"name: {json.dumps(job.name)}", f"family: {json.dumps(job.family)}", f"batch: {job.batch}"]
    lines += [f"sample: {json.dumps(job.sample)}"]
    lines += [f"bytes: {_sourced(job.parameter_bytes, 'B')}"]
    lines += [f"largest_tensor: {_sourced(job.largest_tensor_bytes, 'B')}"]
    if job.all_to_all_bytes.value:
        lines += [f"all_to_all: {_sourced(job.all_to_all_bytes, 'B')}"]
    lines += [f"overlap: {_sourced(job.overlap, '')}", "compute:"]
    lines += [f"  {json.dumps(device)}: {_sourced(number, 's')}" for device, number in job.compute_s.items()]
    return "\n".join(lines) + "\n"


def write_job_profile(job: JobProfile, path: str | Path) -> None:
    """Write a job profile as YAML."""
    write_text(path, job_profile_yaml(job))


def _reference_first(profile: LayerProfile) -> list[str]:
    """Return the devices with the reference device (V100) first and CPU cores last."""
    reference = resolve(REFERENCE_DEVICE)

    def rank(device: str) -> tuple[bool, bool]:
        key = resolve(device)
        return key != reference, key is not None and known_devices()[key].device.kind == "cpu"

    return sorted(profile.device_names, key=rank)


def _largest_tensor(profile: LayerProfile, gradients: int) -> int:
    """Return the largest tensor, or the largest layer if the profile does not state tensors."""
    largest = max(layer.largest_tensor_bytes or layer.dense_bytes for layer in profile.layers)
    return min(largest, gradients)


def _compute(profile: LayerProfile, device: str) -> Number:
    times = profile.on(device)
    year = times.compute.year or profile.made.year
    seconds = float(times.at(profile.batch).sum())
    return Number(seconds, Provenance(times.compute.kind, f"sum over layers; {times.compute.note}", year))


def _sourced(number: Number, unit: str) -> str:
    """Return `{value: 12.5s, kind: measured, note: ..., year: 2026}`; the value reads back exactly."""
    value = f"{int(number.value)}{unit}" if unit == "B" else f"{number.value!r}{unit}"
    parts = [f"value: {value}", f"kind: {number.source.kind}", f"note: {json.dumps(number.source.note)}"]
    if number.source.year:
        parts.append(f"year: {number.source.year}")
    return "{" + ", ".join(parts) + "}"
