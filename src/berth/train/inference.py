"""Load a trained model from a checkpoint for inference, without servers, data or optimiser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from torch import nn

from berth.errors import InputError
from berth.train.checkpoint import CheckpointStore, Manifest
from berth.train.checkpoint.dense import load_weights
from berth.train.checkpoint.inspect import open_checkpoint
from berth.train.checkpoint.store import Notify
from berth.train.data import Batch, BatchSource, ClickStream, Share, criteo
from berth.train.data.columns import Layout
from berth.train.data.examples import ExampleStream
from berth.train.data.files import FileStream
from berth.train.embedding import embeddings_of
from berth.train.evaluate import HeldOut
from berth.train.learner import input_shapes
from berth.train.local import LocalStore
from berth.train.recipes import make_recipe
from berth.train.sparse import Floats, Keys, SparseStore, TableSpec
from berth.zoo import LayeredModel, zoo


def load_for_inference(
    folder: str | Path,
    model: nn.Module | str | None = None,
    *,
    step: int | Literal["best"] | None = None,
    notify: Notify = print,
) -> nn.Module:
    """Return a model in eval mode with the weights and rows of a checkpoint: the newest, that of `step`, or that of the
    best evaluation.

    `model` is a module, or the argument of `berth train`: a zoo name or `path.py:make_model`. It is optional for zoo
    models; a checkpoint contains no code. All rows are loaded into memory when the model is first called.
    `notify` gets a line for each newer checkpoint that is damaged, and one for that used instead.
    """
    manifest = _manifest(folder, step, notify)
    run = manifest.run
    made = model if isinstance(model, nn.Module) else _named(model or zoo_name(run, str(folder)), run)
    return load_saved(folder, made, manifest.step)


def _manifest(folder: str | Path, step: int | Literal["best"] | None, notify: Notify) -> Manifest:
    wanted = best_step(folder, notify) if step == "best" else step
    return open_checkpoint(folder, wanted, notify)[1][-1]


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A trained model, and what its checkpoint says about the run."""

    model: nn.Module
    step: int
    batch: int
    seed: int
    data: Mapping[str, Any]  # description of the training data
    inputs: Mapping[str, list[int]] | None = None  # shape of an example, by input
    where: str = ""

    def batches(self, source: BatchSource) -> Iterator[Batch]:
        """Yield the batches of other data; raises if examples have another shape than those of the run."""
        for number, batch in enumerate(source.batches(self.batch, 0, Share(), self.seed)):
            if number == 0 and self.inputs is not None:
                lists = (self.data.get("columns") or {}).get("multi", ())
                fixed = {name: shape for name, shape in self.inputs.items() if name not in lists}
                _check_inputs(fixed, input_shapes(batch.inputs), self.where)
            yield batch

    def files(self, path: str, *, strict: bool = False, shuffled: bool = True) -> FileStream:
        """Return files with the columns of the training data."""
        return FileStream(path, columns=self._layout, strict=strict, shuffled=shuffled)

    @property
    def _layout(self) -> Layout | None:
        """Return the columns of the training data; None: not known, as in checkpoints of earlier versions."""
        if self.data.get("columns"):
            return Layout.from_json(self.data["columns"])
        is_criteo = self.inputs == {"slots": [criteo.SLOTS, 1], "dense": [criteo.DENSE]}
        return criteo.LAYOUT if is_criteo and self.data.get("kind") == "files" else None

    def held_out(self, examples: int) -> BatchSource:
        """Return examples of the generated data of the run that it did not train on."""
        if self.data.get("kind") == "clicks":
            return HeldOut(ClickStream(int(self.data["seed"])), examples)
        if self.data.get("kind") == "examples" and isinstance(self.model, LayeredModel):
            stream = ExampleStream(self.model.example_batch, self.model.name, int(self.data["seed"]))
            return HeldOut(stream, examples)
        raise InputError("the run did not train on generated data", where=self.where, hint="give --data PATH")


