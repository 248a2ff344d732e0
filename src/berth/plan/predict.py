"""Predicts the seconds of one synchronous training step from layer curves and host rates alone.

The steps of a worker, as `berth.train` runs them: rows of the batch (asked for at the end of the step before) are
spread, forward and backward, gradients of rows are summed and pushed together with the request for the next rows;
while servers update and look up, dense gradients are all-reduced and dense weights updated. Servers start when the
last worker has pushed. A thread reads the next batches meanwhile. So a step has two phases, the second one from the
last push to the next rows; in each of them threads share the cores if there are fewer cores than busy threads. Then a
process that gets an answer also waits until another one gives up its core.
"""

from __future__ import annotations

from dataclasses import dataclass

from berth.plan.profile.host import HostRates
from berth.plan.profile.layer_profile import INDEX_BYTES, SPARSE_COPIES, DeviceTimes, LayerFacts, LayerProfile

CORE = "cpu-core"
HANDOVER_S = 3e-3  # fitted where processes outnumber cores: about a tick of Linux's scheduler, 4 ms at 250 Hz


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """Seconds of one step, by part; CPU seconds are those of one process of the role."""

    step_s: float
    worker_cpu_s: float  # of the thread that trains
    server_cpu_s: float
    reader_cpu_s: float  # of the thread that reads, in every worker
    cores_s: float  # all CPU seconds over the cores
    compute_s: float
    rows_s: float
    allreduce_s: float
    optimiser_s: float


def worker_rows_s(
    rates: HostRates, lookups: float, rows: float, row_bytes: float, servers: int, new_share: float = 0.0
) -> float:
    """Return the CPU seconds of a worker for one table: look-ups with repetitions, and distinct rows of its batch."""
    if servers:
        per_row = rates.client_lookup_s(row_bytes) * lookups + rates.client_row_s(row_bytes) * rows
        return per_row + rates.client_call_s * servers
    per_row = rates.local_row_s(row_bytes) + new_row_s(rates, row_bytes) * new_share
    return rates.local_lookup_s(row_bytes) * lookups + per_row * rows + rates.local_call_s


def server_rows_s(rates: HostRates, rows: float, row_bytes: float, new_share: float = 0.0) -> float:
    """Return the CPU seconds of a server for rows of one table that a worker pulls from it and pushes to it."""
    each = rates.server_pull_s_per_row(row_bytes) + rates.server_push_s_per_row(row_bytes)
    return rows * (each + new_row_s(rates, row_bytes) * new_share)


def new_row_s(rates: HostRates, row_bytes: float) -> float:
    """Return the CPU seconds that a row costs more if it has to be created."""
    return rates.new_row_s(row_bytes) + rates.fresh_byte_s * (SPARSE_COPIES * row_bytes + INDEX_BYTES)


def allreduce_s(rates: HostRates, dense_bytes: float, workers: int) -> float:
    """Return the CPU seconds of each worker of a machine to sum dense gradients; every worker reads all parts."""
    if workers < 2:
        return 0.0
    return rates.allreduce_call_s + dense_bytes * (1 + workers) / 3 / rates.allreduce_bytes_per_s


def read_s(rates: HostRates, input_bytes: float, file_format: str = "parquet") -> float:
    """Return the CPU seconds of a reader for the examples of a step."""
    return input_bytes / rates.decode_bytes_per_s[file_format]


def loop_s(rates: HostRates, examples: float) -> float:
    """Return the CPU seconds of a worker's loop around the model for one step."""
    return rates.worker_step_s + rates.worker_example_s * examples


def sparse_layers(profile: LayerProfile) -> tuple[LayerFacts, ...]:
    """Return the layers with tables."""
    return tuple(layer for layer in profile.layers if layer.touched_bytes)


def predict_step(
    profile: LayerProfile,
    rates: HostRates,
    workers: int,
    servers: int,
    batch: int,
    cores: int,
    *,
    reader_s: float | None = None,
    new_share: float = 0.0,
    times: DeviceTimes | None = None,
    host_share: float = 1.0,
) -> StepPrediction:
    """Return the seconds of a step in which each of `workers` trains on `batch` examples.

    `servers` 0 means tables in the only worker. `reader_s` is the CPU time of reading a worker's batch, by default
    that of Parquet; `new_share` is the share of distinct rows that do not exist yet. `times` are those of the device
    that computes, by default a core of this machine; during `host_share` of them a core is busy.
    """
    core = times or profile.on(CORE)
    tables = sparse_layers(profile)
    rows = [layer.touched_rows(batch, profile.batch) for layer in tables]
    rows_s = sum(
        worker_rows_s(
            rates, layer.looked_up_rows(batch, profile.batch), count, layer.row_bytes, servers, new_share
        )
        for layer, count in zip(tables, rows, strict=True)
    )
    compute = float(core.at(batch).sum())
    optimiser = sum(core.step_s)
    summing = allreduce_s(rates, sum(layer.dense_bytes for layer in profile.layers), workers)
    loop = loop_s(rates, batch)
    worker = compute + rows_s + summing + optimiser + loop
    worker_cpu = worker - (compute + optimiser) * (1 - host_share)
    server = 0.0
    if servers:
        server = workers * sum(
            server_rows_s(rates, count / servers, layer.row_bytes, new_share)
            for layer, count in zip(tables, rows, strict=True)
        )
        server += workers * rates.server_call_s
    reader = reader_s if reader_s is not None else read_s(rates, input_bytes(profile, batch))
    hidden = summing + optimiser + loop  # what a worker does while servers update and look up
    hidden_cpu = hidden - optimiser * (1 - host_share)
    front = max(worker - hidden, workers * (worker_cpu - hidden_cpu) / cores)
    back = max(hidden, server, (workers * hidden_cpu + servers * server) / cores)
    total = workers * (worker_cpu + reader) + servers * server
    waiting = HANDOVER_S if servers and workers + servers > cores else 0.0
    return StepPrediction(
        step_s=max(front + back, reader, total / cores) + waiting,
        worker_cpu_s=worker_cpu,
        server_cpu_s=server,
        reader_cpu_s=reader,
        cores_s=total / cores,
        compute_s=compute,
        rows_s=rows_s,
        allreduce_s=summing,
        optimiser_s=optimiser,
    )


def input_bytes(profile: LayerProfile, examples: float) -> float:
    """Return the bytes of the tensors of this many examples."""
    return profile.layers[0].input_bytes * examples / profile.batch
