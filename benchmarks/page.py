"""Makes docs/performance.md and docs/performance-figures.md from the results stored in docs/assets/results.

    python benchmarks/page.py

The first is a summary: a figure of each benchmark and the bars that are missed. The second has every figure. Nothing on
them is written by hand but what each benchmark is about: a bar that was missed is shown as missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from results import Bar, Figure, Results, as_table, load, number, with_unit

SCRIPTS = Path(__file__).resolve().parent
DOCS = SCRIPTS.parent / "docs"
FIGURES = "performance-figures.md"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One script, and what its section of the page says."""

    name: str
    title: str
    target: str
    about: str
    # of the summary: how its table begins, its name, what to say
    headline: tuple[str, str, str] = "", "", ""
    always: bool = True  # part of `make bench`

    @property
    def script(self) -> Path:
        """Names are those of the scripts."""
        return SCRIPTS / f"{self.name.replace('-', '_')}.py"


BENCHMARKS = (
    Benchmark(
        "network",
        "The network model",
        "bench-network",
        "How far modelled step times are from those that Pollux measured (2021), on arrangements of GPUs that the fit\n"
        "did not see, and modelled contention from DeepShare's measurements. More:\n"
        "[its fit to measurements](design/network-fit.md).",
        headline=("The same, all models, by form", "berth: seven numbers", "median error of step times: {}"),
    ),
    Benchmark(
        "contention",
        "Contention",
        "bench-network",
        "The simulator's closed form of gangs that share links, against iterations played one by one: relative error\n"
        "of the slowdown, over every model, two placements, and offsets between the gangs. More:\n"
        "[the network model](design/network.md).",
        headline=(
            "all",
            "error where gangs are slowed by more than 2 %",
            "median error of the slowdown of gangs that share links: {}",
        ),
    ),
    Benchmark(
        "sharing",
        "Shared links",
        "bench-network",
        "What it costs to compute the shares of all links again when a job comes or goes; wall-clock time.",
        headline=("1,000 jobs", "one change", "all shares again after one change among 1,000 jobs: {}"),
    ),
    Benchmark(
        "plan",
        "Planning",
        "bench-plan",
        "CPU time, kernels loaded, for L layers on T types; a bar on the most is one on the slowest instance.\n"
        "Problems are generated, or the zoo's models on a cluster. More: [planning](design/planning.md).",
        headline=("Optima proven", "exact, L=64 T=8", "64 layers on 8 types, optimum proven: {}"),
    ),
    Benchmark(
        "plan-learned",
        "Learned planning",
        "bench-plan-learned",
        "CPU time, torch and kernels loaded; the zoo's models on 2, 4 and 8 types, and the gap to the proven optimum.\n"
        "Not part of `make bench`: it takes hours. More: [methods of planning compared](planning-methods.md).",
        always=False,
    ),
    Benchmark(
        "simulate",
        "The simulator",
        "bench-simulate",
        "CPU time on jobs of Microsoft's Philly trace, kernels loaded. The plain Python loop does strict FIFO by\n"
        "counting GPUs, and nothing else.",
        headline=("76,573", "berth on 8x8x8:V100-16", "policy `berth` on 64 machines: {}"),
    ),
    Benchmark(
        "contest",
        "The default policy against the others",
        "bench-policies",
        "Every policy on the same traces, with the same estimates: remaining times known to +-50 %, learned from jobs\n"
        "that have ended, or unknown; no, half or all jobs preemptible. Modelled; a ratio is berth's figure over the\n"
        "other's, below 1 is better. More: [what is known of durations](design/estimates.md).",
        headline=(
            "All cells",
            "mean JCT, on average",
            "mean JCT beside the best baseline on average, modelled: {}",
        ),
    ),
    Benchmark(
        "policies",
        "berth's own policy",
        "bench-waiting",
        "The policy's promise: as good as the best mode of delay scheduling (no-wait, full, manual, tuned) wherever\n"
        "one looks, without timers to choose. Modelled, over load, congestion and mix; a ratio is berth's figure over\n"
        "that of the best mode of the cell, below 1 is better. More: [waiting for near places](design/waiting.md).",
        headline=(
            "FIFO order, known to",
            "mean JCT",
            "mean JCT beside the best mode of each cell, modelled: {}",
        ),
    ),
    Benchmark(
        "one_job",
        "Jobs with alternatives",
        "bench-one-job",
        "Shape, place and time chosen together, against the best rule in hindsight that fixes one shape per job, over\n"
        "device mixes, load and workload; change in percent, below 0 is better. Modelled. Not part of `make bench`.\n"
        "More: [jobs with parts and alternatives](design/one-job.md).",
        headline=(
            "mean over cells",
            "mean JCT",
            "change of mean JCT by choosing the shape too, modelled: {}",
        ),
        always=False,
    ),
    Benchmark(
        "device_types",
        "Gangs on mixed clusters",
        "bench-types",
        "Gangs that name no device type, on clusters with several: `berth` lets each choose by how fast it is there\n"
        "and when that comes free. Modelled; a ratio is berth's figure over the other's, below 1 is better. Not part\n"
        "of `make bench`. More: [jobs with parts and alternatives](design/one-job.md).",
        headline=("Cells: all", "mean JCT", "mean JCT of gangs that choose their device type, modelled: {}"),
        always=False,
    ),
    Benchmark(
        "dashboard",
        "The dashboard",
        "bench-dashboard",
        "Chromium without a GPU. Frames a second are those of the slower half of all frames.",
        headline=("A live controller", "first paint", "first paint with 10,000 jobs in the queue: {}"),
    ),
    Benchmark(
        "live",
        "The live controller",
        "bench-live",
        "Wall-clock time, with real HTTP, SQLite and a sync for every commit. The engine is in memory except for the\n"
        "real short jobs, which are processes of this machine.",
        headline=(
            "The controller",
            "durable submissions over HTTP, 16 clients",
            "durable submissions over HTTP: {}",
        ),
    ),
    Benchmark(
        "train",
        "Training",
        "bench-train",
        "CPU time over all threads and processes; all ways take turns on the same examples, and ratios are those\n"
        "within a turn. The floor is the MLP alone on inputs in memory, with the gradient of its input.\n"
        "Examples per second are in wall-clock time. More: [training](design/training.md).",
        headline=(
            "Batch 4,096: times the floor",
            "berth, one process, all of it",
            "CPU time beside the MLP alone in torch, batch 4,096: {}",
        ),
    ),
    Benchmark(
        "train-reading",
        "Reading examples",
        "bench-train",
        "What reading costs beside the whole step that it belongs to, and what a thread that reads ahead saves.",
        headline=("Criteo TSV, batch 4,096", "reading alone", "Criteo TSV, of the CPU time of a step: {}"),
    ),
    Benchmark(
        "train-budget",
        "A table larger than its memory",
        "bench-train",
        "Training with cold rows in a file, beside the same with all rows in memory, by turns.",
        headline=(
            "20,000,000 rows",
            "examples per second kept",
            "examples per second kept when a third of the table fits: {}",
        ),
    ),
    Benchmark(
        "plan-stages",
        "Stages of plans",
        "bench-plan-stages",
        "Predicted and measured CPU time of one replica in a step, of three plans with unequal replicas. The\n"
        "prediction has the profile that berth comes with, which may be that of another core. More:\n"
        "[run a plan](guides/training-processes.md#run-a-plan).",
        headline=(
            "3 and 2 replicas",
            "stage 1, embedding .. norm: measured",
            "CPU time measured beside predicted, the first stage of three replicas: {}",
        ),
    ),
    Benchmark(
        "train-modes",
        "Training modes with a slow worker",
        "bench-train-modes",
        "Throughput with one of two workers at a tenth of its speed, beside both at full speed, by turns.",
        headline=(
            "one of two workers",
            "async: throughput kept",
            "`async`, throughput kept with one of two workers at a tenth of its speed: {}",
        ),
    ),
    Benchmark(
        "tables",
        "Sparse tables",
        "bench-tables",
        "Rows of 16 floats pulled and pushed by key, on one thread, beside torch's own and plain Python; by turns,\n"
        "and ratios are those within a turn. More: [sparse tables](design/tables.md).",
        headline=(
            "1,000,000 rows, batches of 106,496 zipf",
            "push  berth adagrad",
            "AdaGrad on repeated keys, rows per CPU-second beside torch: {}",
        ),
    ),
    Benchmark(
        "servers",
        "Sparse servers",
        "bench-tables",
        "Pull, push and end of step against a table in servers, beside the same table in the process; CPU time is\n"
        "that of all processes. More: [sparse servers](design/servers.md).",
        headline=(
            "Batch 4,096",
            "1 server, shared memory, CPU",
            "CPU time with one server beside a table in the process: {}",
        ),
    ),
    Benchmark(
        "train-peers",
        "Training by others",
        "bench-train-peers",
        "The same model on the same examples by torchrec, FBGEMM and TensorFlow, each a process with one thread; CPU\n"
        "time, by turns. Not part of `make bench`: it downloads the others.",
        headline=(
            "Batch 4,096: times the CPU time",
            "torchrec 1.8",
            "CPU time of torchrec beside berth, batch 4,096: {}",
        ),
        always=False,
    ),
)


