"""Reads and writes layer profiles as YAML without loss: shipped ones and the user's."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import asdict, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from berth.errors import InputError, SpecError, UnknownNameError
from berth.plan.profile.layer_profile import DeviceTimes, LayerFacts, LayerProfile
from berth.plan.profile.spec import DeviceSpec, LayerProfileSpec
from berth.plan.yaml_text import yaml_number, yaml_word
from berth.spec import locate, parse, read_text
from berth.workload.profile import Provenance

_HEAD = """\
# Layer profile of {model} at {batch:,} examples per batch, for `berth plan`. Bytes are single precision; oct_s is
# seconds of computation (forward + backward), odt_s of parameter synchronisation, on ONE device; alpha and beta
# are the shares of them that replicas divide. Every device states what was measured and what is modelled.
"""
_ALWAYS_WRITTEN = {"kind", "input_bytes", "output_bytes"}


def load_layer_profile(name_or_path: str | Path) -> LayerProfile:
    """Load a shipped profile by the name of its model (in any case), or a YAML file."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith((".yaml", ".yml")) or "/" in text:
        return read_profile(text)
    name = text.strip().lower()
    if name not in shipped_profiles():
        error = UnknownNameError("layer profile", text, shipped_profiles())
        error.hint = f"{error.hint}\n  or give a file made by `berth profile MODEL --out profile.yaml`"
        raise error
    return _shipped(name)


@cache
def shipped_profiles() -> tuple[str, ...]:
    """Return the names of the models whose profiles are shipped."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in _folder().iterdir()))


def read_profile(path: str | Path) -> LayerProfile:
    """Read a profile from a YAML file; errors name line and column."""
    return _parsed(read_text(path), str(path))


def write_profile(profile: LayerProfile, path: str | Path) -> None:
    """Write a profile as YAML that reads back equal."""
    try:
        Path(path).write_text(profile_yaml(profile), encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror}", where=str(path)) from None


def profile_yaml(profile: LayerProfile) -> str:
    """Return the YAML text of a profile."""
    out = io.StringIO()
    out.write(_HEAD.format(model=profile.model, batch=profile.batch))
    out.write(f"model: {_scalar(profile.model)}\nsample: {_scalar(profile.sample)}\n")
    out.write(f"batch: {profile.batch}\nmade: {profile.made.isoformat()}\n")
    out.write(f"facts: {_source(profile.facts)}\nlayers:\n")
    for layer in profile.layers:
        out.write(f"  {_scalar(layer.name)}: {_flow(_written(layer))}\n")
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
    for name, device in written.devices.items():
        _refuse_other_layers(device, list(written.layers), text, where, name)
    return LayerProfile(
        model=written.model,
        batch=written.batch,
        layers=tuple(layer.facts(name) for name, layer in written.layers.items()),
        devices=tuple(_times(name, device, list(written.layers)) for name, device in written.devices.items()),
        facts=written.facts.source(),
        made=written.made,
        sample=written.sample,
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


def _times(name: str, device: DeviceSpec, layers: Iterable[str]) -> DeviceTimes:
    rows = [device.layers[layer] for layer in layers]
    spread = tuple(row.spread for row in rows if row.spread is not None)
    return DeviceTimes(
        device=name,
        compute=device.compute.source(),
        data=device.data.source(),
        scaling=device.scaling.source(),
        oct_s=tuple(row.oct_s for row in rows),
        odt_s=tuple(row.odt_s for row in rows),
        alpha=tuple(row.alpha for row in rows),
        beta=tuple(row.beta for row in rows),
        spread=spread if len(spread) == len(rows) else (),
    )


def _write_device(out: io.StringIO, times: DeviceTimes, names: Iterable[str]) -> None:
    out.write(f"  {_scalar(times.device)}:\n")
    for key in ("compute", "data", "scaling"):
        out.write(f"    {key}: {_source(getattr(times, key))}\n")
    out.write("    layers:\n")
    columns = ["oct_s", "odt_s", "alpha", "beta", *(["spread"] if times.spread else [])]
    for index, name in enumerate(names):
        row = {column: getattr(times, column)[index] for column in columns}
        out.write(f"      {_scalar(name)}: {_flow(row)}\n")


def _written(layer: LayerFacts) -> dict[str, Any]:
    """Return the facts that differ from their defaults."""
    defaults = {field.name: field.default for field in fields(LayerFacts)}
    return {
        key: value
        for key, value in asdict(layer).items()
        if key != "name" and (key in _ALWAYS_WRITTEN or value != defaults[key])
    }


def _source(source: Provenance) -> str:
    return _flow({key: value for key, value in asdict(source).items() if value is not None})


def _flow(values: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_scalar(value)}" for key, value in values.items()) + "}"


def _scalar(value: Any) -> str:
    """Return a value as YAML that reads back the same."""
    if isinstance(value, float):
        return yaml_number(value)
    return str(value) if isinstance(value, int) else yaml_word(value)
