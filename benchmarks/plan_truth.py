"""Predicted against measured step times of real trainings on this machine (`make bench-plan-truth`).

Every run is a `berth train` of its own in synchronous mode. The prediction is the planner's formula for its processes,
put on the cores of this machine (`plan_predict.py`), from layer curves and host rates alone, which are measured
apart from the runs and kept in a folder (`plan_truth_curves.py`). What a run knows and a prediction can't is passed on
to it: the CPU time of drawing its examples, the share of rows that were new (a short run has many), and what a byte of
new memory costs on this machine at that moment.

Some workers train on the stand-in accelerator (`berth.testing.accelerator`) at half the speed of a core, which really
waits. Its curves are measured on it, as those of a core are.

Wall-clock time means something only if other programs do not take the cores that the run needs. Before and after a run,
work on all cores is timed: where it has to wait, the CPU time of the step is judged instead, that of a worker or, if it
is more, that of all processes over the cores. The table says which. If the speed of a core is not the one at which
curves were measured (another virtual machine may use the same core), the run is repeated, and the one closest to it
counts.

--store merges results into the stored ones, so that a quiet machine is needed for a few minutes at a time:

    python benchmarks/plan_truth.py --store --curves FOLDER --minutes 7

begins no training after 7 minutes, and skips those that were run with the curves of this folder; repeat it until it
says that none is left. Every training counts, whatever comes out. Held-out cases were never looked at while the
prediction was developed.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

from berth.plan.profile.host import HostRates
from berth.plan.profile.machine import describe_core
from berth.report.terminal import console, table
from berth.testing.accelerator import NAME as STANDIN
from berth.testing.accelerator import register
from berth.train.measure.row_storage import fresh_byte_s
from plan_predict import Processes, StepPrediction, predict_step
from plan_truth_cases import (
    BATCHES,
    HELD_OUT,
    MEDIAN_BAR,
    MODELS,
    ROLES,
    SAMPLE,
    SPEED_OF_STANDIN,
    WORST_BAR,
    Case,
    Run,
)
from plan_truth_curves import CORE, Curves, CurveStore, probe_s
from plan_truth_run import drawing_s, observe, waits_for_others
from results import Bar, Figure, finish, options, progress

STORED = Path(__file__).resolve().parents[1] / "docs" / "assets" / "plan-truth.json"
WAITED = 0.10  # longer than its CPU time: above it wall-clock time is not judged
BUSY = 0.05  # share of the cores that others use: above it, cores that the run leaves idle count as busy
SAME_SPEED, ATTEMPTS = 0.05, 3


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--at-most", type=int, metavar="N", help="cases of each model")
    parser.add_argument("--full", action="store_true", help="every model, number of processes and batch")
    parser.add_argument("--held-out", action="store_true", help="only the cases that were held out")
    parser.add_argument("--missing", action="store_true", help="only the cases that are not stored")
    parser.add_argument(
        "--curves", metavar="FOLDER", help="keep curves and rates here; use those that are there"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no training after this time")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each layer")
    parser.add_argument("--store", action="store_true", help="write docs/plan-truth.md")
    parser.add_argument(
        "--predict-again", action="store_true", help="predict stored runs again; train nothing"
    )
    given = parser.parse_args()
    register()  # before anything is differentiated in this process
    with ExitStack() as stack:
        folder = Path(given.curves or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        measured = CurveStore(folder, given.repeats)
        if given.predict_again:
            runs = [again(run, measured) for run in stored_runs()]
        else:
            runs = trained_until(chosen(given), measured, given.store, given.minutes)
    if given.store:
        store(runs)
        runs = stored_runs()  # a slice is judged with those before it
    show(runs)
    return finish("plan-truth", figures(runs), given.results)


def chosen(given: Any) -> list[Case]:
    """The cases to run, those of a model together."""
    cases = HELD_OUT if given.held_out else SAMPLE + HELD_OUT
    if given.full:
        devices = ("cpu", STANDIN)
        cases = tuple(
            (model, device, *roles, batch)
            for model in MODELS for device in devices for roles in ROLES for batch in BATCHES
        )  # fmt: skip
    if given.missing:
        known = {run.case for run in stored_runs()}
        cases = tuple(case for case in cases if case not in known)
    return [
        case
        for model in given.models
        for case in [case for case in cases if case[0] == model][: given.at_most]
    ]


def trained_until(cases: Sequence[Case], measured: CurveStore, keep: bool, minutes: float) -> list[Run]:
    """Train what was not trained with these curves yet, until the time is over."""
    started, seen = time.monotonic(), measured.folder / "trained.json"
    done = [tuple(case) for case in json.loads(seen.read_text())] if seen.is_file() else []
    left = [case for case in cases if case not in done]
    runs: list[Run] = []
    while left and time.monotonic() - started < minutes * 60:
        runs.append(trained(left[0], measured, keep))
        done.append(left.pop(0))
        seen.write_text(json.dumps(done))
    progress(f"{len(runs)} trained, {len(left)} left")
    return runs


def trained(case: Case, measured: CurveStore, keep: bool) -> Run:
    """Train at the speed of the curves, or as close to it as a few attempts come, and predict the same."""
    model, device, workers, servers, batch = case
    curves = measured.curves(model, CORE if device == "cpu" else device)
    core, rates = measured.curves(model, CORE), measured.rates_of(device, servers)
    best: Run | None = None
    for _ in range(ATTEMPTS):
        run = train(case, core, curves, rates)
        if best is None or abs(run.speed - 1) < abs(best.speed - 1):
            best = run
        if abs(best.speed - 1) <= SAME_SPEED:
            break
    assert best is not None
    progress(
        f"{model} on {device}, {workers} + {servers}, {batch:,}: {best.error:+.0%} ({best.judged}, "
        f"waited {best.waited:.0%}, speed {best.speed:.2f}, others {best.others:.0%})"
    )
    if keep:  # after every run: all of them take long
        store([best])
    return best


def train(case: Case, core: Curves, curves: Curves, rates: HostRates) -> Run:
    """Train once, and predict the same."""
    model, _, workers, servers, batch = case
    drawing = drawing_s(model, workers, batch)
    blank = Run(
        *case, steps=0, predicted_s=0.0, measured_s=0.0, judged="", waited=0.0, others=0.0, speed=1.0, wall_s=0.0,
        worker_s=(0.0, 0.0), server_s=(0.0, 0.0), reader_s=(0.0, 0.0),
        drawing_s=drawing, new_share=0.1, fresh_byte_s=fresh_byte_s(),
    )  # fmt: skip
    steps = int(min(400, max(15, 4.0 / predict(blank, core, curves, rates).step_s)))
    waited, probes = [waits_for_others(workers + servers)], [probe_s()]
    seen = observe(case, steps)
    waited.append(waits_for_others(workers + servers))
    probes.append(probe_s())
    layers = core.profile.layers
    distinct = sum(layer.touched_rows(batch, core.profile.batch) for layer in layers if layer.touched_bytes)
    run = replace(
        blank,
        steps=steps,
        judged="wall" if max(waited) <= WAITED else "CPU",
        waited=max(waited),
        others=seen.others,
        speed=curves.probe_s / statistics.mean(probes),
        wall_s=seen.wall_s,
        measured_s=seen.wall_s
        if max(waited) <= WAITED
        else max(seen.worker_s, seen.reader_s, seen.total_s / cores()),
        worker_s=(0.0, seen.worker_s),
        server_s=(0.0, seen.server_s),
        reader_s=(0.0, seen.reader_s),
        new_share=seen.new_rows / (workers * distinct),
    )
    return predicted(run, core, curves, rates)


def again(run: Run, measured: CurveStore) -> Run:
    """Predict a stored run again."""
    curves = measured.curves(run.model, CORE if run.device == "cpu" else run.device)
    return predicted(
        run, measured.curves(run.model, CORE), curves, measured.rates_of(run.device, run.servers)
    )


def predicted(run: Run, core: Curves, curves: Curves, rates: HostRates) -> Run:
    """Return a run with its prediction."""
    step = predict(run, core, curves, rates)
    cpu_s = max(step.worker_cpu_s, step.reader_cpu_s, step.cores_s)
    return replace(
        run,
        predicted_s=step.step_s if run.judged == "wall" else cpu_s,
        worker_s=(step.worker_cpu_s, run.worker_s[1]),
        server_s=(step.server_cpu_s, run.server_s[1]),
        reader_s=(step.reader_cpu_s, run.reader_s[1]),
    )


def predict(run: Run, core: Curves, curves: Curves, rates: HostRates) -> StepPrediction:
    """Return the planner's prediction; other programs keep cores busy that the run leaves idle."""
    return predict_step(
        core.profile,
        rates.model_copy(update={"fresh_byte_s": run.fresh_byte_s}),
        Processes(run.workers, run.servers, run.batch, cores()),
        reader_s=run.drawing_s,
        new_share=run.new_share,
        times=None if run.device == "cpu" else curves.times,
        host_share=1.0 if run.device == "cpu" else SPEED_OF_STANDIN,  # of the device's time that takes a core
        busy_cores=None if run.others <= BUSY else 1.0,
    )


