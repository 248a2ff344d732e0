"""Start a training run: in this process, as one rank of several, or as the launcher of all ranks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from berth.train.devices import check_device
from berth.train.launch import ATTEMPT
from berth.train.launch_config import LaunchConfig, check_mode_without_servers, resolve, with_role
from berth.train.options import TrainOptions
from berth.train.planned import is_job_plan
from berth.train.recipes import Recipe
from berth.train.rendezvous import RankInfo, rank_from_environment
from berth.train.server_rank import run_server_rank
from berth.train.tables.memory import keep_freed_memory

if TYPE_CHECKING:
    from berth.train.planned import PlannedRun
    from berth.train.session import Session


def start(
    recipe: Recipe, options: TrainOptions, command: Sequence[str], notify: Callable[[str], None] = print
) -> Session | int:
    """Return this process's session. If the run needs several processes and the environment gives this one no rank,
    run `command` in each of them and return the exit code; so does a rank that is a server, once it has served."""
    keep_freed_memory()
    rank_info = rank_from_environment()
    if rank_info is None and not options.is_distributed:
        check_mode_without_servers(options)
        from berth.train.session import Session

        return Session(
            recipe.model,
            recipe.data,
            options,
            optimiser=recipe.optimiser,
            scheduler=recipe.scheduler,
            loss=recipe.loss,
            evaluations=recipe.evaluations,
            callbacks=recipe.callbacks,
            notify=notify,
        )
    check_device(options)
    if (
        options.plan is not None
        and rank_info is not None
        and rank_info.is_single
        and ATTEMPT not in os.environ
    ):
        rank_info = None  # the only process of a job: it launches those of the plan
    config = resolve(recipe, options, rank_info, notify)
    if rank_info is None:
        config.check_devices()
    if _describes(rank_info, config):
        for line in config.describe(recipe):
            notify(line)
    if rank_info is None and not config.is_single_process:
        return _launch(config, command, notify)
    from berth.train.worker import exit_if_peer_lost, worker_session

    rank_info = with_role(rank_info or RankInfo(), config)
    with exit_if_peer_lost(rank_info, notify):
        if rank_info.server is not None:
            run_server_rank(config, rank_info, notify)
            return 0
        return worker_session(recipe, config, rank_info, notify=notify)


def _describes(rank_info: RankInfo | None, config: LaunchConfig) -> bool:
    """Whether this process prints what is started: the launcher, or the first rank of a job that runs a plan."""
    if rank_info is None:
        return config.planned is not None or not config.is_single_process
    return rank_info.rank == 0 and is_job_plan(config.options.plan) and ATTEMPT not in os.environ


def planned_of(
    recipe: Recipe, plan: str | None, scale: str | None, slowdowns: Mapping[str, float]
) -> PlannedRun | None:
    """Return the run of a plan, for its batch and mode; a model without layers is refused later."""
    from berth.train.planned import planned_run, read_scale
    from berth.zoo import LayeredModel

    if scale is not None:
        read_scale(scale)
    if plan is None or not isinstance(recipe.model, LayeredModel):
        return None
    return planned_run(plan, recipe.name, recipe.model.names, slowdowns, scale)


def _launch(config: LaunchConfig, command: Sequence[str], notify: Callable[[str], None]) -> int:
    from berth.train.launch import launch

    try:
        return launch(command, config, notify)
    finally:
        if config.server.folder is not None:
            shutil.rmtree(config.server.folder, ignore_errors=True)
