"""Run a plan for real: sparse tables, the servers that hold them, and the stages that use them."""
