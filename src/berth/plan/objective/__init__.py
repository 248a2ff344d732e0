"""Truths other than the closed formula: an event simulation of the planned pipeline, and a real short run."""
