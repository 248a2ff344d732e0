"""The guide's model is the one among the examples."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_model_of_the_guide_is_the_one_among_the_examples():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/training.md").read_text(), re.DOTALL)
    assert blocks[0] == (ROOT / "examples/train_own_model.py").read_text()
