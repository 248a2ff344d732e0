"""Real, trainable models with named layers: what a plan places and a training runs."""
