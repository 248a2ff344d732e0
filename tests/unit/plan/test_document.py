"""A bare problem in JSON: what is read, what is written, and every slip at its line and column."""

from __future__ import annotations

import json

import numpy as np
import pytest

from berth.errors import InputError, SpecError
from berth.plan.infeasible import diagnose
from berth.plan.problem import UNLIMITED
from berth.plan.problem_json import answer, parse_problem, problem_document, read_problem
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget, get_method

PROBLEM = {
    "batch": 100,
    "throughput": 50,
    "epochs": 1,
    "samples": 36000,
    "fixed_usd_per_hour": 0.5,
    "types": [{"name": "cpu", "usd_per_hour": 1.0, "limit": 8}, {"name": "gpu", "usd_per_hour": 4.0}],
    "layers": [
        {"name": "emb", "oct": [2, 2], "odt": [1, 4], "alpha": [0.9, 0.9], "beta": [0.9, 0.9], "cross": 0.1},
        {"name": "fc", "kind": "fc", "oct": [40, 2], "odt": [0, 0], "alpha": [0.95, 0.95], "beta": [0.9, 0.9]},
    ],
}  # fmt: skip


def changed(*path, to=None, drop=False):
    document = json.loads(json.dumps(PROBLEM))
    *steps, last = path
    inner = document
    for step in steps:
        inner = inner[step]
    if drop:
        del inner[last]
    else:
        inner[last] = to
    return document


def refused(document) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_problem(json.dumps(document, indent=1), "p.json")
    return caught.value


def test_a_problem_is_read_as_it_is_written():
    problem = parse_problem(json.dumps(PROBLEM), "p.json")
    assert problem.type_names == ("cpu", "gpu")
    assert [one.limit for one in problem.types] == [8, UNLIMITED]
    assert problem.stated.cross_s.tolist() == [0.1, 0.0]
    assert problem.stated.oct_s.tolist() == [[2, 2], [40, 2]]
    assert (problem.batch, problem.throughput, problem.samples, problem.fixed_usd_per_hour) == (
        100,
        50,
        36000,
        0.5,
    )
    assert problem.allowed.all()


def test_what_is_absent_is_assumed():
    document = changed("types", 0, "limit", to=None)
    for key in ("epochs", "fixed_usd_per_hour"):
        del document[key]
    problem = parse_problem(json.dumps(document), "p.json")
    assert problem.types[0].limit == UNLIMITED
    assert (problem.epochs, problem.fixed_usd_per_hour) == (1, 0)


def test_memory_and_allowed_types_are_optional_extras_and_survive_writing():
    document = changed("types", 1, "memory_bytes", to=1000)
    document["layers"][0] |= {"sharded_bytes": 1500, "replicated_bytes": 10, "allowed": ["cpu"]}
    problem = parse_problem(json.dumps(document), "p.json")
    again = parse_problem(json.dumps(problem_document(problem)), "again")
    for one in (problem, again):
        assert one.types[1].memory_bytes == 1000
        assert one.stated.sharded_bytes.tolist() == [1500, 0]
        assert one.allowed.tolist() == [[True, False], [True, True]]
    assert problem_document(again) == problem_document(problem)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (changed("layers", 0, "oct", 1, to=float("nan")), "oct.1: input should be a finite number (given: nan)"),
        (changed("layers", 0, "oct", 0, to=0), "layers.0.oct.0: input should be greater than 0 (given: 0)"),
        (changed("layers", 1, "odt", 0, to=-1), "odt.0: input should be greater than or equal to 0 (given: -1)"),
        (changed("layers", 1, "alpha", 1, to=1.01), "less than or equal to 1 (given: 1.01)"),
        (changed("layers", 1, "beta", 1, to=-0.01), "greater than or equal to 0 (given: -0.01)"),
        (changed("layers", 1, "cross", to=-0.01), "cross: input should be greater than or equal to 0 (given: -0.01)"),
        (changed("layers", 0, "oct", to=[1]), "layers.0.oct: has 1 numbers for 2 types"),
        (changed("layers", 0, "oct", to=3), "layers.0.oct: input should be a valid list (given: 3)"),
        (changed("layers", 0, "oct", 0, to="3"), "layers.0.oct.0: input should be a valid number (given: '3')"),
        (changed("layers", 0, "oct", 0, to=True), "layers.0.oct.0: input should be a valid number (given: True)"),
        (changed("layers", 0, "alhpa", to=[1, 1]), "did you mean 'alpha'?"),
        (changed("layers", 0, "alpha", drop=True), "layers.0.alpha: is missing"),
        (changed("layers", 1, "name", to="emb"), "two layers are called 'emb'"),
        (changed("layers", 1, "name", to=7), "layers.1.name: input should be a valid string (given: 7)"),
        (changed("layers", 1, "allowed", to=["gqu"]), "did you mean 'gpu'?"),
        (changed("layers", to=[]), "layers: is empty; it needs at least 1"),
        (changed("layers", to={"a": 1}), "layers: input should be a valid list"),
        (changed("layers", 0, to=4), "layers.0: input should be a valid dictionary"),
        (changed("types", to=[]), "types: is empty; it needs at least 1"),
        (changed("types", 1, "name", to="cpu"), "two types are called 'cpu'"),
        (changed("types", 0, "usd_per_hour", to=0), "usd_per_hour: input should be greater than 0 (given: 0)"),
        (changed("types", 0, "usd_per_hour", to=-1), "usd_per_hour: input should be greater than 0 (given: -1)"),
        (changed("types", 0, "limit", to=1.5), "types.0.limit: 1.5 is not a whole number"),
        (changed("types", 0, "limit", to=-1), "types.0.limit: input should be greater than or equal to 0 (given: -1)"),
        (changed("throughput", to=0), "throughput: input should be greater than 0 (given: 0)"),
        (changed("throughput", to=float("inf")), "throughput: input should be a finite number (given: inf)"),
        (changed("batch", to=-1), "batch: input should be greater than 0 (given: -1)"),
        (changed("batch", to=1e308), "berth plans with 1e-18 to 1e+18"),
        (changed("batch", to=10**400), "batch: input should be"),
        (changed("throughput", to=1e-308), "berth plans with 1e-18 to 1e+18"),
        (changed("samples", drop=True), "samples: is missing"),
        (changed("sample", to=1), "did you mean 'samples'?"),
        ([1, 2], "holds a list where keys and values belong"),
    ],
)  # fmt: skip
def test_invalid_input_is_one_message(document, said):
    error = refused(document)
    assert said in str(error)
    assert "Traceback" not in str(error)


