"""What two jobs on one network leave each other: sharing rules with few numbers, and their fit.

A rule predicts the share of its isolated throughput that a job keeps while another uses the same network. It
knows a few numbers of each job (rows of `own` and `other`) and perhaps some that all share. The two kinds:

fluid          a job asks for a steady rate, as a share of the link
random phase   a job computes, then communicates for a share m of its isolated step; while both communicate,
               each is slowed, which in turn makes them meet more often (a fixed point)

Which one explains measurements best is for `make bench-network` to say; see docs/design/network-fit.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from berth.arrays import BoolArray, FloatArray, Int64Array
from berth.errors import UnknownNameError
from berth.network.fit import Bounds, least_error

Ratio = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
Limit = tuple[float, float, float]  # low, high, start

_ROUNDS = 25  # of the fixed point; it contracts, and is still to six digits long before
_SHARE: Limit = (1e-3, 1.0, 0.5)
_DEMAND: Limit = (1e-3, 1.0, 0.6)
_WEIGHT: Limit = (0.05, 20.0, 1.0)
_STRENGTH: Limit = (0.0, 5.0, 0.6)


@dataclass(frozen=True, slots=True)
class Rule:
    """A way of sharing: its formula, and the numbers it has for each model and for all together."""

    name: str
    ratio: Ratio
    per_model: tuple[Limit, ...] = ()
    shared: tuple[Limit, ...] = ()

    def numbers(self, models: int) -> int:
        """Number of parameters of a fit to this number of models."""
        return models * len(self.per_model) + len(self.shared)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Measured pairs: model of the victim, model of the other, and what the victim keeps (0 to 1)."""

    victim: Int64Array
    other: Int64Array
    kept: FloatArray

    def take(self, rows: BoolArray) -> Pairs:
        """The rows where `rows` is true."""
        return Pairs(self.victim[rows], self.other[rows], self.kept[rows])


@dataclass(frozen=True, slots=True, eq=False)
class FittedRule:
    """A rule with its numbers: `per_model[model]` and `shared`."""

    rule: Rule
    per_model: FloatArray
    shared: FloatArray

    def predict(self, victim: Int64Array, other: Int64Array) -> FloatArray:
        """What each victim keeps beside the other."""
        return self.rule.ratio(self.per_model[victim], self.per_model[other], self.shared)


def fit_rule(rule: Rule, pairs: Pairs, models: int, *, starts: int = 3) -> FittedRule:
    """The numbers of a rule that predict these pairs best."""
    count = models * len(rule.per_model)

    def unpack(x: FloatArray) -> FittedRule:
        return FittedRule(rule, x[:count].reshape(models, len(rule.per_model)), x[count:])

    limits = Bounds.of([*(rule.per_model * models), *rule.shared])
    found = least_error(
        lambda x: unpack(x).predict(pairs.victim, pairs.other),
        pairs.kept,
        limits,
        starts=starts,
        evaluations=80,
    )
    return unpack(found)


def pair_medians(pairs: Pairs, models: int) -> FloatArray:
    """The reference that knows no rule: the median of each ordered pair of models; NaN if there is none."""
    table = np.full((models, models), np.nan)
    for victim, other in np.unique(np.stack([pairs.victim, pairs.other]), axis=1).T:
        table[victim, other] = np.median(pairs.kept[(pairs.victim == victim) & (pairs.other == other)])
    return table


def find_rule(name: str) -> Rule:
    """The rule of this name."""
    if name not in RULES:
        raise UnknownNameError("sharing rule", name, RULES)
    return RULES[name]


def alone(own: FloatArray, other: FloatArray, shared: FloatArray) -> FloatArray:
    """No contention."""
    return np.ones(len(own))


def max_min_fluid(own: FloatArray, other: FloatArray, shared: FloatArray) -> FloatArray:
    """Steady demands; each gets half of the link, or what the other leaves."""
    return np.minimum(1.0, np.maximum(0.5, 1 - other[:, 0]) / own[:, 0])


def weighted_max_min_fluid(own: FloatArray, other: FloatArray, shared: FloatArray) -> FloatArray:
    """Steady demands; each gets its weight's part of the link, or what the other leaves."""
    part = own[:, 1] / (own[:, 1] + other[:, 1])
    return np.minimum(1.0, np.maximum(part, 1 - other[:, 0]) / own[:, 0])


def proportional_fluid(own: FloatArray, other: FloatArray, shared: FloatArray) -> FloatArray:
    """Steady demands; a full link is divided in proportion to them, so both are slowed alike."""
    return np.minimum(1.0, 1 / (own[:, 0] + other[:, 0]))


def random_phase(own: FloatArray, other: FloatArray, shared: FloatArray) -> FloatArray:
    """Max-min on a collision: each at half its speed while both communicate."""
    return _meeting(own[:, 0], other[:, 0], np.ones(len(own)), np.ones(len(own)))


def adadual(own: FloatArray, other: FloatArray, shared: FloatArray) -> FloatArray:
    """As `random_phase`, and a collision costs a penalty on top (AdaDUAL's, one for all jobs)."""
    slower = np.full(len(own), 1 + shared[0])
    return _meeting(own[:, 0], other[:, 0], slower, slower)


def peak_proportional(own: FloatArray, other: FloatArray, shared: FloatArray) -> FloatArray:
    """Jobs communicate at peak rates; on a collision an overfull link is divided in proportion to them."""
    over = np.maximum(0.0, own[:, 1] + other[:, 1] - 1)
    return _meeting(own[:, 0], other[:, 0], over, over)


def weighted_random_phase(own: FloatArray, other: FloatArray, shared: FloatArray) -> FloatArray:
    """On a collision the link is divided by weight (a job with more flows gets more of it)."""
    weight = other[:, 1] / own[:, 1]
    return _meeting(own[:, 0], other[:, 0], weight, 1 / weight)


def rank_one(own: FloatArray, other: FloatArray, shared: FloatArray) -> FloatArray:
    """No mechanism: how easily a job is hurt, times how much the other hurts."""
    return 1 / (1 + own[:, 0] * other[:, 1])


def _meeting(
    own: FloatArray, other: FloatArray, own_slower: FloatArray, other_slower: FloatArray
) -> FloatArray:
    """Phases meet at random: t = m (1 + slower * phi of the other), phi = t / (1 - m + t), iterated."""
    own_phi, other_phi = own, other
    for _ in range(_ROUNDS):
        own_t, other_t = own * (1 + own_slower * other_phi), other * (1 + other_slower * own_phi)
        own_phi, other_phi = own_t / (1 - own + own_t), other_t / (1 - other + other_t)
    return 1 / (1 - own + own * (1 + own_slower * other_phi))


RULES = {
    rule.name: rule
    for rule in (
        Rule("none", alone),
        Rule("max-min fluid", max_min_fluid, (_DEMAND,)),
        Rule("proportional fluid", proportional_fluid, ((1e-3, 2.0, 0.6),)),
        Rule("max-min random phase", random_phase, (_SHARE,)),
        Rule("AdaDUAL penalty", adadual, (_SHARE,), ((-0.9, 5.0, 0.3),)),
        Rule("weighted max-min fluid", weighted_max_min_fluid, (_DEMAND, _WEIGHT)),
        Rule("peak-rate random phase", peak_proportional, (_SHARE, (1e-2, 3.0, 0.8))),
        Rule("weighted random phase", weighted_random_phase, (_SHARE, _WEIGHT)),
        Rule("rank one 1/(1+sg)", rank_one, (_STRENGTH, _STRENGTH)),
    )
}
