"""A trained model from a checkpoint, to predict with: no servers, no data, no optimiser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from berth.errors import InputError
from berth.train.checkpoint.dense import load_weights
from berth.train.checkpoint.saved import chain_at, spec_of
from berth.train.embedding import embeddings_of
from berth.train.local import LocalStore
from berth.train.recipes import recipe
from berth.zoo import zoo


def load_for_inference(
    folder: str | Path, model: nn.Module | str | None = None, *, step: int | None = None
) -> nn.Module:
    """Returns a model in eval mode with the weights and rows of a checkpoint, the newest one or that of a step.

    `model` is a module as it was given to the training, or what `berth train` was given: a name of the zoo or
    `path.py:make_model`. It may be left out for models of the zoo: a checkpoint holds no code. All rows are loaded
    into memory.
    """
    shelf, chain = chain_at(folder, step)
    run = chain[-1].run
    made = model if isinstance(model, nn.Module) else _named(model or _zoo_name(run, str(folder)))
    load_weights(made, *shelf.dense(chain[-1]))
    store = LocalStore()
    for layer in embeddings_of(made):
        if layer.spec_name not in run["tables"] or run["tables"][layer.spec_name]["dim"] != layer.dim:
            raise InputError(
                f"the checkpoint is of another model: it has no table {layer.spec_name!r} of width {layer.dim}",
                where=str(folder),
            )
        spec = spec_of(run["tables"][layer.spec_name])
        store.open([spec])
        for state in shelf.states(chain, spec.name):
            store.load(spec.name, state)
        layer.connect(store)
    return made.eval()


def _named(reference: str) -> nn.Module:
    return recipe(reference).model


def _zoo_name(run: dict[str, Any], where: str) -> str:
    kind, _, name = str(run["model"]).partition(":")
    if name not in zoo():
        raise InputError(
            f"the checkpoint is of {name or kind}, which only you can make",
            where=where,
            hint="load_for_inference(folder, make_model()), or with what `berth train` was given as text",
        )
    return name
