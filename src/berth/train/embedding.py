"""`Embedding`: rows of a sparse table as a torch layer.

Rows are pulled directly into the memory of a leaf tensor; after the backward pass its gradient is pushed without a
copy. With keys on an accelerator, rows are copied there, and their gradient back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from berth.errors import InputError
from berth.train.data.rows import SLOT_SHIFT
from berth.train.device_store import store_on_device
from berth.train.devices import on_host, staging
from berth.train.local import LocalStore
from berth.train.sparse import SparseStore, TableSpec
from berth.train.tables import Admission, DecayPolicy, Initialiser, Optimiser
from berth.zoo.slots import Lookup


class Embedding(nn.Module):
    """A vector of `dim` weights for any 64-bit key.

    In a training run, rows are in the store of the run. Otherwise the layer has a table of its own; call `push()` after
    `backward()` to update it.
    """

    def __init__(
        self,
        dim: int,
        *,
        name: str = "",
        optimiser: Optimiser | None = None,
        initialiser: Initialiser | None = None,
        admission: Admission | None = None,
        decay: DecayPolicy | None = None,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.name = name
        self.optimiser = optimiser or Optimiser()
        if self.optimiser.kind in ("momentum", "nesterov"):
            raise InputError(
                f"optimiser {self.optimiser.kind!r} is for dense weights, not for rows of a table",
                hint="use rowwise_adagrad, adagrad, adam or sgd",
            )
        self.initialiser = initialiser or Initialiser()
        self.admission = admission
        self.decay = decay
        self._store: SparseStore | None = None
        self._pulled: list[tuple[Tensor, Tensor]] = []  # keys and rows that wait for a gradient

    @property
    def spec(self) -> TableSpec:
        """Return the description of the table."""
        return TableSpec(
            self.name or "embedding",
            self.dim,
            self.optimiser,
            self.initialiser,
            self.admission,
            self.decay,
        )

    def connect(self, store: SparseStore) -> None:
        """Use the rows of `store`, in which the table is open, or of that part of it which has the table."""
        part_of: Callable[[str], SparseStore] | None = getattr(store, "part_of", None)
        self._store = store if part_of is None else part_of(self.spec_name)
        self._pulled.clear()

    @property
    def is_connected(self) -> bool:
        """Whether the layer has rows: those of a run, or a table of its own."""
        return self._store is not None

    def __getstate__(self) -> dict[str, Any]:
        """Return the layer without rows: a pickled model does not carry them."""
        return {**self.__dict__, "_store": None, "_pulled": []}

    def forward(self, keys: Tensor) -> Tensor:
        """Return rows on the device of the keys, (...) -> (..., dim); creates missing rows only in training."""
        if keys.dtype != torch.int64:
            raise InputError(f"keys of an Embedding must be int64, got {keys.dtype}", hint="use keys.long()")
        flat = on_host(keys).detach().reshape(-1)
        store, trains = self._backing_store(), self.training and torch.is_grad_enabled()
        device_store = store_on_device(store, keys.device)
        if device_store is not None:
            there = device_store.pull_to_device(self.spec_name, flat.numpy().view(np.uint64), create=trains)
            rows = there.view(*keys.shape, self.dim)
            if trains:
                self._pulled.append((flat, rows.requires_grad_()))
            return rows
        rows = staging((*keys.shape, self.dim), keys.device)
        out = rows.view(-1, self.dim).numpy()
        requested = flat.numpy().view(np.uint64)
        if not trains:
            store.peek(self.spec_name, requested, out)
            return rows.to(keys.device, non_blocking=True)
        store.pull(self.spec_name, requested, out)
        rows = rows.to(keys.device, non_blocking=True).requires_grad_()
        self._pulled.append((flat, rows))
        return rows

    @property
    def counts_clicks(self) -> bool:
        """Whether decay or admission uses shows and clicks."""
        return self.spec.counts_clicks

    def push(self, labels: Tensor | None = None) -> None:
        """Update the rows of the last forward passes with their gradients.

        `labels`, one per example (the first dimension of the keys), count as clicks of its keys.
        """
        pulled = [(keys, rows.grad) for keys, rows in self._pulled if rows.grad is not None]
        self._pulled.clear()
        if not pulled:
            return
        keys, gradients = pulled[0]
        if len(pulled) > 1:  # summed by key, as autograd would
            keys = torch.cat([part for part, _ in pulled])
            gradients = torch.cat([part.reshape(-1, self.dim) for _, part in pulled if part is not None])
        assert gradients is not None
        gradients, numbers = gradients.reshape(-1, self.dim), keys.numpy().view(np.uint64)
        clicks = None if labels is None else _spread(labels, [len(part) for part, _ in pulled])
        store = self._backing_store()
        device_store = store_on_device(store, gradients.device)
        if device_store is not None:
            device_store.push_from_device(self.spec_name, numbers, gradients, clicks=clicks)
        else:
            store.push(self.spec_name, numbers, gradients.cpu().numpy(), clicks=clicks)

    def prefetch(self, keys: Tensor) -> None:
        """Announce the keys of the next step."""
        self._backing_store().prefetch(
            self.spec_name, keys.detach().reshape(-1).long().numpy().view(np.uint64)
        )

    def lookup_of(self, keys: Tensor) -> int | None:
        """Return which forward pass since the last push had these keys: the same memory, or equal values."""
        place, flat = keys.data_ptr(), keys.detach().reshape(-1)
        for number, (part, _) in enumerate(self._pulled):
            same = part.numel() == flat.numel()
            if same and (part.data_ptr() == place or torch.equal(part, flat.long())):
                return number
        return None

    def pulled_keys(self) -> Tensor:
        """Return the keys of the forward passes since the last push."""
        return torch.cat([keys for keys, _ in self._pulled] or [torch.empty(0, dtype=torch.int64)])

    def discard_pulls(self) -> None:
        """Discard the forward passes since the last push without updating their rows."""
        self._pulled.clear()

    @property
    def spec_name(self) -> str:
        """Return the name of the table."""
        return self.name or "embedding"

    def extra_repr(self) -> str:
        """Return the description that torch prints."""
        return f"{self.dim}, name={self.spec_name!r}, optimiser={self.optimiser.kind!r}"

    def _backing_store(self) -> SparseStore:
        if self._store is None:
            self._store = LocalStore()
            self._store.open([self.spec])
        return self._store


def _spread(labels: Tensor, counts: list[int]) -> NDArray[np.float32]:
    """Return the label of each key's example, for every forward pass."""
    values = labels.reshape(-1).to(torch.float32).numpy()
    examples = max(len(values), 1)  # a worker may have no example of the last batch
    if any(count % examples for count in counts):
        raise InputError("with a decay policy the first dimension of the keys must be that of the labels")
    return np.concatenate([np.repeat(values, count // examples) for count in counts])


def slot_keys(ids: Tensor) -> Tensor:
    """Return keys for ids whose last dimension is the slot; keys of different slots never collide.

    Ids are from 0 to 2**55; negative ids are missing, and share one key per slot.
    """
    slots = torch.arange(1, ids.shape[-1] + 1, dtype=torch.int64, device=ids.device) << SLOT_SHIFT
    return slots + (ids.clamp(min=-1) + 1)


class SparseLookup(nn.Module):
    """The zoo's `Lookup` with an `Embedding`: keys are not hashed to buckets, so no two ids share a row."""

    def __init__(self, key: str, rows: Embedding, out: str | None = None) -> None:
        super().__init__()
        self.key, self.out = key, out or key
        self.rows = rows

    def forward(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the state with ids replaced by rows, or with another entry for the rows."""
        return {**state, self.out: self.rows(state[self.key])}


def with_sparse_tables(
    model: nn.Module,
    *,
    optimiser: Optimiser | None = None,
    initialiser: Initialiser | None = None,
    decay: DecayPolicy | None = None,
) -> nn.Module:
    """Replace the look-up layers of a model by sparse tables, named after their position."""
    for path, module in list(model.named_modules()):
        for child_name, child in list(module.named_children()):
            if isinstance(child, Lookup):
                name = _table_name(path, child_name)
                rows = Embedding(
                    child.table.embedding_dim,
                    name=name,
                    optimiser=optimiser,
                    initialiser=initialiser,
                    decay=decay,
                )
                module.register_module(child_name, SparseLookup(child.key, rows, child.out))
    return model


def embeddings_of(model: nn.Module) -> list[Embedding]:
    """Return the `Embedding` layers of a model; those without a name get that of their position."""
    found: dict[int, Embedding] = {}
    for path, module in model.named_modules():
        if isinstance(module, Embedding):
            module.name = module.name or path.removeprefix("chain.") or "embedding"
            found.setdefault(id(module), module)
    return list(found.values())


def _table_name(path: str, child: str) -> str:
    return child if path in ("", "chain") else f"{path}.{child}"