def write_page(docs: Path = DOCS) -> None:
    """Both pages, from what is stored below the same folder."""
    found = stored(docs)
    for name, text in (("performance.md", make_summary(found)), (FIGURES, make_page(found))):
        (docs / name).write_text(text, encoding="utf-8")
        print(f"made docs/{name}", flush=True)


def results_of(docs: Path) -> Path:
    """The folder of stored results."""
    return docs / "assets" / "results"


def stored(docs: Path = DOCS) -> dict[str, Results]:
    """The results of every benchmark that has some."""
    files = {one.name: results_of(docs) / f"{one.name}.json" for one in BENCHMARKS}
    return {name: load(file) for name, file in files.items() if file.exists()}


def make_page(found: dict[str, Results]) -> str:
    """The page with every figure."""
    parts = [_HEAD]
    parts += [_section(one, found.get(one.name)) for one in BENCHMARKS]
    parts.append(_machines(list(found.values())))
    return "\n".join(parts)


def make_summary(found: dict[str, Results]) -> str:
    """One page: a figure of each benchmark, and every bar that is missed."""
    measured = [(one, found[one.name]) for one in BENCHMARKS if one.name in found]
    minutes = sum(results.took_s for one, results in measured if one.always) / 60
    bars = [bar for _, results in measured for figure in results.figures for bar in figure.bars]
    met = sum(bar.met for bar in bars)
    rows = [[_link(one), _headline(one, results), _bars_met(results)] for one, results in measured]
    table = "\n".join([_line(["", "one figure of it", "bars met"]), "|---|---|---|", *map(_line, rows)])
    return f"""# Performance

{_MADE}

How fast berth is, and how good its decisions are. Most figures are ratios (×) to another program or policy in the
same run. A *bar* is the limit that a figure is held to. **{met} of {len(bars)} bars are met**, the others are
[below](#bars-that-are-missed). `make bench` takes {minutes:.0f} minutes; [all figures]({FIGURES}) have their spread.

{table}

## Bars that are missed

{_missed(measured)}"""


