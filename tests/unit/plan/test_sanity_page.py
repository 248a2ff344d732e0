"""docs/plan-sanity.md is what its script writes now, figures apart; its calculations by hand bound the plans."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from berth.cluster import known_devices
from berth.plan.world import WorldOptions

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("plan_sanity", ROOT / "docs" / "plan_sanity.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look it up there
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(ROOT / "docs")  # of the module beside it
        spec.loader.exec_module(module)
    return module


def masked(text):
    """Replaces figures with their units, and the number of decimals and list items that they bring."""
    return re.sub(r"\$?\d[\d,.]*(?:e[+-]?\d+)?[kMG]?%?", "#", text)


def test_only_figures_are_masked():
    assert masked("11 T4 for $0.75 at 2.75M/s, 1e+02 NIC") == "# T# for # at #/s, # NIC"


@pytest.mark.slow
def test_the_page_is_current(script):
    written = script.PAGE.read_text()
    assert masked(written) == masked(script.page()), "run `make docs-plan`"


def test_the_page_names_every_price_that_is_not_a_list_price(script):
    default = {
        name for name in ("cpu-core", *script.GPUS) if known_devices()[name].price_source == "berth's default"
    }
    assert default == {"cpu-core", "V100-16"}
    said = " ".join(script.PAGE.read_text().split())
    assert "V100 and CPU core are berth's defaults" in said
    assert "prices are list prices" not in said
    assert "g4dn.xlarge, 1 GPU" in known_devices()["T4"].price_source
    assert script.machine_of("T4").size > 1
    assert "T4 is the list price of a smaller machine with one T4" in said


@pytest.mark.parametrize("rate", [3e5, 3e6])
@pytest.mark.parametrize(
    "world",
    [
        WorldOptions(),
        WorldOptions(tables=("servers",)),
        WorldOptions(mode="async"),
        WorldOptions(tables=("replicas",)),
    ],
)
def test_a_stage_has_what_the_calculation_by_hand_needs_and_not_many_times_that(script, rate, world):
    plan = script.solved("ctrdnn", rate, world).outcome.plan
    for stage in plan.stages:
        least = script.by_hand(plan, stage)
        # Rows of a call that is larger or smaller than the profile's batch are more or less distinct: 15 %.
        assert stage.replicas >= max(0.85 * least.nic, 0.98 * least.memory, 0.98 * least.compute)
        assert stage.replicas <= max(4, 4 * least.devices)
    for cores, least in (
        (plan.servers, script.server_cores(plan)),
        (plan.readers, script.reader_cores(plan)),
    ):
        assert 0.85 * least <= cores <= 2 * least + 2
