"""`berth train`: train a model in one process or several."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, cast

import typer

from berth.cli import complete
from berth.cli.option_groups import expand_options
from berth.cli.options import AsJson, Batch, argument, flag, option
from berth.cli.output import check_folder, notify
from berth.cli.quantities import read, read_positive
from berth.cli.train_options import EvaluationOptions, OptimiserOptions
from berth.errors import InputError
from berth.units import amount, seconds, size_bytes

if TYPE_CHECKING:
    from berth.train.options import Checkpoints, Metric, Tables, TrainOptions
    from berth.train.planned import PlannedRun
    from berth.train.recipes import Recipe
    from berth.train.servers import Codec, Mode
    from berth.train.session import Session

EXAMPLES = (
    "berth train ctrdnn",
    "berth train ctrdnn --data day_0.gz --checkpoint run1",
    "berth train mine.py:make_model --steps 500",
    "berth train ctrdnn --data train/ --eval test/ --eval-every 500 --lr 0.01",
)
_DEFAULT_EXAMPLES = 400_000


@expand_options
def train(
    *,
    model: Annotated[
        str, argument("MODEL", "A zoo model, or your own as path.py:make_model.", complete=complete.zoo)
    ],
    steps: Annotated[
        int | None, option("N", "Number of batches.", min=1, shown="about 400,000 examples, or all data")
    ] = None,
    examples: Annotated[str | None, option("N", "Number of examples instead of --steps, e.g. 100k.")] = None,
    batch: Batch = None,
    data: Annotated[
        str | None,
        option(
            "PATH",
            "Criteo TSV (.gz, .xz, .zst), Parquet, or a folder of them; with --columns other text too.",
            shown="built-in clicks",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        option(
            "FILE",
            "Roles of columns, a YAML file or YAML in braces: labels, slots, multi, dense, weight, ignore. Text files"
            " then have a header.",
            shown="inferred for Parquet",
        ),
    ] = None,
    strict: Annotated[bool, flag("Stop at the first unreadable row.", "--strict")] = False,
    memory: Annotated[
        str | None, option("SIZE", "Memory for tables, e.g. 1GiB; cold rows go to files.")
    ] = None,
    day_every: Annotated[
        str | None,
        option("N", "Examples per day, e.g. 1M: at its end counts decay and expired rows are deleted."),
    ] = None,
    learning: OptimiserOptions,
    evaluation: EvaluationOptions,
    checkpoint: Annotated[
        str | None, option("DIR", "Checkpoint folder; an existing run there is resumed.")
    ] = None,
    checkpoint_every: Annotated[int, option("N", "Steps between checkpoints.", min=1)] = 500,
    keep: Annotated[
        int, option("N", "Checkpoints to keep, besides at least two full ones with their deltas.", min=1)
    ] = 3,
    resume: Annotated[bool, flag("Fail if there is no checkpoint to resume.", "--resume")] = False,
    fresh: Annotated[bool, flag("Delete existing checkpoints first.", "--fresh")] = False,
    servers: Annotated[
        int | None,
        option(
            "N",
            "Server processes that hold the tables, dealt out to the hosts of the run.",
            min=0,
            shown="as planned, or 1 if there are several processes",
        ),
    ] = None,
    tables: Annotated[
        str | None,
        option(
            "PLACE",
            "Where tables are: servers; or resident, sharded over the memory of the workers that use them (of their"
            " devices), which exchange rows in every step.",
            shown="as planned, or servers",
        ),
    ] = None,
    workers: Annotated[int, option("N", "Worker processes that share every batch.", min=1)] = 1,
    plan: Annotated[
        str | None,
        option(
            "FILE",
            "Run this plan: a process for each replica of its stages and each of its servers, with its batch,"
            " micro-batches and mode.",
            shown="$BERTH_PLAN, in a job that runs a plan",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        option("1/N", "Divide every count of the plan by N, rounded up, where this machine is smaller."),
    ] = None,
    stages: Annotated[int | None, option("N", "Split the model evenly instead.", min=1)] = None,
    micro: Annotated[
        int | None, option("N", "Micro-batches per batch in a pipeline.", min=1, shown="as planned, or 4")
    ] = None,
    emulate: Annotated[
        list[str] | None,
        option("DEVICE=X", "Emulate a device as X times slower than a core here. Repeatable."),
    ] = None,
    mode: Annotated[
        str | None,
        option(
            "MODE",
            "sync: workers share every step; async: they never wait for each other; half-async: up to --staleness;"
            " geo: local copies, exchanged every --geo-every steps.",
            shown="as planned, or sync",
        ),
    ] = None,
    staleness: Annotated[
        int, option("N", "half-async: steps that a worker may complete more than the slowest.", min=0)
    ] = 0,
    geo_every: Annotated[
        int, option("N", "geo: steps between exchanges of rows and dense weights.", min=1)
    ] = 10,
    compress: Annotated[str, option("TYPE", "Encoding of rows on the wire: fp32, fp16 or bf16.")] = "fp32",
    plain: Annotated[
        bool, flag("Do not encrypt between hosts, on a network that you trust.", "--plain")
    ] = False,
    restarts: Annotated[int, option("N", "Maximum number of restarts after a failure.", min=0)] = 20,
    grace: Annotated[str, option("TIME", "Time to save a checkpoint when asked to stop.")] = "60s",
    seed: Annotated[int, option("N", "Random seed of weights, rows and data.", min=0)] = 0,
    threads: Annotated[int, option("N", "Threads of the dense part.", min=1)] = 1,
    device: Annotated[
        str,
        option(
            "DEVICE",
            "Device of the dense part: cpu, cuda, cuda:1, xpu, mps or a backend registered with torch;"
            " standin tests a model for a device without having one.",
        ),
    ] = "cpu",
    device_map: Annotated[
        list[str] | None,
        option(
            "TYPE=DEVICE",
            "Torch device of a device type of the plan, e.g. T4=cuda. Repeatable.",
            "--map",
            shown="--device or a GPU of this machine for GPU types, else cores",
        ),
    ] = None,
    device_cache: Annotated[
        str | None, option("SIZE", "Device memory for the most used rows, e.g. 1GiB; needs --device.")
    ] = None,
    bf16: Annotated[
        bool, flag("Compute the dense part in bfloat16 where torch deems it safe.", "--bf16")
    ] = False,
    csv: Annotated[str | None, option("FILE", "Write metrics over time.", "--csv")] = None,
    tensorboard: Annotated[str | None, option("DIR", "Write metrics for TensorBoard.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model. With --checkpoint a killed run resumes from its last checkpoint, bit for bit."""
    # Spinning threads take cores from working ones; torch reads these when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    from berth.train.options import TrainOptions
    from berth.train.planned import job_plan

    plan = plan or (job_plan() if workers == 1 and stages is None else None)
    check_folder(checkpoint, option="--checkpoint")
    check_folder(tensorboard, option="--tensorboard")
    wanted = _wanted(steps, examples, data)
    day = _examples("--day-every", day_every) if day_every is not None else None
    for name, size in (("--memory", memory), ("--device-cache", device_cache)):
        if size is not None:
            read_positive(name, size_bytes, size)
    slowdowns = _slowdowns(emulate or [])
    options = TrainOptions(
        batch=batch or 1, seed=seed, threads=threads, device=device, bf16=bf16, memory=memory, day_every=day,
        device_map=_devices(device_map or []), device_cache=device_cache,
        checkpoints=_checkpoints(checkpoint, checkpoint_every, keep, fresh, resume),
        workers=workers, servers=servers, tables=cast("Tables | None", tables),
        stages=stages, plan=plan, scale=scale, micro_batches=micro,
        slowdowns=slowdowns, mode=cast("Mode", mode or "sync"), staleness=staleness, geo_every=geo_every,
        codec=cast("Codec", compress), plain=plain, max_restarts=restarts, grace_s=read("--grace", seconds, grace),
        eval_every=evaluation.eval_every, best=cast("Metric | None", evaluation.best), patience=evaluation.patience,
        **learning.train_options(),
    )  # fmt: skip

    # With torch, which takes seconds: what is wrong with the options is reported before.
    from berth.cli.train_output import exit_on_interrupt, open_logs, print_result, progress_bar
    from berth.train.orchestrate import planned_of
    from berth.train.recipes import make_recipe, row_optimiser
    from berth.train.tables import DecayPolicy
    from berth.train.trainer import Trainer
    from berth.train.worker import exit_if_peer_lost

    recipe = make_recipe(
        model, data=data, columns=columns, seed=seed, batch=batch, optimiser=row_optimiser(learning.optimiser),
        epochs=1 if wanted is None else None, strict=strict, decay=DecayPolicy() if day is not None else None,
    )  # fmt: skip
    planned = planned_of(recipe, plan, scale, slowdowns) if stages is None else None
    if planned is not None and batch is None and planned.batch is not None:
        recipe = replace(recipe, batch=planned.batch)
    if mode is None:
        mode = "sync" if planned is None or planned.is_sync else "async"
    goal = None if wanted is None else _in_steps(*wanted, recipe.batch)
    options = replace(options, batch=recipe.batch, mode=cast("Mode", mode))
    if memory is not None:
        _check_memory(memory, recipe, options, planned, goal)
    command = [sys.executable, "-m", "berth", "train", *sys.argv[2:]]
    trainer = Trainer.of(recipe, options, eval_data=evaluation.data, notify=notify)
    session = trainer.start(goal, command)
    if isinstance(session, int):
        raise typer.Exit(session)
    _announce(session, recipe, checkpoint, resume, goal)
    with ExitStack() as stack:
        stack.callback(session.close)
        stack.enter_context(exit_if_peer_lost(session.rank_info, notify))
        if session.rank_info.rank > 0:
            with exit_on_interrupt(session, command, quiet=True):
                session.run(goal)
            return
        logs = open_logs(csv, tensorboard, session.progress.step, stack)
        with exit_on_interrupt(session, command), progress_bar(goal, logs, recipe.name) as report:
            result = session.run(goal, report=report)
        print_result(recipe, session, result, as_json)


