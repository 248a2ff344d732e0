"""`berth profile`: what each layer of a model moves and computes, and its time on each device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import complete
from berth.cli.options import AsJson, Batch, Force, JobProfileFile
from berth.cli.output import check_output
from berth.cli.progress import progress_bar
from berth.cli.quantities import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from berth.plan.profile.layer_profile import DeviceTimes, LayerProfile

EXAMPLES = (
    "berth profile ctrdnn --stored",
    "berth profile ctrdnn --out ctrdnn.yaml",
    "berth profile mine.py:make_model --batch 256",
)
_WIDTH = 80
_COLUMN = 11  # characters of a device's column


def profile(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            autocompletion=complete.zoo,
            help="A model of the zoo, path.py:make_model, or a profile to show (YAML). Without it: list the zoo.",
        ),
    ] = None,
    batch: Batch = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Device types: those of this machine are measured, others modelled."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Measurements of each layer.")] = 7,
    input_shape: Annotated[
        str | None,
        typer.Option(metavar="3,32,32", help="Shape of one input, for a file without example_batch."),
    ] = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="Show the shipped profile; needs no torch.")
    ] = False,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write the profile (YAML).")] = None,
    job_profile: JobProfileFile = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Profile a model layer by layer: measure this machine, model other devices."""
    from berth.report import terminal

    if model is None:
        _print_zoo(as_json)
        return
    check_output(out, force, option="--out")
    check_output(job_profile, force, option="--job-profile")
    result = _profile(model, batch, devices, repeats, input_shape, stored)
    _write(result, out, job_profile)
    if as_json:
        terminal.print_json(_document(result))
    else:
        _print(result)
        _print_written(out, job_profile)


def _profile(
    model: str, batch: int | None, devices: str | None, repeats: int, input_shape: str | None, stored: bool
) -> LayerProfile:
    from dataclasses import replace

    from berth.errors import InputError
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
    from berth.errors import InputError

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
    from berth.report import terminal
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
    from berth.report.terminal import console, table

    out = console()
    columns = ["layer", "kind", "GFLOP", "moved", "output", "weights"]
    out.print(table(_title(result), columns, _facts(result), left=2))
    room = (_WIDTH - max(map(len, result.names))) // _COLUMN
    for start in range(0, len(result.devices), room):
        _print_times(result, result.devices[start : start + room], out)
    _print_sources(result, out)


def _title(result: LayerProfile) -> str:
    from berth.units import format_count

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
    from berth.units import format_seconds

    layers = zip(result.names, zip(*(times.oct_s for times in devices), strict=True), strict=True)
    rows = [[name, *map(format_seconds, seconds)] for name, seconds in layers]
    rows.append(["all", *(format_seconds(sum(times.oct_s)) for times in devices)])
    rows.append(["alpha", *(f"{_share(times.alpha, times.oct_s):.3f}" for times in devices)])
    rows.append(["data", *(format_seconds(sum(times.odt_s)) for times in devices)])
    rows.append(["beta", *(f"{_share(times.beta, times.odt_s):.3f}" for times in devices)])
    headers = ["layer", *(f"{times.device}\n{times.compute.kind}" for times in devices)]
    out.print(table("Computation per batch, one device", headers, rows))


def _share(shares: Sequence[float], seconds: Sequence[float]) -> float:
    total = sum(seconds)
    return sum(share * part for share, part in zip(shares, seconds, strict=True)) / total if total else 1.0


def _print_sources(result: LayerProfile, out: Console) -> None:
    """Print the sources of each device; for a modelled one without its scaling."""
    import textwrap

    out.print("data: synchronisation; alpha, beta: parallel shares of computation and data", markup=False)
    for times in result.devices:
        sources = [times.compute, times.data, times.scaling]
        if not any(source.kind == "measured" for source in sources):
            sources = sources[:2]
        for source in sources:
            text = f"{times.device}, {source}"
            out.print(textwrap.fill(text, out.width, subsequent_indent="  "), markup=False, style="dim")


def _document(result: LayerProfile) -> dict[str, Any]:
    from dataclasses import asdict

    def times(of: DeviceTimes) -> dict[str, Any]:
        sources = {key: asdict(getattr(of, key)) for key in ("compute", "data", "scaling")}
        columns = {key: list(getattr(of, key)) for key in ("oct_s", "odt_s", "alpha", "beta", "spread")}
        return {"device": of.device, **sources, **columns}

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
        "made": result.made.isoformat(),
        "facts": asdict(result.facts),
        "layers": layers,
        "devices": [times(of) for of in result.devices],
    }
