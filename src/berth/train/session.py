"""A training run in one process.

    berth.train.fit(model, steps=1000)

The session owns the position in the data. Checkpoints are taken, and requests to stop are handled, between two steps.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from berth.errors import DivergedError, InputError
from berth.train.callbacks import as_callbacks, notify_all
from berth.train.checkpoint import CheckpointStore, Manifest, Snapshot, Writer
from berth.train.checkpoint.dense import dense_state, load_dense, weights_of
from berth.train.checkpoint.inspect import no_usable_checkpoint
from berth.train.checkpoint.writer import last_good
from berth.train.data import BatchSource, ClickStream, Share
from berth.train.data.prefetch import Prefetcher
from berth.train.device_rows import DeviceTables
from berth.train.device_store import local_store
from berth.train.devices import check_bf16, find_device, reporting_memory, seed_device, use_device
from berth.train.embedding import embeddings_of
from berth.train.evaluate import Evaluation, Evaluations, ScoredExamples, score
from berth.train.fault_points import fault_point
from berth.train.interruption import Interruption, Stopped
from berth.train.learner import Learner, Loss, Scores
from berth.train.local import LocalStore
from berth.train.metrics import WINDOW, Progress, Window, divide_windows, join_windows
from berth.train.optimisers import (
    MakeOptimiser,
    MakeScheduler,
    optimiser_text,
    scheduler_text,
    step_scheduler,
)
from berth.train.options import Checkpoints, TrainOptions
from berth.train.rendezvous import RankInfo
from berth.train.result import Result
from berth.train.run_identity import check_same_run, json_value
from berth.train.sparse import SparseStore
from berth.train.started_by import started_by

if TYPE_CHECKING:
    from berth.train.planned import PlannedRun

Report = Callable[["Session"], None]


class Session:
    """A model, its data and its store; `run` trains."""

    def __init__(
        self,
        model: nn.Module,
        data: BatchSource | None = None,
        options: TrainOptions | None = None,
        *,
        optimiser: torch.optim.Optimizer | MakeOptimiser | None = None,  # of dense weights
        scheduler: LRScheduler
        | MakeScheduler
        | None = None,  # of the learning rate; stepped after every batch
        loss: Loss | None = None,
        evaluations: Evaluations | None = None,  # of held-out data
        callbacks: Any = (),
        store: SparseStore | None = None,
        learner: Callable[[SparseStore], Learner] | None = None,
        share: Share = Share(),  # noqa: B008 - frozen
        notify: Callable[[str], None] = print,
    ) -> None:
        self.options = options or TrainOptions()
        torch.set_num_threads(self.options.threads)
        torch.manual_seed(self.options.seed)
        self.device = find_device(self.options.device)
        use_device(self.device)
        if self.options.bf16:
            check_bf16(self.device)
        self.model = model
        self.data = data if data is not None else ClickStream(self.options.seed)
        self.batch, self.seed = self.options.batch, self.options.seed
        self.evaluations = evaluations
        self.callbacks = as_callbacks(callbacks)
        self._optimiser = optimiser or self.options.optimiser
        self._make_scheduler = scheduler or self.options.scheduler(None)
        self._loss = loss
        self._saves_best = False  # this step, which was evaluated
        self._evaluated_before: dict[str, Any] | None = None  # by the run that was resumed
        self.rank_info = RankInfo()
        self.share = share
        self.progress = Progress(window=Window(WINDOW // share.workers))
        self.planned: PlannedRun | None = None  # the plan that the run executes
        self.resumed_from: int | None = None
        self.cold_folder: str | None = None  # of rows beyond the memory budget
        self._notify = notify
        self._interruption: Interruption | None = None  # while `run` trains
        self._reports = False
        self._checkpoints = self.options.checkpointing
        self._writer: Writer | None = None
        self._checkpoint_store: CheckpointStore | None = None
        with ExitStack() as opened:
            self.store = store or self._local_store()
            failed = opened.enter_context(ExitStack())
            failed.callback(self.store.close)
            self.learner = (
                learner(self.store)
                if learner
                else Learner(
                    model,
                    self.store,
                    optimiser=self._optimiser,
                    loss=loss,
                    device=self.device,
                    bf16=self.options.bf16,
                )
            )
            self.scheduler = self._scheduler()
            if self._checkpoints is not None:
                self._open_checkpoints(self._checkpoints, opened)
            failed.pop_all()
            self._opened = opened.pop_all()  # nothing stays open if the constructor fails

    def run(self, steps: int | None = None, *, report: Report | None = None) -> Result:
        """Train until step `steps` of the whole run, the end of the data, or a SIGTERM.

        After Ctrl-C the current step is saved, and `Stopped`, a `KeyboardInterrupt`, is raised.
        """
        losses: list[float] = []
        self._reports = report is not None
        with (
            reporting_memory(self.device),
            Interruption() as self._interruption,
            closing(self.steps(steps)) as trained,
        ):
            for loss in trained:
                losses.append(loss)
                if report is not None:
                    report(self)
                if self._stopping:
                    break
            self._finish(self._stopping)
        result = self._result(self._stopping, losses)
        if self._interruption.by_keyboard:
            raise Stopped(self.progress.step, saved=self._checkpoints is not None)
        return result

    def steps(self, until: int | None = None) -> Generator[float, None, None]:
        """Yield the loss of every step; checkpoints are taken where they are due."""
        if self._is_exhausted:
            return
        batches = self.data.batches(self.batch, self.progress.step, self.share, self.seed)
        depth = self.options.prefetch_batches
        ahead = Prefetcher(batches, depth) if depth else batches
        self.progress.begin()
        try:
            batch = next(ahead, None)
            while batch is not None and (until is None or self.progress.step < until):
                following = next(ahead, None)
                is_last = until is not None and self.progress.step + 1 >= until
                if following is not None and not is_last:
                    self.learner.prefetch(following)
                seed_device(self.device, self.seed * 1_000_003 + self.progress.step)
                loss, scores = self.learner.step(self.progress.step, batch)
                self._end_step(loss, batch.examples, scores)
                yield loss
                if self._is_exhausted:
                    break
                batch = following
        finally:
            if isinstance(ahead, Prefetcher):
                ahead.close()

    @property
    def _stopping(self) -> bool:
        """Whether the run ends after this step, because it was asked to."""
        return self._interruption is not None and self._interruption.requested

    @property
    def _is_exhausted(self) -> bool:
        """Whether the run stops early: its last evaluations were not better than the best."""
        return self.evaluations is not None and self.evaluations.is_exhausted

    def _end_step(self, loss: float, examples: int, scores: Scores) -> None:
        """Do what follows the update of a step: counting, evaluating, checkpoints."""
        self._check_finite(loss)
        step_scheduler(self.scheduler, loss)
        self._count(loss, examples, scores)
        fault_point("step")
        self._end_day_if_due()
        if self.callbacks:
            self._report_step(loss)
        if self.evaluations is not None and self.evaluations.due(self.progress.step):
            self._evaluate(self.evaluations)
        self._save_if_due()
        self._report_checkpoints()

    def save(self) -> None:
        """Checkpoint this step; returns when training can continue."""
        if self._writer is None:
            raise InputError("no checkpoint folder is set")
        arrays, meta = self._dense()
        if not all(bool(value.isfinite().all()) for value in weights_of(arrays, meta).values()):
            raise self._diverged(f"dense weights are not finite after step {self.progress.step:,}")
        arrays |= {f"window/{name}": array for name, array in join_windows(self._windows()).items()}
        step, progress = self.progress.step, self._saved_progress()
        position = dict(self.data.position(self._first_unfinished_step()))
        kept = self.evaluations.protected_step if self.evaluations is not None else None
        self._writer.protected = kept or (self._evaluated_before or {}).get("kept")
        self._writer.save(Snapshot(step, arrays, meta, self.identity(), progress, position), self.store)

    def _saved_progress(self) -> dict[str, Any]:
        """Return the progress that a checkpoint records."""
        found: dict[str, Any] = {"examples": self.progress.examples, "losses": self.progress.losses}
        if self.learner.input_shapes is not None:
            found["inputs"] = self.learner.input_shapes
        if self.evaluations is not None:
            found["evaluations"] = self.evaluations.to_json()
        elif self._evaluated_before is not None:
            found["evaluations"] = self._evaluated_before
        return found

    def _first_unfinished_step(self) -> int:
        """Return the first step whose examples are needed after a resume."""
        return self.progress.step

    def identity(self) -> dict[str, Any]:
        """Return what must be equal for a checkpoint to be resumed."""
        tables = {layer.spec_name: json_value(layer.spec.to_json()) for layer in embeddings_of(self.model)}
        weights = {name: list(value.shape) for name, value in self.model.state_dict().items()}
        trained = any(weight.requires_grad for weight in self.model.parameters())
        return {
            "model": type(self.model).__name__ + ":" + str(getattr(self.model, "name", "")),
            "weights": weights,
            "tables": tables,
            "dense optimiser": optimiser_text(self._optimiser) if trained else None,
            "scheduler": scheduler_text(self._make_scheduler) if trained else None,
            "batch": self.batch,
            "seed": self.seed,
            "examples of a day": self.options.day_every,
            "data": json_value(dict(self.data.describe())),
        }

    def close(self, *, keep_rows: bool = False) -> None:
        """Wait for pending checkpoints, and release tables and folders.

        With `keep_rows`, tables in this process stay open, so that the model can predict. Raises `DivergedError` if the
        rows of the pending checkpoint were not finite; while another exception is handled, this is only reported.
        """
        try:
            self._opened.close()
        finally:
            if not (keep_rows and isinstance(self.store, LocalStore)):
                self.store.close()

    def abandon(self) -> None:
        """Remove the files of cold rows without waiting for anything; the process is about to exit."""
        if self.cold_folder is not None:
            shutil.rmtree(self.cold_folder, ignore_errors=True)

    def _local_store(self) -> LocalStore:
        if self.options.tables == "resident" and self.device.type != "cpu":
            return DeviceTables(self.device)
        budget = self.options.memory_bytes
        more: dict[str, Any] = {}
        if budget is not None:
            self.cold_folder = tempfile.mkdtemp(prefix="berth-cold-")
            more = {"memory_bytes": budget, "folder": self.cold_folder, "scratch": True}
        return local_store(self.device, self.options.device_cache_bytes, **more)

    def _open_checkpoints(self, config: Checkpoints, opened: ExitStack) -> None:
        self._checkpoint_store = CheckpointStore(config.folder)
        self._checkpoint_store.claim()
        opened.callback(self._checkpoint_store.release)
        self._writer = Writer(
            self._checkpoint_store,
            keep=config.keep,
            full_every=config.full_every,
            streamed=self.options.memory is not None,
            notify=self._notify,
        )
        opened.callback(self._wait_for_checkpoint, self._writer)
        if config.fresh:
            self._checkpoint_store.clear_once(started_by())
        chain = self._checkpoint_store.newest(self._notify)
        if chain is None:
            if self._checkpoint_store.steps():
                raise no_usable_checkpoint(self._checkpoint_store, hint="use another folder, or --fresh")
        else:
            self._resume(self._checkpoint_store, chain)
            self._checkpoint_store.set_aside(chain[-1].step, self._notify)
            self._writer.resumed(chain)
        self._checkpoint_store.remove_unfinished()

    def _wait_for_checkpoint(self, writer: Writer) -> None:
        """Wait until the pending checkpoint has ended; a divergence does not replace an exception that ends the run."""
        ending = sys.exc_info()[1]
        try:
            writer.wait()
        except DivergedError as error:
            if ending is None:
                raise
            self._notify(str(error))

    def _resume(self, checkpoint_store: CheckpointStore, chain: list[Manifest]) -> None:
        newest = chain[-1]
        check_same_run(newest.run, self.identity(), str(checkpoint_store.root))
        arrays, meta = checkpoint_store.dense(newest)
        self._load_dense(arrays, meta)
        for layer in embeddings_of(self.model):
            for state in checkpoint_store.states(chain, layer.spec_name):
                self.store.load(layer.spec_name, state)
        progress = newest.progress
        self.progress.resumed(newest.step, progress["examples"], progress["losses"])
        saved = {name.removeprefix("window/"): part for name, part in arrays.items() if name[:7] == "window/"}
        self._load_windows(divide_windows(saved, self.share.workers))
        self.learner.input_shapes = progress.get("inputs")
        self._evaluated_before = progress.get("evaluations")
        if self.evaluations is not None and self._evaluated_before is not None:
            self.evaluations.load(self._evaluated_before)
        self.data.seek(newest.position)
        self.progress.first_pass = getattr(self.data, "first_pass", None)
        self.resumed_from = newest.step

    def _windows(self) -> list[dict[str, Any]]:
        """Return scores and labels of the last examples, by worker."""
        return [self.progress.window.arrays()]

    def _load_windows(self, windows: list[dict[str, Any]]) -> None:
        self.progress.window.load(windows[self.share.worker])

    def _dense(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state of dense weights, optimiser and scheduler."""
        return dense_state(self.model, self.learner.optimiser, self.scheduler)

    def _load_dense(self, arrays: Mapping[str, Any], meta: dict[str, Any]) -> None:
        load_dense(self.model, self.learner.optimiser, arrays, meta, self.scheduler)

    def _count(self, loss: float, examples: int, scores: Scores) -> None:
        self.progress.first_pass = getattr(self.data, "first_pass", None)
        self.progress.add(loss, examples, *scores)

    def _scheduler(self) -> LRScheduler | None:
        """Return the scheduler of this process's optimiser, if it has one."""
        made = self._make_scheduler
        if made is None or isinstance(made, LRScheduler):
            return made
        return made(self.learner.optimiser) if self.learner.optimiser is not None else None

    def _check_finite(self, loss: float) -> None:
        """Raise if the loss of a step is NaN or infinite; nothing of that step is saved."""
        if not math.isfinite(loss):
            raise self._diverged(f"the loss of step {self.progress.step + 1:,} is {loss}")

    def _diverged(self, what: str) -> DivergedError:
        """Return the error for a run that is not worth continuing."""
        where = str(self._checkpoint_store.root) if self._checkpoint_store is not None else None
        return DivergedError(
            what, where=where, hint=f"{self._last_good}; start again with lower learning rates"
        )

    @property
    def _last_good(self) -> str:
        return last_good(self._writer.last if self._writer is not None else None)

    def statistics(self) -> Mapping[str, Any]:
        """Return rows, hit rate and bytes of the tables as they are now, those of all ranks."""
        return self.store.statistics()

    def evaluate(self, data: BatchSource) -> Evaluation:
        """Return the metrics of the model, as it is now, on other data; creates no rows."""
        return self._score(data).evaluation(self.progress.step)

    def _score(self, data: BatchSource, share: Share = Share()) -> ScoredExamples:  # noqa: B008 - frozen
        batches = data.batches(self.batch, 0, share, self.seed)
        return score(self.model, batches, loss=self._loss, device=self.device, bf16=self.options.bf16)

    def _evaluate(self, evaluations: Evaluations) -> None:
        """Evaluate this step; the best one is saved."""
        self._record(evaluations, self._score(evaluations.data))

    def _record(self, evaluations: Evaluations, scored: ScoredExamples) -> None:
        found = scored.evaluation(self.progress.step)
        if not math.isfinite(found.loss):
            raise self._diverged(f"the loss on held-out data after step {found.step:,} is {found.loss}")
        is_best = evaluations.add(found)
        self._saves_best = is_best and evaluations.keeps_best
        notify_all(self.callbacks, "on_evaluation", {**found.to_json(), "best": is_best})

    def _report_step(self, loss: float) -> None:
        optimiser, progress = self.learner.optimiser, self.progress
        rate = None if optimiser is None else float(optimiser.param_groups[0]["lr"])
        notify_all(
            self.callbacks,
            "on_step",
            {"step": progress.step, "examples": progress.examples, "loss": loss, "learning_rate": rate},
        )

    def _best_checkpoint(self) -> str | None:
        step = self.evaluations.protected_step if self.evaluations is not None else None
        return None if step is None or self._writer is None else str(self._writer.folder(step))

    def _report_checkpoints(self) -> None:
        """Report the checkpoints that are complete since the last call; raises if the rows of one were not finite."""
        if self._writer is not None:
            self._writer.check()
        while self._writer is not None and self._writer.completed:
            step = self._writer.completed.popleft()
            best = self.evaluations is not None and self.evaluations.protected_step == step
            folder = str(self._writer.folder(step))
            notify_all(self.callbacks, "on_checkpoint", {"step": step, "folder": folder, "best": best})

    def _end_day_if_due(self) -> None:
        """End the days that are over, counted from the start of the run: a resumed run ends them at the same steps."""
        day = self.options.day_every
        if day is None:
            return
        step = self.progress.step
        for _ in range(step * self.batch // day - (step - 1) * self.batch // day):
            self.store.end_day()

    def _save_if_due(self) -> None:
        if self._checkpoints is not None and (
            self._saves_best or self.progress.step % self._checkpoints.every == 0
        ):
            self._saves_best = False
            self.save()

    def _finish(self, preempted: bool) -> None:
        """Evaluate and checkpoint the last step, and wait until it is on disk."""
        self._evaluate_end(preempted)
        self._save_end(preempted)

    def _save_end(self, preempted: bool) -> None:
        if self._writer is None:
            return
        if self._writer.last != self.progress.step or self._saves_best:
            self._saves_best = False
            self.save()
            self._writer.wait()
        self._report_checkpoints()
        if self._writer.failure is not None:
            stop = "preempted, and " if preempted else ""
            raise InputError(
                f"{stop}the last checkpoint could not be written: {self._writer.failure.strerror}",
                where=str(self._checkpoint_store.root if self._checkpoint_store else ""),
                hint=f"{self._last_good}; free space, then resume with the same command",
            )

    def _evaluate_end(self, preempted: bool) -> None:
        if self.evaluations is not None and self._is_end_due(preempted):
            self._evaluate(self.evaluations)

    def _is_end_due(self, preempted: bool) -> bool:
        """Return whether the last step is to be evaluated now: a preempted run is not at its end."""
        last = self.evaluations.last if self.evaluations is not None else None
        return not preempted and (last is None or last.step != self.progress.step)

    def _result(self, preempted: bool, losses: list[float]) -> Result:
        progress, evaluations = self.progress, self.evaluations
        return Result(
            progress.step,
            progress.examples,
            progress.loss,
            progress.auc,
            progress.training_auc,
            progress.examples_per_s,
            progress.cpu_ms_per_1000,
            preempted,
            self.store.statistics(),
            losses,
            self.model,
            evaluations.last if evaluations is not None else None,
            evaluations.best if evaluations is not None else None,
            self._best_checkpoint(),
            self._is_exhausted,
            self._tasks(),
        )

    def _tasks(self) -> dict[str, dict[str, float]]:
        """Return the metrics of each task by the name of its label."""
        found = self.progress.tasks
        layout = getattr(self.data, "layout", None)
        names = (
            layout.labels if layout is not None else [f"task {number}" for number in range(1, len(found) + 1)]
        )
        return dict(zip(names, found, strict=False))


def fit(
    model: nn.Module, data: BatchSource | None = None, *, steps: int | None = None, **options: Any
) -> Result:
    """Train a model with its own `loss(output, labels)` or the cross-entropy of its logits.

    The default data are built-in clicks. Options are the fields of `TrainOptions` and the keyword arguments of
    `Session`. The result's `model`, the one given, is in eval mode and keeps its rows, so it can predict.
    """
    if data is None and steps is None:
        raise InputError("the built-in data is endless", hint="set a number of steps: fit(model, steps=1000)")
    names = {option.name for option in fields(TrainOptions)}
    train_options = TrainOptions(**{name: options.pop(name) for name in names & options.keys()})
    session = Session(model, data, train_options, **options)
    try:
        result = session.run(steps)
    except BaseException:
        session.close()
        raise
    session.close(keep_rows=True)
    model.eval()
    return result
