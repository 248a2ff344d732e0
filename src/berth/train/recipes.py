"""What `berth train NAME` trains: the model, its rows and its data, by name."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from torch import nn

from berth.errors import InputError
from berth.train.data import ClickStream, Source
from berth.train.data.examples import ExampleStream
from berth.train.data.files import FileStream
from berth.train.embedding import embeddings_of, with_sparse_tables
from berth.train.tables import Initialiser, Life, Optimiser, adagrad
from berth.zoo import LayeredModel, make_model, zoo
from berth.zoo.load import load_module

_ON_CLICKS = "ctrdnn"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model ready to be trained."""

    name: str
    model: nn.Module
    data: Source
    batch: int
    best_auc: float | None = None  # where the data are made up, what a model that knew all would reach


def recipe(
    reference: str,
    *,
    data: str | None = None,
    seed: int = 0,
    batch: int | None = None,
    optimiser: Optimiser | None = None,
    epochs: int | None = 1,
    strict: bool = False,
    life: Life | None = None,
) -> Recipe:
    """A model of the zoo, or one's own as path.py:make_model, and what it learns from.

    With a `life`, the rows of a model of the zoo are shown, clicked and forgotten by it.
    """
    model = _model(reference, seed)
    if life is not None and isinstance(model, LayeredModel) and not _on_clicks(model):
        raise InputError(f"rows of {reference} are not clicked, so they have no days to live by")
    name = str(getattr(model, "name", "") or Path(reference.partition(":")[0]).stem)
    with_sparse_tables(
        model,
        optimiser=optimiser or adagrad(0.05),
        initialiser=Initialiser("uniform", _scale(name), seed),
        life=life,
    )
    size = batch or int(getattr(model, "batch", 4096))
    if data is not None:
        if isinstance(model, LayeredModel) and not _on_clicks(model):
            raise InputError(
                f"{name} does not read click logs", hint="leave out --data: it has examples of its own"
            )
        return Recipe(name, model, FileStream(data, epochs=epochs, strict=strict), size)
    if isinstance(model, LayeredModel) and not _on_clicks(model):
        return Recipe(name, model, ExampleStream(model.example_batch, name, seed), size)
    clicks = ClickStream(seed)
    return Recipe(name, model, clicks, size, clicks.best_auc())


def _model(reference: str, seed: int) -> nn.Module:
    entry = zoo().get(reference.strip().lower())
    if entry is None:
        return load_module(reference, seed)
    maker = import_module(f"berth.zoo.{entry.module}").make_model
    # Rows are made when they are met: nothing is gained from drawing a million of them now.
    fewest = {"rows": 1} if "rows" in inspect.signature(maker).parameters else {}
    return make_model(reference, seed, **fewest)


def _on_clicks(model: LayeredModel) -> bool:
    """Whether its inputs are those of click logs: a model of the CTRDNN family, or one's own with sparse rows."""
    if model.name in zoo():
        return zoo()[model.name].module == _ON_CLICKS
    return bool(embeddings_of(model))


def _scale(name: str) -> float:
    """Word vectors are multiplied with each other, and need something to begin with."""
    return 0.1 if name == "nce" else 0.01
