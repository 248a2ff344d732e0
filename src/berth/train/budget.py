"""Check before a run whether its keys fit the memory budget, where that can be known."""

from __future__ import annotations

from berth.errors import InputError
from berth.train.embedding import embeddings_of
from berth.train.recipes import Recipe
from berth.train.tables.tiers import min_memory
from berth.units import format_bytes, size_bytes

_MARGIN = 1.01  # the number of keys is an expectation


def check_budget(recipe: Recipe, examples: int | None, memory: str, *, servers: int) -> None:
    """Raise if the budget is too small for the keys of this many examples.

    Known for built-in clicks and a model with one table whose rows never expire; otherwise tables warn at run time.
    """
    layers = embeddings_of(recipe.model)
    expected = getattr(recipe.data, "expected_keys", None)
    if examples is None or expected is None or len(layers) != 1 or layers[0].spec.counts_clicks:
        return
    spec, shards = layers[0].spec, max(1, servers)
    width = spec.dim + len(spec.optimiser.first_state(spec.dim))
    keys = round(expected(examples) * _MARGIN)
    least = shards * min_memory(width, -(-keys // shards))
    if size_bytes(memory) < least:
        raise InputError(
            f"--memory {memory} is too small for the {keys:,} keys that {examples:,} examples are expected to have",
            hint=f"minimum: {format_bytes(least)} (the index entry and bookkeeping of every key stay in memory)",
        )
