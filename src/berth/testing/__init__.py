"""For the tests of your own policies: small clusters and traces in one line, and the audit of whole runs."""

from berth.lazy import public_names

__getattr__, __all__ = public_names(__name__, __file__)
