"""Calculations by hand: a profile, data sheets and divisions, and none of the planner's code."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from berth.cluster.load import load_cluster
from berth.cluster.model import Machine
from berth.plan.plan import Plan, Stage
from berth.plan.profile.host import host_rates
from berth.plan.profile.layer_profile import LayerFacts, LayerProfile
from berth.plan.request import ROWS

CLUSTER = "cloud-mix"
CORE = "cpu-core"
KEY_BYTES, INDEX_BYTES = 8, 58  # of a key in a message; of a row in a server's index
BUSY = 0.7  # share of servers, readers and their NICs that is planned with


@dataclass(frozen=True)
class ByHand:
    """Devices that a stage needs at least at a rate, by plain arithmetic: each reason alone."""

    compute: float
    nic: float
    memory: float

    @property
    def devices(self) -> int:
        """The largest of them, rounded up."""
        return ceil(max(self.compute, self.nic, self.memory, 1e-9) * (1 - 1e-9))

    @property
    def reason(self) -> str:
        """Which of them is the largest."""
        return max(("compute", "nic", "memory"), key=lambda name: getattr(self, name)).replace("nic", "NIC")


@dataclass(frozen=True)
class Envelope:
    """What one example needs, by a profile alone."""

    rows: float  # distinct ones in a batch, per example
    row_bytes: float  # of rows and keys, each way
    input_bytes: float
    flops: float  # forward and backward
    table_bytes: float  # of all tables, with accumulators and index
    dense_bytes: float


def envelope(profile: LayerProfile) -> Envelope:
    """Return what one example of a model needs."""
    layers, batch = profile.layers, profile.batch
    return Envelope(
        rows=sum(layer.touched_bytes / layer.row_bytes for layer in layers) / batch,
        row_bytes=moved_bytes(layers) / batch,
        input_bytes=layers[0].input_bytes / batch,
        flops=sum(layer.flops for layer in layers) / batch,
        table_bytes=held_bytes(profile, layers),
        dense_bytes=sum(layer.dense_bytes for layer in layers),
    )


def moved_bytes(layers: tuple[LayerFacts, ...], key_bytes: int = KEY_BYTES) -> float:
    """Return the bytes of a batch's distinct rows with their keys."""
    return sum(layer.touched_bytes / layer.row_bytes * (layer.row_bytes + key_bytes) for layer in layers)


def held_bytes(profile: LayerProfile, layers: tuple[LayerFacts, ...]) -> float:
    """Return the bytes of tables: rows, AdaGrad's accumulators and index."""
    count = profile.rows or ROWS
    sparse = sum(layer.sparse_bytes for layer in profile.layers) or 1
    return sum(
        count * layer.sparse_bytes / sparse * (2 * layer.row_bytes + INDEX_BYTES)
        for layer in layers
        if layer.touched_bytes
    )


def seconds_per_example(profile: LayerProfile, device: str, first: int = 0, last: int | None = None) -> float:
    """Return the computation of one example at the batch at which it is fastest."""
    times, end = profile.on(device), len(profile.layers) if last is None else last + 1
    return min(float(times.at(batch)[first:end].sum()) / batch for batch in profile.batches)


def machine_of(device: str) -> Machine:
    """Return the machine that has a device."""
    cluster = load_cluster(CLUSTER)
    return next(
        machine for machine in cluster.machines
        if device in [cluster.device_types[kind].name for kind, _ in machine.devices]
    )  # fmt: skip


def nic_share(device: str) -> float:
    """Return the bytes per second of a device: those of its machine's NIC over its devices."""
    machine = machine_of(device)
    return (machine.nic_bytes_per_s or 0.0) / machine.size


def memory_of(device: str) -> float:
    """Return the bytes of a device, or a core's share of its machine's."""
    own = {one.name: one.memory_bytes or 0.0 for one in load_cluster(CLUSTER).device_types}[device]
    machine = machine_of(device)
    return own or (machine.memory_bytes or 0.0) / machine.size


def by_hand(plan: Plan, stage: Stage) -> ByHand:
    """Return what a stage needs at least at the plan's throughput."""
    profile = profile_of(plan)
    layers = profile.layers[stage.first : stage.last + 1]
    # A device with a part of the tables also serves the others; inside one machine its NIC carries no rows.
    ways = {"machine": 0, "replicas": 2}.get(stage.tables or "", 1)
    bytes_ = ways * moved_bytes(layers)
    if stage.first == 0:
        bytes_ += layers[0].input_bytes
    if stage.last + 1 < len(profile.layers):
        bytes_ += layers[-1].gradient_bytes
    if is_async(plan):  # parameters are pulled with every batch
        bytes_ += sum(layer.dense_bytes for layer in layers)
    held = held_bytes(profile, layers) if stage.tables in ("machine", "replicas") else 0.0
    rate, device = plan.throughput, stage.type_name
    return ByHand(
        compute=rate * seconds_per_example(profile, device, stage.first, stage.last),
        nic=rate * bytes_ / profile.batch / nic_share(device),
        memory=held / memory_of(device),
    )


def server_cores(plan: Plan) -> float:
    """Return the cores that servers need at least, for their NICs or their memory."""
    profile = profile_of(plan)
    bytes_ = held = 0.0
    for stage in plan.stages:
        layers = profile.layers[stage.first : stage.last + 1]
        if stage.tables in ("servers", "disk"):
            bytes_ += moved_bytes(layers, 2 * KEY_BYTES)
            held += held_bytes(profile, layers) if stage.tables == "servers" else 0.0
        if is_async(plan):
            bytes_ += sum(layer.dense_bytes for layer in layers)
    return max(plan.throughput * bytes_ / profile.batch / nic_share(CORE) / BUSY, held / memory_of(CORE))


def reader_cores(plan: Plan) -> float:
    """Return the cores that readers need at least, for decoding or for their NICs."""
    profile = profile_of(plan)
    per_core = min(host_rates().decode_bytes_per_s["parquet"], nic_share(CORE))
    return plan.throughput * profile.layers[0].input_bytes / profile.batch / per_core / BUSY


def is_async(plan: Plan) -> bool:
    """Return whether each replica trains on batches of its own."""
    return plan.problem.source is not None and plan.problem.source.options.mode == "async"


def profile_of(plan: Plan) -> LayerProfile:
    """Return the profile that a plan was made from."""
    assert plan.problem.source is not None
    return plan.problem.source.profile
