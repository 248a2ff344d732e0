"""Options of a training run, in one process or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from berth import units
from berth.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from berth.train.optimisers import NamedOptimiser, NamedSchedule
    from berth.train.servers import Codec, Mode


Metric = Literal["auc", "loss"]
# where tables are: on servers, or in the memory of the workers that use them
Tables = Literal["servers", "resident"]

_MICRO_BATCHES = 4
_LARGEST_RATE = 3.4028234663852886e38  # float32, as rates of rows and of dense weights on servers are
_SMALLEST_RATE = 2.0**-149
_LEAST = {  # of options that are whole numbers, where they are given
    **dict.fromkeys(("batch", "day_every", "workers", "threads", "stages", "micro_batches"), 1),
    **dict.fromkeys(("geo_every", "eval_every", "patience"), 1),
    **dict.fromkeys(("seed", "servers", "prefetch_batches", "staleness", "max_restarts"), 0),
}


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Where and how often a run is checkpointed."""

    folder: str | Path
    every: int = 500  # steps
    keep: int = 3
    full_every: int = 8  # one in this many is full, the others hold changes
    fresh: bool = False  # delete existing checkpoints, unless an earlier attempt of this run has done so

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
    device: str = "cpu"  # of the dense part: cpu, cuda, cuda:1, xpu, mps or a backend registered with torch
    bf16: bool = False  # autocast the dense part to bfloat16
    device_map: Mapping[str, str] = field(default_factory=dict)  # torch device by device type of the plan
    device_cache: str | int | None = None  # device memory for the most used rows, e.g. "1GiB"
    memory: str | int | None = None  # for all tables, e.g. "1GiB"; more rows go to files
    checkpoints: Checkpoints | str | Path | None = None
    day_every: int | None = None  # examples per day: then counts decay, and expired rows are deleted
    prefetch_batches: int = 2  # read ahead by a thread
    workers: int = 1
    servers: int | None = None  # None: 1 if there are several processes, else 0
    tables: Tables | None = None  # None: as planned, or on servers if there are several processes
    stages: int | None = None  # split the model evenly
    plan: str | None = None  # run the stages, replicas and servers of this plan file
    scale: str | None = None  # of the plan's counts, e.g. "1/10"
    micro_batches: int | None = None  # None: as planned, or 4
    slowdowns: Mapping[str, float] = field(default_factory=dict)  # of emulated devices of the plan
    mode: Mode = "sync"
    staleness: int = 0
    geo_every: int = 10
    codec: Codec = "fp32"
    plain: bool = False  # do not encrypt between hosts
    max_restarts: int = 20
    grace_s: float = 60.0  # to save a checkpoint when asked to stop
    row_optimiser: str | None = None  # of zoo models: adagrad, rowwise_adagrad, adam, sgd; None: adagrad
    rows_lr: float | None = None  # learning rate of rows; None: that of their optimiser
    dense_optimiser: str = "adam"  # any class of torch.optim
    dense_options: Mapping[str, Any] = field(default_factory=dict)  # of that class
    lr: float | None = None  # learning rate of dense weights; None: the default of their optimiser
    schedule: str | None = None  # of `lr`: cosine, step, warmup, ... or any class of torch.optim.lr_scheduler
    schedule_options: Mapping[str, Any] = field(default_factory=dict)
    eval_every: int | None = None  # steps between two evaluations; one at the end anyway
    best: Metric | None = None  # keep the checkpoint of the best evaluation by this metric
    patience: int | None = None  # stop after this many evaluations that are not better than the best

    def __post_init__(self) -> None:
        from berth.train.servers.protocol import CODECS, MODES

        for name, least in _LEAST.items():
            check_count(name, getattr(self, name), least)
        if self.mode not in MODES:
            raise UnknownNameError("mode", self.mode, MODES)
        if self.codec not in CODECS:
            raise UnknownNameError("compression", self.codec, CODECS)
        if self.staleness and self.mode != "half-async":
            raise InputError("--staleness applies to mode half-async only", hint="add --mode half-async")
        for name in ("lr", "rows_lr"):
            if getattr(self, name) is not None:
                check_rate(name, getattr(self, name))
        if "lr" in self.dense_options:
            check_rate("lr of the dense options", self.dense_options["lr"])
        if self.lr is not None and "lr" in self.dense_options:
            raise InputError("lr is given twice", hint="give it once: lr, or lr of the options")
        if self.schedule_options and self.schedule is None:
            raise InputError("options of a schedule were given without its name", hint="add --schedule NAME")
        if self.best is not None and self.best not in get_args(Metric):
            raise UnknownNameError("metric of the best checkpoint", self.best, get_args(Metric))
        if self.best is not None and self.checkpoints is None:
            raise InputError("the best checkpoint needs a folder", hint="add --checkpoint DIR")
        self._check_stages()
        if self.tables is not None:
            self._check_tables(self.tables)

    def _check_tables(self, tables: Tables) -> None:
        """Raise for options that have no meaning where the tables are."""
        if tables not in get_args(Tables):
            raise UnknownNameError("place for tables", tables, get_args(Tables))
        if tables == "servers" and self.servers == 0:
            raise InputError("--tables servers and --servers 0 exclude each other", hint="drop one of them")
        if tables == "resident":
            check_resident(self, "--tables resident")

    def _check_stages(self) -> None:
        """Raise for options that have no meaning with the plan or the stages, or without them."""
        if self.slowdowns and self.plan is None:
            raise InputError("--emulate applies to the devices of a plan", hint="add --plan FILE")
        check_scale(self.scale)
        if self.scale is not None and self.plan is None:
            raise InputError("--scale applies to the counts of a plan", hint="add --plan FILE")
        if self.plan is not None and self.workers > 1:
            raise InputError(
                "--plan and --workers exclude each other: the plan says how many processes each stage has",
                hint="drop --workers; --scale 1/N starts fewer",
            )
        if self.device_map and self.plan is None:
            raise InputError(
                "--map applies to the device types of a plan", hint="add --plan FILE, or use --device"
            )
        if self.micro_batches is not None and self.plan is None and (self.stages or 1) == 1:
            raise no_pipeline()
        if self.mode != "sync" and (self.stages or 1) > 1:
            raise stages_are_synchronous(self.mode)
        if self.plan is not None and self.stages is not None:
            raise InputError("--plan and --stages exclude each other", hint="give one of them")

    @property
    def pipeline_micro_batches(self) -> int:
        """Return the micro-batches of a pipeline without a plan."""
        return self.micro_batches or _MICRO_BATCHES

    @property
    def is_distributed(self) -> bool:
        """Whether the run needs more than one process."""
        several = self.workers > 1 or self.plan or (self.stages or 1) > 1
        return bool(self.servers or self.tables == "servers" or several)

    @property
    def memory_bytes(self) -> int | None:
        """The memory budget in bytes."""
        return units.size_bytes(self.memory) if isinstance(self.memory, str) else self.memory

    @property
    def device_cache_bytes(self) -> int:
        """The device memory for rows in bytes."""
        size = self.device_cache
        return (units.size_bytes(size) if isinstance(size, str) else size) or 0

    @property
    def optimiser(self) -> NamedOptimiser:
        """Return the optimiser of dense weights."""
        from berth.train.optimisers import NamedOptimiser

        rate = {} if self.lr is None else {"lr": self.lr}
        return NamedOptimiser(self.dense_optimiser, {**self.dense_options, **rate})

    def scheduler(self, steps: int | None) -> NamedSchedule | None:
        """Return the learning-rate schedule of a run of this length."""
        from berth.train.optimisers import NamedSchedule

        return None if self.schedule is None else NamedSchedule(self.schedule, self.schedule_options, steps)

    @property
    def checkpointing(self) -> Checkpoints | None:
        """Where and how often to checkpoint; a folder alone means the defaults."""
        return Checkpoints(self.checkpoints) if isinstance(self.checkpoints, str | Path) else self.checkpoints

    def continued(self) -> TrainOptions:
        """Return the options of a run that continues in the same process, which deletes no checkpoints."""
        checkpoints = self.checkpointing
        return self if checkpoints is None else replace(self, checkpoints=replace(checkpoints, fresh=False))


