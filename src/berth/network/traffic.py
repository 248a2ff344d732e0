"""The traffic of a job: everything about it that the network model needs.

Bytes are per iteration. Profiles, traces and users all describe a job by this record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from berth.errors import InputError

Collective = Literal["ring", "tree"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one iteration of a job computes and sends."""

    compute_s: float  # per iteration, communication left out
    all_reduce_bytes: float = 0.0  # gradient bytes reduced over all devices
    all_to_all_bytes: float = 0.0  # bytes each device exchanges with the others (MoE, sharded embeddings)
    server_bytes: float = 0.0  # bytes each device pulls and pushes through parameter servers
    collective: Collective = "ring"
    overlap: float = 1.0  # y of (b^y + comm^y)^(1/y), b the backward pass: 1 = none, large = full
    forward: float = 0.0  # share of the computation that ends before the first gradient exists

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "collective" and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{field.name} must be a number from 0 up (given: {value})")
        if self.overlap < 1:
            raise InputError(f"overlap must be 1 or more (given: {self.overlap})", hint="1 means none")
        if self.forward > 1:
            raise InputError(f"forward must be a share from 0 to 1 (given: {self.forward})")
        if self.collective not in get_args(Collective):
            raise InputError(f"collective must be 'ring' or 'tree' (given: {self.collective!r})")

    @property
    def bytes(self) -> float:
        """Bytes that one iteration sends, of every kind."""
        return self.all_reduce_bytes + self.all_to_all_bytes + self.server_bytes
