"""A training run in one process.

    berth.train.fit(model, steps=1000)

The session owns the position in the data. Checkpoints are taken, and requests to stop are handled, between two steps.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from berth.errors import InputError
from berth.train.checkpoint import CheckpointStore, Manifest, Snapshot, Writer
from berth.train.checkpoint.dense import dense_state, load_dense
from berth.train.checkpoint.inspect import no_usable_checkpoint
from berth.train.data import BatchSource, ClickStream, Share
from berth.train.data.prefetch import Prefetcher
from berth.train.device_store import local_store
from berth.train.devices import check_bf16, find_device, seed_device, use_device
from berth.train.embedding import embeddings_of
from berth.train.fault_points import fault_point
from berth.train.interruption import Interruption, Stopped
from berth.train.learner import Learner, Loss, Scores
from berth.train.local import LocalStore
from berth.train.metrics import WINDOW, Progress, Window, divide_windows, join_windows
from berth.train.options import Checkpoints, TrainOptions
from berth.train.rendezvous import RankInfo
from berth.train.sparse import SparseStore

if TYPE_CHECKING:
    from berth.train.planned import PlannedRun

Report = Callable[["Session"], None]


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a run."""

    step: int
    examples: int
    loss: float  # mean of the last 50 steps
    auc: float  # of the last 65,536 examples, scored before training on them; NaN after the first epoch
    training_auc: float  # the same after the first epoch; NaN in the first
    examples_per_s: float
    cpu_ms_per_1000: float
    preempted: bool
    statistics: Mapping[str, Any]
    losses: list[float] = field(repr=False)  # of this run, by step
    model: nn.Module = field(repr=False)  # after `fit` it can predict

    def __str__(self) -> str:
        stop = "preempted" if self.preempted else "done"
        figures = f"{self.examples:,} examples, loss {self.loss:.4f}{auc_text(self.auc, self.training_auc)}"
        return f"{stop} at step {self.step:,}: {figures}"


def auc_text(auc: float, training_auc: float, before: str = ", ") -> str:
    """Return the AUC with its name, or an empty string if there is none."""
    if not math.isnan(training_auc):
        return f"{before}training AUC {training_auc:.4f}"
    return "" if math.isnan(auc) else f"{before}AUC {auc:.4f}"


