"""Scenarios of the packet-level study: as text for benchmarks/ns3/fabric.cc, and by berth's own network model.

One device per host, hosts in racks, racks on a spine. Links have LINK_BITS_PER_S and LINK_S each way; a rack's up-link
has the sum of its hosts' links over the over-subscription. The model gets the nominal rates, and as latency of a step
the delay of the links between two hosts: 2 inside a rack, 4 between racks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np

from berth.cluster.model import Cluster, DeviceType, Machine, Tier
from berth.network import _flow_kernels
from berth.network.contention import SharedLinks
from berth.network.fabric import Fabric
from berth.network.flow import Flow, alone_s, flow_of
from berth.network.iteration import communication_s
from berth.network.placement import Placement
from berth.network.traffic import Traffic
from iterations import SharingJob, iteration_seconds

Algorithm = Literal["flat", "hierarchical"]
ALGORITHMS: tuple[Algorithm, ...] = ("flat", "hierarchical")

LINK_BITS_PER_S, LINK_S = 100e9, 1.25e-6
BYTES_PER_S = LINK_BITS_PER_S / 8
LATENCY_BOUND, BANDWIDTH_BOUND = 0.6, 0.1  # share of latency in the modelled time: from, up to
REGIMES = ("latency-bound", "mid", "bandwidth-bound")
OVERSUBSCRIPTIONS = (1, 2, 4)
KIB, MIB = 1 << 10, 1 << 20
SIZES = (16 * KIB, 64 * KIB, 256 * KIB, 1 * MIB, 4 * MIB, 16 * MIB)
PAIR_SIZES = (32 * KIB, 512 * KIB, 4 * MIB)
COMPUTE = (0.5, 2.0)  # of a pair, over what its longer all-reduce takes alone
FORWARD, OVERLAP, BUCKETS = 1 / 3, 4.0, 4  # of jobs that overlap
REPEATS = 2  # all-reduces of one job in a row; the last one counts
OFFSETS, ITERATIONS, SKIP = 4, 12, 4  # of two jobs


@dataclass(frozen=True, slots=True)
class Shape:
    """A fabric; `paths` is the spine that packets to each host take, empty: the only one."""

    racks: int = 2
    hosts: int = 4  # per rack
    oversubscription: int = 1
    spines: int = 1
    paths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Transport:
    """How hosts send; settings are those of fabric.cc."""

    name: str
    settings: tuple[tuple[str, str], ...] = ()


WINDOW = Transport("fixed window, no loss")
TRANSPORTS = (
    WINDOW,
    Transport("fixed window, acknowledgements behind data", (("acks_first", "0"),)),
    Transport("DCTCP", (("transport", "dctcp"),)),
    Transport("CUBIC, deep queues", (("transport", "cubic"),)),
    Transport("CUBIC, queues of 32 packets", (("transport", "cubic"), ("queue", "32"))),
)


@dataclass(frozen=True, slots=True)
class Job:
    """One job: the hosts of its ring, rack by rack, and its iteration."""

    hosts: tuple[int, ...]
    message: int  # bytes of gradients per iteration
    algorithm: Algorithm
    compute_s: float = 0.0
    overlaps: bool = False  # False: it computes, then sends

    @property
    def traffic(self) -> Traffic:
        """What berth's model is given."""
        forward, overlap = (FORWARD, OVERLAP) if self.overlaps else (0.0, 1.0)
        return Traffic(self.compute_s, self.message, overlap=overlap, forward=forward)

    @property
    def ready_s(self) -> list[float]:
        """When each bucket of gradients exists, by the production curve of the overlap."""
        if not self.overlaps:
            return [self.compute_s]
        silent_s = FORWARD * self.compute_s
        curve = SharingJob(silent_s, self.compute_s - silent_s, 1.0, 1.0, OVERLAP, {})
        return curve.produced_at(BUCKETS)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Jobs on a fabric; `group` is the table that it belongs to, `kind` its row there."""

    group: str
    kind: str
    shape: Shape
    jobs: tuple[Job, ...]
    transport: Transport = WINDOW
    offsets: tuple[tuple[float, ...], ...] = ((0.0,),)  # each job's start, one run for each

    @property
    def iterations(self) -> int:
        """Iterations of every job in one run."""
        return ITERATIONS if len(self.offsets) > 1 else REPEATS

    @property
    def skipped(self) -> int:
        """Iterations at the beginning of a run that do not count."""
        return SKIP if len(self.offsets) > 1 else REPEATS - 1

    def alone(self, job: Job) -> Scenario:
        """Return the scenario of one of its jobs without the others."""
        return Scenario(self.group, "alone", self.shape, (job,), self.transport)


def fabric_of(shape: Shape) -> Fabric:
    """Return the fabric in berth's terms."""
    hosts = shape.racks * shape.hosts
    tiers = (
        Tier("host", BYTES_PER_S),
        Tier("rack", BYTES_PER_S, 2 * LINK_S),
        Tier("spine", BYTES_PER_S, 4 * LINK_S, oversubscription=float(shape.oversubscription)),
    )
    groups = [range(hosts), [host // shape.hosts for host in range(hosts)], [0] * hosts]
    names = (tuple(f"h{i}" for i in range(hosts)), tuple(f"r{i}" for i in range(shape.racks)), ("all",))
    machines = tuple(Machine(name, ((0, 1),)) for name in names[0])
    return Fabric(
        Cluster("fabric", (DeviceType("device"),), tiers, machines, np.array(groups, np.int32), names)
    )


def placement_of(job: Job) -> Placement:
    """One device on each of the job's hosts."""
    return Placement.of_counts(dict.fromkeys(job.hosts, 1))


def collective_s(shape: Shape, job: Job) -> tuple[float, float]:
    """Return the modelled seconds of a job's all-reduce on an idle fabric, and the latencies among them."""
    where, arrays = placement_of(job), fabric_of(shape).arrays
    algorithm = _flow_kernels.FLAT if job.algorithm == "flat" else _flow_kernels.HIERARCHICAL
    _, _, sending_s, fixed_s = _flow_kernels.flow(
        float(job.message), 0.0, 0.0, algorithm, where.machines, where.counts, arrays
    )
    return float(sending_s + fixed_s), float(fixed_s)


def chosen(shape: Shape, job: Job) -> Job:
    """Return the job with the all-reduce that berth takes for it: the faster one."""
    flat, hierarchical = (replace(job, algorithm=name) for name in ALGORITHMS)
    return flat if collective_s(shape, flat)[0] < collective_s(shape, hierarchical)[0] else hierarchical


def regime(shape: Shape, job: Job) -> str:
    """Return the regime by the share of latency in the modelled all-reduce of one bucket."""
    bucket = replace(job, message=job.message // len(job.ready_s))
    total_s, latency_s = collective_s(shape, bucket)
    share = latency_s / total_s
    return REGIMES[0] if share >= LATENCY_BOUND else REGIMES[2] if share <= BANDWIDTH_BOUND else REGIMES[1]


def modelled_s(scenario: Scenario) -> list[float]:
    """Return berth's seconds of one iteration of each job."""
    shape, jobs = scenario.shape, scenario.jobs
    if scenario.group == "busy":
        fabric = fabric_of(shape)
        return [communication_s(job.traffic, placement_of(job), fabric) for job in jobs]
    if len(jobs) == 1:
        return [jobs[0].compute_s + collective_s(shape, jobs[0])[0]]
    links = SharedLinks(fabric_of(shape), len(jobs))
    for number, job in enumerate(jobs):
        links.add(number, job.traffic, placement_of(job))
    return [links.seconds(number) for number in range(len(jobs))]


def alone_seconds(shape: Shape, job: Job) -> float:
    """Return berth's seconds of one iteration while no other job sends."""
    return alone_s(job.traffic, flow_of(job.traffic, placement_of(job), fabric_of(shape)))


def fluid_s(scenario: Scenario) -> list[float]:
    """Return the mean seconds of one iteration of each job by the explicit simulation of shares, same offsets."""
    fabric = fabric_of(scenario.shape)
    jobs = [_sharing(job, flow_of(job.traffic, placement_of(job), fabric)) for job in scenario.jobs]
    capacity = fabric.arrays.capacity.tolist()
    runs = [iteration_seconds(jobs, capacity, offsets) for offsets in scenario.offsets]
    return [sum(run[number] for run in runs) / len(runs) for number in range(len(jobs))]


def _sharing(job: Job, flow: Flow) -> SharingJob:
    traffic = job.traffic
    return SharingJob(
        traffic.forward * traffic.compute_s,
        (1 - traffic.forward) * traffic.compute_s,
        flow.volume_bytes,
        flow.volume_bytes / flow.alone_comm_s,
        traffic.overlap,
        dict(zip(flow.links.tolist(), flow.weights.tolist(), strict=True)),
    )


def as_text(scenario: Scenario, offsets: Sequence[float]) -> str:
    """Return one run of a scenario for fabric.cc."""
    shape = scenario.shape
    settings = {
        "rate": f"{LINK_BITS_PER_S:.0f}",
        "delay": f"{LINK_S!r}",
        "racks": str(shape.racks),
        "hosts": str(shape.hosts),
        "spines": str(shape.spines),
        "oversubscription": str(shape.oversubscription),
        **dict(scenario.transport.settings),
    }
    lines = [f"{name} {value}" for name, value in settings.items()]
    if shape.paths:
        lines.append(" ".join(["paths", *map(str, shape.paths)]))
    iterations = scenario.iterations
    for job, start_s in zip(scenario.jobs, offsets, strict=True):
        ready = " ".join(f"{time_s:.9g}" for time_s in job.ready_s)
        lines.append(f"job {start_s:.9g} {job.compute_s:.9g} {iterations} {ready}")
        lines += [
            " ".join(map(str, ("ring", phase, steps, size, *hosts)))
            for phase, steps, size, hosts in rings(job, shape)
        ]
    return "\n".join(lines) + "\n"


def rings(job: Job, shape: Shape) -> list[tuple[int, int, int, tuple[int, ...]]]:
    """Return phase, steps, bytes of a step and hosts of each ring of one bucket.

    A hierarchical all-reduce is a reduce-scatter in every rack, one all-reduce between racks for each place in a rack,
    and an all-gather in every rack.
    """
    size = job.message / len(job.ready_s)
    n = len(job.hosts)
    racks = [
        tuple(host for host in job.hosts if host // shape.hosts == rack)
        for rack in dict.fromkeys(host // shape.hosts for host in job.hosts)
    ]
    inside = len(racks[0])
    if job.algorithm == "flat" or inside == 1 or len(racks) == 1:
        return [(0, 2 * (n - 1), _bytes(size / n), job.hosts)]
    across = [tuple(rack[place] for rack in racks) for place in range(inside)]
    near = [(inside - 1, _bytes(size / inside), rack) for rack in racks]
    far = [(2 * (len(racks) - 1), _bytes(size / inside / len(racks)), place) for place in across]
    return [(phase, *ring) for phase, stage in enumerate((near, far, near)) for ring in stage]


def _bytes(size: float) -> int:
    return max(1, round(size))


def scenarios() -> Iterator[Scenario]:
    """Every scenario of the study."""
    yield from one_job()
    yield from busy_fabric()
    yield from two_jobs()
    yield from other_transports()
    yield from hashed_paths()


def one_job() -> Iterator[Scenario]:
    """One all-reduce of all hosts, 2 racks and 4."""
    for racks, over, algorithm, size in product((2, 4), OVERSUBSCRIPTIONS, ALGORITHMS, SIZES):
        shape = Shape(racks, 4, over)
        job = Job(tuple(range(4 * racks)), size, algorithm)
        yield Scenario("one job", algorithm, shape, (job,))


def busy_fabric() -> Iterator[Scenario]:
    """As many jobs as a rack has hosts, each with one host per rack: all of them send over the up-links at once."""
    for over, size in product(OVERSUBSCRIPTIONS, SIZES[:-1]):
        shape = Shape(4, 4, over)
        jobs = tuple(Job(tuple(range(place, 16, 4)), size, "flat") for place in range(4))
        yield Scenario("busy", "flat", shape, jobs, offsets=((0.0,) * 4,))


def two_jobs() -> Iterator[Scenario]:
    """Two jobs with hosts in both racks; equal messages and a quarter, computing then sending, or overlapping."""
    for hosts, over, compute, part, overlaps in product(
        (2, 4), OVERSUBSCRIPTIONS, COMPUTE, (1, 4), (False, True)
    ):
        for size in PAIR_SIZES[-1:] if overlaps else PAIR_SIZES:
            yield pair(Shape(2, hosts, over), size, part, compute, overlaps)


def pair(shape: Shape, size: int, part: int, compute: float, overlaps: bool) -> Scenario:
    """Two jobs, each with half of the hosts of each rack; the second one's message is `size / part`."""
    half = shape.hosts // 2
    first = tuple(rack * shape.hosts + host for rack in range(2) for host in range(half))
    second = tuple(host + half for host in first)
    longest_s = collective_s(shape, chosen(shape, Job(first, size, "flat")))[0]
    jobs = tuple(
        chosen(shape, Job(hosts, message, "flat", compute * longest_s, overlaps))
        for hosts, message in ((first, size), (second, size // part))
    )
    period_s = alone_seconds(shape, jobs[1])
    offsets = tuple((0.0, (number + 0.5) / OFFSETS * period_s) for number in range(OFFSETS))
    kind = f"{'overlapping' if overlaps else 'in turn'}, {'equal' if part == 1 else 'unequal'}"
    return Scenario("two jobs", kind, shape, jobs, offsets=offsets)


def other_transports() -> Iterator[Scenario]:
    """What the choice of the transport changes, where up-links are narrow."""
    for transport in TRANSPORTS:
        shape = Shape(2, 4, 4)
        for algorithm, size in product(ALGORITHMS, (256 * KIB, 4 * MIB)):
            job = Job(tuple(range(8)), size, algorithm)
            yield Scenario("transport", "one job", shape, (job,), transport)
        for part in (1, 4):
            together = pair(shape, PAIR_SIZES[-1], part, COMPUTE[0], False)
            yield replace(together, group="transport", kind="two jobs", transport=transport)


def hashed_paths() -> Iterator[Scenario]:
    """Four spines instead of one, with the same capacity in all; each host's packets take a spine at random."""
    random = np.random.default_rng(1)
    for _ in range(8):
        paths = tuple(int(spine) for spine in random.integers(0, 4, 8))
        for over in (1, 2):
            shape = Shape(2, 4, over, 4, paths)
            for algorithm in ALGORITHMS:
                job = Job(tuple(range(8)), 4 * MIB, algorithm)
                yield Scenario("hashed", algorithm, shape, (job,))
