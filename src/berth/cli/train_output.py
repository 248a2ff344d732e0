"""Output of `berth train`: progress bar, logs, report, and exit codes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import typer

from berth.report import terminal
from berth.units import format_bytes, format_count

if TYPE_CHECKING:
    from berth.train.logs import Log
    from berth.train.plan_comparison import PlanComparison
    from berth.train.recipes import Recipe
    from berth.train.result import Result
    from berth.train.session import Session

_UPDATE_S = 0.5  # between updates of the bar
_CORE = "cpu-core"


@contextmanager
def exit_on_interrupt(session: Session, command: Sequence[str], *, quiet: bool = False) -> Iterator[None]:
    """After Ctrl-C, print how to resume and exit with 130. A second Ctrl-C does not wait for anything."""
    from berth.errors import INTERRUPTED
    from berth.train.interruption import Stopped
    from berth.train.launch import resume_hint

    try:
        yield
    except Stopped as stopped:
        if not quiet:
            typer.echo(f"stopped at step {stopped.step:,}{resume_hint(stopped.saved, command)}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except KeyboardInterrupt:
        session.abandon()
        if not quiet:
            typer.echo("exited at once; earlier checkpoints are intact", err=True)
        os._exit(INTERRUPTED)  # does not wait for checkpoints being written


def open_logs(csv: str | None, tensorboard: str | None, step: int, stack: ExitStack) -> list[Log]:
    """Open the logs that were asked for, until the end of the stack."""
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
def progress_bar(goal: int | None, logs: list[Log], name: str) -> Iterator[Callable[[Session], None]]:
    """Show a progress bar on standard error, and write metrics to the logs at the same moments."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from berth.train.logs import current_metrics
    from berth.train.result import auc_text

    screen = Console(stderr=True)
    columns = (TextColumn(name), BarColumn(14), TextColumn("{task.description}"), TimeRemainingColumn())
    last = 0.0
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("starting", total=goal)

        def report(session: Session) -> None:
            nonlocal last
            now, finished = time.monotonic(), session.progress.step == goal
            unused = bar.disable and not logs
            if unused or (now - last < _UPDATE_S and not finished):
                return
            last = now
            found = session.evaluations.last if session.evaluations is not None else None
            metrics = current_metrics(session.progress, session.statistics(), found)
            for log in logs:
                log.write(metrics)
            text = (
                f"{metrics['examples_per_s']:,.0f}/s  loss {metrics['loss']:.4f}"
                f"{auc_text(metrics['auc'], metrics['training_auc'], '  ')}  hits "
                f"{metrics['hit_rate']:.0%}  {format_bytes(metrics['moved_bytes'])}"
            )
            bar.update(task, completed=session.progress.step, description=text)

        yield report


def print_result(recipe: Recipe, session: Session, result: Result, as_json: bool) -> None:
    """Print the result as text or JSON."""
    from berth.report.train import print_training, training_document

    layers = session.learner.clock.seconds() if session.learner.clock is not None else {}
    on_cpu = session.device.type == "cpu"  # profiles predict the time of a core
    predicted = _predicted(recipe, session.share.of(recipe.batch)) if on_cpu else {}
    bad = int(getattr(recipe.data, "bad_rows", 0))
    facts: dict[str, Any] = {
        "best_auc": recipe.best_auc,
        "layers": layers,
        "predicted": predicted,
        "usd": _usd(result),
        "plan": _plan(recipe, session, result),
    }
    if as_json:
        document = training_document(
            recipe.name, result, bad_rows=bad, resumed_from=session.resumed_from, **facts
        )
        terminal.print_json(document)
        return
    shows_profile = bool(predicted) and (bool(layers) or facts["plan"] is None)
    notes = _notes(recipe, bad, session.share.of(recipe.batch) if shows_profile else 0)
    held_out = getattr(session.evaluations.data, "bad_rows", 0) if session.evaluations is not None else 0
    if held_out:
        notes.append(f"{format_count(held_out, 'row')} of the held-out data could not be read")
    print_training(terminal.console(), recipe.name, result, notes=notes, **facts)


def _plan(recipe: Recipe, session: Session, result: Result) -> PlanComparison | None:
    """Return the comparison with the plan that the run executed, if there is one."""
    if session.planned is None:
        return None
    from berth.train.plan_comparison import compare_with_plan

    return compare_with_plan(
        session.planned,
        result,
        names=getattr(recipe.model, "names", ()),
        batch=recipe.batch,
        micro_batches=getattr(session.learner, "micro_batches", 1),
        has_budget=session.options.memory is not None,
    )


def _predicted(recipe: Recipe, examples: int) -> dict[str, float]:
    """Return seconds per batch by layer from the shipped profile; empty for your own model."""
    from berth.plan.profile import load_layer_profile, shipped_profiles

    if recipe.name not in shipped_profiles():
        return {}
    profile = load_layer_profile(recipe.name)
    seconds = profile.on(_CORE).at(examples).tolist()
    return dict(zip(profile.names, seconds, strict=True))


def _profiled_core(recipe: Recipe) -> str:
    """Return the CPU core that the shipped profile was measured on."""
    from berth.plan.profile import load_layer_profile

    return load_layer_profile(recipe.name).on(_CORE).compute.note.partition(", one thread")[0]


def _notes(recipe: Recipe, bad: int, examples: int) -> list[str]:
    notes = []
    if examples:
        notes.append(f"predicted: the profile of {recipe.name}, scaled to {examples:,} examples, of")
        notes.append(f"  {_profiled_core(recipe)};")
        notes.append("  its look-ups use the ids of its own examples. measured: CPU time here, median.")
    if bad:
        notes.append(
            f"{format_count(bad, 'row')} could not be read and {'was' if bad == 1 else 'were'} skipped:"
        )
        notes += [f"  {text}" for text in getattr(recipe.data, "first_bad", [])[:5]]
    return notes


def _usd(result: Result) -> float | None:
    """Return the CPU time at the price of a core."""
    from berth.cluster.catalogue import device_type

    price = device_type(_CORE).usd_per_hour
    spent_s = result.cpu_ms_per_1000 * len(result.losses) * (result.examples / max(result.step, 1)) / 1e6
    return None if price is None else price * spent_s / 3600
