"""Limits per type that bind over all stages together: Lagrangian prices on the limits, then labels.

At one stage time tau, `priced` puts a price on each limit that the shortest path exceeds. For any prices, shortest
path - prices x limits is a lower bound on every plan that keeps the limits; subgradient steps find the best prices.
`labelled` closes the remaining gap: it extends paths layer by layer and stores them with the devices they use. A path
is dropped if another uses no more of any type and costs no more, or if its cost plus the lowest cost to come (at the
prices found) reaches the cutoff.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry, kernel
from berth.plan.arrays import ProblemArrays
from berth.plan.provision import SLACK
from berth.plan.shortest_path import REPLICAS, arc_replicas, backward, empty_paths, forward, trace_back, use

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FOUND, NONE, TOO_MANY = 0, 1, 2


@entry
def priced(
    problem: ProblemArrays, tau: float, prices: Floats, target: float, steps: int
) -> tuple[float, Floats, float, Ints]:
    """Return the best lower bound on the price per hour at tau that keeps all limits, and its prices.

    `target` is the bound that is useful (it also sets the length of the steps). Third and fourth: the cheapest path
    seen that keeps the limits (infinite if there is none). A bound above the price of all devices proves that no plan
    keeps the limits.
    """
    num_types, layers = len(problem.price), len(problem.cross)
    paths = empty_paths(problem)
    used = np.zeros(num_types)
    path = np.full(layers, -1)
    kept, kept_rate = np.full(layers, -1), np.inf
    now, best, best_prices = prices.copy(), -1e300, prices.copy()
    everything = np.sum(problem.price * problem.limit) * (1 + SLACK)
    length, stale = 1.5, 0
    for _ in range(steps):
        rate = forward(problem, problem.price + now, tau, REPLICAS, paths)
        if rate == np.inf:
            return np.inf, best_prices, kept_rate, kept
        trace_back(paths, layers - 1, paths.best_type[layers - 1, 0], path)
        use(problem, path, tau, used)
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
            own = np.sum(problem.price * used)
            if own < kept_rate:
                kept_rate = own
                kept[:] = path
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
    """Paths with the devices they use; those whose last stage is of type t and ends at b are a range of rows."""

    cost: Floats  # dollars per hour
    paid: Floats  # the same at reduced prices
    used: Floats  # [label, watched type]: replicas
    parent: Ints  # previous label x layers + first layer of the last stage
    start: Ints  # [layer, type]
    stop: Ints


class Watch(NamedTuple):
    """The bounds for paths at one stage time."""

    watched: Ints  # types whose limits a path below the cutoff could exceed
    reduced: Floats  # prices plus those on the limits
    due: float  # prices on the limits x limits
    cutoff: float  # dollars per hour
    ahead: Floats  # [layer, type]: lowest cost at reduced prices after a stage that ends there
    still: Floats  # [watched type, layer, type]: fewest devices of a type after it


@kernel
def watch(problem: ProblemArrays, tau: float, prices: Floats, cutoff: float) -> Watch:
    """Return the lowest costs and fewest devices to come, for every end of a stage."""
    num_types, layers = len(problem.price), len(problem.cross)
    ahead = np.empty((layers, num_types))
    backward(problem, problem.price + prices, tau, ahead)
    watched = np.flatnonzero(problem.limit * problem.price < cutoff)
    still = np.empty((len(watched), layers, num_types))
    for place in range(len(watched)):
        alone = np.zeros(num_types)
        alone[watched[place]] = 1.0
        backward(problem, alone, tau, still[place])
    due = np.sum(prices * problem.limit)
    return Watch(watched, problem.price + prices, due, cutoff, ahead, still)


@kernel
def empty_labels(rows: int, watched: int, layers: int, num_types: int) -> Labels:
    """Allocate labels; the first is the empty path."""
    labels = Labels(
        np.empty(rows),
        np.empty(rows),
        np.empty((rows, watched)),
        np.empty(rows, np.int64),
        np.zeros((layers, num_types), np.int64),
        np.zeros((layers, num_types), np.int64),
    )
    labels.cost[0], labels.paid[0], labels.parent[0] = 0.0, 0.0, -1
    labels.used[0] = 0.0
    return labels


@kernel
def fits(problem: ProblemArrays, look: Watch, used: Floats, last: int, device: int, replicas: float) -> bool:
    """Return whether a path that used this much, plus a stage of `replicas`, can still keep all limits."""
    for place in range(len(look.watched)):
        taken = used[place] + (replicas if look.watched[place] == device else 0.0)
        if taken + look.still[place, last, device] > problem.limit[look.watched[place]]:
            return False
    return True


@kernel
def add(
    problem: ProblemArrays,
    look: Watch,
    labels: Labels,
    fresh: Labels,
    at: tuple[int, int, int, float],
    label: int,
    count: int,
) -> int:
    """Add a path with one more stage, unless it can't keep the limits or stay below the cutoff; return the count."""
    first, last, device, replicas = at
    paid = labels.paid[label] + look.reduced[device] * replicas
    if paid + look.ahead[last, device] - look.due >= look.cutoff * (1 - SLACK):
        return count
    if not fits(problem, look, labels.used[label], last, device, replicas):
        return count
    if count == len(fresh.cost):
        return count + 1  # full
    fresh.cost[count] = labels.cost[label] + problem.price[device] * replicas
    fresh.paid[count] = paid
    fresh.parent[count] = label * len(problem.cross) + first
    for place in range(len(look.watched)):
        more = replicas if look.watched[place] == device else 0.0
        fresh.used[count, place] = labels.used[label, place] + more
    return count + 1


