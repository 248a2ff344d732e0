"""A trained model predicts: after `fit`, and from a checkpoint in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from berth.errors import InputError
from berth.train import ClickStream, Session, fit, load_for_inference
from berth.train.options import TrainOptions
from berth.train.recipes import make_recipe

HERE = Path(__file__).parent


def batch(first=10**6, examples=50):
    keys, dense, _, _ = ClickStream().draw(first, examples)
    return {"slots": torch.from_numpy(keys)[:, :, None], "dense": torch.from_numpy(dense)}


@pytest.mark.parametrize("memory", [None, "8MB"])
def test_the_model_of_a_fit_predicts_what_it_predicted_in_the_session(small, memory):
    session = Session(small.Small(), options=TrainOptions(batch=64, memory=memory))
    session.run(5)
    session.model.eval()
    expected = session.model(batch())
    session.close()
    result = fit(small.Small(), steps=5, batch=64, memory=memory)
    assert torch.equal(result.model(batch()), expected)
    assert torch.equal(result.model(batch()), expected)  # looking makes no rows


def test_a_checkpoint_predicts_what_the_training_model_does(small, tmp_path):
    result = fit(small.Small(), steps=7, batch=64, checkpoints=str(tmp_path))
    loaded = load_for_inference(tmp_path, small.Small())
    assert not loaded.training
    assert torch.equal(loaded(batch()), result.model(batch()))
    unseen = batch(first=10**9)
    assert torch.equal(loaded(unseen), result.model(unseen))


@pytest.mark.slow
def test_in_a_fresh_process_too_without_servers_or_data(small, tmp_path):
    result = fit(small.Small(), steps=7, batch=64, checkpoints=str(tmp_path / "run"))
    expected = result.model(batch()).detach().numpy()
    program = f"""
import sys; sys.path[:0] = [{str(HERE)!r}]
import numpy as np, torch
from small_training import Small
from berth.train import ClickStream, load_for_inference
keys, dense, _, _ = ClickStream().draw(10**6, 50)
model = load_for_inference({str(tmp_path / "run")!r}, Small())
out = model({{"slots": torch.from_numpy(keys)[:, :, None], "dense": torch.from_numpy(dense)}})
np.save({str(tmp_path / "out.npy")!r}, out.detach().numpy())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=900)
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected)


@pytest.mark.slow
def test_a_model_of_the_zoo_is_known_by_the_checkpoint_itself(tmp_path):
    made = make_recipe("ctrdnn-8", batch=64, seed=3)
    result = fit(made.model, made.data, steps=3, batch=64, seed=3, checkpoints=str(tmp_path))
    loaded = load_for_inference(tmp_path)
    assert torch.equal(loaded(batch()), result.model(batch()))
    assert torch.equal(load_for_inference(tmp_path, "ctrdnn-8", step=3)(batch()), result.model(batch()))


def test_a_model_that_is_not_that_of_the_checkpoint_is_refused(small, tmp_path):
    fit(small.Small(), steps=1, batch=64, checkpoints=str(tmp_path))
    with pytest.raises(InputError, match="of a different model"):
        load_for_inference(tmp_path, "ctrdnn-8")
    with pytest.raises(InputError, match=r"is of Small, which is not in the zoo") as error:
        load_for_inference(tmp_path)
    assert "load_for_inference(folder, make_model())" in error.value.hint
    with pytest.raises(InputError, match="holds no checkpoint"):
        load_for_inference(tmp_path / "nothing", small.Small())
