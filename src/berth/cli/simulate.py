"""`berth simulate`: a trace on a cluster under one or more policies, and a table of results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import scenario
from berth.cli.interrupt import report_interrupt
from berth.cli.option_groups import expand_options
from berth.cli.options import AsJson, Force, Html, flag, option
from berth.cli.output import check_output, write_text
from berth.cli.progress import progress_bar
from berth.cli.scenario_options import ClusterName, PolicyNames, ScenarioOptions, TraceName, WhatIfOptions
from berth.report import terminal
from berth.units import format_count

if TYPE_CHECKING:
    from berth.schedule.policy import Policy
    from berth.simulate.policy_run import PolicyRun

EXAMPLES = (
    "berth simulate jobs.csv --cluster 4x4x8:H100 --policy fifo --policy srtf",
    "berth simulate philly.csv.xz --cluster 8x8x8:V100-16 --html report.html",
    "berth simulate v100.csv --cluster 4x4x8:H100 --reference-device V100",
    "berth simulate generate:load=0.9 --cluster 4x4x8:H100 --add-racks 2",
)

Log = Annotated[str | None, option("FILE", "Write every event as Parquet (one file per policy).")]
Audit = Annotated[bool, flag("Verify every run against its event log.", "--audit")]


@expand_options
def simulate(
    *,
    trace: TraceName,
    cluster: ClusterName,
    policy: PolicyNames = None,
    options: ScenarioOptions,
    what_if: WhatIfOptions,
    log: Log = None,
    audit: Audit = False,
    html: Html = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a trace on a cluster under each policy and compare the results."""
    check_output(html, force, option="--html")
    policies = scenario.load_policies(policy)
    logs = _log_files(log, list(policies), force)
    built = scenario.build_scenario(trace, cluster, options, what_if, log=bool(log or audit or html))
    with report_interrupt():
        interpreted = scenario.warm_up(policies)
        runs = _run_policies(built, policies, timers=html is not None)
    _check_audits(runs, audit)
    notes = _notes(built, runs) + interpreted
    notes += [
        f"{one.run.policy}: audited, {format_count(len(one.run.log), 'event')} counted again: no violations"
        for one in runs
        if audit
    ]
    written = _write(runs, logs, html, notes)
    _show(built, runs, notes, written, as_json)
    if any(one.run.unfinished for one in runs):
        raise typer.Exit(1)


