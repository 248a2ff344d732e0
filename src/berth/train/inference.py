"""Load a trained model from a checkpoint for inference, without servers, data or optimiser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from berth.errors import InputError
from berth.train.checkpoint.dense import load_weights
from berth.train.checkpoint.inspect import open_checkpoint
from berth.train.embedding import embeddings_of
from berth.train.local import LocalStore
from berth.train.recipes import make_recipe
from berth.train.sparse import TableSpec
from berth.zoo import zoo


def load_for_inference(
    folder: str | Path, model: nn.Module | str | None = None, *, step: int | None = None
) -> nn.Module:
    """Return a model in eval mode with the weights and rows of a checkpoint: the newest, or that of `step`.

    `model` is a module, or the argument of `berth train`: a zoo name or `path.py:make_model`. It is optional for zoo
    models; a checkpoint contains no code. All rows are loaded into memory.
    """
    checkpoint_store, chain = open_checkpoint(folder, step)
    run = chain[-1].run
    made = model if isinstance(model, nn.Module) else _named(model or _zoo_name(run, str(folder)))
    load_weights(made, *checkpoint_store.dense(chain[-1]))
    store = LocalStore()
    for layer in embeddings_of(made):
        if layer.spec_name not in run["tables"] or run["tables"][layer.spec_name]["dim"] != layer.dim:
            raise InputError(
                f"the checkpoint is of a different model: it has no table {layer.spec_name!r} of width {layer.dim}",
                where=str(folder),
            )
        spec = TableSpec.from_json(run["tables"][layer.spec_name])
        store.open([spec])
        for state in checkpoint_store.states(chain, spec.name):
            store.load(spec.name, state)
        layer.connect(store)
    return made.eval()


def _named(reference: str) -> nn.Module:
    return make_recipe(reference).model


def _zoo_name(run: dict[str, Any], where: str) -> str:
    kind, _, name = str(run["model"]).partition(":")
    if name not in zoo():
        raise InputError(
            f"the checkpoint is of {name or kind}, which is not in the zoo",
            where=where,
            hint="pass the model: load_for_inference(folder, make_model()), or the argument of `berth train`",
        )
    return name
