"""Limits per type that bind over all stages together: Lagrangian prices on the limits, then labels.

At one step time all arcs (stages with what they rent) are listed once. `priced` puts a price on each limit that the
shortest path exceeds. For any prices, shortest path - prices x limits is a lower bound on every plan that keeps the
limits; subgradient steps find the best prices. `labelled` closes the remaining gap: it extends paths stage by stage
and stores them with the devices they use. A path is dropped if another uses no more of any type and costs no more, or
if its cost plus the lowest cost to come (at the prices found) reaches the cutoff.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry, kernel
from berth.plan.arrays import ProblemArrays
from berth.plan.shortest_path import arc_use
from berth.plan.stage import SLACK, Slots, skips

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FOUND, NONE, TOO_MANY = 0, 1, 2


class Arcs(NamedTuple):
    """Stages by their last layer: those of layer b are `first[begin[b]:begin[b + 1]]`."""

    begin: Ints
    first: Ints
    choice: Ints
    device: Ints
    devices: Floats
    cores: Floats


@entry
def list_arcs(problem: ProblemArrays, slots: Slots, step_s: float, cutoff: float) -> Arcs:
    """Return all stages that are possible at a step time and cost less than `cutoff` per hour."""
    layers, choices = problem.cross.shape[1], len(problem.type_of)
    room, count = 64 * layers, 0
    whole = np.empty((room, 2), np.int64)
    rents = np.empty((room, 2))
    begin = np.zeros(layers + 1, np.int64)
    for last in range(layers):
        for choice in range(choices):
            device = problem.type_of[choice]
            start = 1.0
            for first in range(last, -1, -1):
                if skips(problem, choice, first, last):
                    continue
                start, devices, cores = arc_use(problem, slots, choice, first, last, False, step_s, start)
                if start == np.inf or problem.price[device] * devices + problem.host_price * cores >= cutoff:
                    break
                replicas, devices, cores = arc_use(problem, slots, choice, first, last, True, step_s, start)
                if replicas == np.inf:
                    continue
                if count == room:
                    room *= 2
                    wider = np.empty((room, 2), np.int64)
                    wider[:count] = whole
                    more = np.empty((room, 2))
                    more[:count] = rents
                    whole, rents = wider, more
                whole[count, 0], whole[count, 1] = first, choice
                rents[count, 0], rents[count, 1] = devices, cores
                count += 1
        begin[last + 1] = count
    choice_of = whole[:count, 1].copy()
    return Arcs(
        begin,
        whole[:count, 0].copy(),
        choice_of,
        problem.type_of[choice_of],
        rents[:count, 0].copy(),
        rents[:count, 1].copy(),
    )


@kernel
def host_price(problem: ProblemArrays, prices: Floats) -> float:
    """Return the price of a host core with the price on the limit of its type."""
    return problem.host_price + (prices[problem.host] if problem.host >= 0 else 0.0)


@kernel
def add_use(problem: ProblemArrays, arcs: Arcs, place: int, used: Floats) -> None:
    """Add what a stage rents."""
    used[arcs.device[place]] += arcs.devices[place]
    if problem.host >= 0:
        used[problem.host] += arcs.cores[place]


@kernel
def forward_over(
    problem: ProblemArrays, arcs: Arcs, prices: Floats, stages: int, cost: Floats, came: Ints
) -> float:
    """Compute shortest paths over the listed arcs with prices on limits; `came` has the last arc of each."""
    layers = problem.cross.shape[1]
    rows = cost.shape[0]
    reduced, core = problem.price + prices, host_price(problem, prices)
    cost[:] = np.inf
    cost[:, 0] = 0.0
    for last in range(layers):
        for place in range(arcs.begin[last], arcs.begin[last + 1]):
            own = reduced[arcs.device[place]] * arcs.devices[place] + core * arcs.cores[place]
            for row in range(1, rows):
                total = cost[row - 1 if stages > 0 else row, arcs.first[place]] + own
                if total < cost[row, last + 1]:
                    cost[row, last + 1] = total
                    came[row, last + 1] = place
    return cost[rows - 1, layers]


@kernel
def path_use(problem: ProblemArrays, arcs: Arcs, stages: int, came: Ints, used: Floats) -> Ints:
    """Return the stages of the cheapest path, as [stage, (first, last, choice)], and write what it rents."""
    layers, row = problem.cross.shape[1], came.shape[0] - 1
    found = np.empty((layers, 3), np.int64)
    used[:] = 0.0
    count, end = 0, layers
    while end > 0:
        place = came[row, end]
        add_use(problem, arcs, place, used)
        count += 1
        found[layers - count, 0] = arcs.first[place]
        found[layers - count, 1] = end - 1
        found[layers - count, 2] = arcs.choice[place]
        end = arcs.first[place]
        if stages > 0:
            row -= 1
    return found[layers - count :].copy()


@entry
def priced(
    problem: ProblemArrays, arcs: Arcs, stages: int, prices: Floats, target: float, steps: int
) -> tuple[float, Floats, float, Ints]:
    """Return the best lower bound on the price per hour that keeps all limits, and its prices.

    `target` is the bound that is useful (it also sets the length of the steps). Third and fourth: the cheapest path
    seen that keeps the limits (infinite if there is none). A bound above the price of all devices proves that no plan
    keeps the limits, unless cores are rented that no limit counts.
    """
    num_types, layers = len(problem.price), problem.cross.shape[1]
    cost = np.empty((max(1, stages) + 1, layers + 1))
    came = np.zeros((max(1, stages) + 1, layers + 1), np.int64)
    used = np.zeros(num_types)
    kept, kept_rate = np.empty((0, 3), np.int64), np.inf
    now, best, best_prices = prices.copy(), -1e300, prices.copy()
    everything = float(np.sum(problem.price * problem.limit)) * (1 + SLACK)
    if problem.host < 0 and np.any(arcs.cores > 0):
        everything = np.inf  # cores outside the types have no limit
    length, stale = 1.5, 0
    for _ in range(steps):
        rate = forward_over(problem, arcs, now, stages, cost, came)
        if rate == np.inf:
            return np.inf, best_prices, kept_rate, kept
        path = path_use(problem, arcs, stages, came, used)
        bound = rate - np.sum(now * problem.limit)
        if bound > best + 1e-12 * abs(best):
            best, stale = bound, 0
            best_prices[:] = now
        else:
            stale += 1
            if stale >= 6:
                length, stale = length * 0.6, 0
                now[:] = best_prices
        over = used - problem.limit
        if np.all(over <= 0):
            own = rate - np.sum(now * used)
            if own < kept_rate:
                kept_rate = own
                kept = path
            if own <= best * (1 + 1e-12):
                break
        over = np.where((now <= 0) & (over < 0), 0.0, over)
        square = np.sum(over * over)
        if square == 0 or best >= target or best > everything or length < 1e-3:
            break
        aim = min(target, kept_rate, max(2 * best, best + 1.0))
        step = length * max(aim - bound, 1e-9 * abs(aim)) / square
        now[:] = np.maximum(0.0, now + step * over)
    return best, best_prices, kept_rate, kept


class Labels(NamedTuple):
    """Paths with the devices they use; those that end before boundary b are a range of rows."""

    cost: Floats  # dollars per hour
    paid: Floats  # the same at reduced prices
    used: Floats  # [label, watched]: devices of the watched types, then stages
    parent: Ints
    arc: Ints
    start: Ints  # [boundary]
    stop: Ints


class Watch(NamedTuple):
    """The bounds for paths at one step time."""

    watched: Ints  # types whose limits a path below the cutoff could exceed
    most: Floats  # [watched + 1]: their limits, then the limit on stages
    due: float  # prices on the limits x limits
    cutoff: float  # dollars per hour
    ahead: Floats  # [boundary]: lowest cost at reduced prices from there on
    still: Floats  # [watched + 1, boundary]: fewest devices, and stages, from there on


@kernel
def backward_over(
    problem: ProblemArrays, arcs: Arcs, price: Floats, core: float, each: float, ahead: Floats
) -> None:
    """Write the lowest cost from each boundary on; `each` is added for every stage."""
    layers = problem.cross.shape[1]
    ahead[:] = np.inf
    ahead[layers] = 0.0
    for last in range(layers - 1, -1, -1):
        for place in range(arcs.begin[last], arcs.begin[last + 1]):
            own = price[arcs.device[place]] * arcs.devices[place] + core * arcs.cores[place] + each
            total = own + ahead[last + 1]
            ahead[arcs.first[place]] = min(ahead[arcs.first[place]], total)


@kernel
def watch(problem: ProblemArrays, arcs: Arcs, prices: Floats, stages: int, cutoff: float) -> Watch:
    """Return the lowest costs and fewest devices to come, for every boundary."""
    num_types, layers = len(problem.price), problem.cross.shape[1]
    ahead = np.empty(layers + 1)
    backward_over(problem, arcs, problem.price + prices, host_price(problem, prices), 0.0, ahead)
    watched = np.flatnonzero(problem.limit * problem.price < cutoff)
    still = np.empty((len(watched) + 1, layers + 1))
    most = np.empty(len(watched) + 1)
    for place in range(len(watched)):
        alone = np.zeros(num_types)
        alone[watched[place]] = 1.0
        core = 1.0 if problem.host == watched[place] else 0.0
        backward_over(problem, arcs, alone, core, 0.0, still[place])
        most[place] = problem.limit[watched[place]]
    backward_over(problem, arcs, np.zeros(num_types), 0.0, 1.0, still[len(watched)])
    most[len(watched)] = stages if stages > 0 else np.inf
    return Watch(watched, most, np.sum(prices * problem.limit), cutoff, ahead, still)


@kernel
def empty_labels(rows: int, watched: int, layers: int) -> Labels:
    """Allocate labels; the first is the empty path."""
    labels = Labels(
        np.empty(rows),
        np.empty(rows),
        np.empty((rows, watched)),
        np.empty(rows, np.int64),
        np.empty(rows, np.int64),
        np.zeros(layers + 1, np.int64),
        np.zeros(layers + 1, np.int64),
    )
    labels.cost[0], labels.paid[0], labels.parent[0], labels.arc[0] = 0.0, 0.0, -1, -1
    labels.used[0] = 0.0
    labels.stop[0] = 1
    return labels


@kernel
def taken_by(problem: ProblemArrays, arcs: Arcs, place: int, watched: Ints, row: int) -> float:
    """Return the devices of a watched type that a stage rents; the row after the types counts stages."""
    if row == len(watched):
        return 1.0
    taken = arcs.devices[place] if arcs.device[place] == watched[row] else 0.0
    return taken + (arcs.cores[place] if problem.host == watched[row] else 0.0)


@kernel
def extend(
    problem: ProblemArrays, look: Watch, arcs: Arcs, prices: Floats, labels: Labels, fresh: Labels, last: int
) -> tuple[int, int]:
    """Add all paths with a last stage that ends at `last`; return (count, labels visited)."""
    reduced, core = problem.price + prices, host_price(problem, prices)
    count, effort, rows = 0, 0, len(look.most)
    own = np.empty(rows)
    for place in range(arcs.begin[last], arcs.begin[last + 1]):
        first, device = arcs.first[place], arcs.device[place]
        paid = reduced[device] * arcs.devices[place] + core * arcs.cores[place]
        rent = problem.price[device] * arcs.devices[place] + problem.host_price * arcs.cores[place]
        for row in range(rows):
            own[row] = taken_by(problem, arcs, place, look.watched, row)
        effort += labels.stop[first] - labels.start[first]
        for label in range(labels.start[first], labels.stop[first]):
            total = labels.paid[label] + paid
            if total + look.ahead[last + 1] - look.due >= look.cutoff * (1 - SLACK):
                continue
            fits = True
            for row in range(rows):
                if labels.used[label, row] + own[row] + look.still[row, last + 1] > look.most[row]:
                    fits = False
                    break
            if not fits:
                continue
            if count == len(fresh.cost):
                return count + 1, effort  # full
            fresh.cost[count] = labels.cost[label] + rent
            fresh.paid[count] = total
            fresh.parent[count], fresh.arc[count] = label, place
            for row in range(rows):
                fresh.used[count, row] = labels.used[label, row] + own[row]
            count += 1
    return count, effort


@kernel
def keep(look: Watch, labels: Labels, fresh: Labels, made: int, count: int, beam: int) -> int:
    """Keep the new paths that no other dominates in cost and every watched type, at most `beam`; return the count."""
    begin, rows = count, len(look.most)
    if look.most[rows - 1] == np.inf:
        rows -= 1  # the number of stages is free
    by = fresh.paid if beam > 0 else fresh.cost
    for row in np.argsort(by[:made], kind="mergesort"):
        if beam > 0 and count - begin >= beam:
            return count
        dominated = False
        for label in range(begin, count):
            dominated = labels.cost[label] <= fresh.cost[row]
            for place in range(rows):
                if labels.used[label, place] > fresh.used[row, place]:
                    dominated = False
                    break
            if dominated:
                break
        if dominated:
            continue
        if count == len(labels.cost):
            return count + 1  # full
        labels.cost[count], labels.paid[count] = fresh.cost[row], fresh.paid[row]
        labels.parent[count], labels.arc[count] = fresh.parent[row], fresh.arc[row]
        labels.used[count] = fresh.used[row]
        count += 1
    return count


@entry
def labelled(
    problem: ProblemArrays,
    arcs: Arcs,
    stages: int,
    prices: Floats,
    cutoff: float,
    most: int,
    patience: int,
    beam: int,
) -> tuple[int, float, Ints]:
    """Return the cheapest path that keeps all limits, if it costs less than `cutoff` per hour.

    A `beam` keeps only that many of the most promising labels at each boundary: quick, but finding no path then
    proves nothing. The status is FOUND with rate and stages; NONE if there is none below the cutoff; TOO_MANY if
    more than `most` labels are needed, or more than `patience` are visited.
    """
    layers = problem.cross.shape[1]
    nothing = np.empty((0, 3), np.int64)
    look = watch(problem, arcs, prices, stages, cutoff)
    labels = empty_labels(most, len(look.most), layers)
    fresh = empty_labels(4 * most, len(look.most), 1)
    count, effort = 1, 0
    for last in range(layers):
        made, looked = extend(problem, look, arcs, prices, labels, fresh, last)
        effort += looked
        if made > len(fresh.cost) or effort > patience:
            return TOO_MANY, np.inf, nothing
        labels.start[last + 1] = count
        count = keep(look, labels, fresh, made, count, beam)
        if count > most:
            return TOO_MANY, np.inf, nothing
        labels.stop[last + 1] = count
    best, rate = -1, cutoff
    for label in range(labels.start[layers], labels.stop[layers]):
        if labels.cost[label] < rate:
            best, rate = label, labels.cost[label]
    if best < 0:
        return NONE, np.inf, nothing
    found = np.empty((layers, 3), np.int64)
    number, end = 0, layers - 1
    while best > 0:
        number += 1
        found[layers - number, 0] = arcs.first[labels.arc[best]]
        found[layers - number, 1] = end
        found[layers - number, 2] = arcs.choice[labels.arc[best]]
        end = arcs.first[labels.arc[best]] - 1
        best = labels.parent[best]
    return FOUND, rate, found[layers - number :].copy()
