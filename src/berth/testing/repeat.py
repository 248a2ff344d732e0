"""Repeats a scenario: `python -m berth.testing.repeat '<json>'` prints its log and what is wrong with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import polars as pl

from berth.simulate.audit import audit
from berth.simulate.events import digest, event_frame
from berth.simulate.outcome import unfinished_note
from berth.simulate.run import Run, simulate
from berth.testing.builders import cluster, jobs
from berth.testing.scenario import Scenario
from berth.testing.validate import ReasonValidator


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if anything is wrong."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) != 1:
        print("usage: python -m berth.testing.repeat '<scenario as JSON>'", file=sys.stderr)
        return 2
    scenario = Scenario.from_json(given[0])
    run = _play(scenario)
    columns = ["time_s", "event", "job", "machine", "tier", "reason", "gpus", "places"]
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=110, tbl_hide_dataframe_shape=True):
        print(event_frame(run).select(columns).with_columns(pl.col("places").list.join(" ")))
    report = audit(run)
    wrong = [str(report)] if report.violations else []
    wrong += [note] if (note := unfinished_note(run)) is not None else []
    if digest(event_frame(_play(scenario))) != digest(event_frame(run)):
        wrong.append("a second run did something else")
    validator = ReasonValidator(scenario.named_policy())
    try:
        _play(scenario, validator)
    except AssertionError as error:
        wrong.append(f"{validator.now:.3f}s: a reason is not true: {error}")
    print("\n".join(wrong) or report)
    return 1 if wrong else 0


def _play(scenario: Scenario, watch: ReasonValidator | None = None) -> Run:
    trace, machines = jobs(scenario.jobs), cluster(scenario.cluster)
    return simulate(trace, machines, scenario.named_policy(), scenario.setting(), watch=watch)


if __name__ == "__main__":
    sys.exit(main())
