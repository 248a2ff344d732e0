"""`berth train`: train a model in one process or several."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, cast

import typer

from berth.cli import complete
from berth.cli.options import AsJson, Batch
from berth.cli.output import check_folder
from berth.cli.quantities import read, read_positive

if TYPE_CHECKING:
    from berth.train.options import Checkpoints
    from berth.train.recipes import Recipe
    from berth.train.servers import Codec, Mode
    from berth.train.session import Session

EXAMPLES = (
    "berth train ctrdnn",
    "berth train ctrdnn --data day_0.gz --checkpoint run1",
    "berth train mine.py:make_model --steps 500",
)
_DEFAULT_EXAMPLES = 400_000


def train(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            autocompletion=complete.zoo,
            help="A zoo model, or your own as path.py:make_model.",
        ),
    ],
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Number of batches.", show_default="about 400,000 examples, or all data"
        ),
    ] = None,
    examples: Annotated[
        str | None, typer.Option(metavar="N", help="Number of examples instead of --steps, e.g. 100k.")
    ] = None,
    batch: Batch = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Criteo TSV (.gz, .xz, .zst), Parquet, or a folder of them.",
            show_default="built-in clicks",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first unreadable row.")] = False,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory for tables, e.g. 1GiB; cold rows go to files.")
    ] = None,
    day_every: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Examples per day, e.g. 1M: at its end counts decay and expired rows are deleted.",
        ),
    ] = None,
    optimiser: Annotated[
        str, typer.Option(metavar="NAME", help="Optimiser of rows: adagrad, rowwise_adagrad, adam or sgd.")
    ] = "adagrad",
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="Checkpoint folder; an existing run there is resumed.")
    ] = None,
    checkpoint_every: Annotated[
        int, typer.Option(metavar="N", min=1, help="Steps between checkpoints.")
    ] = 500,
    keep: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Checkpoints to keep, besides at least two full ones with their deltas.",
        ),
    ] = 3,
    resume: Annotated[
        bool, typer.Option("--resume", help="Fail if there is no checkpoint to resume.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete existing checkpoints first.")] = False,
    servers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Server processes that hold the tables, on this machine (or that of rank 0).",
            show_default="1 if there are several processes",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, help="Worker processes that share every batch.")
    ] = 1,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Split the model into the stages of this plan: one process per stage, not one per device.",
        ),
    ] = None,
    stages: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Split the model evenly instead.")
    ] = None,
    micro: Annotated[
        int, typer.Option(metavar="N", min=1, help="Micro-batches per batch in a pipeline.")
    ] = 4,
    emulate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DEVICE=X", help="Emulate a device as X times slower than a core here. Repeatable."
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="When rows are updated: sync, async, half-async or geo. Dense gradients are all-reduced in every step"
            " of all modes, so workers stay in lock-step.",
        ),
    ] = "sync",
    staleness: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="half-async: steps by which a worker's rows may lead those of others."
        ),
    ] = 0,
    geo_every: Annotated[
        int, typer.Option(metavar="N", min=1, help="geo: steps between exchanges of rows.")
    ] = 10,
    compress: Annotated[
        str, typer.Option(metavar="TYPE", help="Encoding of rows on the wire: fp32, fp16 or bf16.")
    ] = "fp32",
    restarts: Annotated[
        int, typer.Option(metavar="N", min=0, help="Maximum number of restarts after a failure.")
    ] = 20,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="Time to save a checkpoint when asked to stop.")
    ] = "60s",
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Random seed of weights, rows and data.")] = 0,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="Threads of the dense part.")] = 1,
    csv: Annotated[str | None, typer.Option("--csv", metavar="FILE", help="Write metrics over time.")] = None,
    tensorboard: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write metrics for TensorBoard.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model. With --checkpoint a killed run resumes from its last checkpoint, bit for bit."""
    # Spinning threads take cores from working ones; torch reads these when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    from berth.cli.train_output import exit_on_interrupt, open_logs, print_result, progress_bar
    from berth.train.options import TrainOptions
    from berth.train.orchestrate import start
    from berth.train.recipes import make_recipe, row_optimiser
    from berth.train.tables import DecayPolicy
    from berth.train.worker import exit_if_peer_lost
    from berth.units import seconds, size_bytes

    check_folder(checkpoint, option="--checkpoint")
    check_folder(tensorboard, option="--tensorboard")
    wanted = _wanted(steps, examples, data)
    day = _examples("--day-every", day_every) if day_every is not None else None
    if memory is not None:
        read_positive("--memory", size_bytes, memory)
    recipe = make_recipe(
        model, data=data, seed=seed, batch=batch, optimiser=row_optimiser(optimiser),
        epochs=1 if wanted is None else None, strict=strict, decay=DecayPolicy() if day is not None else None,
    )  # fmt: skip
    goal = None if wanted is None else _in_steps(*wanted, recipe.batch)
    options = TrainOptions(
        batch=recipe.batch, seed=seed, threads=threads, memory=memory, day_every=day,
        checkpoints=_checkpoints(checkpoint, checkpoint_every, keep, fresh, resume),
        workers=workers, servers=servers, stages=stages, plan=plan, micro_batches=micro,
        slowdowns=_slowdowns(emulate or []), mode=cast("Mode", mode), staleness=staleness, geo_every=geo_every,
        codec=cast("Codec", compress), max_restarts=restarts, grace_s=read("--grace", seconds, grace),
    )  # fmt: skip
    if memory is not None:
        from berth.train.budget import check_budget

        servers = servers or int(options.is_distributed)
        check_budget(recipe, goal and goal * recipe.batch, memory, servers=servers)
    command = [sys.executable, "-m", "berth", "train", *sys.argv[2:]]
    session = start(recipe, options, command, _notify)
    if isinstance(session, int):
        raise typer.Exit(session)
    _announce(session, recipe, checkpoint, resume)
    with ExitStack() as stack:
        stack.callback(session.close)
        stack.enter_context(exit_if_peer_lost(session.rank_info, _notify))
        if session.rank_info.rank > 0:
            with exit_on_interrupt(session, command, quiet=True):
                session.run(goal)
            return
        logs = open_logs(csv, tensorboard, session.progress.step, stack)
        with exit_on_interrupt(session, command), progress_bar(goal, logs, recipe.name) as report:
            result = session.run(goal, report=report)
        print_result(recipe, session, result, as_json)


