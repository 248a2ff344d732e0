"""`berth trace`: inspect, convert and generate traces."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from berth.cli import complete, trace_generate
from berth.cli.options import AsJson, Force, argument, flag, option
from berth.cli.output import check_output
from berth.cli.progress import progress_bar
from berth.cli.verbs import Verbs
from berth.report import terminal
from berth.units import format_count

if TYPE_CHECKING:
    from berth.workload.summary import Distribution, TraceSummary
    from berth.workload.trace import Trace

app = Verbs(
    help="Inspect, convert and generate traces (Philly, Helios, Alibaba, Tiresias, plain CSV).",
)

_BIG_BYTES = 4_000_000

File = Annotated[str, argument("FILE", "A trace of any known format; - is standard input.")]
Strict = Annotated[bool, flag("Fail if any row can't be used.", "--strict")]
FormatName = Annotated[str | None, option("NAME", "Trace format.", "--format", shown="detected")]


@app.verb("berth trace info philly.csv.xz --cluster 4x20x8")
def info(
    file: File,
    strict: Strict = False,
    format: FormatName = None,  # noqa: A002
    cluster: Annotated[
        str | None,
        option("CLUSTER", "Also show the offered load on this cluster.", complete=complete.clusters),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show sizes, durations and load of a trace, and its bad rows."""
    from berth.report.trace import print_trace
    from berth.workload.summary import summarise_trace, unknown_names

    capacity = _capacity(cluster) if cluster else None
    trace = _read(file, strict, format)
    trace = replace(trace, notes=(*trace.notes, *unknown_names(trace)))
    summary = summarise_trace(trace)
    offered = _offered(trace, summary, *capacity) if capacity else None
    if as_json:
        terminal.print_json(_document(trace, summary, offered))
    else:
        print_trace(terminal.console(), trace, summary, offered)


@app.verb("berth trace convert philly.csv.xz slice.csv.zst --since 2017-10-01 --max-gpus 64")
def convert(
    file: File,
    out: Annotated[
        str, argument("OUT", "The file to write: .csv or .jsonl; .gz, .xz or .zst after it compress it.")
    ],
    strict: Strict = False,
    format: FormatName = None,  # noqa: A002
    since: Annotated[
        str | None, option("WHEN", "Submitted from then on: a date, or a time from the start (3d).")
    ] = None,
    until: Annotated[str | None, option("WHEN", "Submitted before then.")] = None,
    sizes: Annotated[
        str | None, option("SIZES", "GPUs per job: powers-of-two, or a list such as 1,2,4-8.")
    ] = None,
    max_gpus: Annotated[int | None, option("N", "Skip jobs with more GPUs.", min=1)] = None,
    vc: Annotated[list[str] | None, option("NAME", "Only this virtual cluster. Repeatable.")] = None,
    limit: Annotated[int | None, option("N", "The first N of the selected jobs.", min=1)] = None,
    renumber: Annotated[bool, flag("Name the jobs 0, 1, 2 ... in order of time.", "--renumber")] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a trace, or a slice of it, as berth's plain CSV or JSON lines. Times count from the first selected job."""
    from berth.report.trace import print_bad, print_notes
    from berth.workload.selection import Selection, renumbered

    check_output(out, force, option="OUT")
    selection = Selection(since, until, sizes, max_gpus, tuple(vc or ()), limit)
    trace = selection.apply(_read(file, strict, format))
    (renumbered(trace) if renumber else trace).write(out)
    if as_json:
        terminal.print_json({**_facts(trace), "written": out})
        return
    console = terminal.console()
    console.print(f"wrote {out}: {format_count(len(trace), 'job')}", soft_wrap=True, markup=False)
    print_bad(console, trace.source, trace.rows, trace.bad)
    print_notes(console, trace.notes)


app.verb(*trace_generate.EXAMPLES)(trace_generate.generate)


def _read(file: str, strict: bool, format: str | None) -> Trace:  # noqa: A002
    from berth.workload.reading import read_trace

    small = os.path.isfile(file) and os.path.getsize(file) < _BIG_BYTES
    with nullcontext() if small else progress_bar(f"reading {os.path.basename(file)}") as progress:
        return read_trace(file, strict=strict, format=format, progress=progress)


def _capacity(cluster: str) -> tuple[str, int]:
    """Name of a cluster and its GPUs."""
    from berth.cluster import load_cluster
    from berth.simulate.trace_source import gpus_of

    loaded = load_cluster(cluster)
    return loaded.name, gpus_of(loaded)


def _offered(trace: Trace, summary: TraceSummary, name: str, gpus: int) -> dict[str, Any]:
    load = summary.mean_load_gpus / gpus if summary.span_s else None
    return {"name": name, "gpus": gpus, "load": load, "too_large": int((trace.num_gpu > gpus).sum())}


def _facts(trace: Trace) -> dict[str, Any]:
    return {
        "source": trace.source,
        "format": trace.format,
        "origin": trace.origin.isoformat() if trace.origin else None,
        "jobs": len(trace),
        "rows": trace.rows,
        "bad": {
            "total": trace.bad.total,
            "counts": dict(trace.bad.counts),
            "first": [asdict(row) for row in trace.bad.first],
        },
        "notes": list(trace.notes),
    }


def _document(trace: Trace, summary: TraceSummary, offered: dict[str, Any] | None) -> dict[str, Any]:
    def shares(of: Any) -> list[dict[str, Any]]:
        return [asdict(share) for share in of]

    return {
        **_facts(trace),
        "span_s": summary.span_s,
        "gpu_hours": summary.gpu_s / 3600,
        "users": summary.users,
        "vcs": summary.vcs,
        "num_gpu": _spread(summary.size),
        "duration_s": _spread(summary.duration_s),
        "interarrival_s": _spread(summary.interarrival_s) if summary.interarrival_s else None,
        "sizes": shares(summary.sizes),
        "durations": shares(summary.durations),
        "models": shares(summary.models),
        "load": {
            "edges_s": summary.load_edges_s.tolist(),
            "gpus": summary.load_gpus.tolist(),
            "mean_gpus": summary.mean_load_gpus if summary.span_s else None,
            "peak_gpus": summary.peak_gpus,
        },
        "cluster": offered,
    }


def _spread(spread: Distribution) -> dict[str, float]:
    from berth.workload.summary import PERCENTILES

    cuts = {f"p{cut}": value for cut, value in zip(PERCENTILES, spread.percentiles, strict=True)}
    return {"least": spread.least, **cuts, "largest": spread.largest, "mean": spread.mean}
