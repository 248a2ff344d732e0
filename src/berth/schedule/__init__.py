"""The pure core: who goes first, how far apart, who moves for whom, and why. No clock, no I/O, no dice."""
