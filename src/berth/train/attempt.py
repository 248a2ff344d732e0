"""The attempt of a run: whether the program that started it has started it before.

Under torchrun, the key-value store outlives the workers that it restarts.

The agent of each host counts the restarts that its own workers caused (`TORCHELASTIC_RESTART_COUNT`), not those in
which it follows another host, so the counts of hosts differ. Ranks agree on a number instead: rank 0 increments a
counter, and sends it to every rank of this attempt. A rank is recognised by a token, since the store still has those of
earlier attempts.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from berth.train.heartbeat import silent_after_s

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_COUNT = "berth attempts"
_NAME = "berth name of torchrun"
_ARRIVED = "berth arrived"  # by rank: its token
_NUMBER = "berth attempt of"  # by token
_JOINED = "berth joined"  # by attempt and rank
_POLL_S = 0.05


def is_store_of_agent() -> bool:
    """Whether torchrun hosts the key-value store."""
    return os.environ.get(AGENT_STORE) == "True"


def own_restarts() -> int:
    """Return how often torchrun has restarted the workers of this host because one of them failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def name_in_store(store: Any) -> str:
    """Return the name of the run of torchrun that hosts a store: the first one that a process proposed there.

    `--rdzv-id` is not one: without it, it is the same for all runs.
    """
    return bytes(store.compare_set(_NAME, "", secrets.token_hex(8))).decode()


def agree_on_attempt(store: Any, rank: int, processes: int, report: Callable[[Sequence[int]], None]) -> int:
    """Return the number of this attempt, from 1, once all ranks know it; missing ones are reported again and again."""
    if rank:
        return _receive_number(store, rank, report)
    attempt = int(store.add(_COUNT, 1))
    answered: dict[int, bytes] = {}
    missing = list(range(1, processes))
    reported_s = time.monotonic()
    while missing:
        for other in missing:
            if store.check([f"{_ARRIVED}/{other}"]):
                token = store.get(f"{_ARRIVED}/{other}")
                if token != answered.get(other):
                    store.set(f"{_NUMBER}/{token.decode()}", str(attempt))
                    answered[other] = token
        missing = [other for other in missing if not store.check([f"{_JOINED}/{attempt}/{other}"])]
        if missing and time.monotonic() - reported_s > silent_after_s():
            report(missing)
            reported_s = time.monotonic()
        time.sleep(_POLL_S if missing else 0)
    return attempt


def _receive_number(store: Any, rank: int, report: Callable[[Sequence[int]], None]) -> int:
    token = secrets.token_hex(8)
    store.set(f"{_ARRIVED}/{rank}", token)
    key = f"{_NUMBER}/{token}"
    while not store.check([key]):
        try:
            store.wait([key], timedelta(seconds=silent_after_s()))
        except RuntimeError:  # if the store is lost, `check` raises
            report([0])
    attempt = int(store.get(key))
    store.set(f"{_JOINED}/{attempt}/{rank}", "")
    return attempt
