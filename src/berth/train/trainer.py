"""`Trainer`: a training run from Python, in this process or in several.

    trainer = Trainer("ctrdnn", "clicks.parquet", workers=2, eval_data="test.parquet", checkpoints="run1")
    result = trainer.fit()
    predictions = trainer.predict("test.parquet")

`berth train` builds a `Trainer` too.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from berth.errors import InputError
from berth.train.callbacks import as_callbacks
from berth.train.data import BatchSource, ClickStream, Share
from berth.train.data.examples import ExampleStream
from berth.train.data.files import FileStream
from berth.train.data.iterable import IterableSource
from berth.train.dense_rules import check_rules
from berth.train.devices import find_device
from berth.train.embedding import embeddings_of
from berth.train.evaluate import Evaluation, Evaluations, HeldOut, predict, score
from berth.train.inference import load_saved
from berth.train.interruption import Stopped
from berth.train.learner import Loss
from berth.train.optimisers import MakeOptimiser, MakeScheduler, scheduler_text
from berth.train.options import Checkpoints, TrainOptions, check_count, check_scale
from berth.train.orchestrate import planned_of, start
from berth.train.planned import job_plan
from berth.train.recipes import Columns, Recipe, make_recipe, row_optimiser
from berth.train.rendezvous import rank_from_environment
from berth.train.result import Result
from berth.train.servers import Mode
from berth.train.session import Session
from berth.train.tables import DecayPolicy
from berth.train.worker import exit_if_peer_lost
from berth.zoo.layered import seeded

Model = nn.Module | str | Callable[[], nn.Module]
Data = BatchSource | str | Path | Iterable[Any] | Callable[[], Iterable[Any]]
_OPTIONS = frozenset(option.name for option in fields(TrainOptions))
_NEVER = 1 << 62  # steps between checkpoints, for a run that only keeps its last one


class Trainer:
    """A model, its data and how it is trained.

    `model` is a module, a function that returns one, or the argument of `berth train`: a zoo name or
    `path.py:make_model`. `data` is a path of click logs, a `BatchSource`, an iterable of (inputs, labels), or a
    function that returns an iterator; the default is built-in clicks. `columns` are the roles of the columns of files,
    as a YAML file, YAML in braces or a dictionary. `eval_data` is as `data`, or a number of
    held-out examples of generated data. `optimiser` and `scheduler` of dense weights are a name of torch (with `lr`,
    `dense_options` and `schedule_options`), a function of the weights or of the optimiser, such as
    `functools.partial(torch.optim.SGD, lr=0.1)`, or, for one process, an object. Other options are the fields of
    `TrainOptions`.

    With `workers`, `servers` or a `plan` the run has processes of its own. They import what they are given by its
    name, so it must be defined in a module or script, not in a notebook.
    """

    def __init__(
        self,
        model: Model,
        data: Data | None = None,
        *,
        columns: str | Path | Mapping[str, Any] | None = None,
        workers: int = 1,
        servers: int | None = None,
        plan: str | None = None,
        scale: str | None = None,
        device: str = "cpu",
        mode: Mode | None = None,
        optimiser: str | torch.optim.Optimizer | MakeOptimiser | None = None,
        scheduler: str | LRScheduler | MakeScheduler | None = None,
        loss: Loss | None = None,
        callbacks: Any = (),
        eval_data: Data | int | None = None,
        checkpoints: Checkpoints | str | Path | None = None,
        notify: Callable[[str], None] = print,
        **options: Any,
    ) -> None:
        plan = plan or (job_plan() if workers == 1 and options.get("stages") is None else None)
        named = {"dense_optimiser": optimiser, "schedule": scheduler}
        options |= {name: value for name, value in named.items() if isinstance(value, str)}
        options |= {"workers": workers, "servers": servers, "plan": plan, "scale": scale, "device": device}
        options |= {"checkpoints": checkpoints}
        for name in options.keys() - _OPTIONS:
            raise TypeError(f"Trainer() got an unexpected keyword argument {name!r}")
        options = {name: _plain(value) for name, value in options.items()}
        check_scale(scale)
        recipe = _recipe(model, data, columns, options)
        planned = planned_of(recipe, plan, scale, options.get("slowdowns", {}))
        if "batch" not in options and planned is not None and planned.batch is not None:
            recipe = replace(recipe, batch=planned.batch)
        planned_mode = "sync" if planned is None or planned.is_sync else "async"
        options |= {"batch": recipe.batch, "mode": mode or planned_mode}
        recipe = replace(
            recipe,
            optimiser=None if isinstance(optimiser, str) else optimiser,
            scheduler=None if isinstance(scheduler, str) else scheduler,
            loss=loss,
            callbacks=as_callbacks(callbacks),
        )
        self._set_up(recipe, TrainOptions(**options), eval_data, notify)
        self._reads_own_files = isinstance(data, str | Path)
        self._arguments = {
            "model": model, "data": data, "columns": columns, "mode": mode, "optimiser": optimiser,
            "scheduler": scheduler, "loss": loss, "eval_data": eval_data, **options,
        }  # fmt: skip

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        options: TrainOptions,
        *,
        eval_data: Data | int | None = None,
        notify: Callable[[str], None] = print,
    ) -> Trainer:
        """Return the trainer of a recipe; it can `start` several processes, but not `fit` in them."""
        trainer = cls.__new__(cls)
        trainer._set_up(recipe, options, eval_data, notify)
        return trainer

    def _set_up(
        self,
        recipe: Recipe,
        options: TrainOptions,
        eval_data: Data | int | None,
        notify: Callable[[str], None],
    ) -> None:
        _set_row_rate(recipe.model, options.rows_lr)
        evaluations = _evaluations(eval_data, recipe, options)
        self.recipe, self.options = replace(recipe, evaluations=evaluations), options
        _check_options(self.recipe, options)
        self._notify = notify
        self._reads_own_files = False
        self._session: Session | None = None
        self._scratch: str | None = None  # folder for checkpoints of several processes
        self._payload: bytes | None = None
        self._saved_step: int | None = None  # which the model must be loaded from

    @property
    def model(self) -> nn.Module:
        """Return the model, as trained so far, in eval mode; rows of other processes are loaded when they are used."""
        if self._saved_step is not None:
            load_saved(self._checkpoints().folder, self.recipe.model, self._saved_step)
            self.recipe.model.to(find_device(self.options.device))
            self._saved_step = None
        return self.recipe.model.eval()

    def fit(self, steps: int | None = None, *, examples: int | None = None) -> Result:
        """Train until this step, or this number of examples, of the whole run; returns its result.

        Without either, data is read once. Called again, or with a folder that has checkpoints, training continues
        where it ended. The model of the result can predict.
        """
        goal = self.goal(steps, examples)
        if self._needs_processes:
            return self._fit_in_processes(goal)
        session = self._opened(goal)
        with exit_if_peer_lost(session.rank_info, self._notify):
            session.learner.model.train()
            try:
                result = session.run(goal)
            except BaseException:
                self._close_session()
                raise
        if self.options.checkpoints is not None or not session.rank_info.is_single:
            self._close_session(keep_rows=True)
        self.recipe.model.eval()
        return result

    def evaluate(self, data: Data | int) -> Evaluation:
        """Return the metrics of the model on other data; creates no rows."""
        source = _source(data, self.recipe)
        batches = source.batches(self.recipe.batch, 0, Share(), self.options.seed)
        device, bf16 = find_device(self.options.device), self.options.bf16
        return score(self.model, batches, loss=self.recipe.loss, device=device, bf16=bf16).evaluation()

    def predict(self, data: Data | dict[str, Any], *, raw: bool = False) -> NDArray[Any]:
        """Return the probability of a click for each example, in order; with `raw` the model's output."""
        source = IterableSource([(data, np.zeros(_length(data)))]) if isinstance(data, dict) else data
        batches = _source(source, self.recipe, in_order=True).batches(self.recipe.batch, 0, Share(), 0)
        device = find_device(self.options.device)
        parts = [found for _, found in predict(self.model, batches, raw=raw, device=device)]
        return np.concatenate(parts) if parts else np.empty(0)

    def close(self) -> None:
        """Release rows and temporary files."""
        self._close_session()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def goal(self, steps: int | None = None, examples: int | None = None) -> int | None:
        """Return the step at which the run ends; None: at the end of the data."""
        if steps is not None and examples is not None:
            raise InputError("steps and examples exclude each other", hint="give one of them")
        for name, count in (("steps", steps), ("examples", examples)):
            if count is not None and (not isinstance(count, Integral) or count < 1):
                raise InputError(f"{name}: expected a whole number of at least 1, got {count!r}")
        if examples is not None:
            steps = -(-examples // self.recipe.batch)
        if steps is None and isinstance(self.recipe.data, ClickStream | ExampleStream):
            raise InputError("the built-in data is endless", hint="set a number of steps: fit(steps=1000)")
        return steps

    def start(self, goal: int | None, command: Sequence[str]) -> Session | int:
        """Return the session of this process; or run `command` in all processes of the run and return the exit code."""
        if self._reads_own_files and isinstance(self.recipe.data, FileStream):
            self.recipe.data.epochs = 1 if goal is None else None
        scheduler = self.recipe.scheduler or self.options.scheduler(goal)
        started = start(replace(self.recipe, scheduler=scheduler), self.options, command, self._notify)
        self._started()
        return started

    def _started(self) -> None:
        """Note that old checkpoints are deleted: not again when training continues."""
        self.options = self.options.continued()

    @property
    def _needs_processes(self) -> bool:
        return self.options.is_distributed and rank_from_environment() is None

    def _opened(self, goal: int | None) -> Session:
        if self._session is None:
            session = self.start(goal, ())
            if isinstance(session, int):
                raise SystemExit(session)  # this rank was a server
            self._session = session
        planned = self.options.scheduler(goal)
        before = self._session._make_scheduler
        if planned is not None and scheduler_text(before) != scheduler_text(planned):
            raise InputError(
                f"the schedule of this run is {before}, not {planned}",
                hint="give its length: schedule_options",
            )
        return self._session

    def _close_session(self, *, keep_rows: bool = False) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.close(keep_rows=keep_rows)

    def _fit_in_processes(self, goal: int | None) -> Result:
        from berth.train.run_processes import pickled, run

        find_device(self.options.device)  # the trained model is moved there
        checkpoints = self._checkpoints()
        if self._payload is None:
            if any(layer.is_connected for layer in embeddings_of(self.recipe.model)):
                raise InputError(
                    "the model has rows, which can't be passed to other processes",
                    hint="make a new one, or resume from a checkpoint",
                )
            self._payload = pickled(self._arguments)
        options: dict[str, Any] = {"checkpoints": checkpoints}
        if self.options.checkpoints is None:
            options["max_restarts"] = 0
        self._started()
        try:
            result = run(self._payload, options, goal, callbacks=self.recipe.callbacks, notify=self._notify)
        except Stopped as stopped:
            self._saved_step = stopped.step
            raise
        self._saved_step = result["step"]
        return Result(**result, model=self.model)

    def _checkpoints(self) -> Checkpoints:
        """Return where the run is saved: several processes need a folder, since the result is read from it."""
        if self.options.checkpointing is not None:
            return self.options.checkpointing
        if self._scratch is None:
            self._scratch = tempfile.mkdtemp(prefix="berth-run-")
            finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        return Checkpoints(self._scratch, every=_NEVER, keep=1)


def _plain(value: Any) -> Any:
    """Return a number of another library, such as numpy, as one that a checkpoint can store."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _recipe(model: Model, data: Data | None, columns: Columns, options: dict[str, Any]) -> Recipe:
    seed, day = options.get("seed", 0), options.get("day_every")
    check_count("batch", options.get("batch"), 1)
    check_count("seed", seed, 0)
    rows = row_optimiser(options.get("row_optimiser") or "adagrad")
    if isinstance(model, str):
        path = str(data) if isinstance(data, str | Path) else data if isinstance(data, FileStream) else None
        decay = DecayPolicy() if day is not None else None
        recipe = make_recipe(
            model,
            data=path,
            columns=columns,
            seed=seed,
            batch=options.get("batch"),
            optimiser=rows,
            decay=decay,
        )
    else:
        with seeded(seed):
            made = model if isinstance(model, nn.Module) else model()
        if not isinstance(made, nn.Module):
            raise InputError(f"model is a {type(made).__name__}: expected a module, a name or a function")
        batch: int = options.get("batch") or cast("int", getattr(made, "batch", 4096))
        recipe = Recipe(str(getattr(made, "name", "") or type(made).__name__), made, ClickStream(seed), batch)
    if columns is not None and not isinstance(data, str | Path):
        raise InputError("columns describe files", hint="pass the path of a file or folder as data")
    if data is not None and (not isinstance(model, str) or not isinstance(data, str | Path)):
        source = FileStream(data, columns=columns) if isinstance(data, str | Path) else _source(data, recipe)
        recipe = replace(recipe, data=source, best_auc=None)
    return recipe


def _set_row_rate(model: nn.Module, rate: float | None) -> None:
    """Set the learning rate of all rows of a model, if it is given."""
    for layer in embeddings_of(model) if rate is not None else ():
        layer.optimiser = replace(layer.optimiser, learning_rate=cast("float", rate))


def _source(data: Data | int, recipe: Recipe, *, in_order: bool = False) -> BatchSource:
    """Return data in any accepted form as a source of batches."""
    if isinstance(data, int):
        if not isinstance(recipe.data, ClickStream | ExampleStream):
            raise InputError(
                f"{data:,} held-out examples can be generated for built-in data only",
                hint="give a file or folder of held-out data",
            )
        return HeldOut(recipe.data, data)
    if isinstance(data, str | Path):
        layout = recipe.data.layout if isinstance(recipe.data, FileStream) else None
        return FileStream(data, columns=layout, shuffled=not in_order)
    if hasattr(data, "batches") and hasattr(data, "describe"):
        return cast("BatchSource", data)
    return IterableSource(cast("Any", data))


def _evaluations(data: Data | int | None, recipe: Recipe, options: TrainOptions) -> Evaluations | None:
    if data is None:
        for name in ("eval_every", "best", "patience"):
            if getattr(options, name) is not None:
                raise InputError(
                    f"{name.replace('_', '-')} needs held-out data",
                    hint="add --eval DATA or --eval-examples N",
                )
        return None
    return Evaluations(
        _source(data, recipe), options.eval_every, options.best, options.patience, options.best is not None
    )


def _check_options(recipe: Recipe, options: TrainOptions) -> None:
    """Raise for unknown names, and for objects that only one process can use."""
    str(options.optimiser)
    if options.is_distributed and isinstance(recipe.optimiser, torch.optim.Optimizer):
        raise InputError(
            "the optimiser is an object, which several processes can't share",
            hint="pass a name, or a function such as functools.partial(torch.optim.SGD, lr=0.1)",
        )
    if options.is_distributed and isinstance(recipe.scheduler, LRScheduler):
        raise InputError(
            "the scheduler is an object, which several processes can't share",
            hint="pass a name, or a function such as functools.partial(StepLR, step_size=100)",
        )
    optimiser, scheduler = recipe.optimiser or options.optimiser, recipe.scheduler or options.scheduler(1)
    if options.mode != "sync" and callable(optimiser) and not isinstance(scheduler, LRScheduler):
        check_rules(optimiser, scheduler)


def _length(inputs: dict[str, Any]) -> int:
    return len(next(iter(inputs.values())))
