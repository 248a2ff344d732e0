"""A pytest plugin under which berth's compiled code runs as plain Python: `python -m pytest -p interpreted`.

Coverage sees the lines of kernels then, and a mutant needs no compiler. It is some hundred times slower, so it is
for the small tests. What differs from compiled code is kept to what numba itself does to the sources: records
are read by attribute, functions stand for their addresses, hints to the processor do nothing.
"""

from __future__ import annotations

import os

os.environ["NUMBA_DISABLE_JIT"] = "1"  # before numba is first imported

import numpy as np

from berth.native import arrays, deferred, kernels, structs


class Record(np.void):
    """A record whose fields are attributes, whatever numpy's own attributes are called."""

    def __getattribute__(self, name):
        try:
            value = np.void.__getitem__(self, name)
        except ValueError:
            return super().__getattribute__(name)
        return value if isinstance(value, np.ndarray) else value.item()

    def __setattr__(self, name, value):
        self[name] = value


def as_records(values):
    """The same memory, seen as records."""
    if isinstance(values, np.ndarray) and values.dtype.names:
        return values.view(np.dtype((Record, values.dtype)))
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*map(as_records, values))
    return values


def moved(array, source, target, count):
    """Entries of an array at another index, as `memmove` puts them there."""
    array[target : target + count] = array[source : source + count].copy()


def plain(function):
    """A kernel is the function that it is made of."""
    return function


def _indirect(function):
    function.pointer = lambda signature: function
    return function


kernels.kernel = kernels.inlined = kernels.entry = deferred.deferred = plain
kernels.indirect = _indirect
kernels.types_of = lambda *values: ()
kernels.specialize = lambda function, *arguments: function
structs.to_native = as_records
arrays.move = moved

from berth.train.tables import memory  # noqa: E402 - each import here finds what was replaced above

memory.prefetch = lambda array, at: None

from berth.schedule import failures  # noqa: E402
from berth.schedule import hooks as hooking  # noqa: E402
from berth.train.servers import protocol  # noqa: E402
from berth.train.tables import evict  # noqa: E402

_ANSWERS = {"allowed_tier": int, "spread": int}


def as_policy_sees(value, names, hook):
    """A record with the policy's own fields."""
    return failures.View(value, names.state, hook == "update") if isinstance(value, np.void) else value


def _hook(kind, name):
    """A policy's function, called as compiled code would call it: the constants come as a record."""
    function, names = hooking.function_of(kind, name), hooking.names_of(kind)
    answer = _ANSWERS.get(name, float)

    def call(*arguments):
        values = [as_policy_sees(value, names, name) for value in arguments[:-1]]
        cluster = [values.pop()] if name in hooking.WITH_CLUSTER else []
        given = [*values, failures.constants_from(names.params, arguments[-1])]
        found = function(*given, *(cluster if hooking.takes_cluster(function) else []))
        return 0.0 if found is None else answer(found)

    return call


hooking._hook = _hook
evict._PIN = np.uint8(evict._PIN)
protocol.to_half = lambda value: np.float32(value).astype(np.float16).view(np.uint16)
protocol.from_half = lambda half: half.view(np.float16).astype(np.float32)
