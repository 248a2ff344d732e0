"""The kernels, compiled: for event loops that evaluate millions of placements.

The kernels are plain functions over numbers and arrays. A command that prints eight rows runs them as they
are and needs no compiler; compiled code of other packages may call any of them by name once this module is
imported, and finds the most used ones here, compiled.
"""

from __future__ import annotations

import inspect

from berth import reproducible
from berth.native.kernels import compilable, entry
from berth.network import _contention_kernels, _flow_kernels, _kernels, _sharing_kernels

for _module in (reproducible, _kernels, _flow_kernels, _sharing_kernels, _contention_kernels):
    for _function in list(vars(_module).values()):
        if inspect.isfunction(_function) and _function.__module__ == _module.__name__:
            compilable(_function)

communication_s = entry(_kernels.communication_s)
overlapped_s = entry(_kernels.overlapped_s)
flow = entry(_flow_kernels.flow)
add = entry(_sharing_kernels.add)
remove = entry(_sharing_kernels.remove)
describe = entry(_contention_kernels.describe)
join = entry(_contention_kernels.join)
leave = entry(_contention_kernels.leave)