def _check_memory(
    memory: str, recipe: Recipe, options: TrainOptions, planned: PlannedRun | None, goal: int | None
) -> None:
    """Raise if the tables can't train in this much memory, before anything starts."""
    from berth.train.budget import check_budget

    servers = options.servers
    if servers is None:
        servers = sum(planned.servers) if planned is not None else 0
    servers = servers or int(options.is_distributed)
    check_budget(recipe, goal and goal * recipe.batch, memory, servers=servers)


def _wanted(steps: int | None, examples: str | None, data: str | None) -> tuple[str, int] | None:
    if steps is not None and examples is not None:
        raise InputError("--steps and --examples exclude each other", hint="give one of them")
    if steps is not None:
        return "steps", steps
    if examples is not None:
        return "examples", _examples("--examples", examples)
    return None if data is not None else ("examples", _DEFAULT_EXAMPLES)


def _examples(option: str, text: str) -> int:
    return max(1, round(read_positive(option, amount, text)))


def _in_steps(unit: str, count: int, batch: int) -> int:
    return count if unit == "steps" else -(-count // batch)


def _slowdowns(texts: list[str]) -> dict[str, float]:
    """Parse `T4=1.5`: an emulated T4 takes 1.5 times as long as a core of this machine."""
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


def _devices(texts: list[str]) -> dict[str, str]:
    """Parse `T4=cuda`: stages that are planned on a T4 run on the torch device cuda."""
    found = {}
    for text in texts:
        device_type, _, mapped = (part.strip() for part in text.partition("="))
        if not device_type or not mapped:
            raise InputError(f"--map {text}: expected TYPE=DEVICE", hint="for example --map T4=cuda")
        found[device_type] = mapped
    return found


def _checkpoints(folder: str | None, every: int, keep: int, fresh: bool, resume: bool) -> Checkpoints | None:
    from berth.train.options import Checkpoints

    if folder is None and (resume or fresh):
        raise InputError("--resume and --fresh need a folder", hint="add --checkpoint DIR")
    if resume and fresh:
        raise InputError("--resume and --fresh exclude each other")
    return Checkpoints(folder, every=every, keep=keep, fresh=fresh) if folder is not None else None


def _announce(session: Session, recipe: Recipe, folder: str | None, resume: bool, goal: int | None) -> None:
    """Print where the run resumes, and measure layers if this process runs them all."""
    from berth.train.learner import Learner
    from berth.train.timing import LayerClock
    from berth.zoo import LayeredModel

    if resume and session.progress.step == 0:
        session.close()
        raise InputError("holds no checkpoint to resume", where=folder)
    if session.cold_folder is not None:
        notify(f"rows beyond --memory go to {session.cold_folder}, removed at the end")
    step = session.progress.step
    if goal is not None and session.resumed_from is not None and step >= goal:
        notify(
            f"nothing is left to train: the run is at step {step:,} already, and {goal:,} steps are wanted in all"
        )
        notify("  give more --steps or --examples to go on, or --fresh to start again")
    elif session.resumed_from is not None:
        notify(f"resuming from step {session.resumed_from:,}")
    on_cpu = session.device.type == "cpu"  # times of layers are CPU time
    if on_cpu and isinstance(recipe.model, LayeredModel) and type(session.learner) is Learner:
        session.learner.clock = LayerClock(recipe.model)
