"""`berth train`: train a model here and now, and be able to go on after whatever happens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import complete
from berth.cli.options import AsJson, Batch
from berth.cli.output import check_folder
from berth.cli.quantities import read_positive
from berth.cli.train_division import Wish, seat_or_launch
from berth.cli.train_ends import ended_by_key, in_company

if TYPE_CHECKING:
    from berth.train.logs import Log
    from berth.train.member import Division
    from berth.train.recipes import Recipe
    from berth.train.rendezvous import Seat
    from berth.train.session import Checkpoints, Result, Session

EXAMPLES = (
    "berth train ctrdnn",
    "berth train ctrdnn --data day_0.gz --checkpoint run1",
    "berth train mine.py:make_model --steps 500",
)
_EXAMPLES = 400_000  # of a first try
_BETWEEN_S = 0.5  # updates of the bar
_CORE = "cpu-core"


def train(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            autocompletion=complete.zoo,
            help="A model of the zoo, or your own as path.py:make_model.",
        ),
    ],
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Batches.", show_default="some 400,000 examples, or all data"),
    ] = None,
    examples: Annotated[
        str | None, typer.Option(metavar="N", help="Instead of --steps: 100000 or 100k.")
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
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first row that can't be read.")
    ] = False,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory for tables, e.g. 1GiB; cold rows go to files.")
    ] = None,
    day_every: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Examples of a day (1M): then rows fade, and those that nobody needs leave."
        ),
    ] = None,
    optimiser: Annotated[
        str, typer.Option(metavar="NAME", help="Of rows: adagrad, rowwise_adagrad, adam or sgd.")
    ] = "adagrad",
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="Save here, and go on from what is saved here.")
    ] = None,
    checkpoint_every: Annotated[
        int, typer.Option(metavar="N", min=1, help="Steps between checkpoints.")
    ] = 500,
    keep: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Checkpoints that are kept, and at least two full ones with their changes.",
        ),
    ] = 3,
    resume: Annotated[
        bool, typer.Option("--resume", help="Insist on going on: refuse to start from nothing.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away what is saved there.")] = False,
    servers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Processes that hold the tables, on this machine (or rank 0's).",
            show_default="1 if there are several",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Processes that share every batch.")] = 1,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Cut the model into the stages of this plan: one process for each, not one for each unit.",
        ),
    ] = None,
    stages: Annotated[int | None, typer.Option(metavar="N", min=1, help="Cut it evenly instead.")] = None,
    micro: Annotated[
        int, typer.Option(metavar="N", min=1, help="Micro-batches of a batch in a pipeline.")
    ] = 4,
    emulate: Annotated[
        list[str] | None,
        typer.Option(metavar="DEVICE=X", help="It takes X times as long as a core here. Repeatable."),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="When rows learn: sync, async, half-async or geo. Dense gradients are summed in every step of all"
            " modes, so workers stay in step.",
        ),
    ] = "sync",
    staleness: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="half-async: steps that a worker's rows may be ahead of others'."
        ),
    ] = 0,
    geo_every: Annotated[
        int, typer.Option(metavar="N", min=1, help="geo: steps between exchanges of rows.")
    ] = 10,
    compress: Annotated[
        str, typer.Option(metavar="TYPE", help="Rows on their way: fp32, fp16 or bf16.")
    ] = "fp32",
    restarts: Annotated[int, typer.Option(metavar="N", min=0, help="After processes that died.")] = 20,
    grace: Annotated[str, typer.Option(metavar="TIME", help="To save when asked to stop.")] = "60s",
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of weights, rows and data.")] = 0,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="Of the dense part.")] = 1,
    csv: Annotated[str | None, typer.Option("--csv", metavar="FILE", help="Write figures over time.")] = None,
    tensorboard: Annotated[str | None, typer.Option(metavar="DIR", help="The same for TensorBoard.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model. With --checkpoint a killed run resumes from its last checkpoint, bit for bit."""
    # Threads that spin while they wait take the cores from those that work; torch reads this when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    check_folder(checkpoint, option="--checkpoint")
    check_folder(tensorboard, option="--tensorboard")
    wanted = _wanted(steps, examples, data)
    day = _examples("--day-every", day_every) if day_every is not None else None
    recipe = _recipe(model, data, seed, batch, optimiser, wanted is not None, strict, day is not None)
    goal = None if wanted is None else _in_steps(*wanted, recipe.batch)
    wish = Wish(
        servers, workers, stages, plan, micro, emulate or [], mode, staleness, geo_every, compress, memory,
        restarts, grace, checkpoint,
    )  # fmt: skip
    if memory is not None:
        from berth.train.budget import check_budget

        check_budget(recipe, goal and goal * recipe.batch, memory, servers=servers or int(wish.is_divided))
    how = _checkpoints(checkpoint, checkpoint_every, keep, fresh, resume)
    seat, division = seat_or_launch(wish, recipe)
    company = in_company() if seat is not None and not seat.alone else nullcontext()
    with company:
        session = _session(recipe, seat, division, seed, memory, how, threads, day)
    _greet(session, recipe, checkpoint, resume)
    with ExitStack() as stack:
        stack.callback(session.close)
        if seat is not None and not seat.alone:
            stack.enter_context(in_company())
        if seat is not None and seat.rank > 0:
            with ended_by_key(session, quiet=True):
                session.run(goal)
            return
        logs = _logs(csv, tensorboard, session.progress.step, stack)
        with ended_by_key(session), _progress(goal, logs, recipe.name) as report:
            result = session.run(goal, report=report)
        _told(recipe, session, result, as_json)


