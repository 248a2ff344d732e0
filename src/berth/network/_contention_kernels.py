"""Iteration times on shared links. Plain functions, also run compiled (see compiled.py).

One iteration of a job: it is silent (forward pass), then its window begins: the backward pass produces
gradients, which leave as fast as the links let them; the iteration ends when the last one has left. Jobs that
send over one link at the same time share it max-min. `benchmarks/iterations.py` simulates exactly this, iteration
by iteration; the functions here give its mean over all offsets between the jobs, in closed form:

* A job meets another in its window with probability p = window / iteration. Its mean rate while it sends
  follows from how many of the others it meets, and the windows follow from the rates: a few rounds settle both.
* Jobs of like iterations fall into step where production, not the link, paces the one that starts first: it
  gains less than its lead, so the lead shrinks. How far they do is `tau`, the part of the backward pass before
  gradients pile up, and how alike the iterations are. In step, every window meets every other.
* A job whose production fits beside the others is never held back; to them it is background load, in bursts.

docs/design/network.md has the derivation, the constants' origin and the error against the explicit simulation.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from berth.arrays import FloatArray, IntArray
from berth.network._kernels import overlapped_s, sort
from berth.network._sharing_kernels import NONE, ShareArrays, add, connected, remove
from berth.reproducible import power

ROUNDS = 5  # of windows and rates; three are right to 0.1 %
LIKE_ITERATIONS, LIKE_SENDING = 0.2, 0.3  # relative differences beyond which two jobs do not fall into step
OUT_OF_STEP = 0.3  # part of tau by which even unlike jobs meet more than at random
MAX_SENDERS = 16  # with more senders, use their mean number
_TOUCHING = 1.0 - 1e-9


class FlowArrays(NamedTuple):
    """Inputs and results of sharing, indexed by job."""

    silent_s: FloatArray  # of an iteration, before the first gradient exists
    backward_s: FloatArray
    volume: FloatArray  # bytes per iteration on the most loaded link; 0: the job is not on the links
    peak: FloatArray  # bytes/s while no other job sends
    overlap: FloatArray
    tau: FloatArray  # part of the backward pass before gradients pile up, alone
    alone_s: FloatArray  # the iteration while no other job sends
    window_s: FloatArray  # from the first gradient to the last one sent
    rate: FloatArray  # mean bytes/s while it sends
    in_step: FloatArray  # bytes/s while every other job of its bottleneck sends too
    bottleneck: IntArray  # the link that decides
    seconds: FloatArray  # the iteration as things are


class LinkLoads(NamedTuple):
    """Sums over the jobs of each link, of the jobs it holds back and of the others."""

    level: FloatArray  # the largest max-min rate on it
    held: FloatArray  # how many jobs it holds back
    meeting: FloatArray  # sum of their probabilities of being in their windows
    weight: FloatArray
    demand: FloatArray  # bytes/s they would send in their windows
    background: FloatArray  # mean bytes/s of the others
    burst: FloatArray  # that, each times the rate at which it sends


def new_flows(jobs: int) -> FlowArrays:
    """Return the arrays for `jobs` jobs, none of them on the links."""
    bottleneck = np.full(jobs, NONE, dtype=np.int32)
    floats = {name: np.zeros(jobs) for name in FlowArrays._fields if name != "bottleneck"}
    return FlowArrays(bottleneck=bottleneck, **floats)


def new_loads(links: int) -> LinkLoads:
    """Return empty sums for `links` links."""
    return LinkLoads(*(np.zeros(links) for _ in LinkLoads._fields))


def describe(
    flows: FlowArrays,
    job: int,
    compute_s: float,
    forward: float,
    overlap: float,
    volume: float,
    comm_s: float,
) -> None:
    """Store a job's iteration: its computation, and `comm_s` seconds to send `volume` bytes on idle links."""
    if overlap <= 1.0:
        forward = 1.0  # without overlap, everything is sent after the backward pass
    flows.silent_s[job], flows.backward_s[job] = forward * compute_s, (1.0 - forward) * compute_s
    flows.volume[job], flows.peak[job], flows.overlap[job] = volume, volume / comm_s, overlap
    window_s = overlapped_s(flows.backward_s[job], comm_s, overlap, 0.0)
    flows.alone_s[job] = flows.seconds[job] = flows.silent_s[job] + window_s
    flows.tau[job] = 0.0
    if flows.backward_s[job] > 0.0:
        flows.tau[job] = power(flows.backward_s[job] / window_s, overlap - 1.0)


