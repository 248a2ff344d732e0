"""A job as it is written."""

import pytest

from berth import spec as yaml_spec
from berth.errors import InputError, SpecError
from berth.live.spec import JobSpec, check_name


def test_what_is_written_comes_back_from_the_journal():
    text = (
        "run: python train.py\nname: a\ngpus: 8\nduration: 90m\ngrace: 5s\nmemory: 2GiB\nenv: {LR: '0.1'}\n"
    )
    spec = yaml_spec.parse(text, JobSpec, "job.yaml")
    assert JobSpec.model_validate(spec.to_dict()) == spec
    assert spec.duration == 5400


def test_a_line_is_read_by_the_shell_and_a_list_is_not():
    assert JobSpec(run="a | b").argv == ["/bin/sh", "-c", "a | b"]
    assert JobSpec(run=["a", "| b"]).argv == ["a", "| b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpus: 8", "run"),
        ("run: x\ngpus: 0", "job.yaml:2:7"),
        ("run: x\ngpu: 8", "gpus"),
        ("run: x\nduration: 6", "unit"),
        ("run: x\nkind: A\nany_of: [B]", "not both"),
        ("run: x\ncwd: relative", "job.yaml:2:6: cwd: must begin with a /"),
        ("run: x\nstep_pattern: '('", "regular expression"),
        ("run: x\nstep_pattern: 'step [0-9]+'", "group named"),
        ("run: x\nenv: {'a b': c}", "env.a b: must be a variable name"),
        ('run: x\nname: "a\\u0007"', "name: must be one line"),
        ('run: "a\\0b"', "can't hold a zero byte"),
        ("run: []", "run"),
    ],
)
def test_errors_in_a_spec_name_the_line(text, said):
    with pytest.raises(SpecError, match=said):
        yaml_spec.parse(text, JobSpec, "job.yaml")


def test_blanks_around_arguments_and_values_are_part_of_them():
    spec = JobSpec(run=["printf", "[%s]", "  a ", " ", "x "], env={"V": "  v "}, name=" job ")
    assert spec.argv == ["printf", "[%s]", "  a ", " ", "x "]
    assert spec.env == {"V": "  v "}
    assert spec.name == "job"


def test_a_name_that_ends_in_a_line_break_is_refused():
    with pytest.raises(InputError, match="is not a name"):
        check_name("mallory\n")
