"""Goals: plans on the controller's cluster as the alternatives of a job."""

from __future__ import annotations

import pytest

from berth.cluster.load import load_cluster
from berth.errors import InputError
from berth.live.demand import bind_requested
from berth.live.forecast import cluster_of_free
from berth.live.goals import MOST, Goal, plan_goal
from berth.live.offer import digest_of, sent_offer
from berth.live.planned import PlanReader
from berth.live.spec import SentJob
from berth.plan.check_file import check_plan
from berth.plan.explain import round_down

CLUSTER = """\
racks:
  - machines: [{count: 2, devices: {T4: 4}}, {count: 1, devices: {A100-40: 4}}, {count: 4, devices: {cpu-core: 32}}]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    file = tmp_path_factory.mktemp("cluster") / "lab.yaml"
    file.write_text(CLUSTER)
    return load_cluster(str(file))


@pytest.fixture(scope="module")
def planned(cluster):
    return plan_goal(Goal("ctrdnn-8", 1e9, deadline_s=6 * 3600.0), cluster)


def test_alternatives_meet_the_deadline_and_differ_in_devices(planned, cluster):
    offer = planned.offer
    assert 2 <= len(offer.alternatives) <= MOST
    assert len({tuple(sorted(shape.devices.items())) for shape in offer.alternatives}) == len(
        offer.alternatives
    )
    for bound in bind_requested(offer, cluster):
        assert offer.near_s(bound.shape) <= 6 * 3600.0
        assert all(count <= cluster.count_of(at) for at, count in enumerate(bound.need))


def test_what_is_planned_is_a_job_that_the_api_takes(planned):
    spec = SentJob(run="work", **sent_offer(planned.offer), plans=planned.plans)
    spec.check_together()
    assert {shape.plan_digest for shape in spec.offer.alternatives} == set(planned.plans)
    assert all(digest_of(text) == digest for digest, text in planned.plans.items())


@pytest.mark.slow
def test_every_plan_is_a_file_that_the_trainer_accepts_anywhere(planned, tmp_path):
    for number, text in enumerate(planned.plans.values()):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        assert not check_plan(file).violations


@pytest.mark.slow
def test_a_budget_is_kept_and_each_plan_states_the_rate_that_it_reaches(cluster, tmp_path):
    planned = plan_goal(Goal("ctrdnn-8", 1e8, budget_usd=2.0), cluster)
    offer = planned.offer
    for digest, text in planned.plans.items():
        file = tmp_path / f"{digest}.yaml"
        file.write_text(text)
        checked = check_plan(file)
        assert not checked.violations
        assert checked.request.throughput == round_down(checked.plan.throughput)
    for shape in offer.alternatives:
        assert shape.usd_per_hour * offer.near_s(shape) / 3600 <= 2.0 * (1 + 1e-6)


@pytest.mark.slow
def test_a_goal_that_no_plan_meets_names_the_nearest(cluster):
    with pytest.raises(InputError, match="meets the deadline of 1s") as refused:
        plan_goal(Goal("ctrdnn-8", 1e9, deadline_s=1.0), cluster)
    assert "is the nearest deadline" in refused.value.hint
    with pytest.raises(InputError, match=r"costs at most \$0.00") as refused:
        plan_goal(Goal("ctrdnn-8", 1e9, budget_usd=0.001), cluster)
    assert "the cheapest costs" in refused.value.hint


def test_plans_for_free_devices_use_no_others(cluster):
    left = {"T4": 4, "cpu-core": 64, "A100-40": 0}
    free = cluster_of_free(cluster, tuple(left[kind.name] for kind in cluster.device_types))
    assert [free.count_of(at) for at in range(len(free.device_types))] == [
        left[kind.name] for kind in cluster.device_types
    ]
    offer = plan_goal(Goal("ctrdnn-8", 1e6, examples_per_s=10.0), free).offer
    for shape in offer.alternatives:
        assert all(count <= left[name] for name, count in shape.devices.items())


@pytest.mark.slow
def test_a_written_plan_reads_back_at_its_rate_with_the_goal(planned, cluster, tmp_path):
    steps = {shape.plan_digest: dict(shape.step_s) for shape in planned.offer.alternatives}
    for digest, text in planned.plans.items():
        file = tmp_path / f"{digest}.yaml"
        file.write_text(text)
        checked = check_plan(file)
        assert checked.request.throughput == pytest.approx(1e9 / (6 * 3600.0))
        assert not checked.notes
        read = PlanReader(tmp_path, cluster)(file.name, "here")
        assert dict(read.step_s) == pytest.approx(steps[digest])


@pytest.mark.slow
def test_a_goal_without_any_plan_says_why_and_what_would_do(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text("machines: [{devices: {T4: 2}}, {devices: {cpu-core: 8}}]\n")
    with pytest.raises(InputError, match="fits on small: there are too few devices") as refused:
        plan_goal(Goal("ctrdnn-8", 1e8, examples_per_s=10.0), load_cluster(str(file)))
    assert "cpu-core would be enough" in refused.value.hint
    assert "--rows" in refused.value.hint