def join(
    state: ShareArrays, flows: FlowArrays, loads: LinkLoads, job: int, links: IntArray, weights: FloatArray
) -> IntArray:
    """Bring a described job onto links; return the jobs whose iterations changed, ascending, itself included."""
    add(state, job, links, weights, demand(flows, job))
    flows.seconds[job] = -1.0
    jobs = np.array(connected(state, job), dtype=np.int32)
    sort(jobs)
    return settle(state, flows, loads, jobs)


def leave(state: ShareArrays, flows: FlowArrays, loads: LinkLoads, job: int) -> IntArray:
    """Take a job off its links; return the other jobs whose iterations changed, ascending."""
    others = np.array(connected(state, job)[1:], dtype=np.int32)
    sort(others)
    remove(state, job)
    flows.volume[job] = 0.0
    return settle(state, flows, loads, others)


def demand(flows: FlowArrays, job: int) -> float:
    """Return the bytes/s that a job would send in its window: its production's in the busier half, or its peak."""
    overlap, backward_s = flows.overlap[job], flows.backward_s[job]
    if overlap <= 1.0 or backward_s <= 0.0:
        return float(flows.peak[job])
    exponent = overlap / (overlap - 1.0)
    busier = 2.0 * power(1.0 - power(0.5, exponent), 1.0 / exponent)
    return float(min(flows.peak[job], flows.volume[job] * busier / backward_s))


def settle(state: ShareArrays, flows: FlowArrays, loads: LinkLoads, jobs: IntArray) -> IntArray:
    """Find the iterations of whole connected parts; return the jobs whose iterations changed, ascending."""
    before = flows.seconds[jobs]
    for job in jobs:
        flows.rate[job] = flows.in_step[job] = flows.peak[job]
        flows.window_s[job] = flows.alone_s[job] - flows.silent_s[job]
        flows.bottleneck[job] = NONE
    _find_levels(state, loads, jobs)
    for _ in range(ROUNDS):
        _add_up(state, flows, loads, jobs)
        for job in jobs:
            _find_rate(state, flows, loads, job)
        for job in jobs:
            flows.window_s[job] = _window_s(flows, job, flows.rate[job])
    for job in jobs:
        flows.seconds[job] = _seconds(state, flows, job)
    _stretch(state, flows, loads, jobs)
    changed: IntArray = jobs[flows.seconds[jobs] != before]
    return changed


def _window_s(flows: FlowArrays, job: int, rate: float) -> float:
    return float(overlapped_s(flows.backward_s[job], flows.volume[job] / rate, flows.overlap[job], 0.0))


def _find_levels(state: ShareArrays, loads: LinkLoads, jobs: IntArray) -> None:
    """The level of each link in use: jobs that it holds back have that rate, the others less."""
    for job in jobs:
        edge = state.job_first[job]
        while edge != NONE:
            loads.level[state.edge_link[edge]] = 0.0
            edge = state.edge_next_of_job[edge]
    for job in jobs:
        edge = state.job_first[job]
        while edge != NONE:
            link = state.edge_link[edge]
            loads.level[link] = max(loads.level[link], state.rate[job])
            edge = state.edge_next_of_job[edge]


