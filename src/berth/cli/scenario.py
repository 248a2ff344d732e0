"""The scenario of a simulation command: its trace, cluster and settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from berth.cli.progress import compiling
from berth.cli.scenario_options import ScenarioOptions, WhatIfOptions
from berth.errors import InputError
from berth.units import format_count

if TYPE_CHECKING:
    from berth.cluster.model import Cluster, DeviceType
    from berth.schedule.policy import Policy
    from berth.simulate.run import Setting
    from berth.simulate.trace_source import TraceSource
    from berth.workload.trace import Trace

_DEFAULT_POLICIES = ("berth", "dally", "tiresias", "preferred", "required", "fifo", "srtf")
_SHOWN = 5
_LONGEST_NOTE = 240


@dataclass(frozen=True)
class Scenario:
    """A trace, a cluster and settings: everything but the policy."""

    source: TraceSource
    trace: Trace
    cluster: Cluster
    setting: Setting
    too_large: tuple[str, ...]  # ids of jobs that the cluster can never hold
    faster_links: bool = False  # a what-if changes the links of the cluster

    @property
    def reference(self) -> DeviceType:
        """The device on which durations were taken."""
        from berth.simulate.reference import reference_device

        return reference_device(self.cluster, self.setting.reference_device)

    @property
    def fault_seed(self) -> int | None:
        """The seed of the random failures; None if there are none."""
        spec = self.setting.fault_spec
        return spec.at(self.setting.seed).seed if spec is not None and spec.random else None

    @property
    def notes(self) -> list[str]:
        """Notes about assumptions and changes of the input."""
        from berth.simulate.reference import reference_note

        bad = self.trace.bad
        causes = "; ".join(f"{count:,} x {cause}" for cause, count in bad.counts.items())
        rows = format_count(self.trace.rows, "row")
        left_out = [f"{bad.total:,} of {rows} of the trace left out: {causes}"]
        notes = [*(left_out if bad.total else []), *self.trace.notes, *self.cluster.notes]
        if (durations := reference_note(self.cluster, self.reference, self.trace)) is not None:
            notes.append(durations)
        return notes + self._stated + self._unfit

    @property
    def of_plain_jobs(self) -> str:
        """` of 20 jobs without alternatives`, where others have some."""
        plain = len(self.trace) - len(self.trace.offers)
        return f" of {_without_alternatives(plain)}" if self.trace.offers else ""

    @property
    def _stated(self) -> list[str]:
        """A note about options that change no job with alternatives: their work and step times are stated."""
        setting, count = self.setting, len(self.trace.offers)
        options = {
            f"--estimates {setting.estimates}": setting.estimates != "known",
            f"--congestion {setting.congestion:g}": setting.congestion != 1,
            "--link": self.faster_links,
        }
        given = [name for name, changed in options.items() if changed]
        if not count or not given:
            return []
        do = "does" if len(given) == 1 else "do"
        jobs = f"{format_count(count, 'job')} with alternatives"
        whose = "its" if count == 1 else "their"
        return [f"{' and '.join(given)} {do} not apply to {jobs}: {whose} work and step times are stated"]

    @property
    def _unfit(self) -> list[str]:
        """Notes about jobs and alternatives that the cluster can never hold."""
        from berth.simulate.jobs import absent_types_of

        notes = []
        absent = absent_types_of(self.trace, self.cluster)
        if absent.names:
            left_out = format_count(absent.alternatives, "alternative")
            are = "is" if absent.alternatives == 1 else "are"
            notes.append(f"{left_out} {are} left out: {_not_in_cluster(absent.names)}")
            if absent.mistyped:
                notes.append(absent.mistyped)
        without = set(absent.jobs)
        for why, jobs in (
            ("all alternatives ask for devices that are not in the cluster", absent.jobs),
            ("larger than the cluster", tuple(job for job in self.too_large if job not in without)),
        ):
            if jobs:
                count = format_count(len(jobs), "job")
                notes.append(f"never schedulable, {why}: {count} ({_first(jobs)}); counted nowhere else")
        return notes

    @property
    def drawn(self) -> list[str]:
        """A note about models drawn for jobs without one, if it matters; jobs with alternatives need none."""
        from berth.simulate.reference import plain_frame

        setting, frame = self.setting, plain_frame(self.trace)
        count, jobs = frame["model"].null_count(), len(frame)
        if not count or (setting.network == "off" and len(self.cluster.device_types) == 1):
            return []
        of_all = "all" if count == jobs > 1 else f"{count:,} of the"
        name, each = ("names", "it") if count == 1 else ("name", "each")
        mix = f"the mix {setting.mix.text!r}, seed {setting.seed}"
        shown = _without_alternatives(jobs) if self.trace.offers else format_count(jobs, "job")
        return [f"{of_all} {shown} {name} no model: {each} got one from {mix}"]


def build_scenario(
    trace: str,
    cluster: str,
    options: ScenarioOptions,
    what_if: WhatIfOptions | None = None,
    *,
    log: bool = False,
) -> Scenario:
    """Return the trace, the cluster after all what-ifs, and the setting."""
    from berth.cluster.gpus import gpu_part
    from berth.cluster.load import load_cluster
    from berth.schedule.world import check_limits
    from berth.simulate.faults import draw_faults, horizon_of, parse_faults
    from berth.simulate.jobs import absent_types_of, device_types_of, too_large
    from berth.simulate.quotas import load_quotas
    from berth.simulate.reference import reference_device
    from berth.simulate.trace_source import TraceSource, gpus_of

    written = load_cluster(cluster)
    gpus_of(written)
    source = TraceSource(trace, options.at_once)
    jobs = source.trace(written)
    # cores stay where jobs with parts ask for them
    written = gpu_part(written, device_types_of(jobs, written))
    check_limits(written)
    setting = options.setting()
    named = options.reference_device
    setting = replace(
        setting,
        log=log,
        reference_device=reference_device(
            written, named, where=None if named is None else "--reference-device"
        ),
        quotas=load_quotas(options.quota or [], options.quotas),
    )
    changed = written if what_if is None else what_if.apply(written)
    if options.faults is not None:
        spec = parse_faults(options.faults)
        # fails before anything is compiled
        draw_faults(spec.at(options.seed), changed, horizon_of(jobs, changed))
        setting = replace(setting, fault_spec=spec)
    large = too_large(jobs, changed)
    if len(large) == len(jobs) and (absent := absent_types_of(jobs, changed)).jobs:
        others = "; the other jobs are larger than the cluster" if len(absent.jobs) < len(jobs) else ""
        raise InputError(
            f"no job can ever start: {_not_in_cluster(absent.names)}{others}",
            where=trace,
            hint=absent.mistyped
            or f"{changed.name} has {', '.join(kind.name for kind in changed.device_types)}",
        )
    if len(large) == len(jobs) and jobs.offers:
        raise InputError(
            "none of its jobs fits the cluster in any alternative",
            where=trace,
            hint=f"{changed.name} has {changed.devices:,} devices",
        )
    if len(large) == len(jobs):
        least = f"the smallest of its jobs requests {format_count(int(jobs.num_gpu.min()), 'GPU')}"
        raise InputError(
            f"{least}: none can ever start", where=trace, hint=f"{changed.name} has {changed.devices:,}"
        )
    faster_links = what_if is not None and bool(what_if.link)
    return Scenario(source, jobs, changed, setting, large, faster_links)


def _without_alternatives(count: int) -> str:
    return f"{format_count(count, 'job')} without alternatives"


def _first(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")


def _not_in_cluster(types: Sequence[str]) -> str:
    return f"{_first(types)} {'is' if len(types) == 1 else 'are'} not in the cluster"


def load_policies(texts: list[str] | None) -> dict[str, Policy]:
    """Return the named policies; berth and some known ones by default."""
    from berth.schedule.policies.registry import load_policy, policy_names

    if not texts:
        known = policy_names()
        texts = [name for name in _DEFAULT_POLICIES if name in known][:_SHOWN]
    return {text: load_policy(text) for text in texts}


def warm_up(policies: dict[str, Policy]) -> list[str]:
    """Load or compile the engine and the policies; print and return notes about interpreted ones."""
    from berth.native.interrupts import interrupt_safely
    from berth.schedule.hooks import compiled_notes

    interrupt_safely()
    with compiling("", "engine.advance-*.nbi"):
        for policy in policies.values():
            _simulate_one_job(policy)
    notes = [
        _short(f"{name}: {note}") for name, policy in policies.items() for note in compiled_notes(policy)
    ]
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    return notes


def _simulate_one_job(policy: Policy) -> None:
    from berth.cluster.load import load_cluster
    from berth.simulate.run import simulate
    from berth.workload.trace import Trace

    one_job: dict[str, list[object]] = {
        "job_id": ["a"],
        "submit_s": [0.0],
        "num_gpu": [1],
        "duration_s": [1.0],
        "model": ["resnet50"],
    }
    simulate(Trace.from_columns(one_job, source="warm-up"), load_cluster("1x1x1"), policy)


def _short(note: str) -> str:
    """The note without colours and long compiler output."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", note)
    return plain if len(plain) <= _LONGEST_NOTE else plain[: _LONGEST_NOTE - 4] + " ..."