def test_an_error_is_reported_with_line_and_column():
    error = refused(changed("layers", 1, "alpha", 0, to=2))
    line, column = map(int, error.where.split(":")[1:])
    text = json.dumps(changed("layers", 1, "alpha", 0, to=2), indent=1).splitlines()[line - 1]
    assert text[column - 1 :].startswith("2")


@pytest.mark.parametrize(("name", "escaped"), [("\U0001f600", True), ("\x7f", False)])
@pytest.mark.parametrize(
    ("path", "value", "said"),
    [(("batch",), -1, "batch: input should be"), (("layers", 0, "oct"), [1], "oct: has 1 numbers")],
)
def test_an_error_in_json_that_is_not_yaml_is_reported_without_a_position(name, escaped, path, value, said):
    document = changed(*path, to=value)
    document["layers"][1]["name"] = name
    with pytest.raises(SpecError, match=said) as caught:
        parse_problem(json.dumps(document, ensure_ascii=escaped), "p.json")
    assert caught.value.where == "p.json"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{", "p.json:1:2"),
        ("", "p.json:1:1"),
        ('{"batch": 1,\n\t"types": [{"name": "a", "name": "b"}]}', "p.json:2:26"),
        ("[]", "p.json:1:1"),
        ("[" * 100_000, "p.json"),
    ],
    ids=["half", "empty", "twice", "list", "deep"],
)
def test_invalid_json_is_refused_with_its_position(text, where):
    with pytest.raises(SpecError) as caught:
        parse_problem(text, "p.json")
    assert caught.value.where == where


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SpecError, match="no such file"):
        read_problem(tmp_path / "none.json")


def test_the_answer_has_exactly_the_promised_keys_and_adds_up():
    problem = parse_problem(json.dumps(PROBLEM), "p.json")
    found = answer(exact(problem, Budget()))
    assert list(found) == [
        "feasible", "assignment", "stages", "micro_batches", "readers", "throughput", "cost_usd", "lower_bound_usd",
        "method", "evaluations", "cpu_s",
    ]  # fmt: skip
    price = {one.name: one.usd_per_hour for one in problem.types}
    rate = 0.5 + sum(price[stage["type"]] * stage["replicas"] for stage in found["stages"])
    assert found["cost_usd"] == pytest.approx(36000 / found["throughput"] / 3600 * rate)
    assert [layer for stage in found["stages"] for layer in stage["layers"]] == ["emb", "fc"]
    assert found["lower_bound_usd"] == pytest.approx(found["cost_usd"])
    assert found["lower_bound_usd"] <= found["cost_usd"]
    json.dumps(found, allow_nan=False)


def test_a_method_that_proves_nothing_states_no_bound():
    problem = parse_problem(json.dumps(PROBLEM), "p.json")
    assert answer(get_method("greedy")(problem, Budget()))["lower_bound_usd"] is None


def test_an_infeasible_problem_says_why_and_what_is_nearest():
    problem = parse_problem(json.dumps(changed("throughput", to=1e9)), "p.json").with_limits(
        {"cpu": 1, "gpu": 1}
    )
    outcome = exact(problem, Budget())
    found = answer(outcome, diagnose(problem))
    assert found["feasible"] is False
    assert found["throughput"] is None
    assert found["lower_bound_usd"] is None
    assert found["reason"]
    nearest = found["nearest"]["throughput"]
    assert exact(problem.at(nearest * (1 - 1e-6)), Budget()).plan is not None
    assert exact(problem.at(nearest * 1.001), Budget()).plan is None
    json.dumps(found, allow_nan=False)


def test_a_large_problem_is_read_whole():
    rows = np.random.default_rng(0).uniform(0.1, 1, (1000, 8)).tolist()
    layers = [
        {"name": f"l{at}", "oct": row, "odt": row, "alpha": row, "beta": row} for at, row in enumerate(rows)
    ]
    types = [{"name": f"t{at}", "usd_per_hour": 1} for at in range(8)]
    document = {"batch": 1, "throughput": 1, "samples": 1, "types": types, "layers": layers}
    problem = parse_problem(json.dumps(document), "p.json")
    assert problem.stated.oct_s.tolist() == rows
