"""Max-min fair sharing of links: the state as flat arrays, and its operations (compiled: see compiled.py).

A job sends at one rate x and loads each of its links by weight * x. Max-min fairness raises all rates
together and stops a job when it reaches its cap or one of its links is full (progressive filling; Bertsekas
and Gallager, Data Networks, 1992, section 6.5).

Only what can have changed is computed again. A link that can carry all its jobs at their caps never binds and
connects no jobs; over the other links a change reaches one connected component. The load of a link is always
summed again over its jobs in ascending order, and of equal levels the lower number goes first. So the rates
depend on the set of jobs alone, to the last bit, and not on the order of changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from berth.arrays import BoolArray, FloatArray, Int64Array, IntArray
from berth.network._kernels import sort

NONE = -1
RISING = -1.0  # the rate of a job that has not found its own yet


class ShareArrays(NamedTuple):
    """The state. Edges (one per job and link) form a list per job and, sorted by job, a list per link."""

    capacity: FloatArray  # of each link
    binding: BoolArray  # whether the link can become full
    link_first: IntArray  # its first edge
    link_mark: Int64Array  # epoch in which it was last visited
    rate: FloatArray  # of each job; 0 for a job that is not there
    cap: FloatArray  # nan for a job that is not there
    job_first: IntArray
    job_mark: Int64Array
    edge_job: IntArray
    edge_link: IntArray
    edge_weight: FloatArray
    edge_next_of_job: IntArray  # of a free edge: the next free one
    edge_next_of_link: IntArray
    free: IntArray  # [the first free edge]
    epoch: Int64Array  # [changes so far]


def edges_of_job(state: ShareArrays, job: int) -> Iterator[int]:
    """Yield the edges of a job; the caller may free the one it has."""
    edge = state.job_first[job]
    while edge != NONE:
        following = state.edge_next_of_job[edge]
        yield edge
        edge = following


def edges_of_link(state: ShareArrays, link: int) -> Iterator[int]:
    """Yield the edges of a link, by job."""
    edge = state.link_first[link]
    while edge != NONE:
        yield edge
        edge = state.edge_next_of_link[edge]


def add(state: ShareArrays, job: int, links: IntArray, weights: FloatArray, cap: float) -> IntArray:
    """Add a job; return the jobs whose rates changed, ascending. There must be enough free edges."""
    state.cap[job] = cap
    state.rate[job] = RISING  # so that the newcomer counts as changed even if it ends at 0
    for position in range(len(links)):
        _insert(state, job, links[position], weights[position])
        state.binding[links[position]] = _binds(state, links[position])
    return _fill(state, connected(state, job))


def remove(state: ShareArrays, job: int) -> IntArray:
    """Remove a job; return the other jobs whose rates changed, ascending."""
    others = connected(state, job)[1:]
    for edge in edges_of_job(state, job):
        link = state.edge_link[edge]
        _unlink(state, edge)
        state.binding[link] = _binds(state, link)
    state.job_first[job] = NONE
    state.cap[job] = np.nan
    state.rate[job] = 0.0
    return _fill(state, others)


def _insert(state: ShareArrays, job: int, link: int, weight: float) -> None:
    """Takes a free edge for a job and a link, and sorts it into the link's list."""
    edge = state.free[0]
    state.free[0] = state.edge_next_of_job[edge]
    state.edge_job[edge], state.edge_link[edge], state.edge_weight[edge] = job, link, weight
    state.edge_next_of_job[edge] = state.job_first[job]
    state.job_first[job] = edge
    before, here = NONE, state.link_first[link]
    while here != NONE and state.edge_job[here] < job:
        before, here = here, state.edge_next_of_link[here]
    state.edge_next_of_link[edge] = here
    if before == NONE:
        state.link_first[link] = edge
    else:
        state.edge_next_of_link[before] = edge


