"""`berth profile`: what each layer of a model moves and computes, and its time on each device."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import complete
from berth.cli.options import AsJson, Batch, Force, JobProfileFile, argument, flag, option
from berth.cli.output import check_output
from berth.cli.progress import progress_bar
from berth.cli.quantities import names
from berth.errors import InputError
from berth.report import terminal
from berth.units import format_count, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from berth.plan.profile.layer_profile import DeviceTimes, LayerProfile

EXAMPLES = (
    "berth profile --here ctrdnn",
    "berth profile ctrdnn --stored",
    "berth profile ctrdnn --out ctrdnn.yaml",
    "berth profile mine.py:make_model --batch 256",
)
_WIDTH = 80
_COLUMN = 11  # characters of a device's column


def profile(
    models: Annotated[
        list[str] | None,
        argument(
            "[MODEL]",
            "A model of the zoo, path.py:make_model, or a profile to show (YAML); several with --here. "
            "Without it: list the zoo.",
            complete=complete.zoo,
        ),
    ] = None,
    batch: Batch = None,
    devices: Annotated[
        str | None, option("A,B", "Device types: those of this machine are measured, others modelled.")
    ] = None,
    repeats: Annotated[int, option("N", "Measurements of each layer.", min=1)] = 7,
    input_shape: Annotated[
        str | None, option("3,32,32", "Shape of one input, for a file without example_batch.")
    ] = None,
    here: Annotated[
        bool, flag("Measure this machine (a core, rows, messages) and plan with it from now on.", "--here")
    ] = False,
    forget: Annotated[
        bool, flag("Remove what --here measured; shipped profiles are used again.", "--forget")
    ] = False,
    stored: Annotated[bool, flag("Show the shipped profile; needs no torch.", "--stored")] = False,
    out: Annotated[str | None, option("FILE", "Write the profile (YAML).")] = None,
    job_profile: JobProfileFile = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Profile a model layer by layer: measure this machine, model other devices."""
    from berth.report import terminal

    if here or forget:
        _measure_here(models or [], repeats) if here else _forget()
        return
    if not models:
        _print_zoo(as_json)
        return
    model = _one(models)
    check_output(out, force, option="--out")
    check_output(job_profile, force, option="--job-profile")
    result = _profile(model, batch, devices, repeats, input_shape, stored)
    _write(result, out, job_profile)
    if as_json:
        terminal.print_json(_document(result))
    else:
        _print(result)
        _print_written(out, job_profile)


def _one(models: list[str]) -> str:
    from berth.errors import InputError

    if len(models) > 1:
        raise InputError("profile one model at a time", hint="several can be measured with --here")
    return models[0]


def _measure_here(models: list[str], repeats: int) -> None:
    """Store the host rates of this machine, and curves of its cores for models of the zoo."""
    from berth.errors import UnknownNameError
    from berth.extras import require
    from berth.plan.profile import profile_model, write_profile
    from berth.plan.profile.here import make_folder
    from berth.plan.profile.host import FILE, write_host_rates
    from berth.zoo import zoo

    chosen = [name.strip().lower() for name in models] or list(zoo())
    for name in chosen:
        if name not in zoo():
            raise UnknownNameError("model of the zoo", name, zoo())
    require("torch", "profiling")
    from berth.train.measure.host import measure_host

    folder = make_folder()
    with progress_bar("starting") as progress:
        show = progress or (lambda done, total, what: None)
        rates = measure_host(lambda what: show(0, 1, what), repeats=repeats)
        write_host_rates(rates, folder / FILE)
        for name in chosen:
            measured = profile_model(name, devices=["cpu-core"], repeats=repeats, progress=progress)
            write_profile(measured, folder / f"{name}.yaml")
    typer.echo(f"measured {rates.cpu}: host rates and {', '.join(chosen)}")
    typer.echo(f"planning uses them from now on: {folder}; `berth profile --forget` removes them")


def _forget() -> None:
    from berth.plan.profile.here import folder, stored

    files = stored()
    for file in files:
        file.unlink()
    typer.echo(f"removed {len(files)} measurements from {folder()}" if files else "nothing was measured here")


def _profile(
    model: str, batch: int | None, devices: str | None, repeats: int, input_shape: str | None, stored: bool
) -> LayerProfile:
    from berth.plan.profile import load_layer_profile, profile_model
    from berth.plan.profile.make import DEFAULT_DEVICES

    types = names("--devices", devices, "cpu-core,T4")
    if not stored and not model.endswith((".yaml", ".yml")):
        with progress_bar("starting") as progress:
            shape = _shape(input_shape)
            return profile_model(
                model, batch, types or DEFAULT_DEVICES, repeats, input_shape=shape, progress=progress
            )
    if batch is not None or input_shape is not None:
        raise InputError("a stored profile has its own batch", hint="leave out --batch and --input-shape")
    found = load_layer_profile(model)
    return replace(found, devices=tuple(map(found.on, types))) if types else found


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    sizes = text.replace("x", ",").split(",")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise InputError(f"--input-shape {text!r} is not a shape", hint="write it like 3,32,32")
    return tuple(int(size) for size in sizes)