class Session:
    """A model, its data and its store; `run` trains."""

    def __init__(
        self,
        model: nn.Module,
        data: BatchSource | None = None,
        options: TrainOptions | None = None,
        *,
        optimiser: torch.optim.Optimizer | None = None,
        scheduler: LRScheduler | None = None,  # of the learning rate; stepped after every batch
        loss: Loss | None = None,
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
        self.scheduler = scheduler
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
                    optimiser=optimiser,
                    loss=loss,
                    device=self.device,
                    bf16=self.options.bf16,
                )
            )
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
        with Interruption() as self._interruption, closing(self.steps(steps)) as trained:
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
        batches = self.data.batches(self.batch, self.progress.step, self.share, self.seed)
        depth = self.options.prefetch_batches
        ahead = Prefetcher(batches, depth) if depth else batches
        self.progress.begin()
        try:
            batch = next(ahead, None)
            while batch is not None and (until is None or self.progress.step < until):
                following = next(ahead, None)
                if following is not None:
                    self.learner.prefetch(following)
                seed_device(self.device, self.seed * 1_000_003 + self.progress.step)
                loss, scores = self.learner.step(self.progress.step, batch)
                self._step_scheduler(loss)
                self._count(loss, batch.examples, scores)
                fault_point("step")
                self._end_day_if_due()
                self._save_if_due()
                yield loss
                batch = following
        finally:
            if isinstance(ahead, Prefetcher):
                ahead.close()

    @property
    def _stopping(self) -> bool:
        """Whether the run ends after this step, because it was asked to."""
        return self._interruption is not None and self._interruption.requested

    def save(self) -> None:
        """Checkpoint this step; returns when training can continue."""
        if self._writer is None:
            raise InputError("no checkpoint folder is set")
        arrays, meta = self._dense()
        arrays |= {f"window/{name}": array for name, array in join_windows(self._windows()).items()}
        step, examples, losses = self.progress.step, self.progress.examples, self.progress.losses
        progress = {"examples": examples, "losses": losses}
        position = dict(self.data.position(step))
        self._writer.save(Snapshot(step, arrays, meta, self.identity(), progress, position), self.store)

    def identity(self) -> dict[str, Any]:
        """Return what must be equal for a checkpoint to be resumed."""
        tables = {layer.spec_name: _json_value(layer.spec.to_json()) for layer in embeddings_of(self.model)}
        weights = {name: list(value.shape) for name, value in self.model.state_dict().items()}
        rule = type(self.learner.optimiser).__name__ if self.learner.optimiser is not None else None
        return {
            "model": type(self.model).__name__ + ":" + str(getattr(self.model, "name", "")),
            "weights": weights,
            "tables": tables,
            "dense optimiser": rule,
            "scheduler": type(self.scheduler).__name__ if self.scheduler is not None else None,
            "batch": self.batch,
            "seed": self.seed,
            "examples of a day": self.options.day_every,
            "data": _json_value(dict(self.data.describe())),
        }

    def close(self, *, keep_rows: bool = False) -> None:
        """Wait for pending checkpoints, and release tables and folders.

        With `keep_rows`, tables in this process stay open, so that the model can predict.
        """
        self._opened.close()
        if not (keep_rows and isinstance(self.store, LocalStore)):
            self.store.close()

    def abandon(self) -> None:
        """Remove the files of cold rows without waiting for anything; the process is about to exit."""
        if self.cold_folder is not None:
            shutil.rmtree(self.cold_folder, ignore_errors=True)

    def _local_store(self) -> LocalStore:
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
        opened.callback(self._writer.wait)
        if config.fresh:
            self._checkpoint_store.clear()
        chain = self._checkpoint_store.newest(self._notify)
        if chain is None:
            if self._checkpoint_store.steps():
                raise no_usable_checkpoint(self._checkpoint_store, hint="use another folder, or --fresh")
        else:
            self._resume(self._checkpoint_store, chain)
            self._checkpoint_store.set_aside(chain[-1].step, self._notify)
            self._writer.resumed(chain)
        self._checkpoint_store.remove_unfinished()

    def _resume(self, checkpoint_store: CheckpointStore, chain: list[Manifest]) -> None:
        newest = chain[-1]
        _check_same_run(newest.run, self.identity(), str(checkpoint_store.root))
        arrays, meta = checkpoint_store.dense(newest)
        self._load_dense(arrays, meta)
        for layer in embeddings_of(self.model):
            for state in checkpoint_store.states(chain, layer.spec_name):
                self.store.load(layer.spec_name, state)
        progress = newest.progress
        self.progress.resumed(newest.step, progress["examples"], progress["losses"])
        saved = {name.removeprefix("window/"): part for name, part in arrays.items() if name[:7] == "window/"}
        self._load_windows(divide_windows(saved, self.share.workers))
        self.data.seek(newest.position)
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

    def _step_scheduler(self, loss: float) -> None:
        """Step the learning-rate scheduler."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)
        elif self.scheduler is not None:
            self.scheduler.step()

    def _end_day_if_due(self) -> None:
        """End the days that are over, counted from the start of the run: a resumed run ends them at the same steps."""
        day = self.options.day_every
        if day is None:
            return
        step = self.progress.step
        for _ in range(step * self.batch // day - (step - 1) * self.batch // day):
            self.store.end_day()

    def _save_if_due(self) -> None:
        if self._checkpoints is not None and self.progress.step % self._checkpoints.every == 0:
            self.save()

    def _finish(self, preempted: bool) -> None:
        """Checkpoint the last step, and wait until it is on disk."""
        if self._writer is None:
            return
        if self._writer.last != self.progress.step:
            self.save()
            self._writer.wait()
        if self._writer.failure is not None:
            stop = "preempted, and " if preempted else ""
            raise InputError(
                f"{stop}the last checkpoint could not be written: {self._writer.failure.strerror}",
                where=str(self._checkpoint_store.root if self._checkpoint_store else ""),
            )

    def _result(self, preempted: bool, losses: list[float]) -> Result:
        progress = self.progress
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
        )


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


def _json_value(value: Any) -> Any:
    """Return a value as it reads after a round trip through JSON."""
    if isinstance(value, dict):
        return {str(key): _json_value(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [_json_value(part) for part in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value


def _check_same_run(saved: dict[str, Any], current: dict[str, Any], where: str) -> None:
    """Raise for a checkpoint of a different run, naming the differences."""
    different = [name for name in current if saved.get(name) != current[name]]
    if not different:
        return
    if different == ["data"] and saved.get("data") == _without_shuffling(current["data"]):
        raise InputError(
            "holds checkpoints of an earlier version of berth, which shuffled files in another order: "
            "this version can't resume them",
            where=where,
            hint="resume with the version that wrote them, use another folder, or --fresh to delete them",
        )
    shown = [
        f"{name}: {saved.get(name)} there, {current[name]} here"
        if len(str(current[name])) < 60
        else f"{name} differ{'s' if not name.endswith('s') else ''}"
        for name in different
    ]
    raise InputError(
        f"holds checkpoints of a different run ({'; '.join(shown)})",
        where=where,
        hint="use the same options to resume, another folder, or --fresh to delete them",
    )


def _without_shuffling(data: dict[str, Any]) -> dict[str, Any] | None:
    """Return the description that earlier versions wrote for the same files, or None if it is unchanged."""
    earlier = {name: value for name, value in data.items() if name != "shuffled"}
    return earlier if len(earlier) < len(data) else None
