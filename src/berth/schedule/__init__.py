"""The pure core: which job goes first, how far apart it may run, which jobs move for it, and why. No clock, no I/O."""

from berth.lazy import public_names

__getattr__, __all__ = public_names(__name__, __file__)
