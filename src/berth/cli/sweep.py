"""`berth sweep`: policies over load x congestion x mix, as heat maps."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from berth.cli import scenario
from berth.cli.interrupt import report_interrupt
from berth.cli.options import AsJson, Force, Html, option
from berth.cli.output import check_folder, check_output, write_text
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
from berth.files import write_parquet
from berth.report import terminal
from berth.units import format_count

if TYPE_CHECKING:
    from berth.simulate.sweep import Grid

EXAMPLES = (
    "berth sweep --cluster 4x4x8:H100 --policy preferred --policy required --load 0.7,1.0 --html sweep.html",
)

CELLS = "cells.jsonl"  # finished cells, in the folder --out
_PLACES = ("local", "ray")
_LOADS = "0.6,0.8,0.95,1.1"
_METRICS = (
    "mean-jct, p50-jct, p95-jct, p99-jct, makespan, mean-wait, p95-wait, p99-wait, comm, slowdown, p95-slowdown, "
    "goodput, fairness"
)


def sweep(
    cluster: ClusterName,
    policy: PolicyNames = None,
    load: Annotated[
        str | None, option("LIST", "Requested GPU time over available GPU time.", shown=_LOADS)
    ] = None,
    congestion: Annotated[
        str, option("LIST", "How many times slower links between machines are, from 1 to 1,000,000.")
    ] = "1,5,20",
    mix: Annotated[str, option("LIST", "Mixes of models, by name.")] = "balanced",
    jobs: Annotated[int, option("N", "Jobs of each trace.", min=1)] = 1000,
    seeds: Annotated[
        int, option("N", "Traces per cell. A 95 % interval of the median needs 6 or more.", min=1)
    ] = 6,
    sizes: Annotated[str, option("SIZES", "As in berth trace generate.")] = "powers-of-two",
    durations: Annotated[str, option("DURATIONS", "As in berth trace generate.")] = "lognormal:1h:1.5",
    arrivals: Annotated[
        str, option("HOW", "poisson, bursty, or at-once: all jobs at time 0, without a load.")
    ] = "poisson",
    faults: Annotated[
        str, option("HOW", "Machines fail: mtbf=30d,mttr=4h; drawn again for each seed.", show_default=False)
    ] = "",
    eviction_cost: EvictionCost = None,
    doubt: Doubt = "0",
    reference_device: ReferenceDevice = None,
    metric: Annotated[str, option("NAME", f"Metric of the maps: {_METRICS}.")] = "mean-jct",
    out: Annotated[
        str | None,
        option("DIR", "Store finished cells (a rerun skips them), maps, and runs.parquet: a row per run."),
    ] = None,
    html: Html = None,
    force: Force = False,
    workers: Annotated[int, option("N", "Processes.", min=1)] = 2,
    on: Annotated[
        str, option("WHERE", "Where cells run: local, or ray (RAY_ADDRESS, or a Ray of this machine).")
    ] = "local",
    as_json: AsJson = False,
) -> None:
    """Simulate generated traces over load, congestion and mix; show each policy relative to the first."""
    from berth.report.simulation_sweep import Shown, maps_page, print_maps
    from berth.simulate.compared import BY_OPTION
    from berth.simulate.sweep import AT_ONCE, Grid, sweep_frame
    from berth.simulate.sweep import sweep as run_sweep
    from berth.simulate.sweep_on_ray import results_on_ray
    from berth.workload.arrivals import load_arrivals

    if metric not in BY_OPTION:
        raise UnknownNameError("metric", metric, BY_OPTION)
    if on not in _PLACES:
        raise UnknownNameError("place", on, _PLACES)
    if on == "ray":
        require("ray", "--on ray")
    if load is None and load_arrivals(arrivals).kind == "at-once":
        loads: tuple[float, ...] = (AT_ONCE,)
    else:
        loads = numbers("--load", load or _LOADS)
    check_folder(out, option="--out")
    check_output(html, force, option="--html")
    policies = scenario.load_policies(policy)
    setting = ScenarioOptions(eviction_cost=eviction_cost, doubt=doubt).setting()
    grid = Grid(
        cluster=cluster,
        policies=tuple(policies),
        loads=loads,
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
        arrivals=arrivals,
        faults=faults,
    )
    notes = _check(grid, sizes, durations)
    with report_interrupt(lambda: _kept(grid, out)), TemporaryDirectory() as scratch:
        notes += scenario.warm_up(policies)
        folder = Path(scratch) if out is None else _folder(out)
        with progress_bar("cells") as progress:
            rows = run_sweep(
                grid.cells(),
                folder / CELLS,
                workers=workers,
                results=results_on_ray if on == "ray" else None,
                progress=progress,
            )
    shown = Shown(grid, rows, BY_OPTION[metric])
    pages = [html] if html is not None else []
    tables = []
    if out is not None:
        pages.append(str(Path(out) / "sweep.html"))
        tables.append(str(Path(out) / "runs.parquet"))
    for page in pages:
        write_text(page, maps_page(shown, notes))
    for table in tables:
        write_parquet(sweep_frame(rows), table)
    if as_json:
        terminal.print_json(
            {
                "reference_device": rows[0]["cell"]["reference_device"],
                "cells": rows,
                "maps": shown.as_json(),
                "verdicts": shown.verdicts({name: name for name in policies}),
                "notes": notes,
            }
        )
    else:
        print_maps(terminal.console(), shown, [*pages, *tables], notes)


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


def _kept(grid: Grid, out: str | None) -> str:
    """What an interrupted sweep keeps."""
    from berth.simulate.sweep import count_kept

    if out is None:
        return "without --out no cell is kept"
    cells = grid.cells()
    kept = f"{count_kept(cells, Path(out) / CELLS):,} of {format_count(len(cells), 'cell')}"
    return f"{kept} are kept: the same command goes on"


def _folder(text: str) -> Path:
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / CELLS).touch()
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror}", where=text) from None
    return path
