"""Resident tables: sharded over the memory of a stage's replicas, which exchange rows by all-to-all."""
