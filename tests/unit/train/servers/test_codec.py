"""Rows in half the bytes, against numpy and torch's own rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from berth.errors import UnknownNameError
from berth.train.servers.protocol import checked_codec, decode, encode

SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, 65504, 1e-8, 3.4e38, -3.4e38, 1e-40], np.float32)


def through(codec, values):
    out = np.empty(values.shape, np.uint16)
    encode(codec, values, out)
    return decode(codec, out)


def values():
    random = np.random.default_rng(0)
    scattered = random.standard_normal(10_000) * 10.0 ** random.integers(-6, 6, 10_000)
    return np.concatenate([SPECIAL, scattered]).astype(np.float32).reshape(-1, 1)


@pytest.mark.slow
def test_bf16_rounds_as_torch_does():
    expected = torch.from_numpy(values()).bfloat16().float().numpy()
    assert (through("bf16", values()).view(np.uint32) == expected.view(np.uint32)).all()


@pytest.mark.slow
def test_fp16_rounds_as_numpy_does():
    with np.errstate(over="ignore"):
        expected = values().astype(np.float16).astype(np.float32)
    assert (through("fp16", values()).view(np.uint32) == expected.view(np.uint32)).all()


@pytest.mark.parametrize("codec", ["fp16", "bf16"])
def test_not_a_number_stays_not_a_number(codec):
    odd = np.array([[np.nan], [-np.nan]], np.float32)
    odd.view(np.uint32)[1] = 0x7F800001  # its payload lies in the lower half alone
    assert np.isnan(through(codec, odd)).all()


def test_fp32_is_left_alone():
    data = values()
    out = np.empty_like(data)
    encode("fp32", data, out)
    assert decode("fp32", out) is out
    assert (out == data).all()


def test_an_unknown_codec_is_named():
    with pytest.raises(UnknownNameError, match="fp8"):
        checked_codec("fp8")