def _is_held(state: ShareArrays, loads: LinkLoads, job: int, link: int) -> bool:
    """Whether it is this link that holds a job back."""
    rate = state.rate[job]
    return bool(rate < state.cap[job] * _TOUCHING and rate >= loads.level[link] * _TOUCHING)


def _meeting(flows: FlowArrays, job: int) -> float:
    """The probability that a job is in its window."""
    return float(flows.window_s[job] / (flows.silent_s[job] + flows.window_s[job]))


def _background(state: ShareArrays, flows: FlowArrays, job: int) -> float:
    """The mean bytes/s of a job that is held back elsewhere, or not at all."""
    steady = min(state.rate[job], flows.volume[job] / flows.window_s[job])
    return float(_meeting(flows, job) * steady)


def _add_up(state: ShareArrays, flows: FlowArrays, loads: LinkLoads, jobs: IntArray) -> None:
    """The sums of every link, in the order of the jobs: the same bits whatever happened before."""
    for job in jobs:
        edge = state.job_first[job]
        while edge != NONE:
            link = state.edge_link[edge]
            loads.held[link] = loads.meeting[link] = loads.weight[link] = loads.demand[link] = 0.0
            loads.background[link] = loads.burst[link] = 0.0
            edge = state.edge_next_of_job[edge]
    for job in jobs:
        edge = state.job_first[job]
        while edge != NONE:
            link, weight = state.edge_link[edge], state.edge_weight[edge]
            if state.binding[link]:
                _add_one(state, flows, loads, job, link, weight, 1.0)
            edge = state.edge_next_of_job[edge]


def _add_one(
    state: ShareArrays, flows: FlowArrays, loads: LinkLoads, job: int, link: int, weight: float, sign: float
) -> None:
    if _is_held(state, loads, job, link):
        loads.held[link] += sign
        loads.meeting[link] += sign * _meeting(flows, job)
        loads.weight[link] += sign * weight
        loads.demand[link] += sign * weight * state.cap[job]
    else:
        load = weight * _background(state, flows, job)
        loads.background[link] += sign * load
        loads.burst[link] += sign * load * weight * flows.peak[job]


def _find_rate(state: ShareArrays, flows: FlowArrays, loads: LinkLoads, job: int) -> None:
    """A job's mean rate while it sends: that of the link which leaves it least."""
    best, in_step, bottleneck = flows.peak[job], flows.peak[job], NONE
    edge = state.job_first[job]
    while edge != NONE:
        link, weight = state.edge_link[edge], state.edge_weight[edge]
        if state.binding[link]:
            mean, least = _rate_on(state, flows, loads, job, link, weight)
            if mean < best:
                best, bottleneck = mean, link
            in_step = min(in_step, least)
        edge = state.edge_next_of_job[edge]
    flows.rate[job], flows.in_step[job], flows.bottleneck[job] = best, in_step, bottleneck


def _rate_on(
    state: ShareArrays, flows: FlowArrays, loads: LinkLoads, job: int, link: int, weight: float
) -> tuple[float, float]:
    """Mean bytes/s that one link gives a job while it sends, and those while all its others send too."""
    peak, capacity = flows.peak[job], state.capacity[link]
    held, meeting = loads.held[link], loads.meeting[link]
    weights, demands = loads.weight[link], loads.demand[link]
    background, burst = loads.background[link], loads.burst[link]
    if _is_held(state, loads, job, link):
        held, meeting = held - 1.0, meeting - _meeting(flows, job)
        weights, demands = weights - weight, demands - weight * state.cap[job]
    else:
        load = weight * _background(state, flows, job)
        background, burst = max(0.0, background - load), burst - load * weight * peak
    left = max(capacity - background, weight * state.rate[job])
    undisturbed = min(peak, left / weight)
    if background > 0.0:
        undisturbed = min(
            undisturbed, _between_bursts(peak, weight, capacity, background, burst / background)
        )
        undisturbed = max(undisturbed, state.rate[job])
    if held < 0.5:
        return undisturbed, undisturbed
    each, wanted = weights / held, demands / weights
    least = min(peak, _share(left, weight, held, each, wanted))
    if held > MAX_SENDERS:
        return min(undisturbed, _share(left, weight, meeting, each, wanted)), least
    chance = min(1.0 - 1e-12, max(0.0, meeting / held))
    total, senders = 0.0, int(held + 0.5)
    probability = 1.0
    for _ in range(senders):
        probability *= 1.0 - chance
    for number in range(senders + 1):
        rate = undisturbed if number == 0 else min(peak, _share(left, weight, number, each, wanted))
        total += probability * rate
        probability *= (senders - number) / (number + 1.0) * chance / (1.0 - chance)
    return total, least


