"""Multi-valued slots: the rows of a list of ids, pooled by sum or mean.

Lists of a batch are one tensor of keys, (batch, longest), padded with -1. Rows are pulled for real keys only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import Tensor, nn

from berth.errors import InputError
from berth.train.data.rows import PADDING
from berth.train.devices import on_host
from berth.train.embedding import Embedding, SparseLookup

Pooling = Literal["sum", "mean"]
_PADDED: ContextVar[bool] = ContextVar("rows are pulled for padding too", default=False)


class EmbeddingBag(nn.Module):
    """The sum or mean of the rows of each list of keys, as `torch.nn.EmbeddingBag`; zeros for an empty list.

    Other options are those of `Embedding`.
    """

    def __init__(self, dim: int, mode: Pooling = "sum", **options: Any) -> None:
        super().__init__()
        if mode not in ("sum", "mean"):
            raise InputError(f"rows are pooled by sum or mean, not {mode!r}")
        self.mode: Pooling = mode
        self.rows = Embedding(dim, **options)

    def forward(self, keys: Tensor) -> Tensor:
        """(batch, longest), padded with -1 -> (batch, dim)."""
        return pool(self.rows, keys, self.mode)

    def extra_repr(self) -> str:
        """Return the description that torch prints."""
        return f"mode={self.mode!r}"


def pool(rows: Embedding, keys: Tensor, mode: Pooling) -> Tensor:
    """Return the pooled rows of each list, (batch, longest) -> (batch, dim)."""
    if keys.ndim != 2:
        raise InputError(f"lists of keys are (batch, longest), got a tensor of {keys.ndim} dimensions")
    total = _padded_sum(rows, keys) if _PADDED.get() else _sum(rows, keys)
    if mode == "sum":
        return total
    return total / (keys != PADDING).sum(dim=1, keepdim=True).clamp(min=1)


def _sum(rows: Embedding, keys: Tensor) -> Tensor:
    if rows.counts_clicks:
        raise InputError(
            "rows of multi-valued slots can't decay by shows and clicks",
            hint="drop --day-every, or the decay policy",
        )
    host = on_host(keys)
    examples, places = (host != PADDING).nonzero(as_tuple=True)
    gathered = rows(host[examples, places]).to(keys.device)
    total = torch.zeros(keys.shape[0], rows.dim, device=keys.device)
    return total.index_add(0, examples.to(keys.device), gathered)


def _padded_sum(rows: Embedding, keys: Tensor) -> Tensor:
    return (rows(keys) * (keys != PADDING)[:, :, None]).sum(dim=1)


@contextmanager
def padded_pooling() -> Iterator[None]:
    """Pull rows for padding too inside the block: the shapes of an exported program do not depend on values."""
    token = _PADDED.set(True)
    try:
        yield
    finally:
        _PADDED.reset(token)


class PooledLookup(nn.Module):
    """Looks up slots and pools multi-valued ones, which follow them as further slots."""

    def __init__(self, lookup: SparseLookup, multi: Mapping[str, Any], *, last: bool) -> None:
        super().__init__()
        self.key, self.out, self.rows = lookup.key, lookup.out, lookup.rows
        self.multi = dict(multi)
        self.last = last  # no later layer reads the lists

    def forward(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """(batch, slots, 1) and lists -> (batch, slots + lists, 1, dim)."""
        pooled = [pool(self.rows, state[name], mode)[:, None, None] for name, mode in self.multi.items()]
        together = {**state, self.out: torch.cat([self.rows(state[self.key]), *pooled], dim=1)}
        return {name: part for name, part in together.items() if not self.last or name not in self.multi}


def with_pooling(model: nn.Module, multi: Mapping[str, Any]) -> nn.Module:
    """Make the look-ups of a chain read multi-valued slots as well."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, SparseLookup)
    ]
    for number, (parent, name, child) in enumerate(found, 1):
        parent.register_module(name, PooledLookup(child, multi, last=number == len(found)))
    return model
