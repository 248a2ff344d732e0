"""`berth trace generate`: generates a trace."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from berth.cli import complete, quantities
from berth.cli.option_groups import expand_options
from berth.cli.options import AsJson, Force, argument, option
from berth.cli.output import check_output
from berth.errors import InputError
from berth.report import terminal
from berth.units import format_count, format_seconds, seconds

if TYPE_CHECKING:
    from rich.console import Console

    from berth.workload.distributions import Durations, Sizes
    from berth.workload.generate import GenerateSpec
    from berth.workload.summary import TraceSummary
    from berth.workload.trace import Trace

EXAMPLES = (
    "berth trace generate jobs.csv --cluster 4x20x8 --load 0.8 --seed 1",
    "berth trace generate jobs.csv --jobs 200 --like philly.csv.xz",
)


@dataclass(frozen=True)
class GenerateOptions:
    """What to generate."""

    jobs: Annotated[int | None, option("N", "Number of jobs.", min=1, shown="1000")] = None
    cluster: Annotated[
        str, option("CLUSTER", "The cluster of the load; no job is larger.", complete=complete.clusters)
    ] = "4x20x8"
    load: Annotated[
        str | None, option("SHARE", "Requested GPU time over available GPU time.", shown="0.8")
    ] = None
    span: Annotated[
        str | None, option("TIME", "Time from the first to the last submission, instead of --load or --jobs.")
    ] = None
    arrivals: Annotated[str, option("HOW", "poisson, bursty, bursty:16 or at-once.")] = "poisson"
    daily: Annotated[str, option("SHARE", "Amplitude of the daily cycle, 0 to 100%.")] = "0"
    sizes: Annotated[
        str | None, option("SIZES", "philly, powers-of-two, odd, large, or 1=0.7,8=0.3.", shown="philly")
    ] = None
    durations: Annotated[
        str | None,
        option(
            "DURATIONS",
            "philly, lognormal:1h:1.5, exponential:2h, pareto:1.1:1m:7d or fixed:1h.",
            shown="philly",
        ),
    ] = None
    like: Annotated[str | None, option("FILE", "Sizes and durations, together, as in this trace.")] = None
    mix: Annotated[
        str,
        option(
            "MIX", "Models: balanced, sensitive, insensitive, vision, language, vgg16=2,resnet50=1, or none."
        ),
    ] = "balanced"
    users: Annotated[int, option("N", "Users; the n-th submits 1/n of what the first does.", min=0)] = 20
    seed: Annotated[int, option("N", "Random seed; the same seed gives the same bytes.", min=0)] = 0

    def spec(self) -> GenerateSpec:
        """Return the options as the generator takes them."""
        from berth.cluster.load import load_cluster
        from berth.simulate.trace_source import gpus_of
        from berth.workload.arrivals import load_arrivals
        from berth.workload.generate import GenerateSpec, with_defaults
        from berth.workload.mix import load_mix

        process = load_arrivals(self.arrivals, quantities.portion("--daily", self.daily))
        share = None if self.load is None else quantities.load("--load", self.load)
        span_s = None if self.span is None else quantities.read("--span", seconds, self.span)
        jobs, share = with_defaults(self.jobs, span_s, share, process)
        sizes, durations = self._demand()
        mix = None if self.mix == "none" else load_mix(self.mix)
        gpus = gpus_of(load_cluster(self.cluster))
        return GenerateSpec(jobs, span_s, share, gpus, process, sizes, durations, mix, self.users, self.seed)

    def _demand(self) -> tuple[Sizes, Durations]:
        from berth.workload.distributions import like, load_durations, load_sizes
        from berth.workload.reading import read_trace

        if self.like is None:
            return load_sizes(self.sizes or "philly"), load_durations(self.durations or "philly")
        if self.sizes or self.durations:
            raise InputError(
                "--like takes sizes and durations from the trace", hint="leave out --sizes and --durations"
            )
        return like(read_trace(self.like))

    def given(self, spec: GenerateSpec) -> dict[str, Any]:
        """Return the options that give the same trace again, with the defaults that were filled in."""
        values = asdict(self) | {"jobs": spec.jobs, "load": spec.load}
        values["daily"] = None if self.daily == "0" else self.daily
        if self.like is None:
            values |= {"sizes": spec.sizes.text, "durations": spec.durations.text}
        return {name: value for name, value in values.items() if value is not None}


@expand_options
def generate(
    out: Annotated[
        str, argument("OUT", "The file to write: .csv or .jsonl (.gz, .xz, .zst too); - prints CSV.")
    ],
    options: GenerateOptions,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Generate a trace: arrivals, sizes, durations, models and users."""
    from berth.workload.generate import generate as generate_trace
    from berth.workload.writing import check_suffix

    if out != "-":
        check_output(out, force, option="OUT")
        check_suffix(out)
    elif as_json:
        raise InputError("the trace and its summary can't both go to standard output", hint="name a file")
    spec = options.spec()
    trace = generate_trace(spec)
    _write(trace, out)
    _report(trace, spec, out, options.given(spec), as_json)


