"""Predicted against measured step times of real trainings on this machine (`make bench-plan-truth`).

Every run is a `berth train` of its own in synchronous mode. The prediction is the planner's formula for its processes,
put on the cores of this machine (`berth.plan.predict`), from layer curves and host rates alone: those that `berth plan`
would use, or with --fresh measured just before. Of a run, the
steps after the first third count: their wall-clock time, and the CPU time of its processes by role: the thread of a
worker that trains, the one that reads, servers. What a run knows and a prediction can't is passed on to it: the CPU
time of drawing its examples, the share of rows that were new (a short run has many), and what a byte of new memory
costs on this machine at that moment.

Some workers train on the stand-in accelerator (`berth.testing.accelerator`) at half the speed of a core, which really
waits. Its curves are measured on it, as those of a core are.

Wall-clock time means something only if no other program takes the cores. Where others used more than 5 % of them, the
CPU time of the step is judged instead: that of a worker or, if it is more, that of all processes over the cores. The
table says which.

--part 2/4 runs one part of the cases and --store merges its results into the stored ones, so that a quiet machine is
needed for a few minutes only. Held-out cases were never looked at while the prediction was developed.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path

from berth.plan.predict import Processes, StepPrediction, predict_step
from berth.plan.profile import DeviceTimes, LayerProfile, load_layer_profile, profile_model, shipped_profiles
from berth.plan.profile.core import curves_of_whole
from berth.plan.profile.host import HostRates, host_rates
from berth.plan.profile.machine import cpu_vendor, describe_core
from berth.plan.profile.measure import ProfilingTask, environment, measure
from berth.plan.threads import single_thread
from berth.report.terminal import console, table
from berth.testing.accelerator import NAME as STANDIN
from berth.testing.accelerator import SPEED, register
from berth.train.data import ClickStream
from berth.train.measure_host import fresh_byte_s, measure_host
from berth.zoo import make_model
from results import Bar, Figure, finish, options, progress

HERE = Path(__file__).resolve().parent
STORED = HERE.parent / "docs" / "assets" / "plan-truth.json"
MEDIAN_BAR, WORST_BAR = 0.15, 0.30
BUSY = 0.05  # share of the cores that other programs use: above it wall-clock time is not judged
MODELS = {  # what is trained, and what is profiled for it
    "ctrdnn": f"{HERE / 'click_models.py'}:ctrdnn",
    "dlrm": f"{HERE / 'click_models.py'}:dlrm",
    "matchnet": "matchnet",
    "2emb": "2emb",
    "nce": "nce",
    "deepfm": f"{HERE / 'click_models.py'}:deepfm",
    "dcn-v2": f"{HERE / 'click_models.py'}:dcn_v2",
}
CLICKS = ("ctrdnn", "dlrm", "deepfm", "dcn-v2")  # what trains on drawn clicks
HELD_OUT_MODELS = ("deepfm", "dcn-v2")
SPEED_OF_STANDIN = 0.5
BATCHES = (256, 1024, 4096, 8192)  # examples of a worker
ROLES = ((1, 0), (1, 1), (1, 2), (2, 1), (2, 2))  # workers and servers
HELD_OUT_BATCHES = (600, 3000)
Case = tuple[str, str, int, int, int]  # model, device, workers, servers, batch of a worker
_DEVELOPED = tuple(model for model in MODELS if model not in HELD_OUT_MODELS)
# Each model with every number of processes, and each batch with all of them; on the stand-in device with two of these,
# and no batch of 256: its wrapper in Python costs more than the work of so few examples.
SAMPLE: tuple[Case, ...] = tuple(
    (model, "cpu", *roles, BATCHES[(number + place) % len(BATCHES)])
    for number, model in enumerate(_DEVELOPED)
    for place, roles in enumerate(ROLES)
) + tuple(
    (model, STANDIN, *ROLES[(number + 2 * place) % len(ROLES)], BATCHES[1 + (number + place) % 3])
    for number, model in enumerate(_DEVELOPED)
    for place in range(2)
)
# Other models at all numbers of processes, and the same models at other batches, each with two numbers of processes.
HELD_OUT: tuple[Case, ...] = tuple(
    (model, "cpu", *roles, BATCHES[(2 * number + place) % len(BATCHES)])
    for number, model in enumerate(HELD_OUT_MODELS)
    for place, roles in enumerate(ROLES)
) + tuple(
    (model, "cpu", *ROLES[(number + 3 * place) % len(ROLES)], batch)
    for number, model in enumerate(_DEVELOPED)
    for place, batch in enumerate(HELD_OUT_BATCHES)
)


@dataclass(frozen=True)
class Run:
    """One training, predicted and measured; seconds of one step, CPU seconds of one process of the role."""

    model: str
    device: str
    workers: int
    servers: int
    batch: int
    steps: int
    predicted_s: float
    measured_s: float
    judged: str  # wall or CPU
    others: float  # share of the cores that other programs used
    wall_s: float
    worker_s: tuple[float, float]  # predicted, measured
    server_s: tuple[float, float]
    reader_s: tuple[float, float]
    is_recomputed: bool = False  # measured with an earlier formula, and predicted again with this one

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def case(self) -> Case:
        """What was run."""
        return self.model, self.device, self.workers, self.servers, self.batch

    @property
    def examples_per_s(self) -> float:
        """Measured, of all workers."""
        return self.workers * self.batch / self.measured_s


@dataclass(frozen=True)
class Moment:
    """CPU seconds and seconds of waiting for a core, by thread of a run, when a step was reported."""

    step: int
    wall_s: float
    rows: int
    busy_s: float  # of all cores
    threads: dict[tuple[str, int, int], float]  # role, process, thread


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--at-most", type=int, metavar="N", help="cases of each model")
    parser.add_argument("--full", action="store_true", help="every model, number of processes and batch")
    parser.add_argument("--held-out", action="store_true", help="only the cases that were held out")
    parser.add_argument("--part", default="1/1", metavar="2/4", help="only this part of the cases")
    parser.add_argument(
        "--fresh", action="store_true", help="measure curves and rates again instead of using stored ones"
    )
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each layer")
    parser.add_argument("--store", action="store_true", help="write docs/plan-truth.md")
    given = parser.parse_args()
    cases = HELD_OUT if given.held_out else SAMPLE + HELD_OUT
    if given.full:
        cases = tuple(
            (model, device, *roles, batch)
            for model in MODELS
            for device in ("cpu", STANDIN)
            for roles in ROLES
            for batch in BATCHES
        )
    if given.fresh:
        progress("measuring host rates")
    rates = measure_host() if given.fresh else host_rates()
    profiles: dict[str, LayerProfile] = {}
    on_standin: dict[tuple[str, str], DeviceTimes] = {}
    runs = []
    part, parts = map(int, given.part.split("/"))
    cases = cases[(part - 1) * len(cases) // parts : part * len(cases) // parts]
    chosen = [[case for case in cases if case[0] == model][: given.at_most] for model in given.models]
    for case in (case for of_model in chosen for case in of_model):
        model, device, workers, servers, batch = case
        if model not in profiles:
            progress(f"profile of {model}")
            profiles[model] = profiled(model, given.fresh, given.repeats)
        if device == STANDIN and (model, device) not in on_standin:
            progress(f"profile of {model} on the stand-in device")
            on_standin[model, device] = standin_times(model, profiles[model], given.repeats)
        runs.append(train(case, profiles[model], on_standin.get((model, device)), rates))
        run = runs[-1]
        progress(f"{model} on {device}, {workers} + {servers}, {batch:,}: {run.error:+.0%} ({run.judged})")
        if given.store:  # after every run: all of them take long
            store(runs)
    show(runs)
    return finish("plan-truth", figures(runs), given.results)


def store(runs: Sequence[Run]) -> None:
    """Write the runs beside those stored of the same machine, and the page from all of them."""
    from plan_truth_page import stored_runs, write_page

    machine = {"cpu": describe_core(), "cores": cores(), "date": date.today().isoformat()}
    known = {run.case: run for run in stored_runs(machine)} | {run.case: run for run in runs}
    order = {case: place for place, case in enumerate(SAMPLE + HELD_OUT)}
    every = sorted(known.values(), key=lambda run: order.get(run.case, len(order)))
    document = {"machine": machine, "runs": [asdict(run) for run in every]}
    STORED.write_text(json.dumps(document, indent=1) + "\n")
    write_page()


def profiled(model: str, fresh: bool, repeats: int) -> LayerProfile:
    """Stored curves of a core of this CPU vendor; measured now if there are none for the data that is trained on."""
    if not fresh and MODELS[model] in shipped_profiles():
        stored = load_layer_profile(model, here=True)
        if cpu_vendor(stored.on("cpu-core").compute.note) == cpu_vendor():
            return stored
    return profile_model(MODELS[model], devices=["cpu-core"], repeats=repeats)


def standin_times(model: str, profile: LayerProfile, repeats: int) -> DeviceTimes:
    """Curves of the stand-in device at its stated speed, measured on it."""
    task = ProfilingTask(
        MODELS[model],
        profile.batch,
        profile.batches,
        repeats,
        profile.layers,
        place=STANDIN,
        register=register,
    )
    with environment({SPEED: str(SPEED_OF_STANDIN)}):
        measured = measure(task, lambda what: None)
    curves, _ = curves_of_whole(measured)
    step_s = tuple(timing.seconds for timing in measured.step)
    return replace(profile.on("cpu-core"), device=STANDIN, curves=curves, step_s=step_s)


def train(case: Case, profile: LayerProfile, times: DeviceTimes | None, rates: HostRates) -> Run:
    """Train once, and predict the same."""
    model, device, workers, servers, batch = case
    reading_s = drawing_s(model, workers, batch)
    share = 1.0 if times is None else SPEED_OF_STANDIN  # of the device's time that takes a core
    fresh = replace(rates, fresh_byte_s=fresh_byte_s())

    def predict(new_share: float, busy_cores: float | None = None) -> StepPrediction:
        return predict_step(
            profile, fresh, Processes(workers, servers, batch, cores()),
            reader_s=reading_s, new_share=new_share, times=times, host_share=share, busy_cores=busy_cores,
        )  # fmt: skip

    guess = predict(0.1)
    steps = int(min(400, max(15, 4.0 / guess.step_s)))
    moments = observe(case, steps)
    first = next(one for one in moments if one.step >= steps / 3)
    last = moments[-1]
    count = last.step - first.step
    distinct = sum(
        layer.touched_rows(batch, profile.batch) for layer in profile.layers if layer.touched_bytes
    )
    new_share = (last.rows - first.rows) / (count * workers * distinct)
    predicted = predict(new_share)
    spent = {key: after - first.threads[key] for key, after in last.threads.items() if key in first.threads}
    wall = (last.wall_s - first.wall_s) / count

    def cpu(role: str) -> float:
        return sum(used for (of, _, _), used in spent.items() if of == role) / count

    trained, read, served = cpu("worker") / workers, cpu("reader") / workers, cpu("server") / max(1, servers)
    total = sum(spent.values())
    others = max(0.0, last.busy_s - first.busy_s - total) / (wall * count * cores())
    free = others <= BUSY
    if not free:  # other programs keep the other cores busy
        predicted = predict(new_share, 1.0)
    cpu_s = max(predicted.worker_cpu_s, predicted.reader_cpu_s, predicted.cores_s)
    return Run(
        model, device, workers, servers, batch, steps,
        predicted_s=predicted.step_s if free else cpu_s,
        measured_s=wall if free else max(trained, read, total / count / cores()),
        judged="wall" if free else "CPU",
        others=others,
        wall_s=wall,
        worker_s=(predicted.worker_cpu_s, trained),
        server_s=(predicted.server_cpu_s, served),
        reader_s=(predicted.reader_cpu_s, read),
    )  # fmt: skip


def observe(case: Case, steps: int) -> list[Moment]:
    """Run `berth train` and look at its processes whenever it reports a step."""
    model, device, workers, servers, batch = case
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "figures.csv")
        command = [
            *(sys.executable, "-m", "berth", "train", model, "--device", device, "--csv", str(log), "--json"),
            *("--batch", str(workers * batch), "--workers", str(workers), "--servers", str(servers)),
            *("--steps", str(steps)),
        ]
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=folder,
            text=True,
            env={**os.environ, SPEED: str(SPEED_OF_STANDIN)},
        )
        moments: list[Moment] = []
        while process.poll() is None:
            line = last_line(log)
            if line is not None and (not moments or int(line["step"]) > moments[-1].step):
                wall = int(line["examples"]) / float(line["examples_per_s"])
                busy, threads = busy_s(), by_thread(process.pid)
                if int(line["step"]) < steps:  # with the last one they end
                    moments.append(Moment(int(line["step"]), wall, int(float(line["rows"])), busy, threads))
            time.sleep(0.02)
        if process.returncode:
            raise SystemExit(
                f"{' '.join(command)} failed:\n{process.stderr.read() if process.stderr else ''}"
            )
        return moments


def busy_s() -> float:
    """Seconds that all cores have been busy."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq, *_ = map(int, fields)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def last_line(log: Path) -> dict[str, str] | None:
    """The last whole line of a CSV file that grows."""
    if not log.exists():
        return None
    text = log.read_text()
    lines = list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))
    return lines[-1] if lines else None


