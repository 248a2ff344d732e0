"""A cache of results that depend on a cluster alone, stored on the cluster and freed with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from berth.cluster.model import Cluster

P = ParamSpec("P")
R = TypeVar("R")


def per_cluster(function: Callable[Concatenate[Cluster, P], R]) -> Callable[Concatenate[Cluster, P], R]:
    """Cache the results of `function(cluster, *args)` for the lifetime of the cluster."""

    @wraps(function)
    def cached(cluster: Cluster, /, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (function, args, tuple(kwargs.items()))
        if key not in cluster.memo:
            cluster.memo[key] = function(cluster, *args, **kwargs)
        result: R = cluster.memo[key]
        return result

    return cached