_MADE = "<!-- made by benchmarks/page.py from docs/assets/results: change the benchmarks, not this page -->"
_HEAD = f"""# All figures

{_MADE}

The [summary](performance.md) has one figure of each and the bars that are missed. A figure is a median with its spread;
one without a spread was taken once. A bar is what it is held against; where another statistic than the median is held
against it, the bar names that and says what was found. Ratios are to something measured in the same run. What a busy
machine adds is not taken out: the load of the minute before a benchmark began is given with it.
"""


def _link(one: Benchmark) -> str:
    return f"[{one.title}]({FIGURES}#{_anchor(one.title)})"


def headline(one: Benchmark, results: Results) -> Figure | None:
    """The figure of the summary; a ratio goes before a figure of the same name."""
    table, what, _ = one.headline
    same = [figure for figure in results.figures if figure.what == what and figure.table.startswith(table)]
    return max(same, key=lambda figure: bool(figure.beside), default=None)


def _headline(one: Benchmark, results: Results) -> str:
    figure = headline(one, results)
    return one.headline[2].format(f"**{figure.cells[1]}**") if figure else ""


def _bars_met(results: Results) -> str:
    bars = [bar for figure in results.figures for bar in figure.bars]
    return f"{sum(bar.met for bar in bars)} of {len(bars)}" if bars else "no bar"


