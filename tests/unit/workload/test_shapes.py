"""Jobs with parts and alternatives: reading, positions of mistakes, and where a shape can ever lie."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster.load import load_cluster
from berth.errors import InputError, TraceError
from berth.workload.binding import bind, bind_fitting, bind_offer, group_devices, nearest_tier_of
from berth.workload.reading import read_trace
from berth.workload.shape_spec import parse_offer
from berth.workload.shapes import Work, parse_work

OFFER = """\
work: 2B examples
batch: 65536
alternatives:
  - parts: [{name: dense, devices: {A100-40: 4}, tier: machine}, {name: rows, devices: {cpu-core: 40}}]
    step: {near: 40ms, network: 90ms}
  - parts: [{name: all, devices: {any_of: [V100-16, T4], count: 8}}]
    step: {machine: 70ms, network: 80ms}
    price: $9.50/h
"""


def offer(text=OFFER, **changed):
    for old, new in changed.items():
        assert old in text
        text = text.replace(old, new)
    return parse_offer(text, "job.yaml")


@pytest.mark.parametrize(
    ("text", "work"),
    [
        ("2B examples", Work(2e9, "examples")),
        ("500k steps", Work(5e5, "steps")),
        ("1.5e6 examples", Work(1.5e6, "examples")),
    ],
)
def test_work_is_a_number_of_examples_or_steps(text, work):
    assert parse_work(text) == work


def test_alternatives_are_read_with_one_for_each_type_of_any_of():
    found = offer()
    assert found.work == Work(2e9)
    assert sorted(shape.name for shape in found.alternatives) == [
        "4 A100-40 + 40 cpu-core",
        "8 T4",
        "8 V100-16",
    ]
    assert {shape.examples_per_step for shape in found.alternatives} == {65536.0}


def test_the_order_in_which_alternatives_are_written_has_no_meaning():
    head, first, second = OFFER.partition("  - parts: [{name: all")
    turned = head[: head.index("  - parts")] + first + second + head[head.index("  - parts") :]
    assert parse_offer(turned, "x") == offer()


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("work: 2B examples\n", "", "job.yaml:3:3", "can't be compared"),
        ("work: 2B examples", "work: much", "job.yaml:1:7", "is not an amount of work"),
        ("work: 2B examples", "work: 9e30 examples", "job.yaml:1:7", "take 2e+17 years in the fastest alternative"),
        ("{machine: 70ms, network: 80ms}", "5000000s", "job.yaml:6:5", "the work takes 4,839 years in 8 "),
        ("batch: 65536", "batch: 1e-9", "job.yaml:1:7", "; 317 years at most"),
        ("batch: 65536\n", "", "job.yaml:3:5", "examples of a step are not known"),
        ("    step: {near: 40ms, network: 90ms}\n", "", "job.yaml:4:5", "step times are missing"),
        ("40ms", "0s", "job.yaml:5:18", "greater than 0"),
        ("cpu-core: 40", "cpu-core: 0", "job.yaml:4:99", "greater than 0"),
        ("name: rows", "name: dense", "job.yaml:4:5", "two parts are called 'dense'"),
        ("  - parts: [{name: all, devices: {any_of: [V100-16, T4], count: 8}}]", "  - plan: p.yaml",
         "job.yaml:6:11", "can't be read here"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_position(old, new, where, what):
    text = OFFER.replace(old, new)
    if "plan:" in new:
        text = text.replace("    step: {machine: 70ms, network: 80ms}\n    price: $9.50/h\n", "")
    with pytest.raises(InputError) as caught:
        parse_offer(text, "job.yaml")
    assert where in str(caught.value)
    assert what in str(caught.value)


def test_shapes_are_bound_to_a_cluster_with_step_times_at_each_tier():
    cluster = load_cluster("cloud-mix")
    bound = {one.shape.name: one for one in bind_offer(offer(), cluster)}
    mixed, v100, t4 = bound["4 A100-40 + 40 cpu-core"], bound["8 V100-16"], bound["8 T4"]
    assert (mixed.nearest_tier, mixed.step_s) == (1, (0.09, 0.09))
    assert (v100.nearest_tier, v100.step_s, v100.usd_per_hour) == (0, (0.07, 0.08), 9.5)
    assert (t4.nearest_tier, t4.step_s) == (1, (0.08, 0.08))
    assert [one.tier for one in mixed.tied] == [0]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("A100-40: 4", "A100-40: 16", "no machine ever holds part dense: 16 A100-40"),
        ("A100-40: 4", "A100-80: 4", "part dense asks for A100-80, and cloud-mix has none"),
        (", network: 80ms", "", "step times have none for network"),
        ("tier: machine", "tier: rack", "no tier is called 'rack'"),
        ("work: 2B", "deadline: 1m\nwork: 2B", "no alternative meets the deadline of 1m: the nearest, "),
        ("cpu-core: 40", "cpu-core: 4000", "asks for 4000 cpu-core, and cloud-mix has 768"),
    ],
)
def test_what_a_cluster_can_never_do_is_refused_with_its_position(old, new, what):
    with pytest.raises(InputError) as caught:
        bind_offer(offer(OFFER.replace(old, new)), load_cluster("cloud-mix"))
    assert what in str(caught.value)
    assert str(caught.value).startswith("job.yaml:")


def test_a_trace_leaves_out_alternatives_that_never_fit():
    found = bind_fitting(offer(OFFER.replace("A100-40: 4", "A100-40: 16")), load_cluster("cloud-mix"))
    assert sorted(one.shape.name for one in found) == ["8 T4", "8 V100-16"]


GANG = {"job_id": "g", "submit_s": 0, "num_gpu": 1, "duration_s": 1}
EITHER = {
    "work": "10 steps",
    "alternatives": [{"parts": [{"name": "all", "devices": {"T4": 1}}], "step": "1s"}],
}


def one_line(**changed: object) -> str:
    return json.dumps({"job_id": "b", "submit_s": 0} | changed)


@pytest.mark.parametrize(
    ("line", "marked", "what"),
    [
        (one_line(num_gpu=3, duration_s=3e30), "3e+30", "duration_s: input should be less than or equal to"),
        (one_line(num_gpu=3, duration_s=3, submit_s=3e30), "3e+30", "submit_s: input should be less than"),
        (one_line(num_gpu=3, duration=3), '"duration"', "duration: unknown key"),
        (
            one_line(num_gpu=3, duration_s=3)[:-1] + ', "num_gpu": 4}',
            '"num_gpu": 4',
            "'num_gpu' is given twice",
        ),
        (
            one_line(**EITHER).replace('"10 steps"', "10 steps"),
            "steps",
            "is not JSON: Expecting ',' delimiter",
        ),
        (one_line(**EITHER).replace("10 steps", "9e30 steps"), '"9e30', "years in the fastest alternative"),
        (one_line(**EITHER).replace('"T4": 1', '"T4": 0'), "0}}]", "input should be greater than 0"),
        (
            one_line(**EITHER).replace("10 steps", "10 examples"),
            '{"parts"',
            "examples of a step are not known",
        ),
        (
            one_line(num_gpu=[], name="-").replace("-", "\u00e4\U0001f600"),
            "[]",
            "num_gpu: input should be a valid",
        ),
        (one_line(name="\u00e4", vc=0.5), "0.5}", "vc: input should be a valid string"),
        (one_line(**{"job_id": "b", "name": [[]] * 2, "vc": "[" * 70}) + "[" * 65, "[", ""),
    ],
)
def test_a_mistake_in_a_json_line_has_its_column(tmp_path, line, marked, what):
    path = tmp_path / "jobs.jsonl"
    path.write_text(f"{json.dumps(GANG)}\n{line}\n")
    (row,) = read_trace(path).bad.first
    assert what in row.reason
    assert ":1:" not in row.reason
    assert row.line == 2
    if what:
        assert row.column == line.rindex(marked) + 1
    else:
        assert row.column is not None


def test_json_that_yaml_cannot_read_has_the_line_only(tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_text(
        json.dumps(GANG) + '\n{"job_id": "\\ud83d", "submit_s": 0, "num_gpu": 0, "duration_s": 1}\n'
    )
    (row,) = read_trace(path).bad.first
    assert row.place("x") == "x:2"
    assert "num_gpu: input should be greater than 0" in row.reason


def test_a_very_long_line_has_the_line_only(tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_text(f"{json.dumps(GANG)}\n{one_line(name='n' * 200_000, num_gpu=0, duration_s=1)}\n")
    (row,) = read_trace(path).bad.first
    assert row.place("x") == "x:2"


def test_what_a_cluster_can_never_do_names_the_line_of_a_trace(tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_text(json.dumps(GANG) + "\n" + one_line(**EITHER).replace('"1s"', '{"machine": "1s"}') + "\n")
    with pytest.raises(InputError, match=r"jobs\.jsonl:2: 1 T4: step times have none for network"):
        bind_fitting(read_trace(path).offers["b"], load_cluster("cloud-mix"))


def test_json_lines_hold_plain_jobs_and_offers_and_read_back_the_same(tmp_path):
    lines = [
        {"job_id": "a", "submit_s": 0, "num_gpu": 8, "duration_s": 3600.5, "user": "ada", "priority": 2},
        {"job_id": "b", "submit_s": 5, "work": "2e6 examples", "batch": 128, "deadline": "6h", "alternatives": [
            {"parts": [{"name": "all", "devices": {"V100-16": 8}}], "step": {"near": "40ms", "network": "90ms"}},
            {"parts": [{"name": "all", "devices": {"T4": 4}, "collective": "5MB"}], "step": "0.1s", "between": "1MB"},
        ]},
    ]  # fmt: skip
    path, again = tmp_path / "jobs.jsonl", tmp_path / "again.jsonl.gz"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = read_trace(path)
    assert trace.format == "jsonl"
    assert trace.frame["duration_s"].to_list() == [
        3600.5,
        trace.offers["b"].near_s(trace.offers["b"].alternatives[0]),
    ]
    assert trace.offers["b"].deadline_s == 6 * 3600
    trace.write(again)
    read = read_trace(again)
    assert read.frame.equals(trace.frame)
    assert read.offers == trace.offers
    with pytest.raises(TraceError, match="which CSV can't hold"):
        trace.write(tmp_path / "jobs.csv")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"job_id": "b", "submit_s": 5}', "num_gpu is missing"),
        ('{"job_id": "b", "submit_s": 5, "alternatives": []}', "alternatives: is empty"),
        (
            '{"job_id": "b", "submit_s": 5, "work": "2 steps", "alternatives": []}',
            "alternatives: is empty; it needs at least 1",
        ),
        (
            '{"job_id": "b", "submit_s": 5, "alternatives": ' + "[" * 100_000 + "]" * 100_000 + "}",
            "is nested more than 64 deep",
        ),
        ('{"job_id": "b", "submit_s": ' + "9" * 5000 + "}", "holds a number of too many digits"),
        (
            '{"job_id": "b", "submit_s": 5, "work": "2 steps", "num_gpu": 1, "duration_s": 1}',
            "belong to a job",
        ),
        ('{"job_id": "b", "submit_s": 5, "gpus": 1}', "unknown key"),
        ('{"job_id": "b", ', "is not JSON"),
        (
            '{"job_id": "b", "submit_s": 5, "work": "2 steps", "alternatives": [{"step": "1s", "parts": '
            '[{"name": "a", "devices": {"A100-40": 2, "A100-40": 4}}]}]}',
            "'A100-40' is given twice in one object; remove one of the two",
        ),
        (
            '{"job_id": "b", "submit_s": 5, "submit_s": 6, "num_gpu": 1, "duration_s": 1}',
            "'submit_s' is given twice",
        ),
    ],
)
def test_a_bad_line_is_counted_and_strict_names_it(tmp_path, line, what):
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"job_id": "a", "submit_s": 0, "num_gpu": 8, "duration_s": 3600}\n' + line + "\n")
    assert len(read_trace(path)) == 1
    with pytest.raises(TraceError) as caught:
        read_trace(path, strict=True)
    assert f"{path}:2" in str(caught.value)
    assert what in str(caught.value)


NO_UNIT = "has no unit, so it is not a duration; write it like 12h, 30s or 40ms"
STEP, DEVICES = "alternatives.0.step", "alternatives.0.parts.0.devices"


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("step", 40, f"{STEP}: '40' {NO_UNIT}"),
        ("step", "5", f"{STEP}: '5' {NO_UNIT}"),
        ("step", "0ms", f"{STEP}: input should be greater than 0 (given: '0ms')"),
        ("step", {"near": 40}, f"{STEP}.near: '40' {NO_UNIT}"),
        ("step", {}, f"{STEP}: is empty; it needs at least 1"),
        ("devices", 5, f"{DEVICES}: input should be a valid dictionary (given: 5)"),
        ("devices", {"any_of": ["T4"]}, f"{DEVICES}.count: is missing"),
        ("devices", {"any_of": ["T4"], "count": 0}, f"{DEVICES}.count: input should be greater than 0 (given: 0)"),
        ("parts", ["x"], "alternatives.0.parts.0: input should be a valid dictionary (given: 'x')"),
        ("devices", {"T4": 1.5}, f"{DEVICES}.T4: input should be a valid integer (given: 1.5)"),
        ("step", "NaN", f"{STEP}: 'NaN' is not a duration; write it like 12h, 30s or 40ms"),
        ("devices", {"T4": "2"}, f"{DEVICES}.T4: input should be a valid integer (given: '2')"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_form_of_a_value_is_one_message_with_the_keys_as_written(tmp_path, key, value, what):
    part = {"name": "all", "devices": value if key == "devices" else {"T4": 2}}
    shape = {"parts": value if key == "parts" else [part], "step": value if key == "step" else "1s"}
    job = {"work": "2 steps", "alternatives": [shape]}
    with pytest.raises(InputError) as submitted:
        parse_offer(json.dumps(job), "job.yaml")
    assert submitted.value.what == what
    path = tmp_path / "jobs.jsonl"
    path.write_text(json.dumps({"job_id": "b", "submit_s": 5} | job))
    with pytest.raises(TraceError) as read:
        read_trace(path)
    where, _, said = str(read.value).splitlines()[0].removeprefix(f"{path}:1:").partition(": ")
    assert said == what
    assert where.isdecimal()


def test_ids_may_be_numbers_as_in_csv(tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"job_id": 7, "submit_s": 0, "num_gpu": 1, "duration_s": 1, "user": 12, "vc": 3}\n')
    row = read_trace(path, strict=True).frame.row(0, named=True)
    assert (row["job_id"], row["user"], row["vc"]) == ("7", "12", "3")


def test_two_mistakes_in_a_line_are_separated(tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"job_id": "b", "submit_s": "x", "num_gpu": 0, "duration_s": 1}')
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    first, second = str(caught.value).splitlines()[0].split("; ")
    assert first.startswith(f"{path}:1:29: submit_s: ")
    assert second.startswith("num_gpu: ")


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2)), min_size=1, max_size=4),
    free=st.integers(0, 6),
)
def test_the_nearest_tier_of_tied_parts_is_that_of_a_brute_force_search(parts, free):
    cluster = load_cluster("2x2x4")
    need = (sum(count for count, _ in parts) + free,)
    tied = tuple(
        sorted(((tier, (count,)) for count, tier in parts if tier < 2), key=lambda one: (one[0], -one[1][0]))
    )
    assert nearest_tier_of(cluster, need, tied) == brute_force(cluster, need, tied)


def brute_force(cluster, need, tied):
    for tier in range(3):
        sizes = group_devices(cluster, tier)[:, 0]
        for group in range(len(sizes)):
            if sizes[group] < need[0]:
                continue
            inside = [m for m in range(4) if cluster.groups[tier][m] == group]
            below = [one for one in tied if one[0] < tier]
            options = [sorted({int(cluster.groups[level][m]) for m in inside}) for level, _ in below]
            if any(_side_by_side(cluster, below, picked) for picked in itertools.product(*options)):
                return tier
    return None


def _side_by_side(cluster, tied, picked):
    """Whether parts in these groups fit, by trying every way to fill the machines of those in racks."""
    used = [0, 0, 0, 0]
    for (level, (count,)), group in zip(tied, picked, strict=True):
        if level == 0:
            used[group] += count
    racks = [[0, 1], [2, 3]]
    for rack, machines in enumerate(racks):
        more = sum(
            count
            for (level, (count,)), group in zip(tied, picked, strict=True)
            if level == 1 and group == rack
        )
        if any(used[m] > 4 for m in machines) or sum(used[m] for m in machines) + more > 8:
            return False
    return True


def test_positions_do_not_matter_for_equality():
    assert replace(offer(), where=()) == offer()


def test_a_shape_may_be_kept_within_a_tier():
    shape = replace(offer().alternatives[0], tier="machine")
    with pytest.raises(InputError, match="ever holds"):
        bind(
            shape if shape.name == "8 T4" else replace(shape, parts=shape.parts * 2),
            load_cluster("cloud-mix"),
        )


def test_a_missing_step_time_is_answered_with_all_tiers_that_need_one():
    text = OFFER.replace("step: {near: 40ms, network: 90ms}", "step: {machine: 40ms}")
    assert text != OFFER
    with pytest.raises(InputError, match="have none for network") as caught:
        bind_offer(offer(text), load_cluster("cloud-mix"))
    assert "one for all: step: 40ms" in caught.value.hint
    text = (
        "work: 1k steps\nalternatives: [{parts: [{name: all, devices: {H100: 16}}], step: {machine: 40ms}}]\n"
    )
    with pytest.raises(InputError) as caught:
        bind_offer(offer(text), load_cluster("2x2x8:H100"))
    assert "for each of rack, network" in caught.value.hint
