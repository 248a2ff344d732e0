"""A plan in YAML: written, read back, edited by hand and checked."""

from __future__ import annotations

import json

import pytest

from berth.errors import InputError, SpecError
from berth.plan.files import check_plan, plan_yaml, write_plan
from berth.plan.proof import check_proof, proof_document
from berth.plan.request import PlanRequest, build_problem
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget

REQUEST = PlanRequest(
    throughput=3e6, model="ctrdnn", cluster="cloud-mix", pins=("emb=T4",), forbid=("H100",), fixed=1.25
)


@pytest.fixture(scope="module")
def solved():
    problem = build_problem(REQUEST)
    return problem, exact(problem, Budget())


@pytest.fixture
def file(solved, tmp_path):
    _, outcome = solved
    path = tmp_path / "plan.yaml"
    write_plan(path, REQUEST, outcome)
    return path


def edited(file, old, new):
    text = file.read_text()
    assert text.count(old) == 1, text
    file.write_text(text.replace(old, new))
    return file


def test_a_plan_reads_back_as_it_was_written(file, solved):
    checked = check_plan(file)
    plan = solved[1].plan
    assert checked.request == REQUEST
    assert checked.plan.assignment == plan.assignment
    assert checked.plan.stages == plan.stages
    assert checked.plan.cost_usd == plan.cost_usd
    assert not checked.violations
    assert not checked.notes
    assert len(plan.stages) > 1


def test_the_file_says_what_is_measured_and_what_modelled(file):
    assert 'T4: "modelled: roofline over' in file.read_text()


def test_too_few_replicas_are_reported_with_their_line(file, solved):
    replicas = solved[1].plan.stages[0].replicas
    checked = check_plan(edited(file, f"replicas: {replicas}}}", "replicas: 2}"))
    (where, what), *_ = checked.violations
    line = file.read_text().splitlines()[int(where.split(":")[1]) - 1]
    assert "replicas: 2}" in line
    assert "below the 3M/s wanted; it needs" in what
    assert checked.plan.violations()


def test_the_replicas_it_asks_for_are_the_fewest_that_are_enough(file, solved):
    replicas = solved[1].plan.stages[0].replicas
    (_, what), *_ = check_plan(edited(file, f"replicas: {replicas}}}", "replicas: 2}")).violations
    needed = int(what.rsplit("it needs ", 1)[1].split()[0])
    assert not check_plan(edited(file, "replicas: 2}", f"replicas: {needed}}}")).violations
    assert check_plan(edited(file, f"replicas: {needed}}}", f"replicas: {needed - 1}}}")).violations


def test_more_replicas_than_devices_exceed_a_limit(file, solved):
    replicas = solved[1].plan.stages[0].replicas
    broken = check_plan(edited(file, f"replicas: {replicas}}}", "replicas: 33}")).violations
    assert any("T4 are used, the limit is 32" in what for _, what in broken)


def test_a_layer_off_its_pin_is_named(file):
    file.write_text(file.read_text().replace("type: T4", "type: A100-40"))
    assert any("'embedding' may not run on A100-40" in what for _, what in check_plan(file).violations)


def test_figures_that_no_longer_hold_are_noted(file):
    text = file.read_text()
    cost = next(line for line in text.splitlines() if "cost_usd" in line and "lower" not in line)
    file.write_text(text.replace(cost, "  cost_usd: 1.0"))
    assert any("the file says $1.00" in note for note in check_plan(file).notes)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("throughput: 3000000 ", "throughput: 0 ", "greater than 0"),
        ("throughput: 3000000 ", "throughput: .nan ", "is not a rate"),
        ("stages:", "stags:", "did you mean 'stages'?"),
        ("model: ctrdnn", "model: ctrdn", "did you mean 'ctrdnn'?"),
        ('forbid: ["H100"]', 'forbid: ["H101"]', "H101"),
        ("layers: embedding", "layers: embeding", "did you mean 'embedding'?"),
    ],
)
def test_an_error_in_the_file_is_one_message(file, old, new, said):
    with pytest.raises(InputError) as caught:
        check_plan(edited(file, old, new))
    assert said in str(caught.value)
    assert str(file) in str(caught.value) or said.startswith("did you mean 'ctrdnn'")


STAGES = """
model: ctrdnn
cluster: cloud-mix
throughput: 10k/s
samples: 1e9
stages:
"""


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        (["embedding .. loss, type: T9, replicas: 1"], "no device type of this problem is called 'T9'"),
        (["embedding .. concat, type: T4, replicas: 1"], "no stage runs norm .. loss"),
        (["embedding, type: T4, replicas: 1", "norm .. loss, type: H100, replicas: 1"], "no stage runs pooling .."),
        (["embedding .. norm, type: T4, replicas: 1", "concat .. loss, type: H100, units: 1"], "already has a stage"),
        (["embedding, type: T4, replicas: 1", "pooling .. loss, type: t4, replicas: 1"], "so they are one"),
        (["embedding .. loss, type: T4, replicas: 0"], "greater than 0"),
        (["embedding .. loss, type: T4, replicas: 1.5"], "replicas"),
        (["loss .. embedding, type: T4, replicas: 1"], "comes before"),
        (["embeding .. loss, type: T4, replicas: 1"], "did you mean 'embedding'?"),
    ],
)  # fmt: skip
def test_invalid_stages_are_refused_with_their_line(tmp_path, stages, said):
    path = tmp_path / "plan.yaml"
    path.write_text(STAGES + "".join(f"  - {{layers: {stage}}}\n" for stage in stages))
    with pytest.raises(InputError) as caught:
        check_plan(path)
    assert said in str(caught.value)
    assert f"{path}:{6 + len(stages)}" in str(caught.value)