def _share(left: float, weight: float, number: float, each: float, wanted: float) -> float:
    """The rate of a job while `number` others send: an equal share, or what they leave."""
    equal = left / (weight + number * each)
    return (left - number * each * min(wanted, equal)) / weight


def _between_bursts(peak: float, weight: float, capacity: float, background: float, burst: float) -> float:
    """The rate of a job beside background load that comes in bursts, each of which shares the link evenly."""
    beside = max(capacity / 2.0, capacity - burst)
    lost = max(0.0, weight * peak - beside) * background / min(burst, capacity / 2.0)
    return peak - lost / weight


def _seconds(state: ShareArrays, flows: FlowArrays, job: int) -> float:
    """The iteration of a job, between that of windows met at random and that of windows all in step."""
    if flows.bottleneck[job] == NONE:
        return float(flows.alone_s[job])
    at_random = flows.window_s[job]
    in_step = _window_s(flows, job, flows.in_step[job])
    tau = flows.tau[job]
    like = _likeness(state, flows, job) if tau > 1e-3 else 0.0
    step = like * math.sqrt(tau) + (1.0 - like) * OUT_OF_STEP * tau
    return float(flows.silent_s[job] + at_random + step * max(0.0, in_step - at_random))


def _stretch(state: ShareArrays, flows: FlowArrays, loads: LinkLoads, jobs: IntArray) -> None:
    """Lengthen iterations that would together put more on a link than it carries."""
    for job in jobs:
        edge = state.job_first[job]
        while edge != NONE:
            loads.background[state.edge_link[edge]] = 0.0
            edge = state.edge_next_of_job[edge]
    for job in jobs:
        edge = state.job_first[job]
        while edge != NONE:
            link = state.edge_link[edge]
            loads.background[link] += state.edge_weight[edge] * flows.volume[job] / flows.seconds[job]
            edge = state.edge_next_of_job[edge]
    for job in jobs:
        excess = 1.0
        edge = state.job_first[job]
        while edge != NONE:
            link = state.edge_link[edge]
            if state.binding[link]:
                excess = max(excess, loads.background[link] / state.capacity[link])
            edge = state.edge_next_of_job[edge]
        flows.seconds[job] *= excess


def _likeness(state: ShareArrays, flows: FlowArrays, job: int) -> float:
    """How alike the iterations of a job's rivals on its bottleneck are to its own, from 0 to 1."""
    total, number = 0.0, 0
    edge = state.link_first[flows.bottleneck[job]]
    while edge != NONE:
        other = state.edge_job[edge]
        if other != job and state.rate[other] < state.cap[other] * _TOUCHING:
            number += 1
            apart = _apart(flows.alone_s[job], flows.alone_s[other]) / LIKE_ITERATIONS
            mine, its = flows.volume[job] / flows.peak[job], flows.volume[other] / flows.peak[other]
            total += max(0.0, 1.0 - apart - _apart(mine, its) / LIKE_SENDING)
        edge = state.edge_next_of_link[edge]
    return total / number if number else 0.0


def _apart(one: float, other: float) -> float:
    return abs(one - other) / max(one, other)
