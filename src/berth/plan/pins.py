"""Layers and device types of a problem by name: pins, restrictions, and what a name of the user means."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from berth.cluster.catalogue import resolve
from berth.errors import InputError, UnknownNameError
from berth.plan.problem import Problem
from berth.plan.rented import match_device


def apply_pins(problem: Problem, pins: Sequence[str], forbid: Sequence[str] = ()) -> Problem:
    """Apply `LAYERS=TYPE` pins: layers by name, prefix of a name or kind, or `a..b`; types by name or alias."""
    pinned: dict[str, str] = {}
    forbidden = {_canonical(name) for name in forbid}
    for pin in pins:
        layers, equals, type_name = pin.partition("=")
        if not equals or not layers.strip() or not type_name.strip():
            raise InputError(
                f"--pin {pin!r} is not LAYER=TYPE", hint="write it like --pin embedding=cpu-core"
            )
        if _canonical(type_name) in forbidden:
            raise InputError(
                f"--pin {pin} and --forbid {type_name.strip()} contradict each other", hint="keep one of them"
            )
        name = match_type(problem, type_name.strip())
        for layer in match_layers(problem, layers.strip()):
            if pinned.setdefault(layer, name) != name:
                raise InputError(
                    f"layer {layer!r} is pinned to {pinned[layer]} and to {name}", hint="keep one of the pins"
                )
            problem = problem.pinned(layer, name)
    return problem


def match_layers(problem: Problem, text: str, *, exact: bool = False) -> list[str]:
    """Return the layers that `text` matches; `exact`: a full name or a range of them, no prefix."""
    if text in problem.layers:
        return [text]
    first, dots, last = text.partition("..")
    if dots:
        begin, end = problem.layer_index(first), problem.layer_index(last)
        if begin > end:
            raise InputError(f"{last!r} comes before {first!r}", hint=f"write it as {last}..{first}")
        return list(problem.layers[begin : end + 1])
    both = zip(problem.layers, problem.kinds, strict=True)
    found = [layer for layer, kind in both if layer.startswith(text) or kind.startswith(text)]
    if exact or not found:
        raise UnknownNameError("layer", text, problem.layers)
    return found


def _canonical(type_name: str) -> str:
    """Return the catalogue's name of a type, or the user's own, for comparisons."""
    text = type_name.strip()
    return (resolve(text) or text).lower()


def match_type(problem: Problem, text: str) -> str:
    """Return the problem's device type that `text` names, whatever its case, or by an alias."""
    return match_device(text, problem.type_names)


def restrict_to_types(problem: Problem, names: Sequence[str]) -> Problem:
    """Return the problem in which no layer may run on any other type."""
    kept = np.array([name in names for name in problem.type_names])
    return problem.allowing(problem.allowed & kept)