def open_run(
    folder: str | Path,
    model: nn.Module | str | None = None,
    *,
    step: int | Literal["best"] | None = None,
    notify: Notify = print,
) -> SavedRun:
    """Return the run of a checkpoint, ready to evaluate and predict."""
    manifest = _manifest(folder, step, notify)
    loaded = load_for_inference(folder, model, step=manifest.step)
    run = manifest.run
    return SavedRun(
        loaded,
        manifest.step,
        run["batch"],
        run["seed"],
        run["data"],
        manifest.progress.get("inputs"),
        str(folder),
    )


def _check_inputs(saved: Mapping[str, list[int]], found: Mapping[str, list[int]], where: str) -> None:
    for name, shape in saved.items():
        if name not in found or found[name] != shape:
            here = f"{found[name][0] if found[name] else 1}" if name in found else "no"
            raise InputError(
                f"the model was trained with {shape[0] if shape else 1} {name} per example, this data has {here}",
                where=where,
                hint="give data with the columns of the training data, in the same order",
            )


def load_saved(folder: str | Path, model: nn.Module, step: int | None = None) -> nn.Module:
    """Load a checkpoint into a model; returns it in eval mode."""
    checkpoint_store, chain = open_checkpoint(folder, step)
    run = chain[-1].run
    for layer in embeddings_of(model):
        if layer.spec_name not in run["tables"] or run["tables"][layer.spec_name]["dim"] != layer.dim:
            raise InputError(
                f"the checkpoint is of a different model: it has no table {layer.spec_name!r} of width {layer.dim}",
                where=str(folder),
            )
    load_weights(model, *checkpoint_store.dense(chain[-1]))
    rows = cast("SparseStore", SavedRows(checkpoint_store, chain))
    for layer in embeddings_of(model):
        layer.connect(rows)
    return model.eval()


def best_step(folder: str | Path, notify: Notify = print) -> int:
    """Return the step of the best evaluation of a run, whose checkpoint was kept."""
    evaluations = open_checkpoint(folder, notify=notify)[1][-1].progress.get("evaluations")
    if not evaluations or not evaluations["best"]:
        raise InputError(
            "holds no evaluation", where=str(folder), hint="train with --eval or --eval-examples, and --best"
        )
    return int(evaluations["best"]["step"])


class SavedRows:
    """The rows of a checkpoint, loaded into memory when they are first read."""

    def __init__(self, checkpoint_store: CheckpointStore, chain: list[Manifest]) -> None:
        self._checkpoint_store, self._chain = checkpoint_store, chain
        self._store: LocalStore | None = None

    def peek(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return the rows of keys; unknown ones have their initial values."""
        return self._loaded().peek(table, keys, out)

    def pull(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return the rows of keys and create missing ones, in this process only."""
        return self._loaded().pull(table, keys, out)

    def push(self, table: str, keys: Keys, gradients: Floats, **counts: Floats | None) -> None:
        """Apply gradients, in this process only."""
        self._loaded().push(table, keys, gradients, **counts)

    def _loaded(self) -> LocalStore:
        if self._store is None:
            self._store = LocalStore()
            for name, document in self._chain[-1].run["tables"].items():
                self._store.open([TableSpec.from_json(document)])
                for state in self._checkpoint_store.states(self._chain, name):
                    self._store.load(name, state)
        return self._store


def _named(reference: str, run: Mapping[str, Any]) -> nn.Module:
    columns = run["data"].get("columns")
    return make_recipe(reference, columns=Layout.from_json(columns) if columns else None).model


def zoo_name(run: dict[str, Any], where: str) -> str:
    """Return the zoo model that a checkpoint is of; raises if it is of another one."""
    kind, _, name = str(run["model"]).partition(":")
    if name not in zoo():
        raise InputError(
            f"the checkpoint is of {name or kind}, which is not in the zoo",
            where=where,
            hint="pass the model: load_for_inference(folder, make_model()), or the argument of `berth train`",
        )
    return name
