"""A training from its first step to its last, through whatever interrupts it.

    berth.train.fit(model, steps=1000)

The session owns the position: batch n is asked of the data, learned from, and counted. Between two steps, and only
there, checkpoints are taken and a wish to stop is heard.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from berth import units
from berth.errors import InputError
from berth.train.checkpoint import Manifest, Moment, Shelf, Writer
from berth.train.checkpoint.dense import dense_state, load_dense
from berth.train.checkpoint.saved import none_usable
from berth.train.data import ClickStream, Share, Source
from berth.train.data.prefetch import Ahead
from berth.train.embedding import embeddings_of
from berth.train.faults import moment
from berth.train.interruption import Interruption, Stopped
from berth.train.learner import Learner, Loss, Scores
from berth.train.local import LocalStore
from berth.train.metrics import WINDOW, Progress, Window, divide_windows, join_windows
from berth.train.sparse import SparseStore

Report = Callable[["Session"], None]


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Where and how often a training is saved."""

    folder: str | Path
    every: int = 500  # steps
    keep: int = 3
    full_every: int = 8  # of so many checkpoints one is full, the others say what changed
    fresh: bool = False  # what is there is thrown away

    def __post_init__(self) -> None:
        for name in ("every", "keep", "full_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} of checkpoints is at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Result:
    """What a training came to."""

    step: int
    examples: int
    loss: float  # mean of the last 50 steps
    auc: (
        float  # of the last 65,536 examples, each scored before it was learned from; NaN after the first pass
    )
    training_auc: float  # of the same examples after the first pass over the data; NaN in the first
    examples_per_s: float
    cpu_ms_per_1000: float
    preempted: bool
    statistics: Mapping[str, Any]
    losses: list[float] = field(repr=False)  # of this run, step by step
    model: nn.Module = field(repr=False)  # the one that was trained; after `fit` it predicts

    def __str__(self) -> str:
        stop = "preempted" if self.preempted else "done"
        figures = f"{self.examples:,} examples, loss {self.loss:.4f}{ranked(self.auc, self.training_auc)}"
        return f"{stop} at step {self.step:,}: {figures}"


def ranked(auc: float, training_auc: float, before: str = ", ") -> str:
    """How well examples are ranked, by its name; nothing where neither is a number."""
    if not math.isnan(training_auc):
        return f"{before}training AUC {training_auc:.4f}"
    return "" if math.isnan(auc) else f"{before}AUC {auc:.4f}"


class Session:
    """A model, its data and its store; `run` trains."""

    def __init__(
        self,
        model: nn.Module,
        data: Source | None = None,
        *,
        batch: int = 4096,
        seed: int = 0,
        optimiser: torch.optim.Optimizer | None = None,
        scheduler: LRScheduler | None = None,  # of the learning rate; takes a step after every batch
        loss: Loss | None = None,
        memory: str | int | None = None,
        store: SparseStore | None = None,
        checkpoints: Checkpoints | str | None = None,
        share: Share = Share(),  # noqa: B008 - frozen
        learner: Callable[[SparseStore], Learner] | None = None,
        day_every: int | None = None,  # examples of a day: then rows fade, and dead ones leave
        ahead: int = 2,  # batches that a thread reads before they are asked for
        streamed: bool = False,  # tables of the store do not fit in this process's memory
        threads: int = 1,
        say: Callable[[str], None] = print,
    ) -> None:
        if batch < 1:
            raise InputError(f"a batch has at least one example, not {batch}")
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        self.data = data if data is not None else ClickStream(seed)
        self.batch = batch
        self.seed = seed
        if day_every is not None and day_every < 1:
            raise InputError(f"a day has at least one example, not {day_every}")
        self.day_every = day_every
        self.share = share
        self.progress = Progress(window=Window(WINDOW // share.workers))
        self.resumed_from: int | None = None
        self._say = say
        self.model = model
        self._ahead = ahead
        self.scheduler = scheduler
        self._checkpoints = Checkpoints(checkpoints) if isinstance(checkpoints, str) else checkpoints
        self._writer: Writer | None = None
        self._shelf: Shelf | None = None
        self.cold_folder: str | None = None  # of rows beyond the memory budget
        with ExitStack() as opened:
            self.store = store or self._local(memory)
            failed = opened.enter_context(ExitStack())
            failed.callback(self.store.close)
            self.learner = (
                learner(self.store) if learner else Learner(model, self.store, optimiser=optimiser, loss=loss)
            )
            if self._checkpoints is not None:
                self._open_shelf(self._checkpoints, opened, streamed=streamed or memory is not None)
            failed.pop_all()
            self._opened = opened.pop_all()  # a session that could not be made leaves nothing open

    def run(self, steps: int | None = None, *, report: Report | None = None) -> Result:
        """Trains until step `steps` of the whole run, the end of the data, or a SIGTERM.

        Ctrl-C ends it too: the step at hand is saved, and `Stopped`, a `KeyboardInterrupt`, is raised.
        """
        losses: list[float] = []
        with Interruption() as interruption, closing(self.steps(steps)) as trained:
            for loss in trained:
                losses.append(loss)
                if report is not None:
                    report(self)
                if interruption.heard:
                    break
            self._finish(interruption.heard)
            self._raise_if_stopped(interruption)
        return self._result(interruption.heard, losses)

    def steps(self, until: int | None = None) -> Generator[float, None, None]:
        """The loss of every step as it is taken; checkpoints where they are due."""
        batches = self.data.batches(self.batch, self.progress.step, self.share, self.seed)
        ahead = Ahead(batches, self._ahead) if self._ahead else batches
        self.progress.begin()
        try:
            batch = next(ahead, None)
            while batch is not None and (until is None or self.progress.step < until):
                following = next(ahead, None)
                if following is not None:
                    self.learner.announce(following)
                loss, scores = self.learner.step(self.progress.step, batch)
                self._schedule(loss)
                self._count(loss, batch.examples, scores)
                moment("step")
                self._end_day_if_due()
                self._save_if_due()
                yield loss
                batch = following
        finally:
            if isinstance(ahead, Ahead):
                ahead.close()

    def save(self) -> None:
        """A checkpoint of this step; returns when the training may go on."""
        if self._writer is None:
            raise InputError("this training has no folder for checkpoints")
        arrays, meta = self._dense()
        arrays |= {f"window/{name}": array for name, array in join_windows(self._windows()).items()}
        progress = self.progress
        told = {"examples": progress.examples, "losses": progress.losses}
        position = dict(self.data.position(progress.step))
        self._writer.save(Moment(progress.step, arrays, meta, self.identity(), told, position), self.store)

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same training."""
        tables = {layer.spec_name: _plain(asdict(layer.spec)) for layer in embeddings_of(self.model)}
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
            "examples of a day": self.day_every,
            "data": _plain(dict(self.data.describe())),
        }

    def close(self, *, keep_rows: bool = False) -> None:
        """Waits for what is being written, and releases tables and folders.

        With `keep_rows`, tables in this process stay with the model, which then predicts as long as it lives.
        """
        self._opened.close()
        if not (keep_rows and isinstance(self.store, LocalStore)):
            self.store.close()

    def abandon(self) -> None:
        """Removes files of cold rows, and waits for nothing: the process is about to end."""
        if self.cold_folder is not None:
            shutil.rmtree(self.cold_folder, ignore_errors=True)

    def _local(self, memory: str | int | None) -> LocalStore:
        if memory is None:
            return LocalStore()
        budget = units.size_bytes(memory) if isinstance(memory, str) else memory
        self.cold_folder = tempfile.mkdtemp(prefix="berth-cold-")
        return LocalStore(memory_bytes=budget, folder=self.cold_folder, scratch=True)

    def _open_shelf(self, how: Checkpoints, opened: ExitStack, *, streamed: bool) -> None:
        self._shelf = Shelf(how.folder)
        self._shelf.claim()
        opened.callback(self._shelf.release)
        self._writer = Writer(
            self._shelf, keep=how.keep, full_every=how.full_every, streamed=streamed, say=self._say
        )
        opened.callback(self._writer.wait)
        if how.fresh:
            self._shelf.clear()
        chain = self._shelf.newest(self._say)
        if chain is None:
            if self._shelf.steps():
                raise none_usable(self._shelf, hint="start again with another folder, or with --fresh")
        else:
            self._resume(self._shelf, chain)
            self._shelf.set_aside(chain[-1].step, self._say)
            self._writer.resumed(chain)
        self._shelf.remove_unfinished()

    def _resume(self, shelf: Shelf, chain: list[Manifest]) -> None:
        newest = chain[-1]
        _same(newest.run, self.identity(), str(shelf.root))
        arrays, meta = shelf.dense(newest)
        self._take_dense(arrays, meta)
        for layer in embeddings_of(self.model):
            for state in shelf.states(chain, layer.spec_name):
                self.store.load(layer.spec_name, state)
        told = newest.progress
        self.progress.resumed(newest.step, told["examples"], told["losses"])
        saved = {name.removeprefix("window/"): part for name, part in arrays.items() if name[:7] == "window/"}
        self._take_windows(divide_windows(saved, self.share.workers))
        self.data.seek(newest.position)
        self.resumed_from = newest.step

    def _windows(self) -> list[dict[str, Any]]:
        """Scores and labels of the last examples, by worker."""
        return [self.progress.window.arrays()]

    def _take_windows(self, windows: list[dict[str, Any]]) -> None:
        self.progress.window.load(windows[self.share.worker])

    def _dense(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays and meta of all dense weights, their optimiser and its schedule."""
        return dense_state(self.model, self.learner.optimiser, self.scheduler)

    def _take_dense(self, arrays: Mapping[str, Any], meta: dict[str, Any]) -> None:
        """Puts saved ones in their place."""
        load_dense(self.model, self.learner.optimiser, arrays, meta, self.scheduler)

    def _count(self, loss: float, examples: int, scores: Scores) -> None:
        self.progress.first_pass = getattr(self.data, "first_pass", None)
        self.progress.add(loss, examples, *scores)

    def _schedule(self, loss: float) -> None:
        """Moves the learning rate on; one that waits for a plateau looks at the loss."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)
        elif self.scheduler is not None:
            self.scheduler.step()

    def _end_day_if_due(self) -> None:
        """Days are counted from the beginning of the run, so that they end after the same steps when it goes on."""
        if self.day_every is None:
            return
        step = self.progress.step
        for _ in range(step * self.batch // self.day_every - (step - 1) * self.batch // self.day_every):
            self.store.end_day()

    def _raise_if_stopped(self, interruption: Interruption) -> None:
        if interruption.by_key:
            raise Stopped(self.progress.step, saved=self._checkpoints is not None)

    def _save_if_due(self) -> None:
        if self._checkpoints is not None and self.progress.step % self._checkpoints.every == 0:
            self.save()

    def _finish(self, preempted: bool) -> None:
        """The last step is saved too, and on the disk before anybody is told."""
        if self._writer is None:
            return
        if self._writer.last != self.progress.step:
            self.save()
            self._writer.wait()
        if self._writer.failure is not None:
            stop = "preempted, and " if preempted else ""
            raise InputError(
                f"{stop}the last checkpoint could not be written: {self._writer.failure.strerror}",
                where=str(self._shelf.root if self._shelf else ""),
            )

    def _result(self, preempted: bool, losses: list[float]) -> Result:
        told = self.progress
        return Result(
            told.step,
            told.examples,
            told.loss,
            told.auc,
            told.training_auc,
            told.examples_per_s,
            told.cpu_ms_per_1000,
            preempted,
            self.store.statistics(),
            losses,
            self.model,
        )


def fit(model: nn.Module, data: Source | None = None, *, steps: int | None = None, **options: Any) -> Result:
    """Trains a model: its own `loss(output, labels)` or cross-entropy of its logits, on built-in clicks if no
    data are given. Options are those of `Session`. The result's `model`, the one that was given, is in eval mode and
    keeps its rows: it predicts."""
    if data is None and steps is None:
        raise InputError("the built-in data never end", hint="say how far: fit(model, steps=1000)")
    session = Session(model, data, **options)
    try:
        result = session.run(steps)
    except BaseException:
        session.close()
        raise
    session.close(keep_rows=True)
    model.eval()
    return result


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value


def _same(saved: dict[str, Any], mine: dict[str, Any], where: str) -> None:
    """Refuses a checkpoint of another training, and says what differs."""
    different = [name for name in mine if saved.get(name) != mine[name]]
    if not different:
        return
    if different == ["data"] and saved.get("data") == _unshuffled(mine["data"]):
        raise InputError(
            "holds checkpoints of an earlier version of berth, which shuffled files in another order: "
            "this version can't go on from them",
            where=where,
            hint="go on with the version that wrote them, give another folder, or --fresh to throw them away",
        )
    shown = [
        f"{name}: {saved.get(name)} there, {mine[name]} here"
        if len(str(mine[name])) < 60
        else f"{name} differ{'s' if not name.endswith('s') else ''}"
        for name in different
    ]
    raise InputError(
        f"holds checkpoints of another training ({'; '.join(shown)})",
        where=where,
        hint="give the same options to go on, another folder, or --fresh to throw them away",
    )


def _unshuffled(data: dict[str, Any]) -> dict[str, Any] | None:
    """The description that earlier versions wrote of the same files; None where it has not changed."""
    earlier = {name: value for name, value in data.items() if name != "shuffled"}
    return earlier if len(earlier) < len(data) else None
