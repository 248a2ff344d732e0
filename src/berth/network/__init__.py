"""The network model: collectives over any number of tiers, shared links, measured tables."""

from berth.lazy import public_names

__getattr__, __all__ = public_names(__name__, __file__)
