"""A plan in YAML: written, read back, edited by hand and checked."""

from __future__ import annotations

import json
import math
import re

import pytest

from berth.errors import InputError, SpecError
from berth.plan.check_file import check_plan
from berth.plan.files import plan_yaml, write_plan
from berth.plan.plan import schedule_for, with_counts
from berth.plan.proof import check_proof, proof_document
from berth.plan.request import PlanRequest, build_problem, relative_to
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget
from berth.plan.world import WorldOptions

REQUEST = PlanRequest(
    throughput=3e6,
    model="ctrdnn",
    cluster="cloud-mix",
    pins=("emb=T4", "fc=A100-40"),
    forbid=("H100",),
    fixed=1.25,
    world=WorldOptions(batch=131072, rows=5e8, tables=("servers", "disk"), micro=(4, 8), nic_share=2e9),
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
    assert (checked.plan.micro, checked.plan.readers) == (plan.micro, plan.readers)
    assert plan.servers > 0
    assert checked.plan.stages == plan.stages
    assert checked.plan.cost_usd == plan.cost_usd
    assert not checked.violations
    # by the formula alone it holds
    assert ["event simulation reaches" in note for note in checked.notes] == [True]
    assert len(plan.stages) > 1


def test_the_file_says_what_is_measured_and_what_modelled(file):
    assert 'T4: "modelled: roofline over' in file.read_text()


@pytest.mark.parametrize(
    "world",
    [
        WorldOptions(),
        WorldOptions(mode="async"),
        WorldOptions(mode="async", batch_per_replica=2048, staleness=60, tables=("servers",)),
        WorldOptions(whole_machines=True, tables=("disk",)),
        WorldOptions(rows=1e8, tables=("machine", "replicas")),
    ],
)
def test_every_way_to_train_reads_back(tmp_path, world):
    request = PlanRequest(throughput=1e6, model="ctrdnn-8", cluster="cloud-mix", world=world)
    outcome = exact(build_problem(request), Budget())
    write_plan(tmp_path / "plan.yaml", request, outcome)
    checked = check_plan(tmp_path / "plan.yaml")
    assert checked.plan.stages == outcome.plan.stages
    assert checked.plan.cost_usd == outcome.plan.cost_usd
    assert not checked.violations
    assert not checked.notes


def first_line(file, word):
    return next(number for number, line in enumerate(file.read_text().splitlines(), 1) if word in line)


def with_first(file, key, value):
    """Changes a count of the first stage."""
    text = file.read_text()
    file.write_text(re.sub(rf"{key}: \d+", f"{key}: {value}", text, count=1))
    return file


def test_too_few_replicas_are_reported_with_their_line(file):
    checked = check_plan(with_first(file, "replicas", 2))
    (where, what), *_ = checked.violations
    assert int(where.split(":")[1]) == first_line(file, "replicas: 2,")
    assert "below the 3M/s wanted; it needs" in what
    assert checked.plan.violations()


def test_the_replicas_it_asks_for_are_the_fewest_that_are_enough(file):
    (_, what), *_ = check_plan(with_first(file, "replicas", 2)).violations
    needed = int(what.rsplit("it needs ", 1)[1].split()[0])
    free = re.sub(r", servers: \d+|readers: .*\n", "", file.read_text())  # then they are what the stages need
    file.write_text(free)
    assert not check_plan(with_first(file, "replicas", needed)).violations
    assert check_plan(with_first(file, "replicas", needed - 1)).violations


def test_the_servers_it_asks_for_are_the_fewest_that_are_enough(file, solved):
    servers = solved[1].plan.stages[0].servers
    (where, what), *_ = check_plan(with_first(file, "servers", servers // 2)).violations
    line, column = map(int, where.split(":")[1:])
    assert file.read_text().splitlines()[line - 1][column - 1 :].startswith(f"{servers // 2}")
    found = re.search(r"stage 1 holds .*; it needs (\d+) server cores, not (\d+)", what)
    assert int(found[2]) == servers // 2
    assert not check_plan(with_first(file, "servers", found[1])).violations
    assert check_plan(with_first(file, "servers", int(found[1]) - 1)).violations


def test_tables_that_do_not_fit_into_their_servers_are_reported(file):
    broken = check_plan(with_first(file, "servers", 2)).violations
    assert any(
        re.search(r"stage 1 needs \d+ server cores for the memory of its tables", what) for _, what in broken
    )


def test_servers_behind_a_stage_without_tables_are_reported(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(
        STAGES
        + "  - {layers: embedding .. pooling, type: T4, replicas: 1, tables: servers}\n"
        + "  - {layers: concat .. loss, type: T4, replicas: 1, servers: 3}\n"
    )
    (where, what), *_ = check_plan(path).violations
    assert what == "stage 2 has nothing on servers"
    assert f"{path}:8:" in where


def test_too_few_readers_are_reported_with_how_many_it_takes(file, solved):
    (where, what), *_ = check_plan(with_first(file, "readers", 1)).violations
    assert int(where.split(":")[1]) == first_line(file, "readers: 1")
    needed = int(re.search(r"1 reader core hold .*, below the 3M/s wanted; it takes (\d+)", what)[1])
    assert 1 < needed <= solved[1].plan.readers
    assert not check_plan(with_first(file, "readers", needed)).violations
    assert check_plan(with_first(file, "readers", needed - 1)).violations


def test_a_plan_without_readers_or_servers_is_reported_with_what_it_takes(file, solved):
    found = check_plan(with_first(file, "readers", 0)).violations
    (where, what) = next(one for one in found if "readers" in one[1])
    assert int(where.split(":")[1]) == first_line(file, "readers: 0")
    needed = int(re.search(r"the plan has no readers; it takes (\d+)", what)[1])
    assert 1 < needed <= solved[1].plan.readers
    found = check_plan(with_first(file, "servers", 0)).violations
    assert any("it has no servers" in what for _, what in found)


def test_micro_batches_left_out_are_the_fastest_number(file):
    file.write_text(re.sub(r"micro_batches: .*\n", "", file.read_text()))
    found = check_plan(file).plan
    assert found.throughput == max(
        with_counts(
            found.problem,
            schedule_for(found.problem, len(found.stages), micro),
            found.cuts,
            [stage.replicas for stage in found.stages],
            [stage.servers for stage in found.stages],
            found.readers,
        ).throughput
        for micro in (4, 8)
    )


def test_more_replicas_than_one_machine_has_are_reported(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(
        STAGES + "  - {layers: embedding .. loss, type: T4, replicas: 5, tables: machine}\nrows: 1e6\n"
    )
    assert [what for _, what in check_plan(path).violations] == [
        "stage 1 may have 4 replicas at most: one machine has no more devices"
    ]


def test_more_replicas_than_devices_exceed_a_limit(file):
    broken = check_plan(with_first(file, "replicas", 33)).violations
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
        ("mode: sync", "mode: asinc", "did you mean 'async'?"),
        ("mode: sync", "mode: async", "batch: has no meaning with mode async"),
        ("mode: sync", "mode: sync\nstaleness: 3", "staleness: has no meaning with mode sync"),
        ("tables: [servers, disk]", "tables: [server]", "did you mean 'servers'?"),
        ("tables: [servers, disk]", "tables: [machine]", "no place for tables is called"),
        ("batch: 131072", "batch: 1.5", "batch"),
        ("rows: 500000000", "rows: 0", "greater than 0"),
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
        (["embedding .. loss, type: T4, replicas: 1, tables: server"], "did you mean 'servers'?"),
        (["embedding .. loss, type: T4, replicas: 1, servers: -1"], "greater than or equal to 0"),
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


def test_stages_of_one_type_may_follow_each_other(tmp_path):
    path = tmp_path / "plan.yaml"
    stages = ("embedding, type: T4, replicas: 1, tables: servers", "pooling .. loss, type: t4, replicas: 1")
    path.write_text(STAGES + "".join(f"  - {{layers: {stage}}}\n" for stage in stages))
    checked = check_plan(path)
    assert [stage.type_name for stage in checked.plan.stages] == ["T4", "T4"]
    assert not checked.violations


def test_memory_is_checked(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(
        STAGES + "  - {layers: embedding .. loss, type: T4, replicas: 1, tables: replicas}\nrows: 1e6\n"
    )
    assert not check_plan(path).violations
    path.write_text(path.read_text().replace("1e6", "1e9"))
    needed = math.ceil(1e9 * (2 * 64 + 58) / (16 * 2**30))
    assert any(
        f"stage 1 needs {needed} replicas for its memory" in what for _, what in check_plan(path).violations
    )


def test_keys_of_a_model_are_refused_beside_a_problem(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(
        "problem: p.json\nthroughput: 3\nsamples: 10\nrows: 5\nstages:\n  - {layers: a, type: x, replicas: 1}\n"
    )
    with pytest.raises(SpecError, match="rows: a stated problem is planned as it is") as caught:
        check_plan(path)
    assert caught.value.where.startswith(f"{path}:4:")


def test_micro_batches_of_an_asynchronous_plan_are_refused(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(
        STAGES.replace("stages:", "mode: async\nmicro_batches: 2\nstages:")
        + "  - {layers: embedding .. loss, type: T4, replicas: 1}\n"
    )
    with pytest.raises(SpecError, match="only synchronous steps of a model have micro-batches") as caught:
        check_plan(path)
    assert caught.value.where.startswith(f"{path}:7:")


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


@pytest.mark.slow
def test_a_proof_is_checked_from_its_file_alone(solved, tmp_path):
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(proof_document(solved[1]), allow_nan=False))
    proof = check_proof(path)
    assert not proof.errors
    assert proof.plan.cost_usd == pytest.approx(solved[1].plan.cost_usd)


@pytest.mark.slow
def test_a_proof_that_claims_too_much_is_found_out(solved, tmp_path):
    document = proof_document(solved[1])
    document["certificate"]["lower"] *= 1.5
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(document))
    assert check_proof(path).errors
    document["answer"]["stages"][0]["replicas"] = 1
    path.write_text(json.dumps(document))
    assert any("throughput" in what for what in check_proof(path).errors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"), [("cost_usd", 0.01), ("lower_bound_usd", 1e6), ("feasible", False)]
)
def test_a_false_figure_beside_a_true_proof_is_found_out(solved, tmp_path, name, value):
    document = proof_document(solved[1])
    assert name in document["answer"]
    document["answer"][name] = value
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(document))
    assert ["the answer claims" in what for what in check_proof(path).errors] == [True]


@pytest.mark.parametrize(
    ("key", "value"),
    [("replicas", 0), ("replicas", 2.5), ("replicas", "3"), ("replicas", float("inf")), ("micro_batches", 0)],
)
def test_a_count_that_is_none_is_refused_by_name(solved, tmp_path, key, value):
    document = proof_document(solved[1])
    holder = document["answer"] if key == "micro_batches" else document["answer"]["stages"][0]
    holder[key] = value
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=f"{key} must be a whole number of at least 1"):
        check_proof(path)


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


@pytest.mark.slow
def test_a_proof_with_figures_that_are_not_numbers_is_refused(solved, tmp_path):
    document = proof_document(solved[1])
    step = {"at": float("nan"), "next": 0.0, "bound": None, "kind": "work", "prices": []}
    document["certificate"]["parts"][0]["steps"] = [step]
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(document))
    assert any("step 1" in what for what in check_proof(path).errors)


def test_a_plan_with_the_former_key_units_is_read(file, solved):
    file.write_text(file.read_text().replace("replicas: ", "units: "))
    checked = check_plan(file)
    assert checked.plan.stages == solved[1].plan.stages
    assert not checked.violations
    (where, _), *_ = check_plan(with_first(file, "units", 2)).violations
    line, column = map(int, where.split(":")[1:])
    assert file.read_text().splitlines()[line - 1][column - 1 :].startswith("2,")


@pytest.mark.slow
def test_a_proof_with_the_former_key_units_is_read(solved, tmp_path):
    document = proof_document(solved[1])
    for stage in document["answer"]["stages"]:
        del stage["replicas"]
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(document, allow_nan=False))
    assert not check_proof(path).errors


@pytest.mark.parametrize("key", ["tables: units", "tables: [units]"])
def test_tables_on_units_is_the_former_name_of_tables_on_replicas(tmp_path, key):
    path = tmp_path / "plan.yaml"
    path.write_text(STAGES + f"  - {{layers: embedding .. loss, type: T4, units: 12}}\n{key}\n")
    checked = check_plan(path)
    assert checked.plan.stages[0].tables == "replicas"
    assert checked.plan.stages[0].replicas == 12
    assert not checked.violations


def test_a_file_that_a_plan_names_and_that_is_missing_is_reported_at_its_line(file):
    edited(file, "cluster: cloud-mix", "cluster: clusters/none.yaml")
    with pytest.raises(
        SpecError, match=r"plan\.yaml:3:10: cluster: no such file: clusters/none\.yaml"
    ) as refused:
        check_plan(file)
    assert "folder of the plan" in refused.value.hint


def test_a_preset_and_an_absolute_path_are_written_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cloud-mix").touch()
    (tmp_path / "two.yaml").touch()
    (tmp_path / "hosts.csv").touch()
    for name in ("cloud-mix", str(tmp_path / "two.yaml"), "missing.yaml", "4x2x8:H100"):
        request = relative_to(tmp_path / "plans", PlanRequest(throughput=1.0, cluster=name))
        assert request.cluster == name
    request = relative_to(tmp_path / "plans", PlanRequest(throughput=1.0, cluster="hosts.csv:4xH100"))
    assert request.cluster == "../hosts.csv:4xH100"
