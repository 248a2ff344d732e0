"""Workloads: job profiles, traces, and the trace generator.

Importing this package costs nothing; each name is fetched from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.workload.generate import GenerateSpec as GenerateSpec
    from berth.workload.mix import Mix as Mix
    from berth.workload.mix import load_mix as load_mix
    from berth.workload.profile import JobProfile as JobProfile
    from berth.workload.profiles import all_profiles as all_profiles
    from berth.workload.profiles import load_profile as load_profile
    from berth.workload.reading import read_trace as read_trace
    from berth.workload.trace import BadRow as BadRow
    from berth.workload.trace import BadRows as BadRows
    from berth.workload.trace import Trace as Trace

_HOME = {
    "BadRow": "trace",
    "BadRows": "trace",
    "GenerateSpec": "generate",
    "JobProfile": "profile",
    "Mix": "mix",
    "Trace": "trace",
    "all_profiles": "profiles",
    "load_mix": "mix",
    "load_profile": "profiles",
    "read_trace": "reading",
}

__all__ = list(_HOME)

__getattr__ = exports(__name__, _HOME)
