"""Zoo models with the examples that they train on, drawn clicks: what `plan_truth.py` profiles and predicts."""

from __future__ import annotations

from typing import Any

import torch

from berth.train.data import ClickStream
from berth.zoo import LayeredModel
from berth.zoo.ctrdnn import make_model as make_ctrdnn
from berth.zoo.dcn_v2 import make_model as make_dcn_v2
from berth.zoo.deepfm import make_model as make_deepfm
from berth.zoo.dlrm import make_model as make_dlrm


def ctrdnn() -> LayeredModel:
    """CTRDNN on clicks."""
    return _on_clicks(make_ctrdnn())


def dlrm() -> LayeredModel:
    """DLRM on clicks."""
    return _on_clicks(make_dlrm())


def deepfm() -> LayeredModel:
    """DeepFM on clicks."""
    return _on_clicks(make_deepfm())


def dcn_v2() -> LayeredModel:
    """DCN-v2 on clicks."""
    return _on_clicks(make_dcn_v2())


def _on_clicks(model: LayeredModel) -> LayeredModel:
    model._example = example_batch
    return model


def example_batch(batch: int, seed: int = 0) -> tuple[dict[str, Any], torch.Tensor]:
    """One id for each slot."""
    keys, dense, _, labels = ClickStream(0).draw(seed * batch, batch)
    return {"slots": torch.from_numpy(keys)[:, :, None], "dense": torch.from_numpy(dense)}, torch.from_numpy(
        labels
    )
