"""`berth sweep`: policies over load x congestion x mix, as heat maps."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from berth.cli import scenario
from berth.cli.options import AsJson, option
from berth.cli.output import check_folder, write_text
from berth.cli.progress import progress_bar
from berth.cli.quantities import congestions, numbers
from berth.cli.scenario_options import (
    ClusterName,
    Doubt,
    EvictionCost,
    PolicyNames,
    ReferenceDevice,
    ScenarioOptions,
)
from berth.errors import InputError, UnknownNameError
from berth.extras import require
from berth.report import terminal

if TYPE_CHECKING:
    from berth.simulate.sweep import Grid

EXAMPLES = ("berth sweep --cluster 4x4x8:H100 --policy preferred --policy required --load 0.7,1.0",)

_PLACES = ("local", "ray")
_METRICS = {
    "mean-jct": ("mean JCT", "mean_jct_s"),
    "p50-jct": ("median JCT", "p50_jct_s"),
    "p99-jct": ("p99 JCT", "p99_jct_s"),
    "makespan": ("makespan", "makespan_s"),
}


def sweep(
    cluster: ClusterName,
    policy: PolicyNames = None,
    load: Annotated[str, option("LIST", "Requested GPU time over available GPU time.")] = (
        "0.6,0.8,0.95,1.1"
    ),
    congestion: Annotated[
        str, option("LIST", "How many times slower links between machines are.")
    ] = "1,5,20",
    mix: Annotated[str, option("LIST", "Mixes of models, by name.")] = "balanced",
    jobs: Annotated[int, option("N", "Jobs of each trace.", min=1)] = 1000,
    seeds: Annotated[
        int, option("N", "Traces per cell. A 95 % interval of the median needs 6 or more.", min=1)
    ] = 6,
    sizes: Annotated[str, option("SIZES", "As in berth trace generate.")] = "powers-of-two",
    durations: Annotated[str, option("DURATIONS", "As in berth trace generate.")] = "lognormal:1h:1.5",
    eviction_cost: EvictionCost = None,
    doubt: Doubt = "0",
    reference_device: ReferenceDevice = None,
    metric: Annotated[
        str, option("NAME", "Metric of the maps: mean-jct, p50-jct, p99-jct, makespan.")
    ] = "mean-jct",
    out: Annotated[str | None, option("DIR", "Store finished cells (a rerun skips them) and maps.")] = None,
    workers: Annotated[int, option("N", "Processes.", min=1)] = 2,
    on: Annotated[
        str, option("WHERE", "Where cells run: local, or ray (RAY_ADDRESS, or a Ray of this machine).")
    ] = "local",
    as_json: AsJson = False,
) -> None:
    """Simulate generated traces over load, congestion and mix; show each policy relative to the first."""
    from berth.report.simulation_sweep import Shown, maps_page, print_maps
    from berth.simulate.sweep import Grid
    from berth.simulate.sweep import sweep as run_sweep
    from berth.simulate.sweep_on_ray import results_on_ray

    if metric not in _METRICS:
        raise UnknownNameError("metric", metric, _METRICS)
    if on not in _PLACES:
        raise UnknownNameError("place", on, _PLACES)
    if on == "ray":
        require("ray", "--on ray")
    check_folder(out, option="--out")
    policies = scenario.load_policies(policy)
    setting = ScenarioOptions(eviction_cost=eviction_cost, doubt=doubt).setting()
    grid = Grid(
        cluster=cluster,
        policies=tuple(policies),
        loads=numbers("--load", load),
        congestions=congestions("--congestion", congestion),
        mixes=_mixes(mix),
        seeds=seeds,
        jobs=jobs,
        sizes=sizes,
        durations=durations,
        eviction_s=setting.eviction_s,
        eviction_large_s=setting.eviction_large_s,
        estimate_error=setting.estimate_error,
        reference_device=reference_device,
    )
    notes = _check(grid, sizes, durations) + scenario.warm_up(policies)
    with TemporaryDirectory() as scratch, progress_bar("cells") as progress:
        folder = Path(scratch) if out is None else _folder(out)
        rows = run_sweep(
            grid.cells(),
            folder / "cells.jsonl",
            workers=workers,
            results=results_on_ray if on == "ray" else None,
            progress=progress,
        )
    shown = Shown(grid, rows, *_METRICS[metric])
    if out is not None:
        write_text(str(Path(out) / "sweep.html"), maps_page(shown))
    if as_json:
        terminal.print_json(
            {
                "reference_device": rows[0]["cell"]["reference_device"],
                "cells": rows,
                "maps": shown.as_json(),
                "notes": notes,
            }
        )
    else:
        print_maps(terminal.console(), shown, None if out is None else str(Path(out) / "sweep.html"), notes)


def _mixes(text: str) -> tuple[str, ...]:
    """`balanced,sensitive`; a mix that is written out contains commas, so it can't be in a list."""
    from berth.workload.mix import load_mix

    names = (text,) if "=" in text else tuple(filter(None, (part.strip() for part in text.split(","))))
    for name in names:
        load_mix(name)
    if not names:
        raise InputError("--mix names no mix", hint="try balanced,sensitive")
    return names


def _check(grid: Grid, sizes: str, durations: str) -> list[str]:
    """Check the inputs before any process starts; return notes."""
    from berth.cluster.load import load_cluster
    from berth.simulate.reference import reference_device, reference_note
    from berth.simulate.trace_source import gpus_of
    from berth.workload.distributions import load_durations, load_sizes

    cluster = load_cluster(grid.cluster)
    gpus = gpus_of(cluster)
    where = None if grid.reference_device is None else "--reference-device"
    note = reference_note(cluster, reference_device(cluster, grid.reference_device, where=where))
    asked = load_sizes(sizes).gpus
    load_durations(durations)
    notes = [note] if note else []
    return [*notes, f"jobs that ask for more are cut to {gpus:,} GPUs"] if max(asked) > gpus else notes


def _folder(text: str) -> Path:
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / "cells.jsonl").touch()
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror}", where=text) from None
    return path
