"""`Embedding`: rows of a sparse table as a torch layer.

Rows are pulled straight into the memory of a tensor that is a leaf of the graph; after the backward pass its
gradient is pushed from where autograd left it. Nothing is copied on the way, and autograd sees one leaf.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from berth.errors import InputError
from berth.train.data.rows import SLOT_SHIFT
from berth.train.local import LocalStore
from berth.train.sparse import SparseStore, TableSpec
from berth.train.tables import Admission, Initialiser, Life, Optimiser
from berth.zoo.slots import Lookup


class Embedding(nn.Module):
    """A vector of `dim` for any 64-bit key.

    Inside `berth.train.fit` rows live where the training keeps them. Alone, they live in a table of the layer's
    own; call `push()` after `backward()` to let them learn.
    """

    def __init__(
        self,
        dim: int,
        *,
        name: str = "",
        optimiser: Optimiser | None = None,
        initialiser: Initialiser | None = None,
        admission: Admission | None = None,
        life: Life | None = None,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.name = name
        self.optimiser = optimiser or Optimiser()
        self.initialiser = initialiser or Initialiser()
        self.admission = admission
        self.life = life
        self._store: SparseStore | None = None
        self._pulled: list[tuple[Tensor, Tensor]] = []  # keys and rows whose gradient is to come

    @property
    def spec(self) -> TableSpec:
        """The table behind the layer."""
        return TableSpec(
            self.name or "embedding",
            self.dim,
            self.optimiser,
            self.initialiser,
            self.admission,
            self.life,
        )

    def connect(self, store: SparseStore) -> None:
        """From now on rows are those of `store`, in which the table is open."""
        self._store = store
        self._pulled.clear()

    def forward(self, keys: Tensor) -> Tensor:
        """(...) whole numbers -> (..., dim); rows are made only where they are to learn."""
        if keys.dtype != torch.int64:
            raise InputError(f"keys of an Embedding are int64, not {keys.dtype}", hint="use keys.long()")
        flat = keys.detach().reshape(-1).cpu()
        rows = torch.empty((*keys.shape, self.dim), dtype=torch.float32)
        out = rows.view(-1, self.dim).numpy()
        asked = flat.numpy().view(np.uint64)
        if not (self.training and torch.is_grad_enabled()):
            self._home().peek(self.spec_name, asked, out)
            return rows
        self._home().pull(self.spec_name, asked, out)
        rows.requires_grad_()
        self._pulled.append((flat, rows))
        return rows

    @property
    def counts_clicks(self) -> bool:
        """Whether its rows live or are admitted by what is shown and clicked."""
        return self.spec.counts_clicks

    def push(self, labels: Tensor | None = None) -> None:
        """Lets the rows of the last forward passes learn from the gradients they got.

        With `labels`, one for each example (the first dimension of the keys), its keys count as clicked or not.
        """
        pulled = [(keys, rows.grad) for keys, rows in self._pulled if rows.grad is not None]
        self._pulled.clear()
        if not pulled:
            return
        keys, gradients = pulled[0]
        if len(pulled) > 1:  # of one key they are summed, as autograd would
            keys = torch.cat([part for part, _ in pulled])
            gradients = torch.cat([part.reshape(-1, self.dim) for _, part in pulled if part is not None])
        assert gradients is not None
        slopes = gradients.reshape(-1, self.dim).numpy()
        clicks = None if labels is None else _spread(labels, [len(part) for part, _ in pulled])
        self._home().push(self.spec_name, keys.numpy().view(np.uint64), slopes, clicks=clicks)

    def prefetch(self, keys: Tensor) -> None:
        """Says which keys will be asked for in the next step."""
        self._home().prefetch(self.spec_name, keys.detach().reshape(-1).long().numpy().view(np.uint64))

    def asked_for(self, keys: Tensor) -> bool:
        """Whether these are the keys of a forward pass since the last push: the same memory, or the same numbers, as
        a `.long()` inside the model makes them."""
        if keys.is_floating_point():
            return False
        place, flat = keys.data_ptr(), keys.detach().reshape(-1)
        return any(
            part.numel() == flat.numel() and (part.data_ptr() == place or torch.equal(part, flat.long()))
            for part, _ in self._pulled
        )

    def asked(self) -> Tensor:
        """Keys of the forward passes since the last push."""
        return torch.cat([keys for keys, _ in self._pulled] or [torch.empty(0, dtype=torch.int64)])

    def forget(self) -> None:
        """Learns nothing from the forward passes since the last push."""
        self._pulled.clear()

    @property
    def spec_name(self) -> str:
        """The name of its table."""
        return self.name or "embedding"

    def extra_repr(self) -> str:
        """What torch prints of it."""
        return f"{self.dim}, name={self.spec_name!r}, optimiser={self.optimiser.kind!r}"

    def _home(self) -> SparseStore:
        if self._store is None:
            self._store = LocalStore()
            self._store.open([self.spec])
        return self._store


def _spread(labels: Tensor, counts: list[int]) -> NDArray[np.float32]:
    """The label of each key's example, for every forward pass of so many keys."""
    values = labels.reshape(-1).to(torch.float32).numpy()
    examples = max(len(values), 1)  # of the last batch of the data a worker may have none
    if any(count % examples for count in counts):
        raise InputError("a layer with a life cycle needs keys whose first dimension is that of the labels")
    return np.concatenate([np.repeat(values, count // examples) for count in counts])


def slot_keys(ids: Tensor) -> Tensor:
    """Keys for ids of which the last dimension says the slot: ids of different slots never meet.

    Ids are from 0 to 2**55; those below 0 are missing, and share one key in each slot.
    """
    slots = torch.arange(1, ids.shape[-1] + 1, dtype=torch.int64) << SLOT_SHIFT
    return slots + (ids.clamp(min=-1) + 1)


class SparseLookup(nn.Module):
    """The zoo's `Lookup` over an `Embedding`: keys are not folded, so no two ids share a row."""

    def __init__(self, key: str, rows: Embedding) -> None:
        super().__init__()
        self.key = key
        self.rows = rows

    def forward(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state with ids replaced by their rows."""
        return {**state, self.key: self.rows(state[self.key])}


def with_sparse_tables(
    model: nn.Module,
    *,
    optimiser: Optimiser | None = None,
    initialiser: Initialiser | None = None,
    life: Life | None = None,
) -> nn.Module:
    """The same model, its look-up layers replaced by ones over sparse tables; named after where they stand."""
    for path, module in list(model.named_modules()):
        for child_name, child in list(module.named_children()):
            if isinstance(child, Lookup):
                name = _table_name(path, child_name)
                rows = Embedding(
                    child.table.embedding_dim,
                    name=name,
                    optimiser=optimiser,
                    initialiser=initialiser,
                    life=life,
                )
                module.register_module(child_name, SparseLookup(child.key, rows))
    return model


def embeddings_of(model: nn.Module) -> list[Embedding]:
    """Every Embedding of a model once; those without a name are named after where they stand."""
    found: dict[int, Embedding] = {}
    for path, module in model.named_modules():
        if isinstance(module, Embedding):
            module.name = module.name or path.removeprefix("chain.") or "embedding"
            found.setdefault(id(module), module)
    return list(found.values())


def _table_name(path: str, child: str) -> str:
    return child if path in ("", "chain") else f"{path}.{child}"
