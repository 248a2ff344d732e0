"""Makes docs/performance.md from the results that `make bench` stored in docs/assets/results.

    python benchmarks/page.py

Nothing on the page is written by hand but what each benchmark is about: a bar that was missed is shown as missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from results import Figure, Results, as_table, load

SCRIPTS = Path(__file__).resolve().parent
DOCS = SCRIPTS.parent / "docs"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One script, and what its section of the page says."""

    name: str
    title: str
    target: str
    about: str
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
    ),
    Benchmark(
        "contention",
        "Contention",
        "bench-network",
        "The simulator's closed form of gangs that share links, against iterations played one by one: relative error\n"
        "of the slowdown, over every model, two placements, and offsets between the gangs. More:\n"
        "[the network model](design/network.md).",
    ),
    Benchmark(
        "sharing",
        "Shared links",
        "bench-network",
        "What it costs to compute the shares of all links again when a job comes or goes; wall-clock time.",
    ),
    Benchmark(
        "plan",
        "Planning",
        "bench-plan",
        "CPU time, kernels loaded, for L layers on T types; a bar on the most is one on the slowest instance.\n"
        "Problems are generated, or the zoo's models on a cluster. More: [planning](design/planning.md).",
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
    ),
    Benchmark(
        "contest",
        "The default policy against the others",
        "bench-policies",
        "Every policy on the same traces, with the same estimates: remaining times known to +-50 %, learned from jobs\n"
        "that have ended, or unknown; no, half or all jobs preemptible. Modelled; a ratio is berth's figure over the\n"
        "other's, below 1 is better. Where durations are learned or unknown, the figures are from before a job that\n"
        "outlives its estimate gave way when its index falls behind. More: [what is known of\n"
        "durations](design/estimates.md).",
    ),
    Benchmark(
        "policies",
        "berth's own policy",
        "bench-waiting",
        "The policy's promise: as good as the best mode of delay scheduling (no-wait, full, manual, tuned) wherever\n"
        "one looks, without timers to choose. Modelled, over load, congestion and mix; a ratio is berth's figure over\n"
        "that of the best mode of the cell, below 1 is better. More: [waiting for near places](design/waiting.md).",
    ),
    Benchmark(
        "one_job",
        "Jobs with alternatives",
        "bench-one-job",
        "Shape, place and time chosen together, against the best rule in hindsight that fixes one shape per job, over\n"
        "device mixes, load and workload; change in percent, below 0 is better. Modelled. Not part of `make bench`.\n"
        "More: [jobs with parts and alternatives](design/one-job.md).",
        always=False,
    ),
    Benchmark(
        "dashboard",
        "The dashboard",
        "bench-dashboard",
        "Chromium without a GPU. Frames a second are those of the slower half of all frames.",
    ),
    Benchmark(
        "live",
        "The live controller",
        "bench-live",
        "Wall-clock time, with real HTTP, SQLite and a sync for every commit. The engine is in memory except for the\n"
        "real short jobs, which are processes of this machine.",
    ),
    Benchmark(
        "train",
        "Training",
        "bench-train",
        "CPU time over all threads and processes; all ways take turns on the same examples, and ratios are those\n"
        "within a turn. The floor is the MLP alone on inputs in memory, with the gradient of its input.\n"
        "Examples per second are in wall-clock time. More: [training](design/training.md).",
    ),
    Benchmark(
        "train-reading",
        "Reading examples",
        "bench-train",
        "What reading costs beside the whole step that it belongs to, and what a thread that reads ahead saves.",
    ),
    Benchmark(
        "train-budget",
        "A table larger than its memory",
        "bench-train",
        "Training with cold rows in a file, beside the same with all rows in memory, by turns.",
    ),
    Benchmark(
        "plan-stages",
        "Stages of plans",
        "bench-plan-stages",
        "Predicted and measured CPU time of one replica in a step, of three plans with unequal replicas. The\n"
        "prediction has the profile that berth comes with, which may be that of another core. More:\n"
        "[run a plan](guides/training.md#run-a-plan).",
    ),
    Benchmark(
        "train-modes",
        "Training modes with a slow worker",
        "bench-train-modes",
        "Throughput with one of two workers at a tenth of its speed, beside both at full speed, by turns.",
    ),
    Benchmark(
        "tables",
        "Sparse tables",
        "bench-tables",
        "Rows of 16 floats pulled and pushed by key, on one thread, beside torch's own and plain Python; by turns,\n"
        "and ratios are those within a turn. More: [sparse tables](design/tables.md).",
    ),
    Benchmark(
        "servers",
        "Sparse servers",
        "bench-tables",
        "Pull, push and end of step against a table in servers, beside the same table in the process; CPU time is\n"
        "that of all processes. More: [sparse servers](design/servers.md).",
    ),
    Benchmark(
        "train-peers",
        "Training by others",
        "bench-train-peers",
        "The same model on the same examples by torchrec, FBGEMM and TensorFlow, each a process with one thread; CPU\n"
        "time, by turns. Not part of `make bench`: it downloads the others.",
        always=False,
    ),
)


def write_page(docs: Path = DOCS) -> None:
    """From what is stored below the same folder."""
    page = docs / "performance.md"
    page.write_text(make_page(stored(docs)), encoding="utf-8")
    print(f"made docs/{page.name}", flush=True)


def results_of(docs: Path) -> Path:
    """The folder of stored results."""
    return docs / "assets" / "results"


def stored(docs: Path = DOCS) -> dict[str, Results]:
    """The results of every benchmark that has some."""
    files = {one.name: results_of(docs) / f"{one.name}.json" for one in BENCHMARKS}
    return {name: load(file) for name, file in files.items() if file.exists()}


def make_page(found: dict[str, Results]) -> str:
    """The whole page."""
    parts = [_head(found)]
    parts += [_section(one, found.get(one.name)) for one in BENCHMARKS]
    parts.append(_machines(list(found.values())))
    return "\n".join(parts)


def _head(found: dict[str, Results]) -> str:
    minutes = sum(found[one.name].took_s for one in BENCHMARKS if one.always and one.name in found) / 60
    return f"""# Performance

<!-- made by benchmarks/page.py from docs/assets/results: change the benchmarks, not this page -->

`make bench` measures all of this and writes this page; the last time it took {minutes:.0f} minutes.

A figure is a median with its spread; one without a spread was taken once. A bar is what it is held against; where
another statistic than the median is held against it, the bar names that and says what was found. Ratios are to
something measured in the same run. What a busy machine adds is not taken out: the load of the minute before a
benchmark began is given with it.

{_overview(found)}"""


def _overview(found: dict[str, Results]) -> str:
    """A line for each benchmark: how many of its bars are met, and which are not."""
    lines = [_line(["", "bars met", "missed"]), "|---|---|---|"]
    for one in BENCHMARKS:
        if one.name in found:
            bars = [bar for figure in found[one.name].figures for bar in figure.bars]
            met = f"{sum(bar.met for bar in bars)} of {len(bars)}" if bars else "no bar"
            missed = "; ".join(f"{figure.table}: {figure.what}" for figure in found[one.name].missed)
            lines.append(_line([f"[{one.title}](#{_anchor(one.title)})", met, missed and f"MISSED {missed}"]))
    return "\n".join([*lines, ""])


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
