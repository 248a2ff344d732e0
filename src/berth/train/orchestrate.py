"""Start a training run: in this process, as one rank of several, or as the launcher of all ranks.

The command line calls `start`. A Python API for several processes belongs here too: it calls `start` with the command
that runs its worker.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from berth.train.launch_config import LaunchConfig, resolve
from berth.train.options import TrainOptions
from berth.train.recipes import Recipe
from berth.train.rendezvous import RankInfo, rank_from_environment

if TYPE_CHECKING:
    from berth.train.session import Session


def start(
    recipe: Recipe, options: TrainOptions, command: Sequence[str], notify: Callable[[str], None] = print
) -> Session | int:
    """Return this process's session. If the run needs several processes and the environment gives this one no rank,
    run `command` in each of them and return the exit code."""
    rank_info = rank_from_environment()
    if rank_info is None and not options.is_distributed:
        from berth.train.session import Session

        return Session(recipe.model, recipe.data, options, notify=notify)
    config = resolve(recipe, options, rank_info, notify)
    if rank_info is None and not config.is_single_process:
        return _launch(recipe, config, command, notify)
    from berth.train.worker import exit_if_peer_lost, worker_session

    rank_info = rank_info or RankInfo()
    with exit_if_peer_lost(rank_info, notify):
        return worker_session(recipe, config, rank_info, notify=notify)


def _launch(
    recipe: Recipe, config: LaunchConfig, command: Sequence[str], notify: Callable[[str], None]
) -> int:
    from berth.train.launch import launch

    for line in config.describe(recipe):
        notify(line)
    try:
        return launch(command, config, notify)
    finally:
        if config.server.folder is not None:
            shutil.rmtree(config.server.folder, ignore_errors=True)
