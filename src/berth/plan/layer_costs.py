"""What every layer computes, moves and holds on a device type with a place for its tables.

- A device sends and receives over its share of its machine's NIC: all its traffic together, each direction apart.
- Computation is the profile's curve over the examples of a call; a CPU worker also packs and unpacks its rows, on the
  same core. The optimiser step comes once per step.
- Sync: replicas of a stage all-reduce dense gradients after the backward pass (`berth.network`, as many replicas per
  machine as fit). Async: each replica has its own batch, and pulls and pushes dense parameters like rows.
- Tables are on parameter servers, on servers that keep cold rows on disk, or in the memory of the stage's own
  devices, within one machine or over all replicas. Servers and readers are cores that the plan sizes and pays for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.plan.problem import (
    COMPUTE,
    EXAMPLE_BYTES,
    EXCHANGE,
    HAS_TABLES,
    HELD_BYTES,
    IN,
    OPTIMISER_S,
    OUT,
    SERVED_BYTES,
    SERVER_CPU,
    SERVER_NIC,
    SHARDED_BYTES,
    SYNC_BYTES,
    Choice,
)
from berth.plan.profile.layer_profile import DENSE_COPIES, INDEX_BYTES, SPARSE_COPIES, LayerFacts, along
from berth.plan.rented import RENTED, Rented
from berth.plan.world import (
    COLD_LOOKUPS,
    DISK,
    HOT_ROWS,
    KEY_BYTES,
    MACHINE,
    MESSAGE_S,
    REPLICAS,
    SYNC,
    UTILISATION,
    ProblemSource,
)

Floats = NDArray[np.float64]

_ASYNC_COPIES = 2  # weights and gradients: servers hold the moments
_DENSE_ROW_BYTES = 1024  # dense parameters on servers are rows of this size


class LayerCosts:
    """Writes the facts and curves of layers; a step of all replicas (sync) or of one (async) has `batch` examples."""

    def __init__(self, source: ProblemSource, batch: float) -> None:
        self.source, self.profile, self.rates = source, source.profile, source.rates
        self.is_sync, self.batch = source.options.mode == SYNC, batch
        known = np.array(self.profile.batches, float)
        self.grid = np.array([0.0, batch]) if not self.is_sync else np.concatenate([[0.0], known])
        self.calls = np.array([batch]) if not self.is_sync else known
        self.host_share = _host_share(source)
        profiled = [
            layer.sparse_bytes / layer.row_bytes if layer.touched_bytes else 0.0
            for layer in self.profile.layers
        ]
        self.table_bytes = [
            source.rows * rows / (sum(profiled) or 1.0) * (SPARSE_COPIES * layer.row_bytes + INDEX_BYTES)
            for rows, layer in zip(profiled, self.profile.layers, strict=True)
        ]

    def fill(self, choice: Choice, facts: Floats, curves: Floats, cross: Floats, message: Floats) -> None:
        """Write the facts, curves and crossings of all layers for one choice."""
        one = self.source.rented[choice.device]
        times = self.profile.on(one.device)
        compute_s = times.compute_s
        if one.device.kind == "cpu":
            compute_s = compute_s * self._slowdown()
        self._fill_crossings(one, cross, message)
        for row, layer in enumerate(self.profile.layers):
            batch = self.profile.batch
            copies = DENSE_COPIES if self.is_sync else _ASYNC_COPIES
            facts[row, HELD_BYTES] = copies * layer.dense_bytes
            example_bytes = layer.activation_bytes / batch
            if self.is_sync:
                facts[row, OPTIMISER_S] = times.step_s[row]
                facts[row, SYNC_BYTES] = layer.dense_bytes
                facts[row, EXAMPLE_BYTES] = example_bytes
            else:
                facts[row, HELD_BYTES] += example_bytes * self.batch
            self._fill_compute(curves[row], compute_s[row])
            if row == 0:
                self._fill_loop(curves[row])
                self._add(curves[row], IN, self.calls * layer.input_bytes / batch / one.nic_bytes_per_s)
            if layer.touched_bytes:
                self._fill_tables(choice, one, row, facts[row], curves[row])
            if not self.is_sync and layer.dense_bytes:
                self._fill_dense_on_servers(one, layer, facts[row], curves[row])

    def _slowdown(self) -> Floats:
        """Return how much longer a core computes while the other cores of its machine do too, at each batch known."""
        moved = sum(layer.moved_bytes for layer in self.profile.layers) / self.profile.batch
        return np.array([self.rates.compute_slowdown(moved * batch) for batch in self.profile.batches])

    def _fill_crossings(self, one: Rented, cross: Floats, message: Floats) -> None:
        """Write what a boundary after each layer costs: the NIC, and on a CPU core packing and unpacking."""
        copy_s = self.rates.stage_byte_s if one.device.kind == "cpu" else 0.0
        call_s = self.rates.stage_call_s if one.device.kind == "cpu" else 0.0
        for row, layer in enumerate(self.profile.layers[:-1]):
            both = np.array([layer.output_bytes, layer.gradient_bytes]) / self.profile.batch
            cross[row, :2] = both / one.nic_bytes_per_s
            cross[row, 2] = both.sum() * copy_s
        if self.is_sync:
            message[:] = MESSAGE_S, call_s
        else:  # one call for every batch of a replica; a stage that is not the first one has a loop of its own
            cross[:-1, :2] += MESSAGE_S / self.batch
            cross[:-1, 2] += (call_s + self.rates.worker_step_s / 2) / self.batch

    def _fill_compute(self, curves: Floats, seconds: Floats) -> None:
        known = np.array(self.profile.batches, float)
        if not self.is_sync:
            self._add(curves, COMPUTE, np.array([along(known, seconds, self.batch)]))
            return
        curves[COMPUTE, 0] = max(0.0, float(along(known, seconds, 0.0)))
        curves[COMPUTE, 1:] = seconds

    def _fill_loop(self, curves: Floats) -> None:
        """Add the loop around the model for every example; once per step, it is in `loop_s` of a sync problem."""
        per_step = 0.0 if self.is_sync else self.rates.worker_step_s
        self._add(curves, COMPUTE, self.calls * self.rates.worker_example_s + per_step)

    def _add(self, curves: Floats, which: int, at_calls: Floats, per_call: float = 0.0) -> None:
        """Add seconds at the calls of the grid; `per_call` is also there for the smallest call."""
        if self.is_sync:
            curves[which, 0] += per_call
        curves[which, 1:] += at_calls + per_call

    def _rows_of(self, layer: LayerFacts) -> Floats:
        """Return the distinct rows of each call."""
        return np.array([layer.touched_rows(float(call), self.profile.batch) for call in self.calls])

    def _fill_tables(self, choice: Choice, one: Rented, row: int, facts: Floats, curves: Floats) -> None:
        layer, rates = self.profile.layers[row], self.rates
        rows, width = self._rows_of(layer), layer.row_bytes
        lookups = np.array([layer.looked_up_rows(float(call), self.profile.batch) for call in self.calls])
        facts[HAS_TABLES] = 1.0
        row_bytes = rows * (width + KEY_BYTES)
        is_cpu = one.device.kind == "cpu"
        if choice.tables in (MACHINE, REPLICAS):
            facts[SHARDED_BYTES] = self.table_bytes[row]
            rate = one.link_bytes_per_s if choice.tables == MACHINE else one.nic_bytes_per_s
            # Rows that it asks for and gradients of its own shard come in, rows for others and gradients go out.
            self._add(curves, EXCHANGE, 2 * row_bytes / rate)
            if is_cpu:
                local = lookups * rates.local_lookup_s(width) + rows * rates.local_row_s(width)
                self._add(curves, COMPUTE, local, rates.local_call_s)
            return
        facts[SERVED_BYTES] = self.table_bytes[row] * (HOT_ROWS if choice.tables == DISK else 1.0)
        self._add(curves, IN, row_bytes / one.nic_bytes_per_s)
        self._add(curves, OUT, (row_bytes + rows * KEY_BYTES) / one.nic_bytes_per_s)
        packing = lookups * rates.client_lookup_s(width) + rows * rates.client_row_s(width)
        if is_cpu:
            self._add(curves, COMPUTE, packing, rates.client_call_s)
        else:  # the cores of its machine pack rows while the device waits for them
            self._add(curves, IN, packing / one.cores, rates.client_call_s)
        serving = rows * (rates.server_pull_s_per_row(width) + rates.server_push_s_per_row(width))
        if choice.tables == DISK:
            serving = serving + rows * COLD_LOOKUPS * rates.disk_row_s
        self._add(curves, SERVER_CPU, serving / UTILISATION, rates.server_call_s / UTILISATION)
        self._add(curves, SERVER_NIC, (row_bytes + rows * KEY_BYTES) / self.host_share / UTILISATION)

    def _fill_dense_on_servers(self, one: Rented, layer: LayerFacts, facts: Floats, curves: Floats) -> None:
        """Async: dense parameters are pulled and pushed with every batch of a replica."""
        rates, bytes_ = self.rates, np.array([float(layer.dense_bytes)])
        rows = bytes_ / layer.row_bytes if layer.touched_bytes else bytes_ / _DENSE_ROW_BYTES
        width = layer.row_bytes if layer.touched_bytes else _DENSE_ROW_BYTES
        facts[SERVED_BYTES] += 3 * layer.dense_bytes  # with Adam's moments
        self._add(curves, IN, bytes_ / one.nic_bytes_per_s)
        self._add(curves, OUT, bytes_ / one.nic_bytes_per_s)
        packing = rows * (rates.client_lookup_s(width) + rates.client_row_s(width))
        is_cpu = one.device.kind == "cpu"
        self._add(curves, COMPUTE if is_cpu else IN, packing if is_cpu else packing / one.cores)
        serving = rows * (rates.server_pull_s_per_row(width) + rates.server_push_s_per_row(width))
        self._add(curves, SERVER_CPU, serving / UTILISATION)
        self._add(curves, SERVER_NIC, bytes_ / self.host_share / UTILISATION)


def _host_share(source: ProblemSource) -> float:
    if source.host is not None:
        return source.host.nic_bytes_per_s
    devices, nic, _ = RENTED["cpu"]
    return source.options.nic_share or nic / devices
