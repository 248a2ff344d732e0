"""All-reduces message by message: which of them may start while others use their links (AdaDUAL, arXiv 2002.10105).

Jobs compute, then reduce a message over the network cards of their machines, iteration by iteration. An all-reduce of M
bytes takes a + k b M + (k - 1) e M seconds while it and k - 1 others use its busiest card: b seconds per byte alone, e
more for every byte and rival. A gate decides, message by message, whether one that is ready starts or waits:

    SRSF(1)    never beside another; SRSF(2): beside one at most; SRSF(n): always
    Ada-SRSF   beside one other, if M_new / M_old < b / (2 (b + e)); never beside two

Messages that wait are taken in order of least remaining service. Jobs start in that order too, on devices of their own,
where a gang of at most k devices is scattered over the emptiest machines and a larger one fills them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

MACHINES, GPUS = 16, 4
BYTES_PER_S = 1.25e9  # 10 GbE
LATENCY_S = 1e-3
JOBS = 120
LOAD = 0.9  # of the devices, by what jobs take alone
# Devices are not shared, so only gangs that do not fill their machines share network cards.
SIZES, WEIGHTS = (1, 2, 3, 5, 6, 10, 14), (0.15, 0.1, 0.15, 0.2, 0.2, 0.1, 0.1)
# bytes: from a small convolutional net's to that of one with large dense layers
MESSAGES = 25e6, 100e6, 250e6, 550e6


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of an all-reduce: `a` whatever its size, `b` per byte, `e` more per byte and rival."""

    a: float
    b: float
    e: float

    def per_byte(self, sharing: int) -> float:
        """Return the seconds of a byte while this many all-reduces use a card, itself included."""
        return sharing * self.b + (sharing - 1) * self.e

    @property
    def threshold(self) -> float:
        """AdaDUAL's: the share of the other's message below which joining pays."""
        return self.b / (2 * (self.b + self.e))


Gate = Callable[[float, Sequence[Sequence[float]], Cost], bool]  # its message, those on each of its cards


def at_most(others: int) -> Gate:
    """Start beside this many others on every card."""
    return lambda message, cards, cost: all(len(card) <= others for card in cards)


def adaptive(message: float, cards: Sequence[Sequence[float]], cost: Cost) -> bool:
    """Start beside one other where its message is large enough."""
    return all(len(card) == 0 or (len(card) == 1 and message / card[0] < cost.threshold) for card in cards)


GATES: dict[str, Gate] = {
    "SRSF(1)": at_most(0),
    "SRSF(2)": at_most(1),
    "SRSF(n)": lambda message, cards, cost: True,
    "Ada-SRSF": adaptive,
}


@dataclass(frozen=True, slots=True)
class Job:
    """A gang and its iterations."""

    gpus: int
    arrival_s: float
    compute_s: float  # of one iteration
    message: float  # bytes
    iterations: int


@dataclass(slots=True)
class Running:
    """A job on its machines."""

    number: int
    job: Job
    machines: dict[int, int]  # devices by machine
    left: int  # iterations
    latency_s: float = 0.0  # of its all-reduce, still to pass
    unsent: float = 0.0  # bytes

    @property
    def sends(self) -> bool:
        """Whether its machines exchange anything over the network."""
        return len(self.machines) > 1 and self.job.message > 0