def _run_policies(built: scenario.Scenario, policies: dict[str, Policy], *, timers: bool) -> list[PolicyRun]:
    from berth.simulate.metrics import summarise
    from berth.simulate.policy_run import PolicyRun
    from berth.simulate.run import simulate as run_simulation
    from berth.simulate.timeline import TimerWatch

    runs = []
    jobs = built.trace
    for name, policy in policies.items():
        watch = TimerWatch(max(1, len(jobs) // 100)) if timers and policy.rules().learn_timers else None
        with progress_bar(f"{name}: jobs finished") as progress:
            run = run_simulation(
                jobs,
                built.cluster,
                policy,
                built.setting,
                name=name,
                progress=progress,
                watch=watch,
            )
        runs.append(PolicyRun(run, summarise(run), watch))
    return runs


def _log_files(log: str | None, policies: list[str], force: bool) -> dict[str, str]:
    """The log file of each policy: the given name for one, `events.<policy>.parquet` for several."""
    if log is None:
        return {}
    path = Path(log)
    names = {policy: re.sub(r"[^\w.=-]+", "_", policy) for policy in policies}
    several = len(policies) > 1
    files = {
        policy: str(path.with_name(f"{path.stem}.{name}{path.suffix}")) if several else log
        for policy, name in names.items()
    }
    for file in files.values():
        check_output(file, force, option="--log")
    return files


def _check_audits(runs: list[PolicyRun], wanted: bool) -> None:
    """Raise on a violation: it is a bug in berth."""
    if not wanted:
        return
    from berth.simulate.audit import audit

    for one in runs:
        report = audit(one.run)
        assert not report.violations, f"{one.run.policy}: {report}"


def _notes(built: scenario.Scenario, runs: list[PolicyRun]) -> list[str]:
    """Notes that a reader needs to interpret the figures."""
    from berth.simulate.outcome import unfinished_note

    run, setting = runs[0].run, built.setting
    notes = built.notes + built.drawn
    if run.jobs.over_quota:
        first = ", ".join(run.jobs.over_quota[:5]) + (" ..." if len(run.jobs.over_quota) > 5 else "")
        count = format_count(len(run.jobs.over_quota), "job")
        notes.append(f"never schedulable, larger than the quota: {count} ({first}); counted nowhere else")
    for one in runs:
        if (note := unfinished_note(one.run)) is not None:
            rest = "; the figures are those of the others" if one.summary.finished else ""
            notes.append(note + rest)
    if setting.estimate_error:
        notes.append(f"schedulers knew remaining times to +-{setting.estimate_error:.0%} only")
    if setting.estimates != "known" and len(built.trace.offers) < len(built.trace):
        what = (
            f"learned durations{built.of_plain_jobs} from jobs that had ended"
            if setting.estimates == "learned"
            else f"knew no durations{built.of_plain_jobs}"
        )
        notes.append(f"schedulers {what}")
    if fixed := int((run.records["preemptible"] == 0).sum()):
        notes.append(f"{format_count(fixed, 'job')} can't be evicted or moved")
    if setting.fault_spec is not None:
        seed = "" if built.fault_seed is None else f", seed {built.fault_seed}"
        notes.append(f"{format_count(len(run.setting.faults) // 2, 'fault')} of machines{seed}")
    if run.cluster.usd_per_hour is None:
        alternatives = "; jobs that could run on it alone take their alternatives without regard to dollars"
        more = alternatives if run.trace.offers else ""
        notes.append(f"no cost: the price of some device is unknown{more}")
    return notes


def _write(runs: list[PolicyRun], logs: dict[str, str], html: str | None, notes: list[str]) -> list[str]:
    from berth.report.html import report_page
    from berth.simulate.events import write_events

    written = []
    for one in runs:
        if one.run.policy in logs:
            write_events(one.run, logs[one.run.policy])
            written.append(logs[one.run.policy])
    if html is not None:
        write_text(html, report_page(runs, notes))
        written.append(html)
    return written


def _show(
    built: scenario.Scenario, runs: list[PolicyRun], notes: list[str], written: list[str], as_json: bool
) -> None:
    from berth.report.simulation import labels, print_results
    from berth.report.verdict import idle, tail

    if as_json:
        facts: dict[str, Any] = {
            "trace": runs[0].run.trace.source,
            "cluster": runs[0].run.cluster.name,
            "reference_device": built.reference.name,
            "fault_seed": built.fault_seed,
            "results": [one.summary.as_json() for one in runs],
            "notes": notes,
            "written": written,
        }
        terminal.print_json(facts)
        return
    names = labels([one.summary.policy for one in runs])[0]
    tails = [text for one, name in zip(runs, names, strict=True) if (text := tail(one.run, name))]
    summaries = [one.summary for one in runs]
    remarks = [text] if (text := idle(summaries)) else []
    print_results(terminal.console(), summaries, heading(runs[0]), [*remarks, *tails, *notes], written)


def heading(one: PolicyRun) -> str:
    """Return the title of the results."""
    from berth.simulate.trace_source import gpus_of

    setting, run = one.run.setting, one.run
    network = setting.network + (f", congestion x{setting.congestion:g}" if setting.congestion != 1 else "")
    jobs, gpus = format_count(len(run.trace), "job"), format_count(gpus_of(run.cluster), "GPU")
    return f"{jobs} on {run.cluster.name} ({gpus}); network {network}"
