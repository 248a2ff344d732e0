"""Options of a training run, in one process or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from berth import units
from berth.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from berth.train.servers import Codec, Mode


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Where and how often a run is checkpointed."""

    folder: str | Path
    every: int = 500  # steps
    keep: int = 3
    full_every: int = 8  # one in this many is full, the others hold changes
    fresh: bool = False  # delete existing checkpoints

    def __post_init__(self) -> None:
        for name in ("every", "keep", "full_every"):
            if getattr(self, name) < 1:
                raise InputError(f"Checkpoints.{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What the user asked for. `berth.train.launch_config.resolve` turns it into processes."""

    batch: int = 4096  # examples, over all workers
    seed: int = 0
    threads: int = 1  # of the dense part
    memory: str | int | None = None  # for all tables, e.g. "1GiB"; more rows go to files
    checkpoints: Checkpoints | str | None = None
    day_every: int | None = None  # examples per day: then counts decay, and expired rows are deleted
    prefetch_batches: int = 2  # read ahead by a thread
    workers: int = 1
    servers: int | None = None  # None: 1 if there are several processes, else 0
    stages: int | None = None  # split the model evenly
    plan: str | None = None  # split the model as in this plan file
    micro_batches: int = 4
    slowdowns: Mapping[str, float] = field(default_factory=dict)  # of emulated devices of the plan
    mode: Mode = "sync"
    staleness: int = 0
    geo_every: int = 10
    codec: Codec = "fp32"
    max_restarts: int = 20
    grace_s: float = 60.0  # to save a checkpoint when asked to stop

    def __post_init__(self) -> None:
        from berth.train.servers.codec import CODECS
        from berth.train.servers.sync_mode import MODES

        for name in ("batch", "day_every", "workers", "micro_batches", "geo_every"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.mode not in MODES:
            raise UnknownNameError("mode", self.mode, MODES)
        if self.codec not in CODECS:
            raise UnknownNameError("compression", self.codec, CODECS)
        if self.staleness and self.mode != "half-async":
            raise InputError("--staleness applies to mode half-async only", hint="add --mode half-async")
        if self.slowdowns and self.plan is None:
            raise InputError("--emulate applies to the devices of a plan", hint="add --plan FILE")
        if self.plan is not None and self.stages is not None:
            raise InputError("--plan and --stages exclude each other", hint="give one of them")

    @property
    def is_distributed(self) -> bool:
        """Whether the run needs more than one process."""
        return bool(self.servers or self.workers > 1 or self.plan or (self.stages or 1) > 1)

    @property
    def memory_bytes(self) -> int | None:
        """The memory budget in bytes."""
        return units.size_bytes(self.memory) if isinstance(self.memory, str) else self.memory

    @property
    def checkpointing(self) -> Checkpoints | None:
        """Where and how often to checkpoint; a folder alone means the defaults."""
        return Checkpoints(self.checkpoints) if isinstance(self.checkpoints, str) else self.checkpoints
