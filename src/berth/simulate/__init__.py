"""Virtual time: the scheduling code over a trace."""
