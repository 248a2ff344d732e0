"""What the examples print is what is stored beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
import transcripts

from preloaded import programs

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

TRANSCRIPTS = sorted(EXAMPLES.glob("*.console"))


def test_there_are_examples():
    assert len(TRANSCRIPTS) >= 4


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_an_example_prints_what_is_stored(path):
    assert transcripts.replay(path, programs()) == path.read_text()


def test_a_changed_output_would_be_noticed(tmp_path):
    assert transcripts.play("$ echo one\ntwo\n", tmp_path) == "$ echo one\none\n"


def test_a_failing_command_shows_its_exit_code(tmp_path):
    assert transcripts.run("exit 3", tmp_path) == "[exit 3]"
