"""Jobs with plans and alternatives: as they are written, sent, journalled and launched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from berth import spec as yaml_spec
from berth.cluster.load import load_cluster
from berth.cluster.serialize import cluster_to_dict
from berth.errors import InputError, SpecError
from berth.live.demand import bind_requested, requested
from berth.live.job import Seat
from berth.live.members import _of_parts
from berth.live.offer import SentShape, check_offer, digest_of
from berth.live.planned import cluster_of, sent_job, with_absolute_names
from berth.live.spec import JobSpec, SentJob, spec_from_dict, submission

CLUSTER = """\
racks:
  - machines: [{count: 2, devices: {T4: 4}}, {count: 2, devices: {cpu-core: 8}}]
"""
PLAN = """\
model: ctrdnn-8
devices: [cpu-core, T4]
throughput: 10/s
samples: 1000000
rows: 1000000
batch: 48
micro_batches: 2
stages:
  - {layers: embedding .. concat, type: cpu-core, replicas: 2, tables: servers, servers: 3}
  - {layers: norm .. loss, type: T4, replicas: 2}
readers: 1
"""
HEAD = "run: train\nname: ctr\nwork: 1M examples\nbatch: 64\n"
TWO = (
    HEAD
    + """\
alternatives:
  - parts: [{name: dense, devices: {T4: 4}, tier: rack}, {name: rows, devices: {cpu-core: 3}}]
    step: {near: 40ms, rack: 52ms, network: 90ms}
  - parts: [{name: all, devices: {cpu-core: 16}}]
    step: 300ms
    name: slow
