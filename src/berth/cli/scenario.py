"""What the simulating verbs share: the options that set a scene, and what they become."""

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
        help="Links are shared by jobs; each job is alone; distance is free. Or congestion=X: on, and --congestion X.",
    ),
]
Congestion = Annotated[
    float,
    typer.Option(metavar="X", help="Load of others, 1 or more: divides every bandwidth above the machine."),
]
EvictionCost = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Lost whenever a job is evicted or moved.",
        show_default="40s; of a job above 8 GPUs 60s",
    ),
]
CheckpointEvery = Annotated[
    str, typer.Option(metavar="TIME", help="So often jobs save themselves, for when a machine fails.")
]
MixName = Annotated[
    str,
    typer.Option("--mix", metavar="MIX", help="Models of jobs that name none, e.g. vgg16=2,resnet50=1."),
]
Seed = Annotated[
    int, typer.Option(metavar="N", min=0, help="Of the models drawn, and of all else that is random.")
]
Doubt = Annotated[
    str, typer.Option(metavar="SHARE", help="Schedulers know remaining times only to +- so much (50%).")
]
Faults = Annotated[
    str | None, typer.Option(metavar="HOW", help="Machines fail: mtbf=30d,mttr=4h; or drain=r0-m3@2d+6h.")
]
Quota = Annotated[
    list[str] | None,
    typer.Option("--quota", metavar="VC=GPUS", help="What a virtual cluster may hold at most. Repeatable."),
]
Quotas = Annotated[str | None, typer.Option("--quotas", metavar="FILE", help="The same, as a YAML file.")]
AddRacks = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="What if: so many more racks like the last.")
]
Links = Annotated[
    list[str] | None,
    typer.Option("--link", metavar="TIER=2x", help="What if: a tier so much faster. Repeatable."),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE", autocompletion=complete.devices, help="What if: all GPUs were of this type."
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

_FAVOURITES = ("berth", "dally", "tiresias", "preferred", "required", "fifo", "srtf")
_SHOWN = 5
_LONGEST_NOTE = 240


@dataclass(frozen=True)
class Scenario:
    """Everything but the policy."""

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
        """The seed of the failures that are drawn; None: none are."""
        spec = self.setting.fault_spec
        return spec.at(self.setting.seed).seed if spec is not None and spec.random else None

    @property
    def notes(self) -> list[str]:
        """What was assumed or changed on the way in."""
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
        """That models were drawn for jobs that name none, where it matters."""
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
    """The trace, the cluster after all what-ifs, and the setting."""
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
    taken_on = reference_device(written, reference, where=None if reference is None else "--reference-device")
    setting = replace(setting, quotas=load_quotas(quota or [], quotas), reference_device=taken_on)
    changed = _what_if(written, add_racks, links or [], device)
    source = Source(trace)
    jobs = source.trace(written)
    if faults is not None:
        spec = parse_faults(faults)
        draw_faults(spec.at(seed), changed, horizon_of(jobs, changed))  # refuses before anything is compiled
        setting = replace(setting, fault_spec=spec)
    large = too_large(jobs, changed)
    if len(large) == len(jobs):
        least = f"the smallest of its jobs asks for {format_count(int(jobs.num_gpu.min()), 'GPU')}"
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
    """The options as a setting."""
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
    """The policies by the names they were asked for; berth and some known ones where none was."""
    from berth.schedule.policies.registry import load_policy, policy_names

    if not texts:
        known = policy_names()
        texts = [name for name in _FAVOURITES if name in known][:_SHOWN]
    return {text: load_policy(text) for text in texts}


def warm_up(policies: dict[str, Policy]) -> list[str]:
    """Loads or compiles the engine and the policies; what stays interpreted is told, and returned."""
    from berth import compile as compiling
    from berth.schedule.hooks import compiled_notes

    folder = compiling.cache_folder() / compiling.fingerprint()
    cold = not any(folder.rglob("engine.advance-*.nbi"))
    with spinner(COMPILING, elsewhere=True) if cold else nullcontext():
        for policy in policies.values():
            _play_one_job(policy)
    notes = [
        _short(f"{name}: {note}") for name, policy in policies.items() for note in compiled_notes(policy)
    ]
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    return notes


def _play_one_job(policy: Policy) -> None:
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
    """Without colours and the pages of types that a compiler adds."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", note)
    return plain if len(plain) <= _LONGEST_NOTE else plain[: _LONGEST_NOTE - 4] + " ..."