def _notify(text: str) -> None:
    typer.echo(text, err=True)


def _wanted(steps: int | None, examples: str | None, data: str | None) -> tuple[str, int] | None:
    from berth.errors import InputError

    if steps is not None and examples is not None:
        raise InputError("--steps and --examples exclude each other", hint="give one of them")
    if steps is not None:
        return "steps", steps
    if examples is not None:
        return "examples", _examples("--examples", examples)
    return None if data is not None else ("examples", _DEFAULT_EXAMPLES)


def _examples(option: str, text: str) -> int:
    from berth.units import amount

    return max(1, round(read_positive(option, amount, text)))


def _in_steps(unit: str, count: int, batch: int) -> int:
    return count if unit == "steps" else -(-count // batch)


def _slowdowns(texts: list[str]) -> dict[str, float]:
    """Parse `T4=1.5`: an emulated T4 takes 1.5 times as long as a core of this machine."""
    from berth.errors import InputError

    slowdowns = {}
    for text in texts:
        device_type, equals, factor = text.partition("=")
        try:
            slowdowns[device_type] = float(factor)
        except ValueError:
            slowdowns[device_type] = float("nan")
        if not equals or not slowdowns[device_type] >= 1.0:
            raise InputError(
                f"--emulate {text}: expected DEVICE=X with a slowdown X of at least 1",
                hint="for example --emulate T4=1.5",
            )
    return slowdowns


def _checkpoints(folder: str | None, every: int, keep: int, fresh: bool, resume: bool) -> Checkpoints | None:
    from berth.errors import InputError
    from berth.train.launch import ATTEMPT
    from berth.train.options import Checkpoints

    if folder is None and (resume or fresh):
        raise InputError("--resume and --fresh need a folder", hint="add --checkpoint DIR")
    if resume and fresh:
        raise InputError("--resume and --fresh exclude each other")
    fresh = fresh and os.environ.get(ATTEMPT, "1") == "1"  # not again after a restart
    return Checkpoints(folder, every=every, keep=keep, fresh=fresh) if folder is not None else None


def _announce(session: Session, recipe: Recipe, folder: str | None, resume: bool) -> None:
    """Print where the run resumes, and measure layers if this process runs them all."""
    from berth.errors import InputError
    from berth.train.learner import Learner
    from berth.train.timing import LayerClock
    from berth.zoo import LayeredModel

    if resume and session.progress.step == 0:
        session.close()
        raise InputError("holds no checkpoint to resume", where=folder)
    if session.cold_folder is not None:
        _notify(f"rows beyond --memory go to {session.cold_folder}, removed at the end")
    if session.resumed_from is not None:
        _notify(f"resuming from step {session.resumed_from:,}")
    if isinstance(recipe.model, LayeredModel) and type(session.learner) is Learner:
        session.learner.clock = LayerClock(recipe.model)
