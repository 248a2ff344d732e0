"""Files with one policy, for tests of what berth says about it."""

from __future__ import annotations

from textwrap import indent

HEAD = """
import itertools, math, random, time
import numpy as np
from dataclasses import dataclass
from berth.schedule import Blocked, Defragment, JobView, Migrate, Policy, PreemptByGain, PreemptByOrder, Reserve, Rules
from berth.schedule import StaticOrder, array
from berth.schedule.policy import Preempt
SEEN, SLOT = {}, 6
"""
TRACE = "job_id,submit_s,num_gpu,duration_s\na,0,8,100\nb,1,8,50\nc,2,4,10\n"
ROWS = [(0, 8, 100), (1, 8, 50), (2, 4, 10)]


def policy(body, *, fields="", before="", after="", rules=""):
    """A file with one policy; `HERE` marks the line that a message must name."""
    rules = f"def rules(self):\n    return {rules}\n" if rules else ""
    inside = indent(f"{fields}\n{rules}\n{body}\n", "    ")
    return f"{HEAD}{before}\n@dataclass(frozen=True)\nclass Mine(Policy):\n{inside}\n{after}\n"


def hook(body, name="order", arguments="job, now, params"):
    return f"@staticmethod\ndef {name}({arguments}):\n{indent(body, '    ')}"


def marked(source):
    """The source without the mark, and its line."""
    lines = [number for number, line in enumerate(source.splitlines(), 1) if "HERE" in line]
    return source.replace("  # HERE", ""), lines[0] if lines else None
