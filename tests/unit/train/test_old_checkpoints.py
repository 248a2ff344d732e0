"""Checkpoints of earlier versions, which named the fields of a table differently, can be read and resumed."""

from __future__ import annotations

import hashlib
import json

import torch

from berth.train import Checkpoints, DecayPolicy, Embedding, Session, TrainOptions
from berth.train.checkpoint.inspect import saved_table
from berth.train.sparse import TableSpec

OLD_NAMES = {"min_score": "least_score", "max_unseen_days": "most_unseen_days"}


class Clicks(torch.nn.Module):
    """One table whose rows expire."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows = Embedding(2, decay=DecayPolicy(min_score=0.3))
        self.top = torch.nn.Linear(26 * 2, 1)

    def forward(self, inputs):
        return self.top(self.rows(inputs["slots"]).flatten(1)).squeeze(1)


def train(folder, steps):
    options = TrainOptions(batch=16, day_every=32, checkpoints=Checkpoints(folder, every=2))
    session = Session(Clicks(), options=options)
    result = session.run(steps)
    session.close()
    return session.resumed_from, result.losses


def as_earlier_version(folder):
    """Rewrite the manifests with the names of an earlier version."""
    for path in folder.glob("step-*/manifest.json"):
        manifest = json.loads(path.read_text())["manifest"] | {"format": 2}
        for spec in manifest["run"]["tables"].values():
            decay = {OLD_NAMES.get(name, name): value for name, value in spec.pop("decay").items()}
            spec["life"] = {**decay, "wide_score": 10.0}
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        path.write_text(json.dumps({"sha256": sha256, "manifest": manifest}))


def test_a_run_resumes_bit_for_bit_from_a_checkpoint_with_the_old_names(tmp_path):
    train(tmp_path / "run", 4)
    as_earlier_version(tmp_path / "run")
    assert saved_table(tmp_path / "run").spec.decay == DecayPolicy(min_score=0.3)
    resumed_from, losses = train(tmp_path / "run", 8)
    assert resumed_from == 4
    assert losses == train(tmp_path / "whole", 8)[1][4:]


def test_an_earlier_version_refuses_a_checkpoint_with_the_new_names(tmp_path):
    train(tmp_path / "run", 2)
    (path,) = (tmp_path / "run").glob("step-*/manifest.json")
    assert json.loads(path.read_text())["manifest"]["format"] > 2  # the last format with the old names


def test_the_description_of_a_table_survives_json():
    spec = Clicks().rows.spec
    assert TableSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
