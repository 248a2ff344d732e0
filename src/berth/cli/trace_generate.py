"""`berth trace generate`: generates a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import complete, quantities
from berth.cli.options import AsJson, Force
from berth.cli.output import check_output

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


def generate(
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="The CSV to write (.gz, .xz, .zst too); - prints it.")
    ],
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of jobs.", show_default="1000")
    ] = None,
    cluster: Annotated[
        str,
        typer.Option(
            metavar="CLUSTER",
            autocompletion=complete.clusters,
            help="The cluster of the load; no job is larger.",
        ),
    ] = "4x20x8",
    load: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Requested GPU time over available GPU time.", show_default="0.8"),
    ] = None,
    span: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time from the first to the last submission, instead of --load or --jobs."
        ),
    ] = None,
    arrivals: Annotated[
        str, typer.Option(metavar="HOW", help="poisson, bursty, bursty:16 or at-once.")
    ] = "poisson",
    daily: Annotated[
        str, typer.Option(metavar="SHARE", help="Amplitude of the daily cycle, 0 to 100%.")
    ] = "0",
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES", help="philly, powers-of-two, odd, large, or 1=0.7,8=0.3.", show_default="philly"
        ),
    ] = None,
    durations: Annotated[
        str | None,
        typer.Option(
            metavar="DURATIONS",
            help="philly, lognormal:1h:1.5, exponential:2h, pareto:1.1:1m:7d or fixed:1h.",
            show_default="philly",
        ),
    ] = None,
    like: Annotated[
        str | None, typer.Option(metavar="FILE", help="Sizes and durations, together, as in this trace.")
    ] = None,
    mix: Annotated[
        str,
        typer.Option(
            metavar="MIX",
            help="Models: balanced, sensitive, insensitive, vision, language, vgg16=2,resnet50=1, or none.",
        ),
    ] = "balanced",
    users: Annotated[
        int, typer.Option(metavar="N", min=0, help="Users; the n-th submits 1/n of what the first does.")
    ] = 20,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Random seed; the same seed gives the same bytes.")
    ] = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Generate a trace: arrivals, sizes, durations, models and users."""
    from berth.workload.generate import generate as generate_trace

    _check_out(out, force, as_json)
    spec = _spec(jobs, cluster, load, span, arrivals, daily, sizes, durations, like, mix, users, seed)
    trace = generate_trace(spec)
    _write(trace, out)
    asked = {
        "jobs": spec.jobs,
        "cluster": cluster,
        "load": spec.load,
        "span": span,
        "arrivals": arrivals,
        "daily": None if daily == "0" else daily,
        "sizes": None if like else spec.sizes.text,
        "durations": None if like else spec.durations.text,
        "like": like,
        "mix": mix,
        "users": users,
        "seed": seed,
    }
    _report(trace, spec, out, {name: value for name, value in asked.items() if value is not None}, as_json)


def _check_out(out: str, force: bool, as_json: bool) -> None:
    from berth.errors import InputError

    if out == "-":
        if as_json:
            raise InputError("the trace and its summary can't both go to standard output", hint="name a file")
    else:
        check_output(out, force, option="OUT")


def _spec(
    jobs: int | None,
    cluster: str,
    load: str | None,
    span: str | None,
    arrivals: str,
    daily: str,
    sizes: str | None,
    durations: str | None,
    like: str | None,
    mix: str,
    users: int,
    seed: int,
) -> GenerateSpec:
    from berth.cluster.load import load_cluster
    from berth.simulate.trace_source import gpus_of
    from berth.units import seconds
    from berth.workload.arrivals import load_arrivals
    from berth.workload.generate import GenerateSpec, with_defaults
    from berth.workload.mix import load_mix

    process = load_arrivals(arrivals, quantities.portion("--daily", daily))
    share = None if load is None else quantities.load("--load", load)
    span_s = None if span is None else quantities.read("--span", seconds, span)
    jobs, share = with_defaults(jobs, span_s, share, process)
    chosen_sizes, chosen_durations = _asked(sizes, durations, like)
    return GenerateSpec(
        jobs=jobs,
        span_s=span_s,
        load=share,
        gpus=gpus_of(load_cluster(cluster)),
        arrivals=process,
        sizes=chosen_sizes,
        durations=chosen_durations,
        mix=None if mix == "none" else load_mix(mix),
        users=users,
        seed=seed,
    )


def _asked(sizes: str | None, durations: str | None, like: str | None) -> tuple[Sizes, Durations]:
    from berth.errors import InputError
    from berth.workload import distributions
    from berth.workload.reading import read_trace

    if like is None:
        return distributions.load_sizes(sizes or "philly"), distributions.load_durations(
            durations or "philly"
        )
    if sizes or durations:
        raise InputError(
            "--like takes sizes and durations from the trace", hint="leave out --sizes and --durations"
        )
    return distributions.like(read_trace(like))


def _write(trace: Trace, out: str) -> None:
    if out != "-":
        trace.write_csv(out)
        return
    import shutil
    import sys
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "trace.csv"
        trace.write_csv(part)
        with part.open("rb") as stream:
            shutil.copyfileobj(stream, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _report(trace: Trace, spec: GenerateSpec, out: str, asked: dict[str, Any], as_json: bool) -> None:
    """The summary, on standard error when the trace itself goes to standard output."""
    import shlex

    from rich.console import Console

    from berth.report import terminal
    from berth.workload.summary import summarise_trace

    options = [word for name, value in asked.items() for word in (f"--{name}", f"{value}")]
    command = shlex.join(["berth", "trace", "generate", out, *options])
    summary = summarise_trace(trace)
    load = summary.mean_load_gpus / spec.gpus if spec.gpus and summary.span_s else None
    if as_json:
        facts = {
            "written": out,
            "jobs": len(trace),
            "span_s": summary.span_s,
            "gpu_hours": summary.gpu_s / 3600,
        }
        shares = {
            "sizes": {share.label: share.jobs for share in summary.sizes},
            "models": {share.label: share.jobs for share in summary.models},
        }
        rest = {
            "gpus": spec.gpus,
            "load": load,
            "notes": list(trace.notes),
            "asked": asked,
            "command": command,
        }
        terminal.print_json({**facts, **shares, **rest})
        return
    console = Console(stderr=True, width=80, highlight=False) if out == "-" else terminal.console()
    _print_summary(
        console, trace, summary, f"{load:.4g} of {spec.gpus:,} GPUs" if load else "all at once", out
    )
    console.print("[bold]To repeat it[/bold]")
    console.print(command, soft_wrap=True, markup=False)


def _print_summary(console: Console, trace: Trace, summary: TraceSummary, load: str, out: str) -> None:
    from berth.report.terminal import bar, table
    from berth.report.trace import print_notes
    from berth.units import format_count, format_seconds

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
                bar(share.jobs, most),
                f"{share.jobs / len(trace):.1%}",
                f"{share.gpu_s / summary.gpu_s:.1%}",
            ]
            for share in shares
        ]
        if rows:
            console.print(table("", [title, "", "of jobs", "of GPU time"], rows, left=2))
