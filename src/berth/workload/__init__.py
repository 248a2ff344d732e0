"""Workloads: job profiles, traces, and the trace generator."""

from berth.lazy import public_names

__getattr__, __all__ = public_names(__name__, __file__)
