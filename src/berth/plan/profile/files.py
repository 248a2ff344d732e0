"""Reads and writes layer profiles as YAML without loss: shipped ones and the user's."""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from berth.errors import InputError, SpecError, UnknownNameError
from berth.plan.profile.here import folder as here_folder
from berth.plan.profile.layer_profile import DeviceTimes, LayerFacts, LayerProfile, grid, short
from berth.plan.profile.machine import CORE, core_key, cpu_vendor
from berth.plan.profile.spec import DeviceSpec, LayerProfileSpec, TimeSpec
from berth.plan.yaml_text import yaml_value
from berth.spec import locate, parse, read_text, write_text
from berth.workload.profile import Provenance
from berth.zoo import zoo

_HEAD = """\
# Layer profile of {model} for `berth plan`. Bytes and operations are those of {batch:,} examples in single precision.
# compute_s is seconds of forward + backward of one call of each of `batches` examples on ONE device, step_s those of
# the optimiser step. Every device states what was measured and what is modelled.
"""
STATED_UNCERTAINTY = 0.1  # of times whose file does not state it
_CORE_BYTES_PER_S = 10e9
ADAM_NOTE = "Adam reads and writes parameters seven times, at 10 GB/s"
_ALWAYS_WRITTEN = {"kind", "input_bytes", "output_bytes"}


