"""A plan as a shape of a job."""

from __future__ import annotations

import pytest

from berth.cluster.load import load_cluster
from berth.errors import InputError
from berth.plan.files import write_plan
from berth.plan.request import PlanRequest, build_problem
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget
from berth.plan.shape import plan_shape, read_plan_shape
from berth.workload.binding import bind
from berth.workload.shape_spec import parse_offer


@pytest.fixture(scope="module")
def planned():
    request = PlanRequest(model="ctrdnn-8", cluster="cloud-mix", throughput=2e5, samples=1e9)
    return request, exact(build_problem(request), Budget())


def test_a_plan_becomes_parts_with_its_counts_its_price_and_its_step_time(planned):
    _, outcome = planned
    plan, cluster = outcome.plan, load_cluster("cloud-mix")
    shape = plan_shape(plan, cluster)
    assert shape.devices == {kind: count for kind, count in plan.device_counts.items() if count}
    assert shape.usd_per_hour == plan.usd_per_hour
    bound = bind(shape, cluster)
    assert bound.step_s[-1] == pytest.approx(plan.problem.batch / plan.throughput)
    assert list(bound.step_s) == sorted(bound.step_s)


def test_a_plan_file_is_an_alternative_and_a_changed_one_is_refused(planned, tmp_path):
    request, outcome = planned
    write_plan(tmp_path / "a.yaml", request, outcome)
    cluster = load_cluster("cloud-mix")

    def read(path, where):
        return read_plan_shape(tmp_path / path, cluster, path, where)

    (shape,) = parse_offer("work: 1M examples\nalternatives: [{plan: a.yaml}]", "job.yaml", read).alternatives
    assert shape.examples_per_step == outcome.plan.problem.batch
    submitted = f"work: 1M examples\nalternatives: [{{plan: a.yaml, plan_digest: {shape.plan_digest}}}]"
    assert parse_offer(submitted, "job.yaml", read).alternatives == (shape,)
    with (tmp_path / "a.yaml").open("a") as file:
        file.write("# edited\n")
    with pytest.raises(InputError, match=r"job.yaml:2:\d+: a.yaml has changed since it was submitted"):
        parse_offer(submitted, "job.yaml", read)
