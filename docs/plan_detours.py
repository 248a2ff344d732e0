"""What a planner with a simpler model of a cluster rents by mistake, and what becomes of it here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from plan_by_hand import CORE, nic_share

from berth.plan.plan import Plan
from berth.plan.profile.files import load_layer_profile
from berth.plan.rental import cost_per_billion
from berth.plan.solve import Solution
from berth.plan.stage_reasons import device_mix
from berth.plan.world import WorldOptions
from berth.units import format_bandwidth, format_rate, format_usd

ON_SERVERS = WorldOptions(tables=("servers",))
T4_ONLY = ("V100-16", "A100-40", "H100")  # what is forbidden then
PINS = ("embedding=T4", "pooling=T4", "concat=cpu-core", "norm=T4", "fc=T4", "predict=T4", "loss=T4")
PORT_BYTES_PER_S = 25e9 / 8
FEW_CORES, FEW_ROWS = 7, 2.0**20
FORCED_RATE = 1e6  # examples per second at which the cluster has enough T4 for the detour


def detours(solved: Callable[..., Solution], rate: float, plans: Sequence[tuple[Plan | None, float]]) -> str:
    """Return the section; `plans` are those of the page with their simulated throughputs."""
    known = [(plan, simulated) for plan, simulated in plans if plan is not None]
    straight = solved("ctrdnn", rate, ON_SERVERS, T4_ONLY).outcome.plan
    small = solved("ctrdnn", rate, WorldOptions(rows=FEW_ROWS)).outcome.plan
    chosen = solved("ctrdnn", rate, WorldOptions()).outcome.plan
    assert straight is not None
    assert small is not None
    assert chosen is not None
    through = _through_concat(rate)
    servers_usd = straight.servers * straight.problem.host.usd_per_hour
    lowest = min(simulated / plan.throughput for plan, simulated in known)
    between = sum(_has_cores_between(plan) for plan, _ in known)
    return f"""## Detours that are not there

Simpler models of a cluster have optima that no engineer would rent. These are the usual ones:

* **A small layer on cores between two pools of the same GPU**, such as CTRDNN's `concat`. That is the optimum where a
  stage has to be a maximal run of one device type: two pools of T4 then need a foreign layer between them. Here two
  stages of one type may follow each other. {_forced(solved)}
  Of the {len(known)} plans above, {between} have cores between GPUs.
* **A few cores that forward everything.** If each core had a port of {format_bandwidth(PORT_BYTES_PER_S)} of its own,
  {FEW_CORES} cores would carry {format_bandwidth(FEW_CORES * PORT_BYTES_PER_S)}. They share that of their machine:
  {format_bandwidth(FEW_CORES * nic_share(CORE))}. At {format_rate(rate)} `concat` receives {format_bandwidth(through)},
  with its gradients: {ceil(through / nic_share(CORE))} cores.
* **Parameter servers for free.** For T4 and servers above, {straight.servers} server cores cost ${servers_usd:,.2f}/h
  of ${straight.usd_per_hour:,.2f}/h.
* **Tables that fit anywhere.** With {FEW_ROWS:,.0f} rows the planner's own choice would be {device_mix(small)}
  instead of {device_mix(chosen)}: a memory that never binds. The models above have the rows of production.
* **A throughput that only a formula reaches.** Every plan is simulated event by event, and sized for more if it does
  not hold what was asked. Of the plans above, the one that loses most has {lowest:.0%} of its formula's throughput in
  the simulation, and still what was asked."""


def _forced(solved: Callable[..., Solution]) -> str:
    """Return what the detour costs if layers are pinned to it."""
    straight, forced = (
        solved("ctrdnn", FORCED_RATE, ON_SERVERS, T4_ONLY, pins).outcome.plan for pins in ((), PINS)
    )
    assert straight is not None
    assert forced is not None
    return f"""Forced to it by pins
  at {format_rate(FORCED_RATE)}, T4 and servers cost {format_usd(cost_per_billion(forced))} per 1e9 examples instead of
  {format_usd(cost_per_billion(straight))}:
  {forced.stages[1].replicas} cores run `concat`, and both its boundaries cross NICs."""


def _through_concat(rate: float) -> float:
    """Return the bytes per second of the activations and gradients that `concat` receives."""
    profile = load_layer_profile("ctrdnn")
    concat = next(layer for layer in profile.layers if layer.name == "concat")
    return rate * (concat.input_bytes + concat.gradient_bytes) / profile.batch


def _has_cores_between(plan: Plan) -> bool:
    types = [stage.type_name for stage in plan.stages]
    return any(types[row] == CORE != types[row - 1] for row in range(1, len(types) - 1))
