"""A table that no worker could hold: its rows are on a server, and workers have a limit of memory."""

from __future__ import annotations

import importlib.util
import os
import resource
from pathlib import Path

import pytest
import torch

from berth.train import Checkpoints
from berth.train.checkpoint import CheckpointStore
from berth.train.embedding import Embedding
from berth.train.options import TrainOptions
from berth.train.session import Session
from berth.train.tables import adagrad

STEPS, BATCH, DIM = 90, 64, 256
TABLE_BYTES = STEPS * BATCH * 26 * 2 * DIM * 4  # weights and accumulators
ALLOWED_BYTES = 96 << 20  # beyond what a process has before its first step; stacks of threads count

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs():
    spec = importlib.util.spec_from_file_location("async_runs", Path(__file__).with_name("async_runs.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def data_bytes() -> int:
    """Private memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))


def limit_memory() -> None:
    most = data_bytes() + ALLOWED_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


class NewKeys(torch.nn.Module):
    """Every example has 26 keys that no other one has; others than `parent` are limited from the first step on."""

    parent = 0

    def __init__(self) -> None:
        super().__init__()
        self.is_limited = False
        self.rows = Embedding(DIM, optimiser=adagrad(), name="rows")
        self.top = torch.nn.Linear(DIM, 1)

    def forward(self, inputs):
        if os.getpid() != self.parent and not self.is_limited:
            self.is_limited = True
            limit_memory()
        keys = torch.arange(26)[:, None] + 26 * inputs["number"][:, None, None]
        return self.top(self.rows(keys).sum(dim=(1, 2))).squeeze(1)


class Numberless(torch.nn.Module):
    """`NewKeys` for batches without numbers: one process."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.seen = NewKeys(), 0

    def forward(self, inputs):
        first, self.seen = self.seen, self.seen + len(inputs["dense"])
        return self.model({"number": torch.arange(first, self.seen)})


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_workers_train_and_save_a_table_larger_than_their_memory(runs, tmp_path, monkeypatch, mode):
    monkeypatch.setattr(NewKeys, "parent", os.getpid())
    assert TABLE_BYTES > 3 * ALLOWED_BYTES
    saved = Checkpoints(tmp_path / "saved", every=STEPS // 2)

    with runs.Run(
        tmp_path / "run", NewKeys, sees_numbers=True, steps=STEPS, batch=BATCH, mode=mode, checkpoints=saved
    ) as run:
        results = run.finish()
    assert {one["examples"] for one in results} == {STEPS * BATCH}
    store = CheckpointStore(saved.folder)
    manifest = store.newest(print)[-1]
    rows = sum(manifest.parts[file]["bytes"] for file in manifest.tables["rows"])
    assert rows > TABLE_BYTES // 2  # the last is a delta of half the steps, or full


def test_one_process_with_the_same_limit_cannot(monkeypatch, runs):
    monkeypatch.setattr(NewKeys, "parent", os.getpid())

    def work() -> None:
        model = Numberless()
        model.model.is_limited = True
        limit_memory()  # before the table reserves its memory
        Session(model, options=TrainOptions(batch=BATCH)).run(STEPS)

    assert os.waitstatus_to_exitcode(os.waitpid(runs._fork(work), 0)[1]) == 1
