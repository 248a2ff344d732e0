"""Models and their data by name, ready to be trained."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from berth.errors import InputError, UnknownNameError
from berth.train.data import BatchSource, ClickStream
from berth.train.data.columns import Layout
from berth.train.data.examples import ExampleStream
from berth.train.data.files import FileStream
from berth.train.data.sample import layout_examples
from berth.train.embedding import embeddings_of, with_sparse_tables
from berth.train.evaluate import Evaluations
from berth.train.learner import Loss
from berth.train.optimisers import MakeOptimiser, MakeScheduler
from berth.train.pooling import with_pooling
from berth.train.tables import DecayPolicy, Initialiser, Optimiser, adagrad, adam, rowwise_adagrad, sgd
from berth.zoo import LayeredModel, make_model, zoo
from berth.zoo.catalogue import ZooEntry
from berth.zoo.load import load_module

Columns = str | Path | Mapping[str, Any] | Layout | None


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model with its data."""

    name: str
    model: nn.Module
    data: BatchSource
    batch: int
    best_auc: float | None = None  # the best possible, for generated data
    optimiser: Optimizer | MakeOptimiser | None = None  # of dense weights; None: as the options say
    scheduler: LRScheduler | MakeScheduler | None = None
    loss: Loss | None = None  # None: that of the model
    evaluations: Evaluations | None = None
    callbacks: Any = ()


def make_recipe(
    reference: str,
    *,
    data: str | FileStream | None = None,
    columns: Columns = None,
    seed: int = 0,
    batch: int | None = None,
    optimiser: Optimiser | None = None,
    epochs: int | None = 1,
    strict: bool = False,
    decay: DecayPolicy | None = None,
) -> Recipe:
    """Return a zoo model, or your own as path.py:make_model, with its data.

    A zoo model is built for the columns of the data. `columns` are the roles of columns, as for `FileStream`; a layout
    without data is that of the data to come. `decay` applies to the tables of a zoo model that trains on clicks.
    """
    entry = zoo().get(reference.strip().lower())
    if data is not None and entry is not None and not (entry.reads_clicks or entry.several_labels):
        raise InputError(
            f"{entry.name} does not read click logs", hint="drop --data: it generates its own examples"
        )
    if isinstance(data, str):
        data = FileStream(data, columns=columns, epochs=epochs, strict=strict)
    layout = data.layout if data is not None else columns if isinstance(columns, Layout) else None
    if columns is not None and layout is None:
        raise InputError("--columns describes files", hint="add --data PATH")
    model = _model(reference, seed, layout)
    if decay is not None and isinstance(model, LayeredModel) and not _reads_clicks(model):
        raise InputError(
            f"{reference} does not train on clicks, so its rows can't decay", hint="drop --day-every"
        )
    name = str(getattr(model, "name", "") or Path(reference.partition(":")[0]).stem)
    with_sparse_tables(
        model,
        optimiser=optimiser or adagrad(0.05),
        initialiser=Initialiser("uniform", _scale(name), seed),
        decay=decay,
    )
    if layout is not None and layout.multi and isinstance(model, LayeredModel) and model.name in zoo():
        with_pooling(model, layout.multi)
    size = batch or int(getattr(model, "batch", 4096))
    if data is not None:
        if isinstance(model, LayeredModel) and not (_reads_clicks(model) or _has_tasks(model)):
            raise InputError(
                f"{name} does not read click logs", hint="drop --data: it generates its own examples"
            )
        return Recipe(name, model, data, size)
    if isinstance(model, LayeredModel) and not _reads_clicks(model):
        return Recipe(name, model, ExampleStream(model.example_batch, name, seed), size)
    clicks = ClickStream(seed)
    return Recipe(name, model, clicks, size, clicks.best_auc())


def row_optimiser(name: str) -> Optimiser:
    """Return an optimiser of rows by name."""
    known = {make.__name__: make for make in (adagrad, rowwise_adagrad, adam, sgd)}
    if name not in known:
        raise UnknownNameError("optimiser of rows", name, known)
    return known[name]()


def _model(reference: str, seed: int, layout: Layout | None) -> nn.Module:
    entry = zoo().get(reference.strip().lower())
    if entry is None:
        return load_module(reference, seed)
    maker = import_module(f"berth.zoo.{entry.module}").make_model
    # Rows are created on first use, so the model needs no dense table.
    options: dict[str, Any] = {"rows": 1} if "rows" in inspect.signature(maker).parameters else {}
    if layout is not None and (entry.reads_clicks or entry.several_labels):
        options |= _sizes(entry, layout)
    model = make_model(reference, seed, **options)
    if layout is not None:
        model.set_examples(partial(layout_examples, layout))
    return model


def _sizes(entry: ZooEntry, layout: Layout) -> dict[str, int]:
    """Return the numbers of slots, features and tasks of a zoo model for the columns of files."""
    features, labels = len(layout.dense_columns), len(layout.labels)
    if list(layout.slots) != ["slots"] or list(layout.dense) != ["dense"]:
        raise InputError(
            f"{entry.name} reads one group of slots and one of dense features",
            hint="write them as lists in --columns: slots: [a, b]",
        )
    if layout.slot_count < 2 or not features:
        raise InputError(
            f"{entry.name} needs at least two slots and one dense feature; the columns have"
            f" {layout.slot_count} and {features}",
            hint="give the columns their roles with --columns, or train a model of your own",
        )
    if entry.several_labels != (labels > 1):
        wanted = "several labels" if entry.several_labels else "one label"
        raise InputError(
            f"{entry.name} learns {wanted}; the columns have {labels}",
            hint="name them in --columns: labels: [click, purchase]"
            if entry.several_labels
            else "use mmoe, or your own model",
        )
    sizes = {"slots": layout.slot_count, "features": features}
    return {**sizes, "tasks": labels} if entry.several_labels else sizes


def _reads_clicks(model: LayeredModel) -> bool:
    """Return whether a model reads click logs: as its zoo entry says, and your own model with embeddings."""
    if model.name in zoo():
        return zoo()[model.name].reads_clicks
    return bool(embeddings_of(model))


def _has_tasks(model: LayeredModel) -> bool:
    return model.name in zoo() and zoo()[model.name].several_labels


def _scale(name: str) -> float:
    """Return the initial scale of rows; those that are multiplied with each other need a larger one."""
    return 0.1 if name in zoo() and zoo()[name].multiplies_rows else 0.01
