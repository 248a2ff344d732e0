"""Random test cases for hypothesis: clusters uneven and mixed, many things at one moment, machines that fail.

    @given(scenarios())
    def test_my_policy_keeps_the_rules(scenario):
        scenario.run(MyPolicy())

Needs `hypothesis`, which berth itself does not.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from berth.schedule.policies.registry import policy_names
from berth.testing.builders import ClusterText
from berth.testing.policies import EXERCISES
from berth.testing.scenario import Scenario

_VARIANTS = (
    "berth:order=las",
    "berth:hold_after=200s,hold_share=10,defragment=0.5,move_up=0.5",
    "dally:mode=no-wait",
    "dally:mode=full,min_run=30s,budget=2m,nearly_done=10s",
    "dally:mode=manual,machine=100s,rack=200s,order=las",
    "dally:mode=tuned,machine=100s,samples=2,order=fifo",
    "dally:mode=tuned,machine=100s,samples=2,censored=kaplan-meier,cap=yes",
    "switches:wait=100s,backfill=no",
    "tiresias:first=5000,second=9000,starvation=2",  # turns longer than a restore, or nothing gets done
)
POLICIES = tuple(dict.fromkeys([*EXERCISES, *policy_names(), *_VARIANTS]))  # by name, as a scenario has them

_TENS = st.integers(0, 30).map(lambda tens: 10.0 * tens)  # so that many things happen at the same moment
_MOMENTS = _TENS | st.floats(0.0, 1000.0)
_SPANS = _TENS.filter(bool) | st.floats(0.001, 3000.0)
_MODELS = st.sampled_from([None, "vgg16", "bert-large", "mobilenetv3", "dlrm"])
_NO_QUOTAS: dict[str, int] = {}
_QUOTAS = st.just(_NO_QUOTAS) | st.dictionaries(st.sampled_from(["a", "b"]), st.integers(1, 16), max_size=2)
_PRIORITIES = st.sampled_from([st.just(0), st.sampled_from([-5, 0, 0, 50])])
_OUTAGES = st.sampled_from([("fail", "repair"), ("drain", "undrain")])
_TYPES = st.lists(st.sampled_from(["V100", "P100", "A100-40"]), min_size=1, max_size=2, unique=True)


@st.composite
def scenarios(draw: Any, policies: st.SearchStrategy[str] | None = None, calm: bool = False) -> Scenario:
    """A whole case. A calm one has one type of device and one priority, no network, no faults, known durations."""
    cluster = draw(_clusters(calm))
    machines = _leaves(cluster)
    devices = sum(machine if isinstance(machine, int) else sum(machine.values()) for machine in machines)
    sizes = st.sampled_from([1, 2, 4, 8]) | st.integers(1, devices + 1)
    quotas = {} if calm else draw(_QUOTAS)
    owners = st.sampled_from([None, *quotas])
    priorities = st.just(0) if calm else draw(_PRIORITIES)
    jobs = st.lists(st.tuples(_MOMENTS, sizes, _SPANS, _MODELS, owners, priorities), min_size=1, max_size=20)
    rows = tuple(draw(jobs))
    owned = {row[4] for row in rows}
    return Scenario(
        cluster=cluster,
        jobs=rows,
        policy=draw(st.sampled_from(POLICIES) if policies is None else policies),
        network="off" if calm else draw(st.sampled_from(["off", "static", "on"])),
        congestion=draw(st.sampled_from([1.0, 10.0])),
        eviction_s=draw(st.sampled_from([0.0, 5.0, 40.0])),
        eviction_large_s=draw(st.sampled_from([0.0, 60.0])),
        checkpoint_s=draw(st.sampled_from([0.0, 30.0, 1800.0])),
        estimate_error=0.0 if calm else draw(st.sampled_from([0.0, 0.0, 0.5])),
        preemptible=1.0 if calm else draw(st.sampled_from([1.0, 0.5, 0.0])),
        faults=() if calm else draw(_faults(len(machines))),
        quotas={name: allowed for name, allowed in quotas.items() if name in owned},
    )


@st.composite
def _clusters(draw: Any, calm: bool) -> ClusterText:
    """One to four tiers, uneven, of one type or several."""
    sizes = st.integers(1, 8)
    level: st.SearchStrategy[Any] = sizes
    if not calm and draw(st.sampled_from([False, False, True])):
        level = _TYPES.flatmap(lambda names: st.fixed_dictionaries(dict.fromkeys(names, sizes)))
    for _ in range(draw(st.integers(0, 3))):
        level = st.lists(level, min_size=1, max_size=3)
    return draw(level)


@st.composite
def _faults(draw: Any, machines: int) -> tuple[tuple[float, int, str], ...]:
    """Up to four outages, which may overlap; each of them ends."""
    rows: list[tuple[float, int, str]] = []
    outages = st.tuples(_MOMENTS, st.integers(0, machines - 1), _OUTAGES, _SPANS)
    for start_s, machine, (begins, ends), for_s in draw(st.lists(outages, max_size=4)):
        rows += [(start_s, machine, begins), (start_s + for_s, machine, ends)]
    return tuple(rows)


def _leaves(cluster: Any) -> list[Any]:
    if not isinstance(cluster, list):
        return [cluster]
    return [leaf for child in cluster for leaf in _leaves(child)]
