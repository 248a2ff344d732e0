"""Links shared among jobs, max-min fair, kept up to date as jobs come and go.

    shares = LinkShares(fabric.arrays.capacity)
    changed = shares.add(7, flow.links, flow.weights, flow.cap)    # the jobs whose rates changed
    shares.rates[7]
    changed = shares.remove(7)

A change computes again only the part of the job-link graph that it can reach, and the rates are the same
bits as if all jobs had been added to idle links, in any order.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from berth.arrays import FloatArray, IntArray
from berth.errors import InputError
from berth.network._sharing_kernels import NONE, ShareArrays, edges_of_job, edges_of_link

_FIRST_JOBS, _FIRST_EDGES = 64, 256


class LinkShares:
    """The rate of each job on its links. Jobs are small whole numbers that the caller chooses."""

    def __init__(self, capacity: ArrayLike, jobs: int = _FIRST_JOBS, edges: int = _FIRST_EDGES) -> None:
        links = np.array(capacity, dtype=np.float64)
        if links.ndim != 1 or not (np.isfinite(links) & (links >= 0)).all():
            raise InputError("a link's capacity must be a number from 0 up")
        self._state = _empty(links, max(jobs, 1), max(edges, 1))
        self._free_edges = len(self._state.edge_job)

    @property
    def state(self) -> ShareArrays:
        """The arrays, for compiled code that calls the kernels itself."""
        return self._state

    @property
    def rates(self) -> FloatArray:
        """Bytes per second of each job, by its number; 0 for jobs that are not there."""
        return self._state.rate

    def __contains__(self, job: int) -> bool:
        return 0 <= job < len(self._state.cap) and not math.isnan(self._state.cap[job])

    def load(self, link: int) -> float:
        """Bytes per second that cross a link now."""
        state = self._state
        edges = edges_of_link(state, link)
        loads = (float(state.edge_weight[edge] * state.rate[state.edge_job[edge]]) for edge in edges)
        return sum(loads, 0.0)

    def add(self, job: int, links: ArrayLike, weights: ArrayLike, cap: float = math.inf) -> IntArray:
        """Add a job; `cap` is the highest rate it can use, `weights` its load on each link per unit of rate.

        Returns the jobs whose rates changed, ascending, with the new one among them.
        """
        which, loads = np.asarray(links, dtype=np.int32), np.asarray(weights, dtype=np.float64)
        self._check(job, which, loads, cap)
        self._grow(job, len(which))
        self._free_edges -= len(which)
        from berth.network import compiled

        changed: IntArray = compiled.add(self._state, job, which, loads, float(cap))
        return changed

    def remove(self, job: int) -> IntArray:
        """Remove a job; return the others whose rates changed, ascending."""
        if job not in self:
            raise InputError(f"job {job} is not on the links")
        self._free_edges += len(list(edges_of_job(self._state, job)))
        from berth.network import compiled

        changed: IntArray = compiled.remove(self._state, job)
        return changed

    def _check(self, job: int, links: IntArray, weights: FloatArray, cap: float) -> None:
        if job < 0 or job in self:
            raise InputError(
                f"job {job} is on the links already" if job >= 0 else f"no job is numbered {job}"
            )
        if len(links) != len(weights) or len(np.unique(links)) < len(links):
            raise InputError(f"job {job}: each link needs one weight, and may be named once")
        if len(links) and not (links.min() >= 0 and links.max() < len(self._state.capacity)):
            raise InputError(f"job {job}: links are numbered 0 to {len(self._state.capacity) - 1}")
        if not (np.isfinite(weights).all() and (weights > 0).all()):
            raise InputError(f"job {job}: a weight must be above 0")
        if not cap >= 0 or (not len(links) and math.isinf(cap)):
            raise InputError(f"job {job}: its cap must be 0 or more, and finite if it crosses no link")

    def _grow(self, job: int, edges: int) -> None:
        state = self._state
        if job >= len(state.cap):
            more = max(2 * len(state.cap), job + 1) - len(state.cap)
            self._state = state = state._replace(
                rate=np.append(state.rate, np.zeros(more)),
                cap=np.append(state.cap, np.full(more, np.nan)),
                job_first=np.append(state.job_first, np.full(more, NONE, dtype=np.int32)),
                job_mark=np.append(state.job_mark, np.zeros(more, dtype=np.int64)),
            )
        if edges > self._free_edges:
            old, more = len(state.edge_job), max(len(state.edge_job), edges)
            free = _chain(old, old + more, int(state.free[0]))
            state.free[0] = old
            self._free_edges += more
            self._state = state._replace(
                edge_job=np.append(state.edge_job, np.zeros(more, dtype=np.int32)),
                edge_link=np.append(state.edge_link, np.zeros(more, dtype=np.int32)),
                edge_weight=np.append(state.edge_weight, np.zeros(more)),
                edge_next_of_job=np.append(state.edge_next_of_job, free),
                edge_next_of_link=np.append(state.edge_next_of_link, np.full(more, NONE, dtype=np.int32)),
            )


def _empty(capacity: FloatArray, jobs: int, edges: int) -> ShareArrays:
    return ShareArrays(
        capacity=capacity,
        binding=np.zeros(len(capacity), dtype=np.bool_),
        link_first=np.full(len(capacity), NONE, dtype=np.int32),
        link_mark=np.zeros(len(capacity), dtype=np.int64),
        rate=np.zeros(jobs),
        cap=np.full(jobs, np.nan),
        job_first=np.full(jobs, NONE, dtype=np.int32),
        job_mark=np.zeros(jobs, dtype=np.int64),
        edge_job=np.zeros(edges, dtype=np.int32),
        edge_link=np.zeros(edges, dtype=np.int32),
        edge_weight=np.zeros(edges),
        edge_next_of_job=_chain(0, edges, NONE),
        edge_next_of_link=np.full(edges, NONE, dtype=np.int32),
        free=np.zeros(1, dtype=np.int32),
        epoch=np.zeros(1, dtype=np.int64),
    )


def _chain(start: int, stop: int, after: int) -> IntArray:
    """The list of free edges from `start` on, which ends in `after`."""
    chain = np.arange(start + 1, stop + 1, dtype=np.int32)
    chain[-1] = after
    return chain
