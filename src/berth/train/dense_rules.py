"""Which torch optimisers servers can be asked to do for dense weights, and their settings on the wire.

Servers update rows of numbers by compiled rules, each number by itself. Settings are sent with every push, so a
learning-rate schedule needs nothing else. An L2 penalty is part of a worker's gradient; the decoupled decay of AdamW is
part of the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from berth.errors import InputError
from berth.train import optimisers
from berth.train.optimisers import MakeOptimiser, MakeScheduler
from berth.train.sparse import Floats
from berth.train.tables import Optimiser

STATE = {
    "adam": ("exp_avg", "exp_avg_sq"),
    "adagrad": ("sum",),
    "sgd": (),
    "momentum": ("momentum_buffer",),
    "nesterov": ("momentum_buffer",),
}  # names in torch, in the order of the record
_ADAM = (torch.optim.Adam, torch.optim.AdamW, optimisers.Adam)
_UNKNOWN = ("amsgrad", "lr_decay", "dampening")  # options that no rule has


def rule_of(optimiser: torch.optim.Optimizer) -> Optimiser:
    """Return the rule of rows that does what a torch optimiser does; `InputError` if there is none."""
    groups = optimiser.param_groups
    kind, first = type(optimiser), groups[0]
    used = [name for name in _UNKNOWN if any(group.get(name) for group in groups)]
    if not used and kind in _ADAM:
        return _with_settings(Optimiser("adam"), first)
    if not used and kind is torch.optim.Adagrad:
        return _with_settings(Optimiser("adagrad", 0.0, first["initial_accumulator_value"]), first)
    if not used and kind is torch.optim.SGD:
        if not any(group["momentum"] for group in groups):
            return _with_settings(Optimiser("sgd"), first)
        if len({bool(group["nesterov"]) for group in groups}) == 1:
            return _with_settings(Optimiser("nesterov" if first["nesterov"] else "momentum"), first)
        used = ["nesterov in some groups only"]
    with_ = f" with {', '.join(used)}" if used else ""
    raise InputError(
        f"servers can't update dense weights by {kind.__name__}{with_}: they have rules for Adam, AdamW, Adagrad and"
        " SGD, also with momentum",
        hint="use one of these, or --mode sync, in which torch's own optimiser updates them",
    )


def check_rules(optimiser: MakeOptimiser, scheduler: MakeScheduler | None) -> None:
    """Raise for an optimiser or a schedule of dense weights that servers can't do."""
    made = optimiser([nn.Parameter(torch.zeros(2, 2))])
    rule_of(made)
    if scheduler is not None and isinstance(scheduler(made), ReduceLROnPlateau):
        raise InputError(
            "the schedule plateau needs the loss of every batch, which no worker sees in this mode",
            hint="use another --schedule, or --mode sync",
        )


def settings_of(rule: Optimiser, group: Mapping[str, Any]) -> Floats:
    """Return the current settings of a parameter group, as the kernels of rows read them."""
    decay = float(group["weight_decay"]) if group.get("decoupled_weight_decay") else 0.0
    return _with_settings(rule, group).numbers(decay)


def with_penalty(group: Mapping[str, Any], gradient: Floats, weights: Floats) -> Floats:
    """Return a gradient with the L2 penalty of the weights that it was computed with."""
    signed = -gradient if group.get("maximize") else gradient
    penalty = 0.0 if group.get("decoupled_weight_decay") else float(group.get("weight_decay", 0.0))
    return signed + penalty * weights if penalty else signed


def _with_settings(rule: Optimiser, group: Mapping[str, Any]) -> Optimiser:
    rule = replace(rule, learning_rate=float(group["lr"]))
    if rule.kind in ("momentum", "nesterov"):
        return replace(rule, beta1=float(group["momentum"]))
    if rule.kind == "adam":
        beta1, beta2 = group["betas"]
        rule = replace(rule, beta1=float(beta1), beta2=float(beta2))
    return replace(rule, epsilon=float(group["eps"])) if "eps" in group else rule
