"""One file per method; all share one evaluator and one budget."""