def _missed(measured: list[tuple[Benchmark, Results]]) -> str:
    """A row for each benchmark with missed bars: how many, and the farthest off; then the list of all."""
    rows, lines = [], []
    for one, results in measured:
        tables: dict[str, list[str]] = {}
        for figure in results.missed:
            tables.setdefault(figure.table, []).append(figure.what)
        if tables:
            bars = [(figure, bar) for figure in results.missed for bar in figure.bars if not bar.met]
            rows.append([_link(one), f"{len(bars)}", _off(*max(bars, key=lambda pair: pair[1].off))])
            listed = "; ".join(f"*{title}*: {' / '.join(names)}" for title, names in tables.items())
            lines.append(f"- **{_link(one)}.** {listed}.")
    if not rows:
        return "None.\n"
    table = "\n".join([_line(["", "missed", "the farthest off"]), "|---|---|---|", *map(_line, rows)])
    details = "\n".join(
        ['<details markdown="1">', "<summary>All of them</summary>", "", *lines, "", "</details>"]
    )
    return f"{table}\n\n{details}\n"


def _off(figure: Figure, bar: Bar) -> str:
    """A figure beside the bar that it misses; a statistic that is not the median is named."""
    found, limit = (with_unit(number(value, bar.unit), bar.unit) for value in (bar.found, bar.limit))
    which = "" if bar.statistic == "median" else f"{bar.statistic} "
    beside = f", beside {figure.beside}" if figure.beside else ""
    side = "least" if bar.at_least else "most"
    return f"*{figure.table}*: {figure.what}{beside}: {which}{found}, but at {side} {limit} is asked"


def _anchor(title: str) -> str:
    """As the documentation names its headings."""
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def _section(benchmark: Benchmark, results: Results | None) -> str:
    head = f"## {benchmark.title}\n\n{benchmark.about}\n"
    if results is None:
        return f"{head}\nNot measured yet: `make {benchmark.target}`.\n"
    titles = dict.fromkeys(figure.table for figure in results.figures)
    tables = [_table(title, [one for one in results.figures if one.table == title]) for title in titles]
    said = (
        f"`make {benchmark.target}`, {results.date}, {_minutes(results.took_s)}, "
        f"load {results.load_before:g} on {results.machine['cores']} cores."
    )
    return "\n".join([head, said, "", *tables])


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _table(title: str, figures: list[Figure]) -> str:
    heads, rows = as_table(figures)
    lines = [f"**{title}**", "", _line(heads), "|---" * len(heads) + "|", *map(_line, rows), ""]
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return (
        "| " + " | ".join(cell.replace("|", "\\|").replace("MISSED", "**MISSED**") for cell in cells) + " |"
    )


def _machines(found: list[Results]) -> str:
    lines = ["## The machine", ""]
    for facts, names in _by_machine(found):
        head = "all of it" if len(names) == len(found) else ", ".join(names)
        lines += [f"| {head} | |", "|---|---|", *(f"| {name} | {fact} |" for name, fact in facts.items()), ""]
    return "\n".join(lines)


def _by_machine(found: list[Results]) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Benchmarks that ran on the same one together."""
    titles = {one.name: one.title for one in BENCHMARKS}
    for facts in dict.fromkeys(tuple(one.machine.items()) for one in found):
        yield dict(facts), [titles[one.name] for one in found if tuple(one.machine.items()) == facts]


if __name__ == "__main__":
    write_page()
