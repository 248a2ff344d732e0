"""Policies, one short file each, and `registry.load_policy`, which finds them by name."""
