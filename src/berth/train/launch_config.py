"""The processes of a run: options resolved against the model and the environment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from berth.errors import InputError
from berth.train.embedding import embeddings_of
from berth.train.options import TrainOptions
from berth.train.recipes import Recipe
from berth.train.rendezvous import RankInfo
from berth.train.servers import ServerConfig
from berth.train.stages.cut import Layout, StageCut, cuts_from_plan, even_cuts
from berth.units import format_count
from berth.zoo import LayeredModel

_COLD_FOLDER = "BERTH_TRAIN_COLD"  # environment: folder of rows beyond the memory budget


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """How a run is divided among processes."""

    options: TrainOptions = field(default_factory=TrainOptions)
    pipelines: int = 1
    cuts: tuple[StageCut, ...] = ()  # empty: every worker runs the whole model
    servers: int = 1
    server: ServerConfig = field(default_factory=ServerConfig)  # common to all servers

    @property
    def layout(self) -> Layout:
        """Which rank runs what."""
        return Layout(self.pipelines, max(1, len(self.cuts)))

    @property
    def is_single_process(self) -> bool:
        """Whether one process does everything."""
        return self.layout.world_size + self.servers == 1

    def describe(self, recipe: Recipe) -> list[str]:
        """Return one line about the processes, and one for each stage."""
        layout, names = self.layout, getattr(recipe.model, "names", ())
        servers = format_count(self.servers, "server")
        lines = [f"{servers} ({self.server.mode}), {layout.pipelines} x {layout.stages} workers"]
        for number, cut in enumerate(self.cuts):
            layers = names[cut.first] if cut.first == cut.last else f"{names[cut.first]} .. {names[cut.last]}"
            lines.append(f"  stage {number + 1}: {layers}; {stage_processes(cut, layout.pipelines)}")
        return lines


def resolve(
    recipe: Recipe, options: TrainOptions, rank_info: RankInfo | None, notify: Callable[[str], None]
) -> LaunchConfig:
    """Return the processes of a run; pipelines fill the ranks that the environment provides."""
    cuts = _cuts(recipe, options, notify)
    stages = max(1, len(cuts))
    pipelines = options.workers
    if rank_info is not None and options.workers == 1 and rank_info.world_size > stages:
        if rank_info.world_size % stages:
            raise InputError(f"{rank_info.world_size} processes are not a multiple of {stages} stages")
        pipelines = rank_info.world_size // stages
    single = pipelines == 1 and stages == 1
    servers = options.servers if options.servers is not None else (0 if single else 1)
    layout = Layout(pipelines, stages)
    users = len(table_users(recipe.model, layout, cuts))
    if not servers and users > 1:
        raise needs_server()
    memory = options.memory_bytes
    server = ServerConfig(
        servers=max(1, servers),
        workers=users,
        mode=options.mode,
        staleness=options.staleness,
        memory_bytes=memory // max(1, servers) if memory is not None else None,
        folder=_cold_folder(rank_info, notify) if memory is not None else None,
    )
    return LaunchConfig(options, pipelines, tuple(cuts), servers, server)


def table_users(model: nn.Module, layout: Layout, cuts: list[StageCut] | tuple[StageCut, ...]) -> list[int]:
    """Return the ranks that connect to servers: those with embeddings, and the first stages, which save tables."""
    stages = {0}
    if isinstance(model, LayeredModel):
        stages |= {
            number for number, cut in enumerate(cuts) if embeddings_of(model.stage(cut.first, cut.last + 1))
        }
    return [rank for rank in range(layout.world_size) if layout.stage(rank) in stages]


def needs_server() -> InputError:
    """Return the error for tables that several processes would share without a server."""
    return InputError(
        "several processes use the tables, which takes a server", hint="add --servers 1 or more"
    )


def stage_processes(cut: StageCut, pipelines: int) -> str:
    """Return what is planned for a stage, if there is a plan, and what runs."""
    here = f"running {pipelines} process{'' if pipelines == 1 else 'es'} here"
    if cut.planned_replicas is None:
        return here
    slower = f", {cut.slowdown:g} times slower" if cut.slowdown > 1 else ""
    emulated = "" if cut.device_type.startswith("cpu") else f", emulated on a core{slower}"
    return f"planned {cut.planned_replicas} x {cut.device_type}; {here}{emulated}"


def _cuts(recipe: Recipe, options: TrainOptions, notify: Callable[[str], None]) -> list[StageCut]:
    if options.plan is None and (options.stages or 1) == 1:
        return []
    model = recipe.model
    if not isinstance(model, LayeredModel):
        raise InputError(
            f"{recipe.name} is not a chain of layers, so it can't be split into stages",
            hint="return an nn.Sequential (with an example_batch in its file) or a LayeredModel;"
            " or drop --plan and --stages",
        )
    if options.plan is None:
        cuts = even_cuts(len(model), options.stages or 1)
    else:
        cuts = cuts_from_plan(options.plan, recipe.name, model.names, options.slowdowns)
        if len(cuts) == 1 and "RANK" not in os.environ:
            running = stage_processes(cuts[0], options.workers)
            notify(f"the plan has one stage, so the model is not split; {running}")
    return cuts if len(cuts) > 1 else []


def _cold_folder(rank_info: RankInfo | None, notify: Callable[[str], None]) -> str | None:
    """Return the folder for cold rows: created once, by the launcher or rank 0."""
    if _COLD_FOLDER not in os.environ and (rank_info is None or rank_info.rank == 0):
        os.environ[_COLD_FOLDER] = tempfile.mkdtemp(prefix="berth-cold-")
        notify(f"rows beyond --memory go to {os.environ[_COLD_FOLDER]}, removed at the end")
    return os.environ.get(_COLD_FOLDER)
