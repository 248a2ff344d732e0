"""The network's functions, compiled: for event loops that evaluate millions of placements.

They are plain functions over numbers and arrays. A command that prints eight rows runs them as they are and needs no
compiler. Once this module is imported, compiled code may call any of them by name; the kernels of other packages import
what they call from here.
"""

from __future__ import annotations

import inspect

from berth import reproducible
from berth.native.kernels import compilable, entry, kernel
from berth.network import _contention_kernels, _flow_kernels, _kernels, _sharing_kernels

for _module in (reproducible, _kernels, _flow_kernels, _sharing_kernels, _contention_kernels):
    for _function in list(vars(_module).values()):
        if inspect.isfunction(_function) and _function.__module__ == _module.__name__:
            compilable(_function)

# for kernels of other packages
communication_s, overlapped_s = kernel(_kernels.communication_s), kernel(_kernels.overlapped_s)
flow = kernel(_flow_kernels.flow)
describe, join = kernel(_contention_kernels.describe), kernel(_contention_kernels.join)
leave = kernel(_contention_kernels.leave)

# for Python
add, remove = entry(_sharing_kernels.add), entry(_sharing_kernels.remove)