def _unlink(state: ShareArrays, edge: int) -> None:
    """Takes an edge out of its link's list and frees it."""
    link = state.edge_link[edge]
    before, here = NONE, state.link_first[link]
    while here != edge:
        before, here = here, state.edge_next_of_link[here]
    if before == NONE:
        state.link_first[link] = state.edge_next_of_link[edge]
    else:
        state.edge_next_of_link[before] = state.edge_next_of_link[edge]
    state.edge_next_of_job[edge] = state.free[0]
    state.free[0] = edge


def _binds(state: ShareArrays, link: int) -> bool:
    """Whether the caps of a link's jobs together exceed it."""
    total = 0.0
    for edge in edges_of_link(state, link):
        total += state.edge_weight[edge] * state.cap[state.edge_job[edge]]
    return bool(total > state.capacity[link])


def connected(state: ShareArrays, start: int) -> list[int]:
    """Return a job, and after it the jobs that binding links connect to it."""
    state.epoch[0] += 1
    jobs = [start]
    state.job_mark[start] = state.epoch[0]
    position = 0
    while position < len(jobs):
        for edge in edges_of_job(state, jobs[position]):
            link = state.edge_link[edge]
            if state.binding[link] and state.link_mark[link] != state.epoch[0]:
                _visit(state, link, jobs)
        position += 1
    return jobs


def _visit(state: ShareArrays, link: int, jobs: list[int]) -> None:
    """Appends the jobs of a link that were not met before."""
    epoch = state.epoch[0]
    state.link_mark[link] = epoch
    for edge in edges_of_link(state, link):
        if state.job_mark[state.edge_job[edge]] != epoch:
            state.job_mark[state.edge_job[edge]] = epoch
            jobs.append(state.edge_job[edge])


def _fill(state: ShareArrays, jobs: list[int]) -> IntArray:
    """Progressive filling of whole components; returns the jobs whose rates changed, ascending.

    The heap holds what comes next: job j's cap as (cap, links + j), and link l as (level at which it is full,
    l). A link's level only rises as its jobs stop below it, so an old level is a lower bound: it is computed
    again when it comes up, and the link stops its jobs if the level has not moved.
    """
    links = len(state.capacity)
    before = np.array([state.rate[job] for job in jobs])
    for job in jobs:
        state.rate[job] = RISING
    ahead = [(state.cap[job], np.int64(links + job)) for job in jobs]
    for job in jobs:
        for edge in edges_of_job(state, job):
            link = state.edge_link[edge]
            if state.binding[link] and state.edge_job[state.link_first[link]] == job:  # so, once per link
                ahead.append((_level(state, link), np.int64(link)))
    heapify(ahead)
    while len(ahead) > 0:
        height, which = heappop(ahead)
        if which >= links:
            _stop_at_cap(state, int(which) - links)
            continue
        level = _level(state, int(which))
        if height < level < np.inf:
            heappush(ahead, (level, which))
        elif level < np.inf:
            _stop(state, int(which), level)
    return _changed(state, jobs, before)


def _changed(state: ShareArrays, jobs: list[int], before: FloatArray) -> IntArray:
    changed = np.empty(len(jobs), dtype=np.int32)
    count = 0
    for position in range(len(jobs)):
        if state.rate[jobs[position]] != before[position]:
            changed[count] = jobs[position]
            count += 1
    changed = changed[:count]
    sort(changed)
    return changed


def _stop_at_cap(state: ShareArrays, job: int) -> None:
    if state.rate[job] < 0:
        state.rate[job] = state.cap[job]


def _level(state: ShareArrays, link: int) -> float:
    """The common rate of a link's rising jobs at which it is full; inf if none is rising."""
    stopped, rising = 0.0, 0.0
    for edge in edges_of_link(state, link):
        rate, weight = state.rate[state.edge_job[edge]], state.edge_weight[edge]
        if rate >= 0:
            stopped += weight * rate
        else:
            rising += weight
    return max(0.0, state.capacity[link] - stopped) / rising if rising > 0 else np.inf


def _stop(state: ShareArrays, link: int, level: float) -> None:
    """Gives all rising jobs of a full link their rate."""
    for edge in edges_of_link(state, link):
        job = state.edge_job[edge]
        if state.rate[job] < 0:
            state.rate[job] = min(level, state.cap[job])
