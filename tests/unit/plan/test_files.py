"""A plan in YAML: written, read back, edited by hand and checked."""

from __future__ import annotations

import json

import pytest

from berth.errors import InputError, SpecError
from berth.plan.files import check_plan, plan_yaml, write_plan
from berth.plan.proof import check_proof, proof_document
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget
from berth.plan.wanted import Wanted, pose

WANTED = Wanted(
    throughput=3e6, model="ctrdnn", cluster="cloud-mix", pins=("emb=T4",), forbid=("H100",), fixed=1.25
)


@pytest.fixture(scope="module")
def solved():
    posed = pose(WANTED)
    return posed, exact(posed.problem, Budget())


@pytest.fixture
def file(solved, tmp_path):
    posed, outcome = solved
    path = tmp_path / "plan.yaml"
    write_plan(path, WANTED, posed, outcome)
    return path


def edited(file, old, new):
    text = file.read_text()
    assert text.count(old) == 1, text
    file.write_text(text.replace(old, new))
    return file


def test_a_plan_reads_back_as_it_was_written(file, solved):
    checked = check_plan(file)
    plan = solved[1].plan
    assert checked.wanted == WANTED
    assert checked.plan.assignment == plan.assignment
    assert checked.plan.stages == plan.stages
    assert checked.plan.cost_usd == plan.cost_usd
    assert not checked.broken
    assert not checked.notes
    assert len(plan.stages) > 1


def test_the_file_says_what_is_measured_and_what_modelled(file):
    assert 'T4: "modelled: roofline over' in file.read_text()


def test_fewer_units_break_the_throughput_and_the_line_is_named(file, solved):
    units = solved[1].plan.stages[0].units
    checked = check_plan(edited(file, f"units: {units}}}", "units: 2}"))
    (where, what), *_ = checked.broken
    line = file.read_text().splitlines()[int(where.split(":")[1]) - 1]
    assert "units: 2}" in line
    assert "below the 3M/s wanted; it needs" in what
    assert checked.plan.violations()


def test_the_units_it_asks_for_are_enough_and_no_more_than_needed(file, solved):
    units = solved[1].plan.stages[0].units
    (_, what), *_ = check_plan(edited(file, f"units: {units}}}", "units: 2}")).broken
    needed = int(what.rsplit("it needs ", 1)[1].split()[0])
    assert not check_plan(edited(file, "units: 2}", f"units: {needed}}}")).broken
    assert check_plan(edited(file, f"units: {needed}}}", f"units: {needed - 1}}}")).broken


def test_more_units_than_there_are_break_a_limit(file, solved):
    units = solved[1].plan.stages[0].units
    broken = check_plan(edited(file, f"units: {units}}}", "units: 33}")).broken
    assert any(
        "33 units of T4, and there are 32" in what or "units of T4, and there are 32" in what
        for _, what in broken
    )


def test_a_layer_off_its_pin_is_named(file):
    file.write_text(file.read_text().replace("type: T4", "type: A100-40"))
    assert any("'embedding' may not run on A100-40" in what for _, what in check_plan(file).broken)


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
def test_a_slip_in_the_file_is_one_message(file, old, new, said):
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
        (["embedding .. loss, type: T9, units: 1"], "no device type of this problem is called 'T9'"),
        (["embedding .. concat, type: T4, units: 1"], "no stage runs norm .. loss"),
        (["embedding, type: T4, units: 1", "norm .. loss, type: H100, units: 1"], "no stage runs pooling .. concat"),
        (["embedding .. norm, type: T4, units: 1", "concat .. loss, type: H100, units: 1"], "has a stage already"),
        (["embedding, type: T4, units: 1", "pooling .. loss, type: t4, units: 1"], "so they are one"),
        (["embedding .. loss, type: T4, units: 0"], "greater than 0"),
        (["embedding .. loss, type: T4, units: 1.5"], "units"),
        (["loss .. embedding, type: T4, units: 1"], "comes before"),
        (["embeding .. loss, type: T4, units: 1"], "did you mean 'embedding'?"),
    ],
)  # fmt: skip
def test_stages_that_are_no_plan_are_refused_at_their_line(tmp_path, stages, said):
    path = tmp_path / "plan.yaml"
    path.write_text(STAGES + "".join(f"  - {{layers: {stage}}}\n" for stage in stages))
    with pytest.raises(InputError) as caught:
        check_plan(path)
    assert said in str(caught.value)
    assert f"{path}:{6 + len(stages)}" in str(caught.value)


def test_memory_is_checked(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(STAGES + "  - {layers: embedding .. loss, type: T4, units: 1}\ntables: units\n")
    assert not check_plan(path).broken
    cluster = tmp_path / "small.yaml"
    cluster.write_text("machines:\n  - {count: 9, devices: {cpu-core: 4}, cores: 4, memory: 1GiB}\n")
    path.write_text(path.read_text().replace("cloud-mix", "small.yaml").replace("type: T4", "type: cpu-core"))
    assert any("for its memory" in what for _, what in check_plan(path).broken)


def test_a_plan_of_a_bare_problem_finds_its_problem_beside_it(tmp_path):
    layer = {"name": "a", "oct": [1.0], "odt": [0.0], "alpha": [1.0], "beta": [1.0]}
    types = [{"name": "x", "usd_per_hour": 1}]
    document = {"batch": 1, "throughput": 3, "samples": 10, "types": types, "layers": [layer]}
    (tmp_path / "p.json").write_text(json.dumps(document))
    wanted = Wanted(throughput=3.0, samples=10.0, problem=str(tmp_path / "p.json"))
    posed = pose(wanted)
    text = plan_yaml(wanted, posed, exact(posed.problem, Budget())).replace(str(tmp_path) + "/", "")
    (tmp_path / "plan.yaml").write_text(text)
    assert not check_plan(tmp_path / "plan.yaml").broken


def test_a_plan_needs_a_model_and_devices(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(STAGES.replace("cluster: cloud-mix\n", "") + "  - {layers: a, type: b, units: 1}\n")
    with pytest.raises(InputError, match="needs a model and a cluster"):
        check_plan(path)


def test_a_proof_is_checked_from_its_file_alone(solved, tmp_path):
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(proof_document(solved[1]), allow_nan=False))
    proof = check_proof(path)
    assert not proof.wrong
    assert proof.plan.cost_usd == pytest.approx(solved[1].plan.cost_usd)


def test_a_proof_that_claims_too_much_is_found_out(solved, tmp_path):
    document = proof_document(solved[1])
    document["certificate"]["lower"] *= 1.5
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(document))
    assert check_proof(path).wrong
    document["answer"]["stages"][0]["units"] -= 1
    path.write_text(json.dumps(document))
    assert any("throughput" in what for what in check_proof(path).wrong)


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"problem": 3, "answer": 4}'])
def test_what_is_no_proof_is_said_so(tmp_path, text):
    path = tmp_path / "proof.json"
    path.write_text(text)
    with pytest.raises(SpecError):
        check_proof(path)


def test_a_proof_of_other_layers_is_refused(solved, tmp_path):
    document = proof_document(solved[1])
    document["answer"]["stages"][0]["layers"][0] = "another"
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(document))
    with pytest.raises(SpecError, match="do not cover the layers in their order"):
        check_proof(path)


def test_a_proof_whose_figures_are_no_numbers_proves_nothing(solved, tmp_path):
    document = proof_document(solved[1])
    document["certificate"]["steps"] = [
        {"tau": float("nan"), "next": 0.0, "bound": None, "kind": "work", "prices": []}
    ]
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(document))
    assert any("step 1" in what for what in check_proof(path).wrong)
