"""The same scheduler over a real engine: a journal, a controller, and back ends that run what was decided."""

from berth.lazy import public_names

__getattr__, __all__ = public_names(__name__, __file__)