def _write(trace: Trace, out: str) -> None:
    if out != "-":
        trace.write(out)
        return
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "trace.csv"
        trace.write_csv(part)
        with part.open("rb") as stream:
            shutil.copyfileobj(stream, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _report(trace: Trace, spec: GenerateSpec, out: str, asked: dict[str, Any], as_json: bool) -> None:
    """The summary, on standard error when the trace itself goes to standard output."""
    from rich.console import Console

    from berth.workload.summary import summarise_trace

    options = [word for name, value in asked.items() for word in (f"--{name}", f"{value}")]
    command = shlex.join(["berth", "trace", "generate", out, *options])
    summary = summarise_trace(trace)
    load = summary.mean_load_gpus / spec.gpus if spec.gpus and summary.span_s else None
    if as_json:
        terminal.print_json(
            {
                "written": out,
                "jobs": len(trace),
                "span_s": summary.span_s,
                "gpu_hours": summary.gpu_s / 3600,
                "sizes": {share.label: share.jobs for share in summary.sizes},
                "models": {share.label: share.jobs for share in summary.models},
                "gpus": spec.gpus,
                "load": load,
                "notes": list(trace.notes),
                "asked": asked,
                "command": command,
            }
        )
        return
    console = Console(stderr=True, width=80, highlight=False) if out == "-" else terminal.console()
    _print_summary(
        console, trace, summary, f"{load:.4g} of {spec.gpus:,} GPUs" if load else "all at once", out
    )
    console.print("[bold]To repeat it[/bold]")
    console.print(command, soft_wrap=True, markup=False)


def _print_summary(console: Console, trace: Trace, summary: TraceSummary, load: str, out: str) -> None:
    from berth.report.trace import print_notes

    to = "standard output" if out == "-" else out
    console.print(
        f"wrote {to}: {format_count(len(trace), 'job')}", markup=False, soft_wrap=True, style="bold"
    )
    console.print(
        f"  over {format_seconds(summary.span_s)}, {summary.gpu_s / 3600:,.0f} GPU-hours; load: {load}"
    )
    spread = summary.duration_s
    cuts = ", ".join(
        f"{word} {format_seconds(value)}"
        for word, value in zip(("median", "p90", "p99"), spread.percentiles[1:], strict=True)
    )
    console.print(f"  durations: {cuts}, longest {format_seconds(spread.largest)}")
    print_notes(console, trace.notes)
    console.print()
    for title, shares in (("GPUs", summary.sizes), ("model", summary.models)):
        most = max((share.jobs for share in shares), default=0)
        rows = [
            [
                share.label,
                terminal.bar(share.jobs, most),
                f"{share.jobs / len(trace):.1%}",
                f"{share.gpu_s / summary.gpu_s:.1%}",
            ]
            for share in shares
        ]
        if rows:
            console.print(terminal.table("", [title, "", "of jobs", "of GPU time"], rows, left=2))
