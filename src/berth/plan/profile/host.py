"""What one CPU core of a machine does around the computation of a training step: rows, messages, reading, all-reduce.

The rates are CPU seconds of berth's own training code (`berth.train.measure` measures them), so that they add up
with the computation of a layer profile. Seconds per row are affine in the bytes of a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field

from berth.plan.profile.here import folder
from berth.plan.profile.layer_profile import INDEX_BYTES, SPARSE_COPIES
from berth.plan.yaml_text import yaml_value
from berth.spec import Spec, load, parse, write_text
from berth.workload.profile import Provenance

FILE = "host.yaml"


Rate = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]
Factor = Annotated[float, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class PerRow:
    """Seconds per row, affine in its bytes."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    row_s: Seconds
    byte_s: Seconds

    def __call__(self, row_bytes: float) -> float:
        """Return the seconds of one row of this many bytes."""
        return self.row_s + self.byte_s * row_bytes


def _stated(source: Any) -> Any:
    """A source without a kind is stated, one without a note has an empty one."""
    return {"kind": "stated", "note": ""} | source if isinstance(source, dict) else source


class HostRates(Spec):
    """CPU seconds on one core. Row bytes are those of the weights alone, without optimiser state."""

    source: Annotated[Provenance, BeforeValidator(_stated)]
    server_pull_s_per_row: PerRow  # of a server, for a distinct row of a worker that it looks up and sends
    server_push_s_per_row: PerRow  # of a server, for one that it receives and updates
    server_call_s: Seconds  # of a server, for the messages of one step of one worker
    client_row_s: PerRow  # of a worker, for a distinct row that it pulls and pushes
    client_lookup_s: PerRow  # of a worker, for every look-up: dedup, spreading rows, adding gradients
    client_call_s: Seconds  # of a worker, for the messages of one step to one server
    local_row_s: PerRow  # tables in the worker's process: look-up and update of a distinct row
    local_lookup_s: PerRow  # and for every look-up
    local_call_s: Seconds  # and for each table in a step
    new_row_s: PerRow  # more, wherever the table is, for a row that did not exist
    fresh_byte_s: Seconds  # and for each byte of memory that it takes
    worker_step_s: Seconds  # of a worker, per step: the loop around the model
    worker_example_s: Seconds  # and per example: loss, metrics
    # by format, of the tensors that one reader core parses
    decode_bytes_per_s: Annotated[dict[str, Rate], Field(min_length=1)]
    allreduce_call_s: Seconds  # of each worker of a machine, per all-reduce through shared memory
    allreduce_bytes_per_s: Rate  # gradients of one worker that two workers sum, per CPU second of each
    disk_row_s: Seconds  # of a cold row that is read from disk and written back
    # Not in files of older versions:
    stage_call_s: Seconds = 0.0  # of a stage, for a micro-batch at one boundary: a message sent, one received
    stage_byte_s: Seconds = 0.0  # and for each byte of them
    # of work on rows and messages while all other cores of the machine do the same
    row_slowdown: Factor = 1.0
    # of computing likewise, by the bytes that a call moves
    compute_slowdown_at: Annotated[dict[float, Factor], Field(min_length=1)] = {1e6: 1.0}  # noqa: RUF012

    def compute_slowdown(self, moved_bytes: float) -> float:
        """Return how many times longer a call that moves this many bytes takes while all other cores compute."""
        points = sorted(self.compute_slowdown_at.items())
        sizes = np.log([size for size, _ in points])
        return float(np.interp(math.log(max(moved_bytes, 1.0)), sizes, [factor for _, factor in points]))

    def with_busy_cores(self, share: float) -> HostRates:
        """Return the rates while this share of the other cores is busy; its `compute_slowdown` is of that share."""
        factor = 1 + (self.row_slowdown - 1) * share
        changed: dict[str, Any] = {}
        for name in _SLOWED:
            rate = getattr(self, name)
            slower = (
                PerRow(rate.row_s * factor, rate.byte_s * factor)
                if isinstance(rate, PerRow)
                else rate * factor
            )
            changed[name] = slower
        computing = {size: 1 + (slow - 1) * share for size, slow in self.compute_slowdown_at.items()}
        changed |= {"row_slowdown": 1.0, "compute_slowdown_at": computing}
        return self.model_copy(update=changed)

    def with_new_rows(self, share: float) -> HostRates:
        """Return the rates where this share of the distinct rows has to be created."""

        def more(rate: PerRow) -> PerRow:
            row_s = self.new_row_s.row_s + self.fresh_byte_s * INDEX_BYTES
            byte_s = self.new_row_s.byte_s + self.fresh_byte_s * SPARSE_COPIES
            return PerRow(rate.row_s + share * row_s, rate.byte_s + share * byte_s)

        slower = {name: more(getattr(self, name)) for name in ("server_push_s_per_row", "local_row_s")}
        return self.model_copy(update=slower)

    @property
    def cpu(self) -> str:
        """Name of the CPU that was measured."""
        return self.source.note.partition(", CPU time")[0]


# Memory-bound work on rows, and messages; what a new byte costs does not depend on other cores.
_SLOWED = (
    "server_pull_s_per_row",
    "server_push_s_per_row",
    "server_call_s",
    "client_row_s",
    "client_lookup_s",
    "client_call_s",
    "local_row_s",
    "local_lookup_s",
    "local_call_s",
    "new_row_s",
    "stage_byte_s",
)


def host_rates() -> HostRates:
    """Return the rates measured on this machine by `berth profile --here`, otherwise the shipped ones."""
    own = folder() / FILE
    return read_host_rates(own) if own.is_file() else _shipped()


def read_host_rates(path: str | Path) -> HostRates:
    """Read rates from a YAML file; errors name line and column."""
    return load(path, HostRates)


def write_host_rates(rates: HostRates, path: str | Path) -> None:
    """Write rates as YAML that reads back equal."""
    write_text(path, host_yaml(rates))


def host_yaml(rates: HostRates) -> str:
    """Return the YAML text of rates."""
    lines = [
        "# CPU seconds of one core around training, of berth's own code; row bytes are those of the weights."
    ]
    lines += [f"{name}: {yaml_value(getattr(rates, name))}" for name in HostRates.model_fields]
    return "\n".join(lines) + "\n"


@cache
def _shipped() -> HostRates:
    text = resources.files("berth.plan.profile").joinpath(f"data/{FILE}").read_text(encoding="utf-8")
    return parse(text, HostRates, FILE)
