"""Every figure of the device catalogue has a source, and nothing is guessed."""

from __future__ import annotations

import re

import pytest

from berth.cluster import known_devices
from berth.cluster.catalogue import device_type, known_names, resolve
from berth.errors import InputError


@pytest.mark.parametrize("name", known_devices())
def test_every_figure_has_a_source_with_a_year(name):
    entry = known_devices()[name]
    device = entry.device
    if device.flops is not None or device.memory_bytes is not None or device.memory_bytes_per_s is not None:
        assert re.search(r"\b20[12]\d\b", entry.source)
    assert (device.flops is None) == (device.precision is None)
    assert (device.usd_per_hour is None) == (entry.price_source is None)
    if entry.price_source and entry.price_source != "berth's default":
        assert re.search(r"\b20[12]\d\b", entry.price_source)


def test_the_default_prices_are_kept():
    assert device_type("cpu-core").usd_per_hour == 0.04
    assert device_type("V100").usd_per_hour == 2.42


def test_no_two_devices_answer_to_one_name():
    lowered = [name.lower() for name in known_names()]
    assert len(lowered) == len(set(lowered))


def test_figures_are_in_base_units():
    h100 = device_type("h100")
    assert (h100.flops, h100.memory_bytes_per_s, h100.memory_bytes) == (989e12, 3.35e12, 80 * 2**30)


def test_an_alias_leads_to_the_catalogues_own_name():
    assert resolve("a100") == "A100-80"
    assert resolve("nothing") is None


def test_an_unnamed_gpu_has_no_invented_figures():
    unnamed = device_type("GPU")
    facts = (unnamed.memory_bytes, unnamed.usd_per_hour, unnamed.flops, unnamed.memory_bytes_per_s)
    assert facts == (None,) * 4


def test_an_unknown_device_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="did you mean 'MI300X'"):
        device_type("MI300")
