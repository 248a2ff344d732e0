"""The processes of a run: options resolved against the model and the environment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from berth.errors import InputError
from berth.train.devices import check_bf16, find_device
from berth.train.options import TrainOptions, check_resident, no_pipeline, stages_are_synchronous
from berth.train.planned import PlannedRun, is_job_plan, planned_devices, planned_run
from berth.train.recipes import Recipe
from berth.train.rendezvous import RankInfo
from berth.train.resident.owners import owners_of_tables, stages_of_tables
from berth.train.servers import ServerConfig
from berth.train.stages.cut import Layout, StageCut, even_cuts
from berth.units import format_count
from berth.zoo import LayeredModel

_COLD_FOLDER = "BERTH_TRAIN_COLD"  # environment: folder of rows beyond the memory budget


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """How a run is divided among processes."""

    options: TrainOptions = field(default_factory=TrainOptions)
    layout: Layout = field(default_factory=Layout)  # which rank runs what
    cuts: tuple[StageCut, ...] = ()  # empty: every worker runs the whole model
    servers: int = 1
    server: ServerConfig = field(default_factory=ServerConfig)  # common to all servers
    planned: PlannedRun | None = None  # the plan that the run executes
    # whose tables are in the memory of the workers that use them
    resident_stages: frozenset[int] = frozenset()

    @property
    def resident(self) -> bool:
        """Whether tables of any stage are in the memory of workers."""
        return bool(self.resident_stages)

    @property
    def is_single_process(self) -> bool:
        """Whether one process does everything."""
        return self.layout.world_size + self.servers == 1

    @property
    def micro_batches(self) -> int:
        """Return the micro-batches of a step: as given, as planned, or 4; without stages a batch is not divided."""
        if not self.cuts:
            return 1
        if self.options.micro_batches is None and self.planned is not None:
            return self.planned.micro_batches
        return self.options.pipeline_micro_batches

    @property
    def slowdown(self) -> float:
        """Return the slowdown of workers that run the whole model on an emulated device."""
        return self.planned.cuts[0].slowdown if self.planned is not None else 1.0

    def device_of(self, stage: int) -> str:
        """Return the name of the torch device of a stage, or of workers that run the whole model."""
        if self.cuts:
            return self.cuts[stage].device
        return self.planned.cuts[0].device if self.planned is not None else self.options.device

    def check_devices(self) -> None:
        """Raise if this machine lacks a device of a stage, before any process is started."""
        for stage, cut in enumerate(self.cuts or (self.planned.cuts if self.planned else ())):
            mapped = self.options.device_map.get(cut.device_type)
            option = f"--map {cut.device_type}={mapped}" if mapped is not None else None
            device = find_device(self.device_of(stage), option)
            if self.options.bf16:
                check_bf16(device)

    def describe(self, recipe: Recipe) -> list[str]:
        """Return lines about the processes: those of the plan, or how many there are and what each stage runs."""
        names = getattr(recipe.model, "names", ())
        if self.planned is not None:
            has_budget = self.options.memory is not None
            return self.planned.describe(names, self.servers, self.server.mode, has_budget=has_budget)
        layout = self.layout
        tables = "tables in the memory of workers" if self.resident else format_count(self.servers, "server")
        lines = [f"{tables} ({self.server.mode}), {layout.readers} x {layout.stages} workers"]
        for number, cut in enumerate(self.cuts):
            layers = names[cut.first] if cut.first == cut.last else f"{names[cut.first]} .. {names[cut.last]}"
            count = layout.replicas[number]
            lines.append(
                f"  stage {number + 1}: {layers}; running {count} process{'' if count == 1 else 'es'} here"
                f"{'' if cut.device == 'cpu' else f' on {cut.device}'}"
            )
        return lines


def resolve(
    recipe: Recipe, options: TrainOptions, rank_info: RankInfo | None, notify: Callable[[str], None]
) -> LaunchConfig:
    """Return the processes of a run: those of its plan, or workers that fill the ranks of the environment."""
    planned = _planned(recipe, options)
    if planned is not None:
        if rank_info is None:
            planned.check_size()
        elif len(planned.cuts) == 1 and not _has_planned_processes(rank_info, planned, options):
            planned = replace(planned, ranks=rank_info.world_size)
        cuts, layout = planned.cuts if len(planned.cuts) > 1 else (), planned.layout
    else:
        cuts = tuple(_even_cuts(recipe, options))
        layout = _layout(max(1, len(cuts)), options, rank_info)
    resident = _resident_stages(options, planned, layout)
    planned = replace(planned, resident_here=resident) if planned is not None else None
    users = len(table_users(recipe.model, layout, cuts, resident))
    servers = _server_count(options, planned, layout)
    owned = owners_of_tables(recipe.model, layout, cuts, resident)
    has_served = len(owned) < len(stages_of_tables(recipe.model, cuts))
    if not servers and (has_served if resident else users > 1):
        raise needs_server()
    if not servers:
        check_mode_without_servers(options)
    if options.device_cache_bytes and (servers or users > 1):
        raise InputError(
            "--device-cache is for tables in the process that trains: rows that several workers or servers share would"
            " be out of date in it",
            hint="use one worker and --servers 0, or drop it",
        )
    memory = options.memory_bytes
    server = ServerConfig(
        servers=max(1, servers),
        workers=users,
        mode=options.mode,
        staleness=options.staleness,
        memory_bytes=memory // max(1, servers) if memory is not None else None,
        tls=False if options.plain else None,
    )
    config = LaunchConfig(options, layout, cuts, servers, server, planned, resident)
    if memory is None or (rank_info is not None and with_role(rank_info, config).servers):
        return config  # servers with ranks create folders of their own
    return replace(config, server=replace(server, folder=_cold_folder(rank_info, notify)))


def _resident_stages(options: TrainOptions, planned: PlannedRun | None, layout: Layout) -> frozenset[int]:
    """Return the stages whose tables are in the memory of workers: as asked for, else as planned."""
    if options.tables is not None:
        return frozenset(range(layout.stages)) if options.tables == "resident" else frozenset()
    if planned is None or not planned.resident_stages or not planned.is_sync:
        return frozenset()
    if options.servers and not planned.has_served_tables:
        return frozenset()
    resident = replace(options, servers=None)
    if planned.has_served_tables:  # these are about the tables on servers
        resident = replace(resident, memory=None, codec="fp32")
    check_resident(resident, "tables in the memory of workers, as planned,")
    return planned.resident_stages


def with_role(rank_info: RankInfo, config: LaunchConfig) -> RankInfo:
    """Return the rank as a worker or a server of the plan: in a job that runs a plan, servers have ranks too."""
    workers, servers = config.layout.world_size, config.servers
    if is_job_plan(config.options.plan) and servers and rank_info.world_size == workers + servers:
        return replace(rank_info, world_size=workers, servers=servers)
    return rank_info


def _has_planned_processes(rank_info: RankInfo, planned: PlannedRun, options: TrainOptions) -> bool:
    """Whether the environment has the processes of a plan: its workers, and in a job perhaps its servers."""
    workers = planned.layout.world_size
    servers = _server_count(options, planned, planned.layout) if is_job_plan(options.plan) else 0
    return rank_info.world_size in (workers, workers + servers)


def _server_count(options: TrainOptions, planned: PlannedRun | None, layout: Layout) -> int:
    mixed = options.tables is None and planned is not None and planned.has_served_tables
    if _resident_stages(options, planned, layout) and not mixed:
        return 0
    if options.servers is not None:
        return options.servers
    needed = layout.world_size > 1 or options.tables == "servers"
    return (sum(planned.servers) if planned is not None else 0) or int(needed)


def table_users(
    model: nn.Module,
    layout: Layout,
    cuts: Sequence[StageCut],
    resident: Collection[int] = (),
) -> list[int]:
    """Return the ranks that connect to servers: of stages with tables there, and of the first, which saves them."""
    used = {stage for stages in stages_of_tables(model, cuts).values() for stage in stages}
    stages = {0} | (used - set(resident))
    return [rank for rank in range(layout.world_size) if layout.stage(rank) in stages]


def needs_server() -> InputError:
    """Return the error for tables that several processes would share without a server."""
    return InputError(
        "several processes use the tables, which takes a server",
        hint="add --servers 1 or more, or --tables resident",
    )


def check_mode_without_servers(options: TrainOptions) -> None:
    """Raise for a mode that servers execute: without one, the run would train in mode sync."""
    if options.mode != "sync":
        raise InputError(
            f"mode {options.mode} needs a server, and this run has none",
            hint="add --servers 1 or more, or use --mode sync",
        )


def _planned(recipe: Recipe, options: TrainOptions) -> PlannedRun | None:
    """Return the run of the plan, if there is one."""
    if options.plan is None:
        return None
    model = _layered(recipe)
    planned = planned_run(options.plan, recipe.name, model.names, options.slowdowns, options.scale)
    planned = replace(planned, cuts=planned_devices(planned, options.device, options.device_map))
    planned.check_mode(options.mode)
    if options.micro_batches is not None and len(planned.cuts) == 1:
        raise no_pipeline()
    if options.mode != "sync" and len(planned.cuts) > 1:
        raise stages_are_synchronous(options.mode)
    return planned


def _even_cuts(recipe: Recipe, options: TrainOptions) -> list[StageCut]:
    stages = options.stages or 1
    if stages == 1:
        return []
    return [replace(cut, device=options.device) for cut in even_cuts(len(_layered(recipe)), stages)]


def _layered(recipe: Recipe) -> LayeredModel:
    model = recipe.model
    if not isinstance(model, LayeredModel):
        raise InputError(
            f"{recipe.name} is not a chain of layers, so it can't be split into stages",
            hint="return an nn.Sequential (with an example_batch in its file) or a LayeredModel;"
            " or drop --plan and --stages",
        )
    return model


def _layout(stages: int, options: TrainOptions, rank_info: RankInfo | None) -> Layout:
    """Return equal numbers of replicas of all stages."""
    replicas = options.workers
    if rank_info is not None and options.workers == 1 and rank_info.world_size > stages:
        if rank_info.world_size % stages:
            raise InputError(f"{rank_info.world_size} processes are not a multiple of {stages} stages")
        replicas = rank_info.world_size // stages
    return Layout((replicas,) * stages)


def _cold_folder(rank_info: RankInfo | None, notify: Callable[[str], None]) -> str | None:
    """Return the folder for cold rows: created once, by the launcher or rank 0."""
    if _COLD_FOLDER not in os.environ and (rank_info is None or rank_info.rank == 0):
        os.environ[_COLD_FOLDER] = tempfile.mkdtemp(prefix="berth-cold-")
        notify(f"rows beyond --memory go to {os.environ[_COLD_FOLDER]}, removed at the end")
    return os.environ.get(_COLD_FOLDER)
