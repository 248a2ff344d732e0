"""A device of a user's own is planned as the catalogue's device with the same figures."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout

import pytest
import yaml

from berth.cli.main import main
from berth.cluster import known_devices
from berth.cluster.describe import describe, load_described
from berth.cluster.load import load_cluster
from berth.errors import InputError
from berth.plan.problem import Problem
from berth.plan.profile.files import load_layer_profile
from berth.plan.profile.host import host_rates
from berth.plan.profile.roofline import device_speeds
from berth.plan.rented import rented_types
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget
from berth.plan.world_problem import problem_for

RATE, LOWER_RATE = 3e6, 1e6
KEYS = ("flops", "fp32", "memory", "memory_bandwidth", "link", "price")
MODELLED = [name for name, entry in known_devices().items() if entry.device.fp32_flops]
GPUS = [one.name for one in load_cluster("cloud-mix").device_types if one.kind == "gpu"]


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    """Every device of `berth cluster devices`, in the words of a cluster's file."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setattr(sys, "argv", ["berth", "cluster", "devices"])
        with pytest.raises(SystemExit):
            main()
    table, sources = out.getvalue().split("Where the figures are from")
    rows = [line.split() for line in table.splitlines() if len(line.split()) == len(KEYS) + 1]
    found = {}
    for name, *cells in rows:
        stated = [f"{key}: {cell}" for key, cell in zip(KEYS, cells, strict=True) if cell != "-"]
        precision = re.search(rf"^ {re.escape(name)} +precision: (\w+( \w+)?)", sources, re.M)
        stated += [f"precision: {precision[1]}"] if precision else []
        found[name] = f"{{{', '.join(stated)}}}"
    return found


def _cluster(tmp_path, devices: str, machines: str):
    path = tmp_path / "own.yaml"
    tiers = (
        "tiers: [{bandwidth: 150GB/s, latency: 1us}, {bandwidth: 50GB/s, latency: 5us, oversubscription: 1}]"
    )
    path.write_text(f"{devices}\n{tiers}\nmachines:\n{machines}")
    return load_cluster(str(path))


def test_every_device_of_the_list_can_be_copied_under_another_name(tmp_path, shown):
    own = "".join(f"  my-{name}: {shown[name]}\n" for name in MODELLED)
    machines = "".join(f"  - devices: {{{name}: 8}}\n  - devices: {{my-{name}: 8}}\n" for name in MODELLED)
    cluster = _cluster(tmp_path, f"devices:\n{own}", machines)
    assert load_described(describe(cluster)).device_types == cluster.device_types
    rented = {one.device.name: one for one in rented_types(cluster, host_rates(), None)}
    for name in MODELLED:
        original, copy = rented[name], rented[f"my-{name}"]
        speeds = [device_speeds(one.device) for one in (original, copy)]
        assert speeds[0].flops == speeds[1].flops == known_devices()[name].device.fp32_flops
        assert speeds[0].memory_bytes_per_s == speeds[1].memory_bytes_per_s
        for fact in ("link_bytes_per_s", "usd_per_hour", "memory_bytes", "nic_bytes_per_s"):
            assert getattr(original, fact) == getattr(copy, fact), (name, fact)
        assert (original.ring == copy.ring).all()


@pytest.mark.parametrize("name", GPUS)
def test_the_optimum_is_the_same_under_either_name(shown, name):
    copy, mix = f"my-{name}", describe(load_cluster("cloud-mix"))
    assert isinstance(mix, dict)
    machine = next(one for one in mix["machines"] if name in one["devices"])
    mix["machines"].append(machine | {"devices": {copy: machine["devices"][name]}})
    mix["devices"] = {copy: yaml.safe_load(shown[name])}
    rate = LOWER_RATE if name == "V100-16" else RATE  # V100s alone do not hold 3M/s
    others = [one for one in ("cpu-core", *GPUS) if one != name]
    profile, cluster = load_layer_profile("ctrdnn"), load_described(mix)
    plans = [_optimum(problem_for(profile, cluster, rate, forbid=[*others, one])) for one in (copy, name)]
    assert plans[0] == plans[1]
    assert name in plans[0][2]


def _optimum(problem: Problem) -> tuple[float, float, dict[str, int]]:
    plan = exact(problem, Budget()).plan
    assert plan is not None
    counts = {name.removeprefix("my-"): count for name, count in plan.device_counts.items()}
    return plan.cost_usd, plan.throughput, counts


def test_a_peak_alone_is_taken_for_single_precision_and_one_of_another_precision_needs_fp32(tmp_path):
    figures = "flops: 989TFLOPS, memory_bandwidth: 3350GB/s"
    devices = f"devices:\n  plain: {{{figures}}}\n  tensor: {{{figures}, precision: bf16 tensor}}"
    cluster = _cluster(tmp_path, devices, "  - devices: {plain: 1, tensor: 1}\n")
    plain, tensor = cluster.device_types
    assert device_speeds(plain).flops == 989e12
    with pytest.raises(InputError, match=r"(?s)single-precision rate of tensor is not known.*`fp32:`"):
        device_speeds(tensor)
