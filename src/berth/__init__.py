"""A place for every layer of a model and for every job of a cluster, and the time to take it."""

__version__ = "0.1.0"
