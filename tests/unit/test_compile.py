"""The fingerprint under which compiled code is kept: it covers every source that ends up in that code."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

from berth.compile import Step, compiled_sources, room_of
from berth.network import _flow_kernels, _kernels


@pytest.mark.parametrize("name", ["berth.simulate.run", "berth.cluster.ledger", "berth.plan.evaluate"])
def test_every_compiled_function_stands_in_a_source_that_the_fingerprint_covers(name):
    import_module(name)
    found = [
        (module, value)
        for module in list(sys.modules)
        if module.startswith("berth.") and not module.startswith("berth.live")
        for value in vars(sys.modules[module]).values()
        if isinstance(value, Dispatcher | Step)
    ]
    assert found
    for _, value in found:
        function = value.py_func if isinstance(value, Dispatcher) else value._function
        file = Path(inspect.getfile(function))
        assert file in compiled_sources(room_of(function.__module__)), file


@pytest.mark.parametrize("module", [_kernels, _flow_kernels])
def test_kernels_that_name_no_compiler_are_covered_too(module):
    assert Path(inspect.getfile(module)) in compiled_sources()
