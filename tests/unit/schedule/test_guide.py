"""The guide's own policy runs, and its tables list what there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.schedule.hooks import compiled_notes
from berth.schedule.policies.registry import describe, load_policy, policy_names
from berth.schedule.policy import SIGNATURES
from berth.schedule.records import CLUSTER, POLICY_FIELDS
from berth.schedule.rules import TAGGED, Rules
from berth.simulate.run import Setting, simulate
from berth.workload.trace import Trace

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "policies.md").read_text()


@pytest.mark.slow
def test_the_policy_of_the_guide_runs_compiled_and_does_what_it_says(tmp_path):
    source = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[0]
    (tmp_path / "mine.py").write_text(source)
    policy = load_policy(f"{tmp_path}/mine.py:Patient:weight=2")
    assert compiled_notes(policy) == []
    # 3 and 1 devices are free: the gang of 4 needs 50 s, so it takes them 50 s after it came
    columns = {
        "job_id": list("abc"),
        "submit_s": [0.0, 0.0, 10.0],
        "num_gpu": [5, 7, 4],
        "duration_s": [1000.0, 1000.0, 50.0],
    }
    trace = Trace.from_columns(columns, source="test")
    run = simulate(trace, load_cluster("2x8"), policy, Setting(network="off"))
    assert run.records["first_start_s"].tolist() == [0.0, 0.0, 60.0]
    assert np.count_nonzero(run.accounts["tier_gpu_s"][2]) == 1


@pytest.mark.parametrize("name", ["mine.py", "fair_share.py"])
def test_policies_of_the_guide_are_those_among_the_examples(name):
    sources = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert (Path(__file__).parents[3] / "examples" / name).read_text() in sources


@pytest.mark.slow
def test_the_snippets_of_the_guide_are_policies_that_load_compiled(tmp_path):
    sources = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    parts = [source for source in sources if source.startswith(("from enum", "@dataclass"))]
    assert len(parts) == 2
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    (tmp_path / "mine.py").write_text(
        f"{head}from berth.schedule import JobView, Policy\n" + "\n".join(parts)
    )
    assert compiled_notes(load_policy(f"{tmp_path}/mine.py:TwoQueues")) == []
    mine = load_policy(f"{tmp_path}/mine.py:Mine:wait=30m,weight=3,order=smallest,spread_out=yes")
    assert (mine.wait, mine.weight, mine.order_by.name, mine.spread_out) == (1800.0, 3.0, "SMALLEST", True)


def test_the_guide_lists_the_fields_that_a_policy_can_read():
    table = GUIDE.split("| field | means |")[1].split("\n\n")[0]
    listed = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)", row.split("|")[1])}
    assert listed == set(POLICY_FIELDS)


def test_the_guide_lists_every_rule():
    table = GUIDE.split("| rule | default | means |")[1].split("\n\n")[0]
    listed = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert listed == {field.name for field in fields(Rules)}
    for form in (form for forms in TAGGED.values() for form in forms):
        (shown,) = re.findall(rf"`{form.__name__}\((.*?)\)`:", table)
        assert [part.partition("=")[0] for part in shown.split(", ")] == [
            field.name for field in fields(form)
        ]


def test_the_guide_lists_the_totals_that_a_policy_can_read():
    table = GUIDE.split("| total | means |")[1].split("\n\n")[0]
    listed = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)", row.split("|")[1])}
    assert listed == set(CLUSTER.names)


def test_the_guide_lists_every_hook():
    table = GUIDE.split("| hook | returns | default |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)\(", table)) == set(SIGNATURES)


@pytest.mark.parametrize("name", policy_names())
def test_the_guide_lists_every_policy_with_its_constants(name):
    reported = describe(name)
    assert f"| `{name}` | {reported.summary} |" in GUIDE
    for constant in reported.constants:
        assert f"| `{constant.name}` | {constant.default} | {constant.help}" in GUIDE
