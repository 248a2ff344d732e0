"""A real Ray for these tests, started once, and controllers that they crank by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_ray import Desk, Racks

from berth.live.backends.ray import RayBackend

FOLDER = Path(__file__).parent
_running: list[Racks] = []


@pytest.fixture
def racks():
    if not _running:
        _running.append(Racks())
    return _running[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem):
    """Ray ends with the last test that may need it: its processes take CPU time while they idle."""
    if _running and (nextitem is None or FOLDER not in nextitem.path.parents):
        import ray

        ray.shutdown()
        _running.pop().ray.shutdown()


@pytest.fixture
def open_desk(racks, tmp_path):
    racks.repair()
    desks = []

    def opened(**more):
        desks.append(Desk(tmp_path, racks.address, **more))
        return desks[-1]

    yield opened
    for desk in desks:
        desk.close()


@pytest.fixture
def desk(open_desk):
    return open_desk()


@pytest.fixture
def backend(racks, tmp_path):
    """With time: on a busy machine gangs start and Ray answers late."""
    racks.repair()
    found = RayBackend(tmp_path, racks.address, start_s=300.0, answer_s=60.0)
    found.cluster()
    found.observe()
    yield found
    found.close()