def store(runs: Sequence[Run]) -> None:
    """Write the runs beside those stored of the same machine, and the page from all of them."""
    from plan_truth_page import write_page

    known = {run.case: run for run in stored_runs()} | {run.case: run for run in runs}
    order = {case: place for place, case in enumerate(SAMPLE + HELD_OUT)}
    every = sorted(known.values(), key=lambda run: order.get(run.case, len(order)))
    document = {"machine": machine(), "runs": [asdict(run) for run in every]}
    STORED.write_text(json.dumps(document, indent=1) + "\n")
    write_page()


def stored_runs() -> list[Run]:
    """Return the runs that are stored of this machine."""
    stored = json.loads(STORED.read_text()) if STORED.is_file() else {"machine": {}}
    here = machine()
    same = all(stored["machine"].get(key) == here[key] for key in ("cpu", "cores"))
    return [made(run) for run in stored["runs"]] if same else []


def made(stored: dict[str, Any]) -> Run:
    """Return a run; JSON has lists for pairs."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()
    }
    return Run(**values)


def machine() -> dict[str, Any]:
    """What the runs are of."""
    return {"cpu": describe_core(), "cores": cores(), "date": date.today().isoformat()}


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def show(runs: Sequence[Run]) -> None:
    """One line for each run, in milliseconds per step."""
    heads = [
        "model",
        "device",
        "workers",
        "servers",
        "batch",
        "predicted",
        "measured",
        "error",
        "by",
        "worker",
        "server",
        "reader",
    ]

    def pair(both: tuple[float, float]) -> str:
        return f"{both[0] * 1e3:.1f}/{both[1] * 1e3:.1f}" if both[1] else "-"

    rows = [
        [
            run.model, run.device, str(run.workers), str(run.servers), f"{run.batch:,}", f"{run.predicted_s * 1e3:.1f}",
            f"{run.measured_s * 1e3:.1f}", f"{run.error:+.0%}", run.judged,
            pair(run.worker_s), pair(run.server_s), pair(run.reader_s),
        ]
        for run in runs
    ]  # fmt: skip
    console().print(
        table("Milliseconds of a step; worker, server, reader: CPU predicted/measured", heads, rows)
    )


def figures(runs: Sequence[Run]) -> list[Figure]:
    """The bars: of the cases that were developed on, and of those held out."""
    made = []
    for cases, title in ((SAMPLE, "trainings"), (HELD_OUT, "held-out trainings")):
        found = [run for run in runs if run.case in cases]
        if found:
            made += _figures(found, f"{len(found)} {title}")
    return made


def _figures(runs: Sequence[Run], title: str) -> list[Figure]:
    errors = [abs(run.error) for run in runs]
    median, worst = statistics.median(errors), max(errors)
    bars = (Bar(MEDIAN_BAR, median), Bar(WORST_BAR, worst, "most"))
    made = [Figure(title, "error of the predicted step", "", median, min(errors), worst, bars=bars)]
    for role in ("worker", "server", "reader"):
        parts = [abs(both[0] / both[1] - 1) for run in runs if (both := getattr(run, f"{role}_s"))[1]]
        if parts:
            made.append(
                Figure(title, f"of it, CPU of a {role}", "", statistics.median(parts), min(parts), max(parts))
            )
    return made


if __name__ == "__main__":
    sys.exit(main())
