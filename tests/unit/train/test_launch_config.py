"""What `berth train` says about the processes it starts is what it starts."""

from __future__ import annotations

import pytest
import torch

from berth.errors import InputError
from berth.train.embedding import Embedding
from berth.train.launch_config import resolve
from berth.train.options import TrainOptions
from berth.train.recipes import make_recipe
from berth.train.rendezvous import RankInfo
from berth.train.resident.owners import owners_of_tables
from berth.train.stages.cut import Layout, even_cuts
from berth.zoo.layered import Layer, LayeredModel


def test_stages_without_a_plan_say_what_runs():
    made = make_recipe("ctrdnn-8", batch=64)
    lines = resolve(made, TrainOptions(stages=2, workers=2), None, print).describe(made)
    assert lines == [
        "1 server (sync), 2 x 2 workers",
        "  stage 1: embedding .. norm; running 2 processes here",
        "  stage 2: fc1 .. loss; running 2 processes here",
    ]


def test_resident_tables_take_no_server():
    made = make_recipe("ctrdnn-8", batch=64)
    config = resolve(made, TrainOptions(workers=2, tables="resident"), None, print)
    assert (config.servers, config.resident, config.is_single_process) == (0, True, False)
    assert config.describe(made) == ["tables in the memory of workers (sync), 2 x 1 workers"]
    assert resolve(made, TrainOptions(tables="servers"), None, print).servers == 1


def test_a_table_of_two_stages_is_not_resident():
    embedding = Embedding(2, name="shared")
    layers = [Layer("a", "a", embedding), Layer("b", "b", torch.nn.Linear(2, 2)), Layer("c", "c", embedding)]
    model = LayeredModel("own", layers, lambda *_: None, lambda *_: None, batch=1, sample="example")
    with pytest.raises(InputError, match="table 'shared' is used by stages 1 and 3"):
        owners_of_tables(model, Layout((1, 2, 1)), even_cuts(3, 3), {0})
    assert owners_of_tables(model, Layout((1, 2, 1)), even_cuts(3, 3), {1}) == {}
    owners = owners_of_tables(model, Layout((2,)), (), {0})
    assert owners == {"shared": [0, 1]}


def test_a_mode_that_servers_execute_is_not_replaced_by_sync():
    made = make_recipe("ctrdnn-8", batch=64)
    with pytest.raises(InputError, match="mode half-async needs a server"):
        resolve(made, TrainOptions(mode="half-async"), RankInfo(), print)  # the only process of a job
    assert resolve(made, TrainOptions(mode="half-async", workers=2), None, print).servers == 1


def test_a_folder_for_cold_rows_is_created_once_and_reported(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("BERTH_TRAIN_COLD", raising=False)
    made = make_recipe("ctrdnn-8", batch=64)
    several, lines = TrainOptions(workers=2, memory="64MB"), []

    def folder(rank_info):
        return resolve(made, several, rank_info, lines.append).server.folder

    assert folder(RankInfo(1, 2)) is None
    first = folder(None)
    assert lines == [f"rows beyond --memory go to {first}, removed at the end"]
    assert folder(RankInfo(0, 2)) == first
    assert folder(RankInfo(1, 2)) == first
    assert [str(path) for path in tmp_path.glob("berth-cold-*")] == [first]
    monkeypatch.delenv("BERTH_TRAIN_COLD")


def test_the_transport_of_rows_is_that_of_all_workers():
    from berth.report.train import _transport

    near, far, no_rows = ({"shared_memory": reported} for reported in (True, False, None))
    assert _transport(near) == "shared memory"
    assert _transport({**near, "workers": [near, near, no_rows]}) == "shared memory"
    assert _transport({**near, "workers": [near, far]}) == "shared memory (1 of 2 workers) and TCP"
    assert _transport({**far, "workers": [far, far]}) == "TCP"