"""
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    file = tmp_path_factory.mktemp("cluster") / "lab.yaml"
    file.write_text(CLUSTER)
    return load_cluster(str(file))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    return tmp_path


def sent(text: str, cluster, folder: Path = Path()) -> dict:
    job = yaml_spec.parse(text, JobSpec, "job.yaml")

    def position(*keys):
        line, column = yaml_spec.locate(text, keys)
        return f"job.yaml:{line}:{column}"

    return sent_job(job, position, folder, cluster, "/here")


def accepted(plain: dict) -> JobSpec:
    spec = SentJob.model_validate(plain)
    spec.check_together()
    return spec


def test_a_plan_becomes_parts_with_its_contents(folder, cluster):
    spec = accepted(sent("plan: plan.yaml\n", cluster, folder))
    [shape] = spec.offer.alternatives
    assert [(part.name, dict(part.devices)) for part in shape.parts] == [
        ("stage-1", {"cpu-core": 2}),
        ("servers-1", {"cpu-core": 3}),
        ("stage-2", {"T4": 2}),
        ("readers", {"cpu-core": 1}),
    ]
    assert spec.plans == {shape.plan_digest: PLAN}
    assert (spec.offer.work.amount, spec.offer.work.unit) == (1e6, "examples")
    assert spec.argv[-1] == "exec berth train ctrdnn-8 --examples 1000000 --checkpoint checkpoint-$BERTH_JOB"
    assert spec.cwd == "/here"


def test_names_of_files_in_a_plan_become_absolute(tmp_path):
    (tmp_path / "lab.yaml").write_text(CLUSTER)
    text = with_absolute_names("model: ctrdnn\ncluster: lab.yaml  # mine\nbatch: 4\n", tmp_path)
    assert yaml.safe_load(text) == {"model": "ctrdnn", "cluster": str(tmp_path / "lab.yaml"), "batch": 4}
    (tmp_path / "hosts.csv").touch()
    text = with_absolute_names("cluster: hosts.csv:4xH100\n", tmp_path)
    assert yaml.safe_load(text) == {"cluster": f"{tmp_path / 'hosts.csv'}:4xH100"}


def test_files_of_a_plan_are_looked_for_beside_it_first(tmp_path, monkeypatch):
    for folder in ("plans", "work"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "lab.yaml").write_text(CLUSTER)
    monkeypatch.chdir(tmp_path / "work")
    text = with_absolute_names("cluster: lab.yaml\n", tmp_path / "plans")
    assert yaml.safe_load(text) == {"cluster": str(tmp_path / "plans" / "lab.yaml")}


def test_a_plan_with_more_work_than_a_trace_may_hold_is_refused_at_its_line(folder, cluster):
    with pytest.raises(InputError, match=r"job.yaml:2:7: 9e\+30 examples take .* years"):
        sent("plan: plan.yaml\nwork: 9e30 examples\n", cluster, folder)


def test_alternatives_come_back_from_the_journal(cluster):
    spec = accepted(json.loads(json.dumps(sent(TWO, cluster))))
    again = spec_from_dict(json.loads(json.dumps(submission(spec, "ada")["spec"])))
    assert again.offer == spec.offer
    assert again.to_dict() == spec.to_dict()
    small, large = spec.offer.alternatives
    assert (small.name, large.name) == ("4 T4 + 3 cpu-core", "slow")
    assert dict(small.step_s) == pytest.approx({"near": 0.04, "rack": 0.052, "network": 0.09})
    assert small.examples_per_step == 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TWO.replace("T4: 4", "T4: 9"), r"job.yaml:6:.* no rack ever holds part dense: 9 T4"),
        (TWO.replace("T4: 4", "H100: 4"), r"job.yaml:6:.* part dense asks for H100, and lab has none"),
        (TWO.replace("work: 1M examples\n", ""), r"job.yaml:5:.* without `work` can't be compared"),
        (
            TWO.replace("1M examples", "9e30 examples"),
            r"job.yaml:3:7: 9e\+30 examples take .* years in the fastest",
        ),
        (TWO.replace("batch: 64\n", ""), r"job.yaml:5:.* the examples of a step are not known"),
        (TWO + "    tier: attic\n", r"job.yaml:8:.*attic"),
        (TWO.replace("rack: 52ms, ", "").replace("near: 40ms, ", ""), r"job.yaml:6:.* have none for"),
        (
            HEAD + "deadline: 1s\n" + TWO[len(HEAD) :],
            r"deadline of 1s: the nearest, .*, takes 13m33s",
        ),
        (
            HEAD + "alternatives: [{plan: gone.yaml}]",
            r"job.yaml:5:23: gone.yaml can't be read: No such file or directory\n"
            r"  `berth plan ... --out gone.yaml` makes one",
        ),
        (HEAD + "gpus: 4\n" + TWO[len(HEAD) :], "`gpus` is for a gang"),
        (HEAD, "`work` is for a job with `alternatives`"),
    ],
)
def test_bad_input_has_one_message_with_its_line(text, said, cluster):
    with pytest.raises((SpecError, InputError), match=said):
        sent(text, cluster)


def test_work_that_would_take_longer_than_a_trace_may_hold_is_refused():
    one = {"parts": [{"name": "all", "devices": {"T4": 1}}], "step": {"near": "1s"}}
    with pytest.raises(InputError, match=r"1e\+13 steps take 317,098 years in the fastest alternative"):
        check_offer("10T steps", None, [SentShape.model_validate(one)], {})
    check_offer("10B steps", None, [SentShape.model_validate(one)], {})


def test_a_plan_that_is_not_what_its_digest_says_is_refused(folder, cluster):
    plain = sent("plan: plan.yaml\n", cluster, folder)
    [digest] = plain["plans"]
    with pytest.raises(InputError, match="is not what its SHA-256 says"):
        accepted(plain | {"plans": {digest: PLAN.replace("48", "64")}})
    with pytest.raises(InputError, match="are missing from `plans`"):
        accepted(plain | {"plans": {}})
    assert digest == digest_of(PLAN)


@pytest.mark.slow
def test_cores_come_with_the_machines_of_a_cluster_that_lists_none(folder, cluster):
    gpus = load_cluster("2x2x2:T4")
    [shape] = accepted(sent("plan: plan.yaml\n", gpus, folder)).offer.alternatives
    assert [part.name for part in requested(shape, gpus).parts] == ["stage-2"]
    assert [part.name for part in requested(shape, cluster).parts] == [part.name for part in shape.parts]
    [bound] = bind_requested(accepted(sent("plan: plan.yaml\n", gpus, folder)).offer, gpus)
    assert bound.size == 2


def test_ranks_of_a_plan_are_its_stages_and_then_its_servers(folder, cluster):
    [shape] = accepted(sent("plan: plan.yaml\n", cluster, folder)).offer.alternatives
    seats = [
        Seat(0, 0, (1, 3), part=2),
        Seat(2, 1, (0, 1, 2), part=1),
        Seat(2, 1, (3,), part=0),
        Seat(3, 1, (0,), part=0),
        Seat(3, 1, (1,), part=3),
    ]
    assert list(_of_parts(shape, seats)) == [
        (2, (3,), "stage-1"),
        (3, (0,), "stage-1"),
        (0, (1,), "stage-2"),
        (0, (3,), "stage-2"),
        (2, (0,), "servers-1"),
        (2, (1,), "servers-1"),
        (2, (2,), "servers-1"),
    ]
    hosted = list(_of_parts(shape, seats[:1]))
    assert [devices for _, devices, _ in hosted] == [(), (), (1,), (3,), (), (), ()]
    assert {machine for machine, *_ in hosted} == {0}


def test_the_cluster_of_the_api_is_enough_to_read_plans(cluster):
    answer = cluster_to_dict(cluster)
    kinds = [kind.name for kind in cluster.device_types]
    machines = [
        {"name": one.name, "devices": {kinds[kind]: count for kind, count in one.devices}, "free": 4}
        for one in cluster.machines
    ]
    again = cluster_of(answer | {"machines": machines})
    assert [one.devices for one in again.machines] == [one.devices for one in cluster.machines]
    assert again.tiers == cluster.tiers