@dataclass(slots=True)
class Cluster:
    """Simulated state; `run` returns when every job has ended."""

    jobs: Sequence[Job]
    gate: Gate
    cost: Cost
    k: int = 1
    machines: int = MACHINES
    gpus: int = GPUS
    now_s: float = 0.0
    free: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)  # jobs without devices
    held: list[Running] = field(default_factory=list)  # messages that wait
    sending: list[Running] = field(default_factory=list)
    ends_s: dict[int, float] = field(default_factory=dict)
    # arrivals; ends of computations
    events: list[tuple[float, int, Running | None]] = field(default_factory=list)

    def run(self) -> list[float]:
        """Return the completion time of each job, from its arrival."""
        self.free = [self.gpus] * self.machines
        for number, job in enumerate(self.jobs):
            if job.gpus > self.machines * self.gpus:
                raise ValueError(f"job {number} needs {job.gpus} devices of {self.machines * self.gpus}")
            heapq.heappush(self.events, (job.arrival_s, number, None))
        while self.events or self.sending:
            self._step()
        return [self.ends_s[number] - job.arrival_s for number, job in enumerate(self.jobs)]

    def _step(self) -> None:
        rates = {one.number: self.cost.per_byte(self._sharing(one)) for one in self.sending}
        next_s = self.events[0][0] if self.events else math.inf
        for one in self.sending:
            next_s = min(next_s, self.now_s + one.latency_s + one.unsent * rates[one.number])
        self._send(next_s - self.now_s, rates)
        self.now_s = next_s
        for one in [one for one in self.sending if one.unsent <= 1e-6 * one.job.message]:
            self.sending.remove(one)
            self._iterated(one)
        while self.events and self.events[0][0] <= self.now_s:
            _, number, computed = heapq.heappop(self.events)
            if computed is None:
                self.waiting.append(number)
            elif computed.sends:
                self.held.append(computed)
            else:
                self._iterated(computed)
        self._start_jobs()
        self._start_messages()

    def _send(self, step_s: float, rates: dict[int, float]) -> None:
        for one in self.sending:
            waited_s = min(one.latency_s, step_s)
            one.latency_s -= waited_s
            one.unsent -= (step_s - waited_s) / rates[one.number]

    def _sharing(self, one: Running) -> int:
        """All-reduces on its busiest card, itself included."""
        return max(sum(machine in other.machines for other in self.sending) for machine in one.machines)

    def _iterated(self, one: Running) -> None:
        one.left -= 1
        if one.left > 0:
            self._compute(one)
            return
        self.ends_s[one.number] = self.now_s
        for machine, devices in one.machines.items():
            self.free[machine] += devices

    def _compute(self, one: Running) -> None:
        heapq.heappush(self.events, (self.now_s + one.job.compute_s, one.number, one))

    def _start_jobs(self) -> None:
        for number in sorted(
            self.waiting, key=lambda number: (service_s(self.jobs[number], self.cost), number)
        ):
            job = self.jobs[number]
            machines = place(job.gpus, self.free, self.k)
            if machines:
                self.waiting.remove(number)
                for machine, devices in machines.items():
                    self.free[machine] -= devices
                self._compute(Running(number, job, machines, job.iterations))

    def _start_messages(self) -> None:
        for one in sorted(self.held, key=lambda one: (service_s(one.job, self.cost, one.left), one.number)):
            cards = [
                [other.job.message for other in self.sending if machine in other.machines]
                for machine in one.machines
            ]
            if self.gate(one.job.message, cards, self.cost):
                self.held.remove(one)
                one.latency_s, one.unsent = self.cost.a, one.job.message
                self.sending.append(one)


def service_s(job: Job, cost: Cost, left: int | None = None) -> float:
    """Return the device seconds that a job still takes while no other sends."""
    message_s = cost.a + cost.b * job.message if job.gpus > 1 else 0.0
    return job.gpus * (job.iterations if left is None else left) * (job.compute_s + message_s)


def place(gpus: int, free: Sequence[int], k: int) -> dict[int, int]:
    """Return the devices to take of each machine, or none: LWF-k where devices are not shared."""
    if gpus > sum(free):
        return {}
    left, taken = list(free), dict[int, int]()
    while gpus > 0:
        machine = max(range(len(left)), key=lambda number: (left[number], -number))
        devices = 1 if sum(taken.values()) + gpus <= k else min(gpus, left[machine])
        taken[machine] = taken.get(machine, 0) + devices
        left[machine] -= devices
        gpus -= devices
    return taken


def workload(seed: int, cost: Cost, jobs: int = JOBS) -> list[Job]:
    """Return random jobs whose arrivals load the devices to LOAD."""
    random = np.random.default_rng(seed)
    made, now_s = [], 0.0
    for _ in range(jobs):
        gpus = int(random.choice(SIZES, p=WEIGHTS))
        compute_s, message = float(random.uniform(0.1, 0.6)), float(random.choice(MESSAGES))
        job = Job(gpus, now_s, compute_s, message, int(random.integers(50, 400)))
        made.append(job)
        now_s += float(random.exponential(service_s(job, cost) / (LOAD * MACHINES * GPUS)))
    return made


def mean_jct_s(gate: str, seed: int, penalty: float, k: int = 1, jobs: int = JOBS) -> float:
    """Return the mean completion time; `penalty` is e / b."""
    b = 1 / BYTES_PER_S
    cost = Cost(LATENCY_S, b, penalty * b)
    return float(np.mean(Cluster(workload(seed, cost, jobs), GATES[gate], cost, k).run()))