def by_thread(launcher: int) -> dict[tuple[str, int, int], float]:
    """CPU seconds of every thread below a process, by role."""
    found = {}
    for pid in descendants(launcher):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            for task in Path(f"/proc/{pid}/task").iterdir():
                used = (task / "schedstat").read_text().split()[0]
                trains = task.name == str(pid) or (task / "comm").read_text().startswith("pt_autograd")
                role = "server" if "berth.train.servers" in command else "worker" if trains else "reader"
                found[role, pid, int(task.name)] = int(used) / 1e9
        except (OSError, ValueError):  # it has just ended
            continue
    return found


def descendants(pid: int) -> list[int]:
    """A process that has no children trains itself; otherwise it only launches."""
    children = [
        int(one) for task in Path(f"/proc/{pid}/task").glob("*/children") for one in task.read_text().split()
    ]
    return [below for child in children for below in descendants(child)] or [pid]


def drawing_s(model: str, workers: int, batch: int) -> float:
    """CPU seconds that the reader of a worker takes to draw a batch."""
    seconds = []
    clicks, examples = ClickStream(0), make_model(model).example_batch
    with single_thread():
        for seed in range(4):
            start = time.process_time()
            if model in CLICKS:
                clicks.draw(seed, batch)
            else:
                examples(workers * batch, seed)  # a worker draws the whole batch and takes its share
            seconds.append(time.process_time() - start)
    return statistics.median(seconds[1:])


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
