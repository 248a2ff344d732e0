"""A job as it is written."""

import pytest

from berth import spec as yaml_spec
from berth.errors import SpecError
from berth.live.spec import JobSpec


def test_what_is_written_comes_back_from_the_journal():
    text = (
        "run: python train.py\nname: a\ngpus: 8\nduration: 90m\ngrace: 5s\nmemory: 2GiB\nenv: {LR: '0.1'}\n"
    )
    spec = yaml_spec.parse(text, JobSpec, "job.yaml")
    assert JobSpec.model_validate(spec.plain()) == spec
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
        ("run: x\ncwd: relative", "cwd"),
        ("run: x\nstep_pattern: '('", "regular expression"),
        ("run: x\nstep_pattern: 'step [0-9]+'", "group named"),
        ("run: x\nenv: {'a b': c}", "env"),
        ('run: x\nname: "a\\u0007"', "name"),
        ("run: []", "run"),
    ],
)
def test_mistakes_are_named_where_they_stand(text, said):
    with pytest.raises(SpecError, match=said):
        yaml_spec.parse(text, JobSpec, "job.yaml")
