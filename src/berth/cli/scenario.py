"""Options shared by the simulation commands, and the scenario they describe."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli import complete
from berth.cli.progress import COMPILING, spinner
from berth.cli.quantities import congestion_of, congestions, read, share
from berth.errors import InputError, UnknownNameError
from berth.units import format_count

if TYPE_CHECKING:
    from berth.cluster.model import Cluster, DeviceType
    from berth.schedule.policy import Policy
    from berth.simulate.run import Setting
    from berth.simulate.source import Source
    from berth.workload.trace import Trace

TraceName = Annotated[
    str,
    typer.Argument(
        metavar="TRACE", help="A trace of any known format, or generate:jobs=1000,load=0.9,sizes=odd,seed=1."
    ),
]
ClusterName = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="CLUSTER",
        help="A shape (4x20x8:H100), a preset or a file.",
        autocompletion=complete.clusters,
    ),
]
PolicyNames = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        autocompletion=complete.policies,
        help="Repeatable. Constants inline (name:key=value,...); or mine.py:Mine.",
    ),
]
Network = Annotated[
    str,
    typer.Option(
        metavar="on|static|off",
        help="Jobs share links; jobs do not affect each other; no network cost. congestion=X: on, with --congestion X.",
    ),
]
Congestion = Annotated[
    float,
    typer.Option(metavar="X", help="Background load, 1 or more: divides every bandwidth above the machine."),
]
EvictionCost = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Time lost by each eviction or migration.",
        show_default="40s; 60s above 8 GPUs",
    ),
]
CheckpointEvery = Annotated[str, typer.Option(metavar="TIME", help="Checkpoint interval.")]
MixName = Annotated[
    str,
    typer.Option("--mix", metavar="MIX", help="Models of jobs that name none, e.g. vgg16=2,resnet50=1."),
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Random seed.")]
Doubt = Annotated[str, typer.Option(metavar="SHARE", help="Error of estimated remaining times, e.g. 50%.")]
Faults = Annotated[
    str | None, typer.Option(metavar="HOW", help="Machines fail: mtbf=30d,mttr=4h; or drain=r0-m3@2d+6h.")
]
Quota = Annotated[
    list[str] | None,
    typer.Option("--quota", metavar="VC=GPUS", help="GPU limit of a virtual cluster. Repeatable."),
]
Quotas = Annotated[str | None, typer.Option("--quotas", metavar="FILE", help="GPU limits as a YAML file.")]
AddRacks = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="What if: add N racks like the last one.")
]
Links = Annotated[
    list[str] | None,
    typer.Option("--link", metavar="TIER=2x", help="What if: make a tier this much faster. Repeatable."),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE", autocompletion=complete.devices, help="What if: replace all GPUs by this type."
    ),
]
ReferenceDevice = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        autocompletion=complete.devices,
        help="The device on which the trace's durations were taken, e.g. V100.",
        show_default="the cluster's most common GPU",
    ),
]

_DEFAULT_POLICIES = ("berth", "dally", "tiresias", "preferred", "required", "fifo", "srtf")
_SHOWN = 5
_LONGEST_NOTE = 240


@dataclass(frozen=True)
class Scenario:
    """A trace, a cluster and settings: everything but the policy."""

    source: Source
    trace: Trace
    cluster: Cluster
    setting: Setting
    too_large: tuple[str, ...]  # ids of jobs that the cluster can never hold

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
        if self.too_large:
            named = ", ".join(self.too_large[:5]) + (" ..." if len(self.too_large) > 5 else "")
            count = format_count(len(self.too_large), "job")
            notes.append(
                f"never schedulable, larger than the cluster: {count} ({named}); counted nowhere else"
            )
        return notes

    @property
    def drawn(self) -> list[str]:
        """A note about models drawn for jobs without one, if it matters."""
        setting, jobs = self.setting, self.trace
        count = jobs.frame["model"].null_count()
        if not count or (setting.network == "off" and len(self.cluster.device_types) == 1):
            return []
        of_all = "all" if count == len(jobs) > 1 else f"{count:,} of the"
        name, each = ("names", "it") if count == 1 else ("name", "each")
        mix = f"the mix {setting.mix.text!r}, seed {setting.seed}"
        return [f"{of_all} {format_count(len(jobs), 'job')} {name} no model: {each} got one from {mix}"]


def build_scenario(
    trace: str,
    cluster: str,
    *,
    network: str = "on",
    congestion: float = 1.0,
    eviction_cost: str | None = None,
    checkpoint_every: str = "30m",
    mix: str = "balanced",
    seed: int = 0,
    doubt: str = "0",
    faults: str | None = None,
    add_racks: int | None = None,
    links: list[str] | None = None,
    device: str | None = None,
    reference: str | None = None,
    quota: list[str] | None = None,
    quotas: str | None = None,
    log: bool = False,
) -> Scenario:
    """Return the trace, the cluster after all what-ifs, and the setting."""
    from dataclasses import replace

    from berth.cluster.gpus import gpu_part
    from berth.cluster.load import load_cluster
    from berth.schedule.world import check_limits
    from berth.simulate.faults import draw_faults, horizon_of, parse_faults
    from berth.simulate.jobs import too_large
    from berth.simulate.quotas import load_quotas
    from berth.simulate.reference import reference_device
    from berth.simulate.source import Source, gpus_of

    written = load_cluster(cluster)
    gpus_of(written)
    written = gpu_part(written)
    check_limits(written)
    setting = make_setting(network, congestion, eviction_cost, checkpoint_every, mix, seed, doubt, log=log)
    reference_type = reference_device(
        written, reference, where=None if reference is None else "--reference-device"
    )
    setting = replace(setting, quotas=load_quotas(quota or [], quotas), reference_device=reference_type)
    changed = _what_if(written, add_racks, links or [], device)
    source = Source(trace)
    jobs = source.trace(written)
    if faults is not None:
        spec = parse_faults(faults)
        draw_faults(spec.at(seed), changed, horizon_of(jobs, changed))  # fails before anything is compiled
        setting = replace(setting, fault_spec=spec)
    large = too_large(jobs, changed)
    if len(large) == len(jobs):
        least = f"the smallest of its jobs requests {format_count(int(jobs.num_gpu.min()), 'GPU')}"
        raise InputError(
            f"{least}: none can ever start", where=trace, hint=f"{changed.name} has {changed.devices:,}"
        )
    return Scenario(source, jobs, changed, setting, large)


def _what_if(cluster: Cluster, add_racks: int | None, links: list[str], device: str | None) -> Cluster:
    from berth.simulate import whatif

    if add_racks is not None:
        cluster = whatif.add_racks(cluster, add_racks)
    for link in links:
        cluster = whatif.scale_link(cluster, link)
    return whatif.replace_device(cluster, device) if device is not None else cluster


def make_setting(
    network: str,
    congestion: float,
    eviction_cost: str | None,
    checkpoint_every: str,
    mix: str,
    seed: int,
    doubt: str,
    *,
    log: bool = False,
) -> Setting:
    """Return the options as a setting."""
    from berth.simulate.run import NETWORKS, Setting
    from berth.units import seconds
    from berth.workload.mix import load_mix

    if network.startswith("congestion="):
        (congestion,) = congestions("--network congestion", network.removeprefix("congestion="))[:1]
        network = "on"
    if network not in NETWORKS:
        raise UnknownNameError("network", network, NETWORKS)
    standard = Setting()
    cost = None if eviction_cost is None else read("--eviction-cost", seconds, eviction_cost)
    return Setting(
        network=network,
        congestion=congestion_of("--congestion", congestion),
        eviction_s=standard.eviction_s if cost is None else cost,
        eviction_large_s=standard.eviction_large_s if cost is None else cost,
        checkpoint_s=read("--checkpoint-every", seconds, checkpoint_every),
        doubt=share("--doubt", doubt),
        mix=load_mix(mix),
        seed=seed,
        log=log,
    )


def load_policies(texts: list[str] | None) -> dict[str, Policy]:
    """Return the named policies; berth and some known ones by default."""
    from berth.schedule.policies.registry import load_policy, policy_names

    if not texts:
        known = policy_names()
        texts = [name for name in _DEFAULT_POLICIES if name in known][:_SHOWN]
    return {text: load_policy(text) for text in texts}


def warm_up(policies: dict[str, Policy]) -> list[str]:
    """Load or compile the engine and the policies; print and return notes about interpreted ones."""
    from berth import compile as compiling
    from berth.schedule.hooks import compiled_notes

    folder = compiling.cache_folder() / compiling.fingerprint()
    cold = not any(folder.rglob("engine.advance-*.nbi"))
    with spinner(COMPILING, elsewhere=True) if cold else nullcontext():
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
