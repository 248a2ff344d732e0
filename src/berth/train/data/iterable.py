"""Batches from any Python iterable of (inputs, labels).

An item is a batch if its labels have a dimension, and one example if they are a single number; examples are collected
into batches. Position n is the n-th batch: a resumed run iterates again and skips the first n, so the iterable must
be restartable and yield the same items in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from berth.errors import InputError
from berth.train.data.batch import Batch, Share
from berth.zoo.layered import map_tensors


class IterableSource:
    """A function that returns an iterator, or an object that can be iterated repeatedly."""

    def __init__(self, items: Callable[[], Iterable[Any]] | Iterable[Any], name: str | None = None) -> None:
        if isinstance(items, Iterator):
            raise InputError(
                f"data is a {type(items).__name__}, which can be read only once, so a run could not be resumed",
                hint="pass the function that makes it, without calling it",
            )
        if not callable(items) and not isinstance(items, Iterable):
            raise InputError(
                f"data is a {type(items).__name__}: expected a path, a BatchSource, an iterable or a generator function"
            )
        self._items = items
        self.name = name or _name(items)

    def describe(self) -> Mapping[str, Any]:
        """Return the name of the function or class."""
        return {"kind": "iterable", "of": self.name}

    def batches(self, batch: int, step: int, share: Share, seed: int) -> Iterator[Batch]:
        """Yield batches from this step on: as they come, or `batch` examples each; the last may be smaller."""
        del seed
        for pair in self._skipped(batch, step):
            whole = len(pair[1])
            own = partial(_rows, share=share, whole=whole)
            yield Batch(map_tensors(pair[0], own), own(pair[1]), share.of(whole), whole)

    def position(self, step: int) -> Mapping[str, Any]:
        """Return nothing: the step is the position."""
        return {}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Do nothing."""

    def _skipped(self, batch: int, step: int) -> Iterator[tuple[Any, Tensor]]:
        items = map(self._checked, iter(self._items() if callable(self._items) else self._items))
        first = next(items, None)
        if first is None:
            if step:
                raise self._not_restartable(step)
            return
        found = chain([first], items)
        pairs = _collected(found, batch) if first[1].ndim == 0 else found
        if step and sum(1 for _ in islice(pairs, step)) < step:
            raise self._not_restartable(step)
        yield from pairs

    def _checked(self, item: Any) -> tuple[Any, Tensor]:
        """Return an item as tensors."""
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise InputError(f"yields a {type(item).__name__}: expected (inputs, labels)", where=self.name)
        inputs, labels = (_as_tensors(part) for part in item)
        if not isinstance(labels, Tensor):
            raise InputError(f"labels are a {type(labels).__name__}: expected numbers", where=self.name)
        return inputs, labels

    def _not_restartable(self, step: int) -> InputError:
        return InputError(
            f"ends before step {step:,}, from which the run resumes",
            where=self.name,
            hint="iterating it again must yield the same items",
        )


def _collected(examples: Iterator[tuple[Any, Tensor]], batch: int) -> Iterator[tuple[Any, Tensor]]:
    while some := list(islice(examples, batch)):
        yield _stacked([inputs for inputs, _ in some]), torch.stack([label for _, label in some])


def _stacked(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, dict):
        return {name: _stacked([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple | list):
        return type(first)(_stacked(list(column)) for column in zip(*parts, strict=True))
    return torch.stack(parts)


def _as_tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_tensors(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_as_tensors, value))
    return torch.as_tensor(value)


def _rows(tensor: Tensor, share: Share, whole: int) -> Tensor:
    if len(tensor) != whole:
        raise InputError(f"a batch has {whole} labels and an input of {len(tensor)} rows")
    return tensor if share.workers == 1 else tensor[share.worker :: share.workers].contiguous()


def _name(items: Any) -> str:
    named = items if hasattr(items, "__qualname__") else getattr(items, "func", type(items))
    return f"{named.__module__}.{named.__qualname__}".removeprefix("__main__.").removeprefix("__mp_main__.")
