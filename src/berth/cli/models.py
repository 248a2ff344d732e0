"""`berth models`: the known networks, with the source of each number."""

from __future__ import annotations

import textwrap
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

from berth.cli import complete
from berth.cli.options import AsJson, argument, option
from berth.report import terminal
from berth.units import format_seconds

if TYPE_CHECKING:
    from berth.workload.profile import JobProfile, Number

EXAMPLES = ("berth models", "berth models bert-large --device H100", "berth models mine.yaml")


def models(
    name: Annotated[
        str | None, argument("NAME", "One model, or a profile of your own (YAML).", complete=complete.models)
    ] = None,
    device: Annotated[
        str | None, option("DEVICE", "Compute time on this device.", shown="V100, or the one measured")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the known models: gradients, skew, compute time, and the source of every number."""
    from berth.workload.profiles import all_profiles, load_profile

    chosen = [load_profile(name)] if name else all_profiles()
    if as_json:
        documents = [_document(profile, device) for profile in chosen]
        terminal.print_json(documents[0] if name else {"models": documents})
    elif name:
        _print_one(chosen[0], device)
    else:
        _print_all(chosen, device)


def _print_all(profiles: list[JobProfile], device: str | None) -> None:
    from berth.workload.profile import REFERENCE_DEVICE

    device = device or REFERENCE_DEVICE
    rows = []
    for family, members in groupby(profiles, lambda profile: profile.family):
        rows.append([family, *[""] * 6])
        for profile in members:
            compute = profile.compute(device)
            row = [f"  {profile.name}", _megabytes(profile.parameter_bytes), f"{profile.skew:.2f}"]
            row += [f"{profile.batch:,}", format_seconds(compute.value), compute.source.kind]
            rows.append([*row, f"{profile.overlap.value:g}"])
    out = terminal.console()
    columns = ["model", "gradients", "skew", "batch", "compute", "", "overlap"]
    out.print(terminal.table(f"{len(profiles)} models: one iteration on one {device}", columns, rows))
    out.print("`berth models NAME` shows where each number is from.", markup=False)


def _print_one(profile: JobProfile, device: str | None) -> None:
    out = terminal.console()
    out.print(f"[bold]{profile.title}[/bold] ({profile.name}, {profile.family})")
    if profile.aliases:
        out.print(f"  also called {', '.join(profile.aliases)}")
    out.print(f"  batch {profile.batch:,} per device; one sample is: {profile.sample}")
    out.print(f"  skew {profile.skew:.3f} (largest tensor / gradients), {profile.collective} all-reduce\n")
    for label, value, number in _lines(profile, device):
        out.print(f"  {label:<20} {value}", markup=False)
        source = textwrap.fill(
            str(number.source), out.width, initial_indent=" " * 4, subsequent_indent=" " * 4
        )
        out.print(source, markup=False, style="dim")


def _lines(profile: JobProfile, device: str | None) -> list[tuple[str, str, Number]]:
    lines = [
        ("gradients", _megabytes(profile.parameter_bytes), profile.parameter_bytes),
        ("largest tensor", _megabytes(profile.largest_tensor_bytes), profile.largest_tensor_bytes),
    ]
    if profile.all_to_all_bytes.value:
        lines.append(("all-to-all", _megabytes(profile.all_to_all_bytes), profile.all_to_all_bytes))
    for name in _devices(profile, device):
        compute = profile.compute(name)
        lines.append((f"compute on {name}", format_seconds(compute.value), compute))
    return [*lines, ("overlap", f"{profile.overlap.value:g}", profile.overlap)]


def _megabytes(number: Number) -> str:
    """All in one unit, so that a column can be compared at a glance."""
    return f"{number.value / 1e6:,.1f}MB"


def _devices(profile: JobProfile, device: str | None) -> list[str]:
    """The device asked for, or all with a number of their own."""
    return [device] if device else list(profile.compute_s) or [profile.reference_device]


def _document(profile: JobProfile, device: str | None) -> dict[str, Any]:
    def number(of: Number) -> dict[str, Any]:
        source = {"kind": of.source.kind, "note": of.source.note, "year": of.source.year}
        return {"value": of.value, "source": source}

    return {
        "name": profile.name,
        "title": profile.title,
        "family": profile.family,
        "aliases": list(profile.aliases),
        "batch": profile.batch,
        "sample": profile.sample,
        "skew": profile.skew,
        "collective": profile.collective,
        "parameter_bytes": number(profile.parameter_bytes),
        "largest_tensor_bytes": number(profile.largest_tensor_bytes),
        "all_to_all_bytes": number(profile.all_to_all_bytes),
        "compute_s": {name: number(profile.compute(name)) for name in _devices(profile, device)},
        "overlap": number(profile.overlap),
    }
