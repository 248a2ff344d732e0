"""Whether a memory budget can hold the keys of a run, where that is known before it begins."""

from __future__ import annotations

from berth.errors import InputError
from berth.train.embedding import embeddings_of
from berth.train.recipes import Recipe
from berth.train.tables.tiers import least_memory
from berth.units import format_bytes, size_bytes

_MARGIN = 1.01  # keys are expected, not counted


def check_budget(recipe: Recipe, examples: int | None, memory: str, *, servers: int) -> None:
    """Refuses a budget that is too small for the keys of this many examples.

    Known for built-in clicks and a model with one table whose rows never leave; else a table says when it comes near.
    """
    layers = embeddings_of(recipe.model)
    expected = getattr(recipe.data, "expected_keys", None)
    if examples is None or expected is None or len(layers) != 1 or layers[0].spec.counts_clicks:
        return
    spec, shards = layers[0].spec, max(1, servers)
    width = spec.dim + len(spec.optimiser.first_state(spec.dim))
    keys = round(expected(examples) * _MARGIN)
    least = shards * least_memory(width, -(-keys // shards))
    if size_bytes(memory) < least:
        raise InputError(
            f"--memory {memory} is too small for the {keys:,} keys that {examples:,} examples are expected to have",
            hint=f"smallest that works: {format_bytes(least)} (index and bookkeeping of every key stay in memory)",
        )
