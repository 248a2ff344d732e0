"""Layer profiles: what a plan needs to know about a model.

Importing this package is cheap; each name is imported from its module on first use, and torch only to profile a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.plan.profile.files import load_layer_profile as load_layer_profile
    from berth.plan.profile.files import read_profile as read_profile
    from berth.plan.profile.files import shipped_profiles as shipped_profiles
    from berth.plan.profile.files import write_profile as write_profile
    from berth.plan.profile.job import job_profile as job_profile
    from berth.plan.profile.job import write_job_profile as write_job_profile
    from berth.plan.profile.layer_profile import DeviceTimes as DeviceTimes
    from berth.plan.profile.layer_profile import LayerFacts as LayerFacts
    from berth.plan.profile.layer_profile import LayerProfile as LayerProfile
    from berth.plan.profile.make import profile_model as profile_model
    from berth.plan.profile.roofline import modelled_times as modelled_times

_HOME = {
    "DeviceTimes": "layer_profile",
    "LayerFacts": "layer_profile",
    "LayerProfile": "layer_profile",
    "job_profile": "job",
    "load_layer_profile": "files",
    "modelled_times": "roofline",
    "profile_model": "make",
    "read_profile": "files",
    "shipped_profiles": "files",
    "write_job_profile": "job",
    "write_profile": "files",
}

__all__ = [
    "DeviceTimes",
    "LayerFacts",
    "LayerProfile",
    "job_profile",
    "load_layer_profile",
    "modelled_times",
    "profile_model",
    "read_profile",
    "shipped_profiles",
    "write_job_profile",
    "write_profile",
]

__getattr__ = exports(__name__, _HOME)