def test_memory_is_checked(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(STAGES + "  - {layers: embedding .. loss, type: T4, replicas: 1}\ntables: replicas\n")
    assert not check_plan(path).violations
    cluster = tmp_path / "small.yaml"
    cluster.write_text("machines:\n  - {count: 9, devices: {cpu-core: 4}, cores: 4, memory: 1GiB}\n")
    path.write_text(path.read_text().replace("cloud-mix", "small.yaml").replace("type: T4", "type: cpu-core"))
    assert any("for its memory" in what for _, what in check_plan(path).violations)


def test_a_plan_of_a_bare_problem_finds_its_problem_beside_it(tmp_path):
    layer = {"name": "a", "oct": [1.0], "odt": [0.0], "alpha": [1.0], "beta": [1.0]}
    types = [{"name": "x", "usd_per_hour": 1}]
    document = {"batch": 1, "throughput": 3, "samples": 10, "types": types, "layers": [layer]}
    (tmp_path / "p.json").write_text(json.dumps(document))
    request = PlanRequest(throughput=3.0, samples=10.0, problem=str(tmp_path / "p.json"))
    outcome = exact(build_problem(request), Budget())
    text = plan_yaml(request, outcome).replace(str(tmp_path) + "/", "")
    (tmp_path / "plan.yaml").write_text(text)
    assert not check_plan(tmp_path / "plan.yaml").violations


def test_a_plan_needs_a_model_and_devices(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(STAGES.replace("cluster: cloud-mix\n", "") + "  - {layers: a, type: b, replicas: 1}\n")
    with pytest.raises(InputError, match="needs a model and a cluster"):
        check_plan(path)


def test_a_proof_is_checked_from_its_file_alone(solved, tmp_path):
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(proof_document(solved[1]), allow_nan=False))
    proof = check_proof(path)
    assert not proof.errors
    assert proof.plan.cost_usd == pytest.approx(solved[1].plan.cost_usd)


def test_a_proof_that_claims_too_much_is_found_out(solved, tmp_path):
    document = proof_document(solved[1])
    document["certificate"]["lower"] *= 1.5
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(document))
    assert check_proof(path).errors
    document["answer"]["stages"][0]["replicas"] -= 1
    path.write_text(json.dumps(document))
    assert any("throughput" in what for what in check_proof(path).errors)


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"problem": 3, "answer": 4}'])
def test_a_file_that_is_not_a_proof_is_refused(tmp_path, text):
    path = tmp_path / "proof.json"
    path.write_text(text)
    with pytest.raises(SpecError):
        check_proof(path)


def test_a_proof_of_other_layers_is_refused(solved, tmp_path):
    document = proof_document(solved[1])
    document["answer"]["stages"][0]["layers"][0] = "another"
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(document))
    with pytest.raises(SpecError, match="do not cover the layers in order"):
        check_proof(path)


def test_a_proof_with_figures_that_are_not_numbers_is_refused(solved, tmp_path):
    document = proof_document(solved[1])
    document["certificate"]["steps"] = [
        {"tau": float("nan"), "next": 0.0, "bound": None, "kind": "work", "prices": []}
    ]
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(document))
    assert any("step 1" in what for what in check_proof(path).errors)


def test_a_plan_with_the_former_key_units_is_read(file, solved):
    file.write_text(file.read_text().replace("replicas: ", "units: "))
    checked = check_plan(file)
    assert checked.plan.stages == solved[1].plan.stages
    assert not checked.violations
    (where, _), *_ = check_plan(
        edited(file, f"units: {solved[1].plan.stages[0].replicas}}}", "units: 2}")
    ).violations
    line, column = map(int, where.split(":")[1:])
    assert file.read_text().splitlines()[line - 1][column - 1 :].startswith("2}")


def test_a_proof_with_the_former_key_units_is_read(solved, tmp_path):
    document = proof_document(solved[1])
    for stage in document["answer"]["stages"]:
        del stage["replicas"]
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(document, allow_nan=False))
    assert not check_proof(path).errors


def test_tables_on_units_is_the_former_name_of_tables_on_replicas(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(STAGES + "  - {layers: embedding .. loss, type: T4, units: 1}\ntables: units\n")
    assert check_plan(path).plan.problem.sharded_bytes.sum() > 0