def _write(result: LayerProfile, out: str | None, job: str | None) -> None:
    from berth.plan.profile import job_profile, write_job_profile, write_profile

    if out:
        write_profile(result, out)
    if job:
        write_job_profile(job_profile(result), job)


def _print_written(out: str | None, job: str | None) -> None:
    for path, what in (
        (out, "profile: `berth plan {0}` reads it"),
        (job, "job profile: `berth models {0}` reads it"),
    ):
        if path:
            typer.echo(f"wrote {path}, a {what.format(path)}")


def _print_zoo(as_json: bool) -> None:
    from berth.zoo import zoo

    if as_json:
        keys = ("name", "about", "layers", "batch")
        entries = [{key: getattr(entry, key) for key in keys} for entry in zoo().values()]
        terminal.print_json({"models": entries})
        return
    rows = [[entry.name, entry.about, str(entry.layers), f"{entry.batch:,}"] for entry in zoo().values()]
    out = terminal.console()
    out.print(terminal.table(f"{len(rows)} models", ["model", "what it is", "layers", "batch"], rows, left=2))
    out.print("`berth profile MODEL` measures one here; --stored shows the shipped profile.")


def _print(result: LayerProfile) -> None:
    out = terminal.console()
    columns = ["layer", "kind", "GFLOP", "moved", "output", "weights"]
    out.print(terminal.table(_title(result), columns, _facts(result), left=2))
    room = (_WIDTH - max(map(len, result.names))) // _COLUMN
    for start in range(0, len(result.devices), room):
        _print_times(result, result.devices[start : start + room], out)
    _print_sources(result, out)


def _title(result: LayerProfile) -> str:
    layers = format_count(len(result.layers), "layer")
    return f"{result.model}: {layers}, a batch of {result.batch:,} ({result.sample}), sizes in MB"


def _facts(result: LayerProfile) -> list[list[str]]:
    def shown(value: float) -> str:
        return f"{value:,.2f}" if value else "-"

    rows, totals = [], [0.0, 0.0, 0.0]
    for layer in result.layers:
        weights = layer.dense_bytes + layer.sparse_bytes
        flops, moved, output, weights_mb = (
            layer.flops / 1e9, layer.moved_bytes / 1e6, layer.output_bytes / 1e6, weights / 1e6
        )  # fmt: skip
        rows.append([layer.name, layer.kind, *map(shown, (flops, moved, output, weights_mb))])
        totals = [sum(pair) for pair in zip(totals, (flops, moved, weights_mb), strict=True)]
    return [*rows, ["all", "", shown(totals[0]), shown(totals[1]), "", shown(totals[2])]]


def _print_times(result: LayerProfile, devices: Sequence[DeviceTimes], out: Console) -> None:
    from berth.report.terminal import table

    columns = [times.at(result.batch).tolist() for times in devices]
    layers = zip(result.names, zip(*columns, strict=True), strict=True)
    rows = [[name, *map(format_seconds, seconds)] for name, seconds in layers]
    rows.append(["all", *(format_seconds(sum(seconds)) for seconds in columns)])
    rows.append(["optimiser", *(format_seconds(sum(times.step_s)) for times in devices)])
    for examples in (size for size in result.batches if size != result.batch):
        seconds = (float(times.at(examples).sum()) for times in devices)
        rows.append([f"all, {examples:,}", *map(format_seconds, seconds)])
    rows.append(["+-", *(f"{times.uncertainty:.0%}" for times in devices)])
    headers = ["layer", *(f"{times.device}\n{times.compute.kind}" for times in devices)]
    out.print(table(f"Computation of {result.batch:,} examples, one device", headers, rows))


def _print_sources(result: LayerProfile, out: Console) -> None:
    """Print the sources of each device."""

    for times in result.devices:
        for source in dict.fromkeys((times.compute, times.step)):
            text = f"{times.device}, {source}"
            out.print(textwrap.fill(text, out.width, subsequent_indent="  "), markup=False, style="dim")


def _document(result: LayerProfile) -> dict[str, Any]:

    def times(of: DeviceTimes) -> dict[str, Any]:
        sources = {key: asdict(getattr(of, key)) for key in ("compute", "step")}
        columns = {"compute_s": of.compute_s.tolist(), "step_s": list(of.step_s)}
        return {"device": of.device, **sources, **columns, "uncertainty": of.uncertainty}

    layers = [
        asdict(layer)
        | {
            "cross_bytes": int(crossing),
            "replicated_bytes": layer.replicated_bytes,
            "sharded_bytes": layer.sharded_bytes,
        }
        for layer, crossing in zip(result.layers, result.cross_bytes, strict=True)
    ]
    return {
        "model": result.model,
        "sample": result.sample,
        "batch": result.batch,
        "batches": list(result.batches),
        "rows": result.rows,
        "made": result.made.isoformat(),
        "facts": asdict(result.facts),
        "layers": layers,
        "devices": [times(of) for of in result.devices],
    }
