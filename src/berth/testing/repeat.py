"""Repeats a scenario: `python -m berth.testing.repeat '<json>'` prints its log and what is wrong with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import polars as pl

from berth.simulate.audit import audit
from berth.simulate.events import event_frame
from berth.simulate.run import simulate
from berth.testing.builders import cluster, jobs
from berth.testing.scenario import Scenario


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if anything is wrong."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) != 1:
        print("usage: python -m berth.testing.repeat '<scenario as JSON>'", file=sys.stderr)
        return 2
    scenario = Scenario.from_json(given[0])
    trace, machines = jobs(scenario.jobs), cluster(scenario.cluster)
    run = simulate(trace, machines, scenario.named_policy(), scenario.setting())
    columns = ["time_s", "event", "job", "machine", "tier", "reason", "gpus", "places"]
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=110, tbl_hide_dataframe_shape=True):
        print(event_frame(run).select(columns).with_columns(pl.col("places").list.join(" ")))
    report = audit(run)
    print(report)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