def check_count(name: str, value: Any, least: int) -> None:
    """Raise unless an option that is given is a whole number of at least `least`."""
    if value is None:
        return
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise InputError(f"{name} must be at least {least}, got {value}")


def check_rate(name: str, value: Any) -> None:
    """Raise unless a learning rate is a number above 0 that a float32 holds."""
    if not (hasattr(value, "__float__") and 0 < value < float("inf")):
        raise InputError(f"{name} must be a number above 0, got {value}")
    if value > _LARGEST_RATE:
        raise InputError(f"{name} must be at most {_LARGEST_RATE:.4g}, the largest float32, got {value}")
    if value < _SMALLEST_RATE:
        raise InputError(f"{name} must be at least {_SMALLEST_RATE:.4g}, the smallest float32, got {value}")


def check_scale(scale: Any) -> None:
    """Raise unless a scale that is given is text."""
    if scale is not None and not isinstance(scale, str):
        raise InputError(f'scale must be text such as "1/10", got {scale!r}')


def check_resident(options: TrainOptions, option: str) -> None:
    """Raise for what tables in the memory of workers do not support; `option` is what asked for them."""
    unsupported = {
        f"--servers {options.servers}": bool(options.servers),
        f"--mode {options.mode}": options.mode != "sync",
        "--memory": options.memory is not None,
        "--device-cache": bool(options.device_cache),
        f"--compress {options.codec}": options.codec != "fp32",
    }
    for name, is_given in unsupported.items():
        if is_given:
            raise InputError(
                f"{option} and {name} exclude each other: all rows are in the memory of workers, which exchange them in"
                " every step",
                hint=f"drop {name}, or use --tables servers",
            )


def no_pipeline() -> InputError:
    """Return the error for micro-batches of a model that is not split."""
    return InputError("--micro applies to models that are split into stages", hint="drop --micro")


def stages_are_synchronous(mode: str) -> InputError:
    """Return the error for stages in a mode without steps."""
    return InputError(
        f"mode {mode} is for workers that run the whole model: stages train in mode sync",
        hint="use --mode sync, or one stage",
    )