def load_layer_profile(name_or_path: str | Path, *, here: bool = False) -> LayerProfile:
    """Load a profile by the name of its model (in any case), or a YAML file.

    What `berth profile --here` measured replaces the core of a shipped profile. With `here`, for a cluster that is
    this machine, a shipped core of this machine's CPU vendor comes before one of another.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith((".yaml", ".yml")) or "/" in text:
        return read_profile(text)
    name = text.strip().lower()
    if name in zoo() and name not in shipped_profiles():
        raise InputError(
            f"no layer profile of {name} is shipped",
            hint=f"measure one: berth profile {name} --out {name}.yaml, then use {name}.yaml in place of {name}",
        )
    if name not in shipped_profiles():
        error = UnknownNameError("layer profile", text, shipped_profiles())
        error.hint = f"{error.hint}\n  or give a file made by `berth profile MODEL --out profile.yaml`"
        raise error
    shipped = _shipped(name)
    if (own := here_folder() / f"{name}.yaml").is_file():
        core = read_profile(own).on(CORE)
        note = f"by `berth profile --here`, {core.compute.note}"
        return with_core(shipped, replace(core, compute=replace(core.compute, note=note)))
    return for_vendor(shipped, cpu_vendor()) if here else shipped


def with_core(profile: LayerProfile, core: DeviceTimes) -> LayerProfile:
    """Return the profile with these times of a core; other devices are kept."""
    others = tuple(times for times in profile.devices if times.device != CORE)
    points = tuple(core.at(batch).tolist() for batch in profile.batches)
    curves = tuple(tuple(map(short, row)) for row in zip(*points, strict=True))
    return replace(
        profile, devices=(replace(core, device=CORE, batches=profile.batches, curves=curves), *others)
    )


def for_vendor(profile: LayerProfile, vendor: str) -> LayerProfile:
    """Return the profile whose core is one of this CPU vendor, if it has one."""
    for times in profile.devices:
        if times.device == core_key(vendor):
            return with_core(profile, times)
    return profile


@cache
def shipped_profiles() -> tuple[str, ...]:
    """Return the names of the models whose profiles are shipped."""
    names = {file.name.removesuffix(".yaml") for file in _folder().iterdir()}
    return tuple(sorted(names - {"host"}))


def read_profile(path: str | Path) -> LayerProfile:
    """Read a profile from a YAML file; errors name line and column."""
    return _parsed(read_text(path), str(path))


def write_profile(profile: LayerProfile, path: str | Path) -> None:
    """Write a profile as YAML that reads back equal."""
    write_text(path, profile_yaml(profile))


def profile_yaml(profile: LayerProfile) -> str:
    """Return the YAML text of a profile."""
    out = io.StringIO()
    out.write(_HEAD.format(model=profile.model, batch=profile.batch))
    out.write(f"model: {yaml_value(profile.model)}\nsample: {yaml_value(profile.sample)}\n")
    out.write(f"batch: {profile.batch}\nmade: {profile.made.isoformat()}\n")
    out.write(f"batches: {list(profile.batches)}\n")
    if profile.rows is not None:
        out.write(f"rows: {yaml_value(profile.rows)}\n")
    out.write(f"facts: {yaml_value(profile.facts)}\nlayers:\n")
    for layer in profile.layers:
        out.write(f"  {yaml_value(layer.name)}: {yaml_value(_written(layer))}\n")
    if not profile.devices:
        return out.getvalue() + "devices: {}\n"
    out.write("devices:\n")
    for times in profile.devices:
        _write_device(out, times, profile.names)
    return out.getvalue()


@cache
def _shipped(name: str) -> LayerProfile:
    return _parsed(_folder().joinpath(f"{name}.yaml").read_text(encoding="utf-8"), f"{name}.yaml")


def _folder() -> Any:
    return resources.files("berth.plan.profile").joinpath("data")


def _parsed(text: str, where: str) -> LayerProfile:
    written = parse(text, LayerProfileSpec, where)
    batches = written.batches or grid(written.batch)
    if any(low >= high for low, high in pairwise(batches)):
        line, column = locate(text, ["batches"])
        raise SpecError("batches: must be ascending", where=f"{where}:{line}:{column}")
    layers = tuple(layer.facts(name) for name, layer in written.layers.items())
    for name, device in written.devices.items():
        _refuse_other_layers(device, list(written.layers), text, where, name)
        _refuse_other_curves(device, len(batches) if written.batches else 0, text, where, name)
    return LayerProfile(
        model=written.model,
        batch=written.batch,
        layers=layers,
        batches=batches,
        devices=tuple(
            _times(name, device, layers, written.batch, batches) for name, device in written.devices.items()
        ),
        facts=written.facts.source(),
        made=written.made,
        sample=written.sample,
        rows=written.rows,
    )


def _refuse_other_layers(device: DeviceSpec, names: list[str], text: str, where: str, key: str) -> None:
    for name in device.layers:
        if name not in names:
            line, column = locate(text, ["devices", key, "layers", name], at_key=True)
            raise UnknownNameError("layer", name, names, where=f"{where}:{line}:{column}")
    if missing := [name for name in names if name not in device.layers]:
        line, column = locate(text, ["devices", key, "layers"])
        raise SpecError(
            f"devices.{key}.layers: {', '.join(missing)} missing",
            where=f"{where}:{line}:{column}",
            hint="give every layer a line, or leave the device out to have it modelled",
        )


def _refuse_other_curves(device: DeviceSpec, points: int, text: str, where: str, key: str) -> None:
    for name, times in device.layers.items():
        problem, hint = _curve_problem(times, points)
        if problem:
            line, column = locate(text, ["devices", key, "layers", name])  # parses the text again
            at = f"{where}:{line}:{column}"
            raise SpecError(f"devices.{key}.layers.{name}: {problem}", where=at, hint=hint)


def _curve_problem(times: TimeSpec, points: int) -> tuple[str, str | None]:
    """Return what is wrong with the times of a layer, and a hint; empty if nothing is."""
    if times.compute_s is None and times.oct_s is None:
        return "compute_s is missing", None
    if times.compute_s is not None and len(times.compute_s) != points:
        stated = f"{len(times.compute_s)} times for {points} batches"
        return stated, "give compute_s one time for each of `batches`"
    if times.compute_s and any(low > high for low, high in pairwise(times.compute_s)):
        return (
            "compute_s decreases",
            "more examples can't take less time: give times in the order of `batches`",
        )
    return "", None


def _times(
    name: str, device: DeviceSpec, layers: tuple[LayerFacts, ...], batch: int, batches: tuple[int, ...]
) -> DeviceTimes:
    rows = [device.layers[layer.name] for layer in layers]
    spread = [row.spread for row in rows if row.spread is not None]
    steps = [row.step_s for row in rows if row.step_s is not None]
    stated = device.step.source() if device.step else Provenance("stated", "")
    return DeviceTimes(
        device=name,
        batch=batch,
        batches=batches,
        curves=tuple(row.compute_s or _line(row, batch, batches) for row in rows),
        step_s=tuple(steps) if len(steps) == len(rows) else tuple(adam_s(layer) for layer in layers),
        uncertainty=_uncertainty(device, spread),
        compute=device.compute.source(),
        step=stated if len(steps) == len(rows) else Provenance("modelled", ADAM_NOTE),
    )


def _line(row: TimeSpec, batch: int, batches: tuple[int, ...]) -> tuple[float, ...]:
    """Return the curve of a layer of an older file."""
    assert row.oct_s is not None
    return tuple(short(row.oct_s * (1 - row.alpha + row.alpha * examples / batch)) for examples in batches)


def _uncertainty(device: DeviceSpec, spread: list[float]) -> float:
    if device.uncertainty is not None:
        return device.uncertainty
    return max(STATED_UNCERTAINTY, short(statistics.median(spread)) if spread else 0.0)


def adam_s(layer: LayerFacts) -> float:
    """Return the modelled seconds of Adam's step of a layer's dense parameters on a CPU core."""
    return short(7 * layer.dense_bytes / _CORE_BYTES_PER_S)


def _write_device(out: io.StringIO, times: DeviceTimes, names: Iterable[str]) -> None:
    out.write(f"  {yaml_value(times.device)}:\n")
    for key in ("compute", "step"):
        out.write(f"    {key}: {yaml_value(getattr(times, key))}\n")
    out.write(f"    uncertainty: {yaml_value(times.uncertainty)}\n    layers:\n")
    for name, curve, step in zip(names, times.curves, times.step_s, strict=True):
        seconds = ", ".join(map(yaml_value, curve))
        out.write(f"      {yaml_value(name)}: {{compute_s: [{seconds}], step_s: {yaml_value(step)}}}\n")


def _written(layer: LayerFacts) -> dict[str, Any]:
    """Return the facts that differ from their defaults."""
    defaults = {field.name: field.default for field in fields(LayerFacts)}
    return {
        key: value
        for key, value in asdict(layer).items()
        if key != "name" and (key in _ALWAYS_WRITTEN or value != defaults[key])
    }
