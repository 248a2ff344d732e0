"""One call that checks whether a policy keeps what every run must keep."""

from __future__ import annotations

from dataclasses import replace

from berth.cluster.model import Cluster
from berth.schedule.policy import Policy
from berth.simulate.audit import audit
from berth.simulate.events import digest, event_frame
from berth.simulate.outcome import unfinished_note
from berth.simulate.run import Run, Setting, simulate
from berth.workload.trace import Trace


class PolicyError(AssertionError):
    """A policy broke something that must always hold."""


def check_policy(policy: Policy, trace: Trace, cluster: Cluster, setting: Setting | None = None) -> Run:
    """Runs a policy twice, with a log, and audits it; returns the run, or raises `PolicyError`.

    Every job that fits the cluster must finish, the recount of the log must find nothing wrong, and both
    runs must do the same at every moment.
    """
    logged = replace(setting or Setting(), log=True)
    run = simulate(trace, cluster, policy, logged)
    report = audit(run)
    if report.violations:
        raise PolicyError(str(report))
    if (note := unfinished_note(run)) is not None:
        raise PolicyError(note)
    again = simulate(trace, cluster, policy, logged)
    if digest(event_frame(run)) != digest(event_frame(again)):
        raise PolicyError(
            "two runs of the same trace differ: does the policy read anything but its arguments?"
        )
    return run
