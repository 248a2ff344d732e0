"""The guide to testing policies does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from berth.testing.repeat import main

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "testing-policies.md").read_text()


@pytest.mark.slow
def test_the_python_of_the_guide_runs():
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "testing-policies.md", "exec"), scope)
    scope["test_whatever_happens"]()
    assert len(blocks) == 3


def test_the_command_of_the_guide_repeats_a_scenario(capsys):
    (text,) = re.findall(r"berth\.testing\.repeat '(.*?)'", GUIDE)
    assert main([text]) == 0
    assert "everything adds up" in capsys.readouterr().out
