"""Trainable models with named layers, for planning and training.

Importing this package is cheap; torch is loaded with the first model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.zoo.catalogue import ZooEntry as ZooEntry
    from berth.zoo.catalogue import make_model as make_model
    from berth.zoo.catalogue import zoo as zoo
    from berth.zoo.layered import LayeredModel as LayeredModel
    from berth.zoo.load import load_model as load_model

_HOME = {
    "LayeredModel": "layered",
    "ZooEntry": "catalogue",
    "load_model": "load",
    "make_model": "catalogue",
    "zoo": "catalogue",
}

__all__ = ["LayeredModel", "ZooEntry", "load_model", "make_model", "zoo"]

__getattr__ = exports(__name__, _HOME)
