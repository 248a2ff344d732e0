"""A real `berth up` in a process of its own, which tests may kill."""

import pytest

from berth.testing.up import Up


@pytest.fixture
def up(tmp_path):
    made: list[Up] = []

    def make(*options: str) -> Up:
        made.append(Up(tmp_path / f"state-{len(made)}", *options))
        return made[-1].start()

    yield make
    for one in made:
        if one.process.poll() is None:
            one.clear()
