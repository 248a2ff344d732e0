"""The 1F1B schedule: a stage holds at most as many micro-batches as there are stages from it to the last."""

from __future__ import annotations

from collections.abc import Iterator


def one_forward_one_backward(micro: int, stage: int, stages: int) -> Iterator[bool]:
    """Yield True for a forward, False for a backward: warm-up forwards, then alternating, then the last backwards."""
    ahead = min(micro, stages - stage - 1)
    yield from [True] * ahead
    yield from [True, False] * (micro - ahead)
    yield from [False] * ahead
