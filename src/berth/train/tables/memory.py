"""Arrays that grow without copying, freed memory that is kept, and cache prefetch for kernels.

`reserve` maps the largest address range that a column could need; the system backs only touched pages. So a column
never moves, and kernels see one plain array.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import DTypeLike, NDArray

HUGE_PAGE_BYTES = 2 << 20
# Without MAP_NORESERVE a process that reserved more than physical memory can't fork. Python defines it from 3.13 on.
_LINUX = 0x4000 if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") else 0
_NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", _LINUX)
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's mallopt
_KEPT_BYTES = 2**31 - 1


def physical_bytes() -> int:
    """Return the physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def reserve(items: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros that takes memory as its pages are touched."""
    kind = np.dtype(dtype)
    size = max(items, 1) * kind.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    space = mmap.mmap(-1, size, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE") and size >= HUGE_PAGE_BYTES:
        space.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(space, kind, count=items)


def release_pages(column: NDArray[Any], start: int) -> None:
    """Release the pages of a reserved column from item `start` on; they read as zeros afterwards."""
    space: Any = column.base
    while not isinstance(space, mmap.mmap):
        space = space.obj if isinstance(space, memoryview) else space.base
    page = mmap.PAGESIZE
    first = -(-start * column.itemsize // page) * page
    if hasattr(mmap, "MADV_DONTNEED") and first < len(space):
        space.madvise(mmap.MADV_DONTNEED, first)


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks, which a step needs again, instead of faulting them in each time.

    Without limits on mappings it would map blocks above 32 MiB separately, whatever their threshold, and unmap them
    when they are freed: batches of thousands of examples have such blocks.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def _prefetch(_context: Any, array: Any, at: Any) -> Any:
    """Prefetch `array[at]` into the CPU caches, so that cache misses of look-ups overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        name = "llvm.prefetch.p0i8"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


prefetch: Any = intrinsic(_prefetch)