@kernel
def extend(
    problem: ProblemArrays,
    look: Watch,
    tau: float,
    labels: Labels,
    fresh: Labels,
    last: int,
    device: int,
) -> tuple[int, int]:
    """Add all paths whose last stage is of this type and ends at `last`; return (count, labels visited)."""
    running, cross = problem.running, problem.cross
    limit, memory = problem.limit[device], problem.memory[device]
    right = cross[last] if last + 1 < len(cross) else 0.0
    count, effort = 0, 0
    for first in range(last, -1, -1):
        if arc_replicas(running, device, first, last, tau, right, memory, False) > limit:
            break
        crossing = right + (cross[first - 1] if first > 0 else 0.0)
        replicas = arc_replicas(running, device, first, last, tau, crossing, memory, False)
        if replicas > limit:
            continue
        at = (first, last, device, replicas)
        if first == 0:
            count = add(problem, look, labels, fresh, at, 0, count)
            continue
        for other in range(len(problem.price)):
            if other == device:
                continue
            effort += labels.stop[first - 1, other] - labels.start[first - 1, other]
            for label in range(labels.start[first - 1, other], labels.stop[first - 1, other]):
                count = add(problem, look, labels, fresh, at, label, count)
                if count > len(fresh.cost):
                    return count, effort
    return count, effort


@kernel
def keep(labels: Labels, fresh: Labels, made: int, count: int, beam: int) -> int:
    """Keep the new paths that no other dominates in cost and every watched type, at most `beam`; return the count."""
    begin, watched = count, labels.used.shape[1]
    by = fresh.paid if beam > 0 else fresh.cost
    for row in np.argsort(by[:made], kind="mergesort"):
        if beam > 0 and count - begin >= beam:
            return count
        dominated = False
        for label in range(begin, count):
            dominated = True
            for place in range(watched):
                if labels.used[label, place] > fresh.used[row, place]:
                    dominated = False
                    break
            if dominated and labels.cost[label] <= fresh.cost[row]:
                break
            dominated = False
        if dominated:
            continue
        if count == len(labels.cost):
            return count + 1  # full
        labels.cost[count], labels.paid[count] = fresh.cost[row], fresh.paid[row]
        labels.parent[count] = fresh.parent[row]
        labels.used[count] = fresh.used[row]
        count += 1
    return count


@kernel
def path_of(labels: Labels, label: int, device: int, layers: int) -> Ints:
    """Return the assignment of a path."""
    assignment = np.full(layers, -1)
    last = layers - 1
    while last >= 0:
        label, first = labels.parent[label] // layers, labels.parent[label] % layers
        assignment[first : last + 1] = device
        last = first - 1
        for other in range(labels.start.shape[1]):
            if last >= 0 and labels.start[last, other] <= label < labels.stop[last, other]:
                device = other
    return assignment


@entry
def labelled(
    problem: ProblemArrays, tau: float, prices: Floats, cutoff: float, most: int, patience: int, beam: int
) -> tuple[int, float, Ints]:
    """Return the cheapest path at tau that keeps all limits, if it costs less than `cutoff` per hour.

    A `beam` keeps only that many of the most promising labels at each end of a stage: quick, but finding no path then
    proves nothing. The status is FOUND with rate and assignment; NONE if there is none below the cutoff; TOO_MANY if
    more than `most` labels are needed, or more than `patience` are visited.
    """
    num_types, layers = len(problem.price), len(problem.cross)
    nothing = np.full(layers, -1)
    look = watch(problem, tau, prices, cutoff)
    labels = empty_labels(most, len(look.watched), layers, num_types)
    fresh = empty_labels(4 * most, len(look.watched), 1, 1)
    count, effort = 1, 0
    for last in range(layers):
        for device in range(num_types):
            made, looked = extend(problem, look, tau, labels, fresh, last, device)
            effort += looked
            if made > len(fresh.cost) or effort > patience:
                return TOO_MANY, np.inf, nothing
            labels.start[last, device] = count
            count = keep(labels, fresh, made, count, beam)
            if count > most:
                return TOO_MANY, np.inf, nothing
            labels.stop[last, device] = count
    best, best_type, rate = -1, -1, cutoff
    for device in range(num_types):
        for label in range(labels.start[layers - 1, device], labels.stop[layers - 1, device]):
            if labels.cost[label] < rate:
                best, best_type, rate = label, device, labels.cost[label]
    if best < 0:
        return NONE, np.inf, nothing
    return FOUND, rate, path_of(labels, best, best_type, layers)
