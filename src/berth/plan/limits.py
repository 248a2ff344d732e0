"""Limits per type that bind over all stages together: prices on the limits, then labels.

At one stage time tau, `priced` puts a price on each limit that the shortest path breaks. Whatever the prices,
shortest path - prices x limits is a lower bound on every plan that keeps the limits; the best prices are
found by subgradient steps. What gap is left is closed by `labelled`: paths are extended layer by layer and
remembered with the units they use; one that uses no more of anything and costs no more replaces another, and
one whose cost and least cost to come (at the prices found) reach the cutoff is dropped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.compile import entry, kernel
from berth.plan.provision import SLACK
from berth.plan.shortest import UNITS, arc_units, backward, forward, no_paths, trace_back, use
from berth.plan.tables import Tables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FOUND, NONE, TOO_MANY = 0, 1, 2


@entry
def priced(
    problem: Tables, tau: float, prices: Floats, target: float, steps: int
) -> tuple[float, Floats, float, Ints]:
    """The best lower bound on the price per hour at tau that keeps all limits, and the prices that give it.

    `target` is what the bound must reach to be of use (it also sets the length of the steps). Third and
    fourth: the cheapest path seen that keeps the limits (infinite if none did). A bound above the price of
    all units there are shows that no plan keeps the limits.
    """
    kinds, layers = len(problem.price), len(problem.cross)
    paths = no_paths(problem)
    used = np.zeros(kinds)
    path = np.full(layers, -1)
    kept, kept_rate = np.full(layers, -1), np.inf
    now, best, best_prices = prices.copy(), -1e300, prices.copy()
    everything = np.sum(problem.price * problem.limit) * (1 + SLACK)
    length, stale = 1.5, 0
    for _ in range(steps):
        rate = forward(problem, problem.price + now, tau, UNITS, paths)
        if rate == np.inf:
            return np.inf, best_prices, kept_rate, kept
        trace_back(paths, layers - 1, paths.best_kind[layers - 1, 0], path)
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
    """Paths with the units they use; those whose last stage is of type t and ends at b are a range of rows."""

    cost: Floats  # dollars per hour
    paid: Floats  # the same at reduced prices
    used: Floats  # [label, watched type]: units
    parent: Ints  # label in front x layers + first layer of the last stage
    start: Ints  # [layer, type]
    stop: Ints


class Watch(NamedTuple):
    """What a path is measured by at one stage time."""

    kinds: Ints  # types whose limits a path below the cutoff could break
    reduced: Floats  # prices with those on the limits
    due: float  # prices on the limits x limits
    cutoff: float  # dollars per hour
    ahead: Floats  # [layer, type]: least cost at reduced prices behind a stage that ends there
    still: Floats  # [watched type, layer, type]: fewest units of a type behind it


@kernel
def watch(problem: Tables, tau: float, prices: Floats, cutoff: float) -> Watch:
    """Least costs and least units to come, for every end of a stage."""
    kinds, layers = len(problem.price), len(problem.cross)
    ahead = np.empty((layers, kinds))
    backward(problem, problem.price + prices, tau, ahead)
    watched = np.flatnonzero(problem.limit * problem.price < cutoff)
    still = np.empty((len(watched), layers, kinds))
    for place in range(len(watched)):
        alone = np.zeros(kinds)
        alone[watched[place]] = 1.0
        backward(problem, alone, tau, still[place])
    due = np.sum(prices * problem.limit)
    return Watch(watched, problem.price + prices, due, cutoff, ahead, still)


@kernel
def no_labels(rows: int, watched: int, layers: int, kinds: int) -> Labels:
    """Room for labels; the first is the empty path."""
    labels = Labels(
        np.empty(rows),
        np.empty(rows),
        np.empty((rows, watched)),
        np.empty(rows, np.int64),
        np.zeros((layers, kinds), np.int64),
        np.zeros((layers, kinds), np.int64),
    )
    labels.cost[0], labels.paid[0], labels.parent[0] = 0.0, 0.0, -1
    labels.used[0] = 0.0
    return labels


@kernel
def fits(problem: Tables, look: Watch, used: Floats, last: int, kind: int, units: float) -> bool:
    """Whether a path that used this much, and a stage of `units` more, can still keep all limits."""
    for place in range(len(look.kinds)):
        taken = used[place] + (units if look.kinds[place] == kind else 0.0)
        if taken + look.still[place, last, kind] > problem.limit[look.kinds[place]]:
            return False
    return True


@kernel
def add(
    problem: Tables,
    look: Watch,
    labels: Labels,
    fresh: Labels,
    at: tuple[int, int, int, float],
    label: int,
    count: int,
) -> int:
    """A path with one more stage, unless it can't keep the limits or can't stay below the cutoff."""
    first, last, kind, units = at
    paid = labels.paid[label] + look.reduced[kind] * units
    if paid + look.ahead[last, kind] - look.due >= look.cutoff * (1 - SLACK):
        return count
    if not fits(problem, look, labels.used[label], last, kind, units):
        return count
    if count == len(fresh.cost):
        return count + 1  # no room left
    fresh.cost[count] = labels.cost[label] + problem.price[kind] * units
    fresh.paid[count] = paid
    fresh.parent[count] = label * len(problem.cross) + first
    for place in range(len(look.kinds)):
        more = units if look.kinds[place] == kind else 0.0
        fresh.used[count, place] = labels.used[label, place] + more
    return count + 1


@kernel
def extend(
    problem: Tables, look: Watch, tau: float, labels: Labels, fresh: Labels, last: int, kind: int
) -> tuple[int, int]:
    """All paths whose last stage is of this type and ends at `last`: (how many, labels looked at)."""
    running, cross = problem.running, problem.cross
    limit, memory = problem.limit[kind], problem.memory[kind]
    right = cross[last] if last + 1 < len(cross) else 0.0
    count, effort = 0, 0
    for first in range(last, -1, -1):
        if arc_units(running, kind, first, last, tau, right, memory, False) > limit:
            break
        crossing = right + (cross[first - 1] if first > 0 else 0.0)
        units = arc_units(running, kind, first, last, tau, crossing, memory, False)
        if units > limit:
            continue
        at = (first, last, kind, units)
        if first == 0:
            count = add(problem, look, labels, fresh, at, 0, count)
            continue
        for other in range(len(problem.price)):
            if other == kind:
                continue
            effort += labels.stop[first - 1, other] - labels.start[first - 1, other]
            for label in range(labels.start[first - 1, other], labels.stop[first - 1, other]):
                count = add(problem, look, labels, fresh, at, label, count)
                if count > len(fresh.cost):
                    return count, effort
    return count, effort


@kernel
def keep(labels: Labels, fresh: Labels, made: int, count: int, beam: int) -> int:
    """Of the new paths those that no other undercuts in cost and in every watched type; at most `beam`."""
    begin, watched = count, labels.used.shape[1]
    by = fresh.paid if beam > 0 else fresh.cost
    for row in np.argsort(by[:made], kind="mergesort"):
        if beam > 0 and count - begin >= beam:
            return count
        undercut = False
        for label in range(begin, count):
            undercut = True
            for place in range(watched):
                if labels.used[label, place] > fresh.used[row, place]:
                    undercut = False
                    break
            if undercut and labels.cost[label] <= fresh.cost[row]:
                break
            undercut = False
        if undercut:
            continue
        if count == len(labels.cost):
            return count + 1  # no room left
        labels.cost[count], labels.paid[count] = fresh.cost[row], fresh.paid[row]
        labels.parent[count] = fresh.parent[row]
        labels.used[count] = fresh.used[row]
        count += 1
    return count


@kernel
def path_of(labels: Labels, label: int, kind: int, layers: int) -> Ints:
    """The assignment of a path."""
    assignment = np.full(layers, -1)
    last = layers - 1
    while last >= 0:
        label, first = labels.parent[label] // layers, labels.parent[label] % layers
        assignment[first : last + 1] = kind
        last = first - 1
        for other in range(labels.start.shape[1]):
            if last >= 0 and labels.start[last, other] <= label < labels.stop[last, other]:
                kind = other
    return assignment


@entry
def labelled(
    problem: Tables, tau: float, prices: Floats, cutoff: float, most: int, patience: int, beam: int
) -> tuple[int, float, Ints]:
    """The cheapest path at tau that keeps all limits, if it costs less than `cutoff` per hour.

    With a `beam` only so many of the most promising labels are kept at each end of a stage: quick, and what
    it finds is a plan, but none found proves nothing.
    FOUND with its rate and assignment; NONE if there is none below the cutoff; TOO_MANY if more than `most`
    labels would have been kept, or more than `patience` looked at.
    """
    kinds, layers = len(problem.price), len(problem.cross)
    nothing = np.full(layers, -1)
    look = watch(problem, tau, prices, cutoff)
    labels = no_labels(most, len(look.kinds), layers, kinds)
    fresh = no_labels(4 * most, len(look.kinds), 1, 1)
    count, effort = 1, 0
    for last in range(layers):
        for kind in range(kinds):
            made, looked = extend(problem, look, tau, labels, fresh, last, kind)
            effort += looked
            if made > len(fresh.cost) or effort > patience:
                return TOO_MANY, np.inf, nothing
            labels.start[last, kind] = count
            count = keep(labels, fresh, made, count, beam)
            if count > most:
                return TOO_MANY, np.inf, nothing
            labels.stop[last, kind] = count
    best, best_kind, rate = -1, -1, cutoff
    for kind in range(kinds):
        for label in range(labels.start[layers - 1, kind], labels.stop[layers - 1, kind]):
            if labels.cost[label] < rate:
                best, best_kind, rate = label, kind, labels.cost[label]
    if best < 0:
        return NONE, np.inf, nothing
    return FOUND, rate, path_of(labels, best, best_kind, layers)
