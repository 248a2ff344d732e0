"""Objectives other than the closed formula: event simulation of the pipeline, and a short real run."""
