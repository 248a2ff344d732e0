"""Options shared by the simulation commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from berth.cli import complete
from berth.cli.options import argument, flag, option
from berth.cli.quantities import congestion_of, congestions, portion, read, share
from berth.errors import UnknownNameError
from berth.units import seconds

if TYPE_CHECKING:
    from berth.cluster.model import Cluster
    from berth.simulate.run import Setting

TraceName = Annotated[
    str, argument("TRACE", "A trace of any known format, or generate:jobs=1000,load=0.9,sizes=odd,seed=1.")
]
ClusterName = Annotated[
    str,
    option("CLUSTER", "A shape (4x20x8:H100), a preset or a file.", "--cluster", complete=complete.clusters),
]
PolicyNames = Annotated[
    list[str] | None,
    option(
        "POLICY",
        "Repeatable. Constants inline (name:key=value,...); or mine.py:Mine.",
        "--policy",
        complete=complete.policies,
    ),
]
Network = Annotated[
    str,
    option(
        "on|static|off",
        "on: jobs share links; static: jobs do not affect each other; off: no cost. "
        "congestion=X: on, with --congestion X.",
    ),
]
Congestion = Annotated[
    float,
    option(
        "X",
        "Background load, from 1 (none) to 1,000,000: divides every bandwidth above the machine. "
        "Step times of jobs with alternatives stay as stated.",
    ),
]
EvictionCost = Annotated[
    str | None, option("TIME", "Time lost by each eviction or migration.", shown="40s; 60s above 8 GPUs")
]
CheckpointEvery = Annotated[str, option("TIME", "Checkpoint interval.")]
MixName = Annotated[str, option("MIX", "Models of jobs that name none, e.g. vgg16=2,resnet50=1.", "--mix")]
Seed = Annotated[int, option("N", "Random seed.", min=0)]
Doubt = Annotated[str, option("SHARE", "Error of estimated remaining times, e.g. 50%.")]
Estimates = Annotated[
    str,
    option(
        "known|learned|none",
        "What schedulers know of durations: known, to --doubt; learned from estimates and ended jobs; none. "
        "Work of jobs with alternatives is always known.",
    ),
]
Preemptible = Annotated[
    str,
    option(
        "SHARE",
        "Share of jobs that can be evicted and moved, where the trace does not say. "
        "Live, policy berth evicts none that does not ask for it.",
    ),
]
Faults = Annotated[
    str | None,
    option("HOW", "Machines fail: mtbf=30d,mttr=4h,seed=1 (--seed is added); or drain=r0-m3@2d+6h."),
]
AtOnce = Annotated[bool, flag("Submit all jobs at time 0, whatever the trace says.", "--at-once")]
Quota = Annotated[
    list[str] | None, option("VC=GPUS", "GPU limit of a virtual cluster. Repeatable.", "--quota")
]
Quotas = Annotated[str | None, option("FILE", "GPU limits as a YAML file.", "--quotas")]
AddRacks = Annotated[int | None, option("N", "What if: add N racks like the last one.", min=0)]
Links = Annotated[
    list[str] | None, option("TIER=2x", "What if: make a tier this much faster. Repeatable.", "--link")
]
Device = Annotated[
    str | None, option("DEVICE", "What if: replace all GPUs by this type.", complete=complete.devices)
]
ReferenceDevice = Annotated[
    str | None,
    option(
        "DEVICE",
        "The device on which the trace's durations were taken, e.g. V100.",
        complete=complete.devices,
        shown="the cluster's most common GPU",
    ),
]


@dataclass(frozen=True)
class ScenarioOptions:
    """Options of all commands that simulate one trace."""

    at_once: AtOnce = False
    network: Network = "on"
    congestion: Congestion = 1.0
    eviction_cost: EvictionCost = None
    checkpoint_every: CheckpointEvery = "30m"
    mix: MixName = "balanced"
    seed: Seed = 0
    reference_device: ReferenceDevice = None
    doubt: Doubt = "0"
    estimates: Estimates = "known"
    preemptible: Preemptible = "100%"
    faults: Faults = None
    quota: Quota = None
    quotas: Quotas = None

    def setting(self) -> Setting:
        """Return the options as a setting; faults and quotas are added by `build_scenario`."""
        from berth.simulate.knowledge import ESTIMATES
        from berth.simulate.run import NETWORKS, Setting
        from berth.workload.mix import load_mix

        network, congestion = self.network, self.congestion
        if network.startswith("congestion="):
            (congestion,) = congestions("--network congestion=", network.removeprefix("congestion="))[:1]
            network = "on"
        if network not in NETWORKS:
            raise UnknownNameError("network", network, NETWORKS)
        if self.estimates not in ESTIMATES:
            raise UnknownNameError("choice of --estimates", self.estimates, ESTIMATES)
        standard = Setting()
        cost = None if self.eviction_cost is None else read("--eviction-cost", seconds, self.eviction_cost)
        return Setting(
            network=network,
            congestion=congestion_of("--congestion", congestion),
            eviction_s=standard.eviction_s if cost is None else cost,
            eviction_large_s=standard.eviction_large_s if cost is None else cost,
            checkpoint_s=read("--checkpoint-every", seconds, self.checkpoint_every),
            estimate_error=share("--doubt", self.doubt),
            estimates=self.estimates,
            preemptible=portion("--preemptible", self.preemptible),
            mix=load_mix(self.mix),
            seed=self.seed,
        )


@dataclass(frozen=True)
class WhatIfOptions:
    """Changes of the cluster before the simulation."""

    add_racks: AddRacks = None
    link: Links = None
    device: Device = None

    def apply(self, cluster: Cluster) -> Cluster:
        """Return the changed cluster."""
        from berth.simulate import whatif

        if self.add_racks is not None:
            cluster = whatif.add_racks(cluster, self.add_racks)
        for link in self.link or ():
            cluster = whatif.scale_link(cluster, link)
        return cluster if self.device is None else whatif.replace_device(cluster, self.device)
