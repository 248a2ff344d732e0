"""Dense weights in a table of the servers, for the modes in which workers do not wait for each other.

A weight tensor is divided into rows of `ROW` numbers, and the table's optimiser updates them: it computes what torch's
does, if that treats every number by itself (`dense_rules.py`). A worker pulls all rows before a step and pushes their
gradients after it, with the current learning rate. In a checkpoint they are a torch state again, so a run can resume in
any mode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from berth.errors import InputError
from berth.train.dense_rules import STATE, rule_of, settings_of, with_penalty
from berth.train.sparse import DENSE_TABLE, DenseStore, Floats, SparseStore, TableSpec
from berth.train.tables import Initialiser, State
from berth.train.tables import state as table_state

ROW = 256  # numbers of a row; the last row of a weight is padded with zeros


class DenseWeights:
    """The trained dense weights of a model, as rows of one table."""

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, store: DenseStore) -> None:
        self._store = store
        self._optimiser = optimiser
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        _check_weights(model)
        self.rule = rule_of(optimiser)
        optimiser._opt_called = True  # type: ignore[attr-defined] # or schedulers warn: torch's step is never called
        self.spec = TableSpec(DENSE_TABLE, ROW, self.rule, Initialiser(scale=0.0))
        counts = [-(-weight.numel() // ROW) for weight in self._weights]
        ends = np.cumsum(counts, dtype=np.int64)
        self._rows = [slice(int(end - count), int(end)) for end, count in zip(ends, counts, strict=True)]
        groups = {
            id(weight): number
            for number, one in enumerate(optimiser.param_groups)
            for weight in one["params"]
        }
        self._groups = [groups.get(id(weight)) for weight in self._weights]  # None: not updated
        self._keys = np.arange(sum(counts), dtype=np.uint64)
        self._values = np.zeros((len(self._keys), ROW), np.float32)
        self._gradients = np.zeros((len(self._keys), ROW), np.float32)

    def announce(self) -> None:
        """Request the weights of the next step at the end of this one."""
        for part in _parts(len(self._keys)):
            self._store.prefetch(DENSE_TABLE, self._keys[part])

    def pull(self) -> None:
        """Copy the weights of the servers to the model."""
        for part in _parts(len(self._keys)):
            self._store.pull(DENSE_TABLE, self._keys[part], out=self._values[part])
        self._copy_to_model()

    def peek_from(self, store: SparseStore) -> None:
        """Copy the current weights of another store to the model."""
        for part in _parts(len(self._keys)):
            store.peek(DENSE_TABLE, self._keys[part], out=self._values[part])
        self._copy_to_model()

    def push(self) -> None:
        """Push the gradients, and clear them; a weight without a gradient is not updated."""
        host = _to_host([None if weight.grad is None else weight.grad.detach() for weight in self._weights])
        for number, group in enumerate(self._optimiser.param_groups):
            present = []
            for rows, gradient, own in zip(self._rows, host, self._groups, strict=True):
                if gradient is not None and own == number:
                    pulled = self._values[rows].reshape(-1)[: len(gradient)]
                    self._gradients[rows].reshape(-1)[: len(gradient)] = with_penalty(group, gradient, pulled)
                    present.append(rows)
            self._push_rows(present, settings_of(self.rule, group))
        for weight in self._weights:
            weight.grad = None

    def _push_rows(self, present: list[slice], settings: Floats) -> None:
        keys, gradients = self._keys, self._gradients
        if len(present) < len(self._rows):
            keys = np.concatenate([keys[:0], *(keys[rows] for rows in present)])
            gradients = np.concatenate([gradients[:0], *(gradients[rows] for rows in present)])
        for part in _parts(len(keys)):
            self._store.push_dense(keys[part], gradients[part], settings)

    def to_state(self) -> State:
        """Return the model's weights, with the state of the torch optimiser, as rows of the table."""
        width = ROW + len(self.rule.first_state(ROW))
        records = np.zeros((len(self._keys), width), np.float32)
        records[:, ROW:] = self.rule.first_state(ROW)
        for weight, rows in zip(self._weights, self._rows, strict=True):
            saved: dict[str, Any] = self._optimiser.state.get(weight, {})
            columns = [
                weight,
                *(saved[name] for name in STATE[self.rule.kind] if saved.get(name) is not None),
            ]
            for number, column in enumerate(columns):
                _write(records[rows], number, column)
            if self.rule.kind == "adam" and "step" in saved:
                records[rows, -1] = float(saved["step"])
        none, no_counts = np.empty(0, np.int64), np.empty(0, np.int32)
        return State(True, 0, self._keys.view(np.int64), records, none, none, no_counts)

    def from_state(self, state: State) -> None:
        """Set the model's weights and the state of the torch optimiser from rows of the table."""
        self._values[...] = state.records[:, :ROW]
        self._copy_to_model()
        names = STATE[self.rule.kind]
        for weight, rows, group in zip(self._weights, self._rows, self._groups, strict=True):
            if not names or group is None:  # torch refuses state of a weight that it does not update
                continue
            saved: dict[str, Any] = self._optimiser.state[weight]
            records = state.records[rows]
            for number, name in enumerate(names, 1):
                values = np.ascontiguousarray(records[:, number * ROW : (number + 1) * ROW]).reshape(-1)
                whole = torch.from_numpy(values[: weight.numel()].copy()).view(weight.shape)
                saved[name] = whole.to(weight.device)
            if self.rule.kind in ("adam", "adagrad"):
                saved["step"] = torch.tensor(float(records[:, -1].max()) if self.rule.kind == "adam" else 0.0)

    @torch.no_grad()
    def _copy_to_model(self) -> None:
        flat = torch.from_numpy(self._values)
        device = self._weights[0].device
        flat = flat if device.type == "cpu" else flat.to(device)  # one copy for all
        for weight, rows in zip(self._weights, self._rows, strict=True):
            weight.copy_(flat[rows].reshape(-1)[: weight.numel()].view(weight.shape))


def _parts(rows: int) -> list[slice]:
    """Return the rows of each message; one message has at most 256 MiB."""
    most = max(table_state.PART_BYTES // (4 * ROW), 1)
    return [slice(start, start + most) for start in range(0, rows, most)]


def _check_weights(model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.dtype != torch.float32:
            raise InputError(
                f"{name} is {str(weight.dtype).removeprefix('torch.')}: servers update dense weights in float32 only",
                hint="use --mode sync, or model.float()",
            )


def _to_host(gradients: list[Tensor | None]) -> list[Floats | None]:
    """Return gradients as flat arrays; those of a device are copied at once."""
    present = [gradient.reshape(-1) for gradient in gradients if gradient is not None]
    if present and present[0].device.type != "cpu":
        sizes = [len(gradient) for gradient in present]
        present = list(torch.cat(present).cpu().split(sizes))
    arrays = iter([gradient.numpy() for gradient in present])
    return [None if gradient is None else next(arrays) for gradient in gradients]


def _write(records: Floats, number: int, values: Tensor) -> None:
    """Write a tensor to a block of `ROW` columns of its rows."""
    flat = np.zeros(len(records) * ROW, np.float32)
    flat[: values.numel()] = values.detach().cpu().reshape(-1).numpy()
    records[:, number * ROW : (number + 1) * ROW] = flat.reshape(-1, ROW)
