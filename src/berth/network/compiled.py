"""The same arithmetic, compiled: for event loops that ask about millions of placements.

The kernels are plain functions over numbers and arrays. A command that prints eight rows runs them as they
stand and spares its user the compiler; compiled code of other rooms may call any of them by its own name once
this module is imported, and finds the most used ones here ready made.
"""

from __future__ import annotations

from numba import njit
from numba.extending import register_jitable

from berth.network import _flow_kernels, _kernels

for _module in (_kernels, _flow_kernels):
    for _function in [
        item for item in vars(_module).values() if getattr(item, "__module__", "") == _module.__name__
    ]:
        register_jitable(_function)

communication_s = njit(cache=True)(_kernels.communication_s)
overlapped_s = njit(cache=True)(_kernels.overlapped_s)
flow = njit(cache=True)(_flow_kernels.flow)
