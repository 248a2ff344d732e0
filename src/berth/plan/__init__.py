"""Which kind of device runs each layer, and how many: cost, provisioning, searches, proofs."""