def _wanted(steps: int | None, examples: str | None, data: str | None) -> tuple[str, int] | None:
    from berth.errors import InputError

    if steps is not None and examples is not None:
        raise InputError("--steps and --examples both say how far", hint="give one of them")
    if steps is not None:
        return "steps", steps
    if examples is not None:
        return "examples", _examples("--examples", examples)
    return None if data is not None else ("examples", _EXAMPLES)


def _examples(option: str, text: str) -> int:
    from berth.units import amount

    return max(1, round(read_positive(option, amount, text)))


def _in_steps(unit: str, count: int, batch: int) -> int:
    return count if unit == "steps" else -(-count // batch)


def _recipe(
    model: str,
    data: str | None,
    seed: int,
    batch: int | None,
    optimiser: str,
    again: bool,
    strict: bool,
    has_days: bool,
) -> Recipe:
    from berth.errors import UnknownNameError
    from berth.train import tables
    from berth.train.recipes import recipe

    rules = {name: getattr(tables, name) for name in ("adagrad", "rowwise_adagrad", "adam", "sgd")}
    if optimiser not in rules:
        raise UnknownNameError("optimiser of rows", optimiser, rules)
    return recipe(
        model, data=data, seed=seed, batch=batch, optimiser=rules[optimiser](), epochs=None if again else 1,
        strict=strict, life=tables.Life() if has_days else None,
    )  # fmt: skip


def _checkpoints(folder: str | None, every: int, keep: int, fresh: bool, resume: bool) -> Checkpoints | None:
    from berth.errors import InputError
    from berth.train.session import Checkpoints

    if folder is None and (resume or fresh):
        raise InputError("--resume and --fresh need a folder", hint="give --checkpoint DIR")
    if resume and fresh:
        raise InputError("--resume and --fresh exclude each other")
    # what is saved there is thrown away once, not each time that processes are started again
    fresh = fresh and os.environ.get("BERTH_TRAIN_ATTEMPT", "1") == "1"
    return Checkpoints(folder, every=every, keep=keep, fresh=fresh) if folder is not None else None


def _session(
    recipe: Recipe,
    seat: Seat | None,
    division: Division | None,
    seed: int,
    memory: str | None,
    how: Checkpoints | None,
    threads: int,
    day_every: int | None,
) -> Session:
    def say(text: str) -> None:
        typer.echo(text, err=True)

    if seat is not None and division is not None:
        from berth.train.member import member

        return member(recipe, division, seat, seed=seed, checkpoints=how, day_every=day_every, say=say)
    from berth.train.session import Session

    return Session(
        recipe.model, recipe.data, batch=recipe.batch, seed=seed, memory=memory, checkpoints=how,
        threads=threads, day_every=day_every, say=say,
    )  # fmt: skip


def _greet(session: Session, recipe: Recipe, folder: str | None, resume: bool) -> None:
    """Where it goes on, and a clock for the layers where one process has them all."""
    from berth.errors import InputError
    from berth.train.learner import Learner
    from berth.train.timing import LayerClock
    from berth.zoo import LayeredModel

    if resume and session.progress.step == 0:
        session.close()
        raise InputError("holds no checkpoint to go on from", where=folder)
    if session.cold_folder is not None:
        typer.echo(f"rows beyond --memory go to {session.cold_folder}, removed at the end", err=True)
    if session.resumed_from is not None:
        typer.echo(f"going on from step {session.resumed_from:,}", err=True)
    if isinstance(recipe.model, LayeredModel) and type(session.learner) is Learner:
        session.learner.clock = LayerClock(recipe.model)


def _logs(csv: str | None, tensorboard: str | None, step: int, stack: ExitStack) -> list[Log]:
    from berth.train.logs import CsvLog, TensorBoardLog

    logs: list[Log] = []
    if csv is not None:
        logs.append(CsvLog(csv, step))
    if tensorboard is not None:
        logs.append(TensorBoardLog(tensorboard, step))
    for log in logs:
        stack.callback(log.close)
    return logs


@contextmanager
def _progress(goal: int | None, logs: list[Log], name: str) -> Iterator[Callable[[Session], None]]:
    """A bar on standard error, gone when the work is done; figures to the logs at the same moments."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from berth.train.logs import figures
    from berth.train.session import ranked
    from berth.units import format_bytes

    screen = Console(stderr=True)
    columns = (TextColumn(name), BarColumn(14), TextColumn("{task.description}"), TimeRemainingColumn())
    last = 0.0
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("starting", total=goal)

        def report(session: Session) -> None:
            nonlocal last
            now, finished = time.monotonic(), session.progress.step == goal
            nobody_looks = bar.disable and not logs
            if nobody_looks or (now - last < _BETWEEN_S and not finished):
                return
            last = now
            told = figures(session.progress, session.store.statistics())
            for log in logs:
                log.write(told)
            text = (
                f"{told['examples_per_s']:,.0f}/s  loss {told['loss']:.4f}"
                f"{ranked(told['auc'], told['training_auc'], '  ')}  hits "
                f"{told['hit_rate']:.0%}  {format_bytes(told['moved_bytes'])}"
            )
            bar.update(task, completed=session.progress.step, description=text)

        yield report


def _told(recipe: Recipe, session: Session, result: Result, as_json: bool) -> None:
    from berth.report import terminal
    from berth.report.train import print_training, training_document

    layers = session.learner.clock.seconds() if session.learner.clock is not None else {}
    predicted = _predicted(recipe, session.share.of(recipe.batch))
    bad = int(getattr(recipe.data, "bad_rows", 0))
    facts: dict[str, Any] = {
        "best_auc": recipe.best_auc,
        "layers": layers,
        "predicted": predicted,
        "usd": _usd(result),
    }
    if as_json:
        document = training_document(
            recipe.name, result, bad_rows=bad, resumed_from=session.resumed_from, **facts
        )
        terminal.print_json(document)
        return
    notes = _notes(recipe, bad, session.share.of(recipe.batch) if predicted else 0)
    print_training(terminal.console(), recipe.name, result, notes=notes, **facts)


def _predicted(recipe: Recipe, examples: int) -> dict[str, float]:
    """Seconds of a batch by layer, from the profile that comes with berth; nothing for one's own model."""
    from berth.plan.profile import load_layer_profile, shipped_profiles

    if recipe.name not in shipped_profiles():
        return {}
    profile = load_layer_profile(recipe.name)
    scale = examples / profile.batch
    return {
        layer: seconds * scale for layer, seconds in zip(profile.names, profile.on(_CORE).oct_s, strict=True)
    }


def _notes(recipe: Recipe, bad: int, examples: int) -> list[str]:
    from berth.units import format_count

    notes = []
    if examples:
        notes.append(f"predicted: the profile of {recipe.name} on one core, scaled to {examples:,} examples;")
        notes.append("  its look-ups have the ids of its own examples. measured: CPU time, median.")
    if bad:
        notes.append(
            f"{format_count(bad, 'row')} could not be read and {'was' if bad == 1 else 'were'} left out:"
        )
        notes += [f"  {text}" for text in getattr(recipe.data, "first_bad", [])[:5]]
    return notes


def _usd(result: Result) -> float | None:
    """CPU time at the price of a core."""
    from berth.cluster.catalogue import device_type

    price = device_type(_CORE).usd_per_hour
    spent_s = result.cpu_ms_per_1000 * len(result.losses) * (result.examples / max(result.step, 1)) / 1e6
    return None if price is None else price * spent_s / 3600
