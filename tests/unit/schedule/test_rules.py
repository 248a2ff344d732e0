"""Rules as a policy writes them and as compiled code reads them, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from berth.errors import InputError
from berth.schedule.records import RULES
from berth.schedule.rules import (
    MOVED,
    Blocked,
    Defragment,
    Migrate,
    Preempt,
    PreemptByGain,
    PreemptByOrder,
    Reserve,
    Rules,
    StaticOrder,
    rules_record,
)

DEFAULTS = {
    "reserve_in_order": 0,
    "preempt": Preempt.NEVER,
    "blocked": Blocked.SKIP,
    "wake_running": 0,
    "static_order": 0,
    "reorder_after_s": math.inf,
    "monotone_order": 0,
    "period_s": 0.0,
    "relax_locality": 0,
    "migrate_gain": 0.0,
    "defragment": 0.0,
    "defragment_farther": 0,
    "imbalance_tolerance": math.inf,
    "reserve_after_s": math.inf,
    "reserve_share": math.inf,
    "worst_fit": 0,
    "scatter_up_to": 0,
    "link_ratio": math.inf,
    "learn_timers": 0,
    "eviction_s": 40.0,
    "eviction_large_s": 60.0,
}
READ = {
    "static": (Rules(order=StaticOrder()), {"static_order": 1}),
    "reordered": (Rules(order=StaticOrder(reorder_after_s=30)), {"static_order": 1, "reorder_after_s": 30.0}),
    "by order": (Rules(preempt=PreemptByOrder()), {"preempt": Preempt.BY_ORDER}),
    "in rounds": (
        Rules(preempt=PreemptByOrder(period_s=60, monotone_order=True)),
        {"preempt": Preempt.BY_ORDER, "period_s": 60.0, "monotone_order": 1},
    ),
    "by gain": (
        Rules(preempt=PreemptByGain(1.5, 10.0, 20.0, victims_by_order=True, cost_by_order=True)),
        {
            "preempt": Preempt.BY_GAIN,
            "gain_margin": 1.5,
            "min_run_s": 10.0,
            "eviction_interval_s": 20.0,
            "victims_by_order": 1,
            "cost_by_order": 1,
        },
    ),
    "stop": (Rules(blocked=Blocked.STOP), {"blocked": Blocked.STOP}),
    "backfill": (Rules(blocked=Blocked.BACKFILL), {"blocked": Blocked.BACKFILL}),
    "migrate": (Rules(migrate=Migrate(2)), {"migrate_gain": 2.0}),
    "defragment": (Rules(defragment=Defragment(3)), {"defragment": 3.0}),
    "farther": (Rules(defragment=Defragment(3, True)), {"defragment": 3.0, "defragment_farther": 1}),
    "reserve": (Rules(reserve=Reserve(100)), {"reserve_after_s": 100.0}),
    "a share": (Rules(reserve=Reserve(100, 0.5)), {"reserve_after_s": 100.0, "reserve_share": 0.5}),
    "in order": (
        Rules(reserve=Reserve(100, in_order=True)),
        {"reserve_after_s": 100.0, "reserve_in_order": 1},
    ),
    "spread": (Rules(relax_locality=True), {"relax_locality": 1}),
    "shapes": (Rules(imbalance_tolerance=0.1), {"imbalance_tolerance": 0.1}),
    "worst fit": (Rules(worst_fit=True), {"worst_fit": 1}),
    "scatter": (Rules(scatter_up_to=4), {"scatter_up_to": 4}),
    "scatter all": (Rules(scatter_up_to=math.inf), {"scatter_up_to": 1 << 30}),
    "links": (Rules(link_ratio=0.5), {"link_ratio": 0.5}),
    "timers": (Rules(learn_timers=True), {"learn_timers": 1}),
    "running": (Rules(wake_running=True), {"wake_running": 1}),
    "its own cost": (Rules(eviction_s=0.1), {"eviction_s": 0.1, "eviction_large_s": 0.1}),
    "no cost": (Rules(eviction_s=0), {"eviction_s": 0.0, "eviction_large_s": 0.0}),
    "nothing": (Rules(), {}),
}


@pytest.mark.parametrize("name", READ)
def test_each_rule_sets_its_fields_and_no_others(name):
    rules, changed = READ[name]
    record = rules_record(rules, 40.0, 60.0)[0]
    assert {field: record[field] for field in (DEFAULTS | changed)} == DEFAULTS | changed


def test_every_field_of_the_record_is_one_of_these():
    set_by_the_world = {"has_tie_break", "has_update", "uses_cluster", "ranks_by_cluster", "static_gain"}
    by_gain = {"gain_margin", "min_run_s", "eviction_interval_s", "victims_by_order", "cost_by_order"}
    assert set(RULES.names) == set(DEFAULTS) | by_gain | set_by_the_world


WRONG: list[tuple[Any, str, str]] = [
    (lambda: Rules(blocked="stop"), "rule blocked is 'stop'", "write blocked=Blocked."),
    (lambda: Rules(blocked=1), "rule blocked is 1", "write blocked=Blocked."),
    (lambda: Rules(wake_running=1), "rule wake_running is 1", "write True or False"),
    (lambda: Rules(worst_fit=None), "rule worst_fit is None", "write True or False"),
    (lambda: Rules(scatter_up_to=-1), "rule scatter_up_to is -1", "write a number, 0 or more"),
    (lambda: Rules(link_ratio=-1), "rule link_ratio is -1", "write a number, 0 or more"),
    (lambda: Rules(link_ratio=math.nan), "rule link_ratio is nan", "write a number, 0 or more"),
    (lambda: Rules(link_ratio=True), "rule link_ratio is True", "write a number, 0 or more"),
    (lambda: Rules(eviction_s=-1), "rule eviction_s is -1", "write a number, 0 or more"),
    (lambda: Rules(eviction_s="1s"), "rule eviction_s is '1s'", "write a number, 0 or more"),
    (
        lambda: Rules(preempt=True),
        "rule preempt is True",
        "preempt=PreemptByOrder(...) or PreemptByGain(...)",
    ),
    (lambda: Rules(preempt=Preempt.BY_GAIN), "rule preempt is", "write preempt=PreemptByGain()"),
    (lambda: Rules(preempt=Preempt.NEVER), "rule preempt is", "write preempt=None"),
    (lambda: Rules(migrate=2.0), "rule migrate is 2.0", "write migrate=Migrate(...)"),
    (lambda: Rules(reserve=PreemptByOrder()), "rule reserve is", "write reserve=Reserve(...)"),
    (lambda: Migrate(gain=-1), "rule Migrate.gain is -1", "write a number, 0 or more"),
    (lambda: Reserve(after_s="4d"), "rule Reserve.after_s is '4d'", "write a number, 0 or more"),
    (lambda: Defragment(1, farther=1), "rule Defragment.farther is 1", "write True or False"),
    (
        lambda: PreemptByOrder(period_s=-60),
        "rule PreemptByOrder.period_s is -60",
        "write a number, 0 or more",
    ),
]


@pytest.mark.parametrize(("make", "message", "hint"), WRONG, ids=[message for _, message, _ in WRONG])
def test_a_rule_that_means_nothing_is_refused_with_what_to_write(make, message, hint):
    with pytest.raises(InputError) as refused:
        make()
    assert message in str(refused.value)
    assert hint in refused.value.hint


@pytest.mark.parametrize("name", MOVED)
def test_what_replaces_a_rule_of_an_earlier_version_can_be_written(name):
    text = MOVED[name].replace("...", "1.0")
    made = eval(f"Rules({text})")
    assert made != Rules()
