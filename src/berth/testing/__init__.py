"""For the tests of your own policies: small clusters and traces in one line, and the audit of whole runs.

Importing this package costs nothing; each name is fetched from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.testing.builders import cluster as cluster
    from berth.testing.builders import faults as faults
    from berth.testing.builders import jobs as jobs
    from berth.testing.check import PolicyError as PolicyError
    from berth.testing.check import check_policy as check_policy
    from berth.testing.scenario import Scenario as Scenario

_HOME = {
    "PolicyError": "check",
    "Scenario": "scenario",
    "check_policy": "check",
    "cluster": "builders",
    "faults": "builders",
    "jobs": "builders",
}

__all__ = list(_HOME)

__getattr__ = exports(__name__, _HOME)
