"""Write log.parquet, a small click log with a list of tags and two labels, for docs/guides/data.md."""

import numpy as np
import polars as pl

ROWS = 2000
random = np.random.default_rng(0)
tags = [random.integers(0, 20, count).tolist() for count in random.integers(0, 6, ROWS)]
user = random.integers(0, 100, ROWS)
logit = np.array([sum(tag % 5 == 0 for tag in one) for one in tags]) + user % 4 - 3.0
click = random.random(ROWS) < 1 / (1 + np.exp(-logit))
pl.DataFrame(
    {
        "session": [f"s{number}" for number in range(ROWS)],
        "user_id": user,
        "city": random.choice(["paris", "oslo", "rome"], ROWS),
        "tags": tags,
        "price": random.lognormal(2, 1, ROWS).round(2),
        "click": click.astype(np.int8),
        "buy": (click & (random.random(ROWS) < 0.5)).astype(np.int8),
    }
).write_parquet("log.parquet")
