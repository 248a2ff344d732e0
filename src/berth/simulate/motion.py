"""What the network does to a gang that comes or goes, behind addresses: without a network it is not compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from berth.compile import step, types_of
from berth.schedule.view import Array, World
from berth.simulate.speed import depart, enter
from berth.simulate.view import OFF, Course, Net


class Motion(NamedTuple):
    """A gang's speed is set when it enters; when it departs, that of others changes."""

    enter: Any
    depart: Any


def motion_for(world: World, course: Course, net: Net, clock: Array) -> Motion:
    """Both functions, or none where all devices are alike and nothing is sent."""
    signature = types.void(*types_of(world, course, net), types.int64, types.float64)
    if clock["network"][0] == OFF and clock["kinds"][0] == 1:
        return Motion(_nothing.at(signature), _nothing.at(signature))
    return Motion(enter.at(signature), depart.at(signature))


@step
def _nothing(world: World, course: Course, net: Net, row: int, now: float) -> None:
    """Where nothing is sent, nobody has to wait for anybody."""
