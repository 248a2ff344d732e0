"""1F1B: who computes what when, so that a stage holds no more micro-batches than stages follow it."""

from __future__ import annotations

from collections.abc import Iterator


def one_forward_one_backward(micro: int, stage: int, stages: int) -> Iterator[bool]:
    """True for a forward: as many ahead as stages follow, then by turns, then the backwards that are left."""
    ahead = min(micro, stages - stage - 1)
    yield from [True] * ahead
    yield from [True, False] * (micro - ahead)
    yield from [False] * ahead
