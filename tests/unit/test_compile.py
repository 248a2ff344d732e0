"""The fingerprint under which compiled code is kept: it covers every source that ends up in that code."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

from berth import compile as compiling
from berth.compile import Step, compiled_sources, room_of
from berth.network import _flow_kernels, _kernels

SOURCES = Path(compiling.__file__).parents[1]


@pytest.mark.parametrize("name", ["berth.simulate.run", "berth.plan.evaluate"])
def test_every_compiled_function_stands_in_a_source_that_the_fingerprint_covers(name):
    import_module(name)
    found = [
        (module, value)
        for module in list(sys.modules)
        if module.startswith("berth.") and not module.startswith(("berth.live", "berth.testing"))
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


def run_python(code, **environment):
    """The last line that a fresh interpreter prints."""
    given = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=given | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def test_importing_berth_leaves_numba_as_the_process_has_it(tmp_path):
    """A user's own cached function goes where it would go without berth, before and after a kernel has run."""
    (tmp_path / "own.py").write_text("import numba\n@numba.njit(cache=True)\ndef f(x):\n    return x + 1\n")
    code = (
        "import numba; before = numba.config.CACHE_DIR\n"
        "import berth.simulate.run, berth.network.compiled\n"
        "import own; own.f(1)\n"
        "assert numba.config.CACHE_DIR == before\n"
        "print(own.f._cache.cache_path)"
    )
    path = run_python(code, PYTHONPATH=f"{tmp_path}:{SOURCES}", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert Path(path) == tmp_path / "__pycache__"


def test_every_kernel_is_cached_under_the_fingerprint_whatever_is_imported_first(tmp_path):
    code = (
        "import inspect, sys, berth.network.compiled, berth.network.sharing, berth.simulate.run\n"
        "from numba.core.dispatcher import Dispatcher\n"
        "found = {v._cache.cache_path for m in list(sys.modules.values()) if m.__name__.startswith('berth.')\n"
        "    for v in vars(m).values() if isinstance(v, Dispatcher)\n"
        "    and not inspect.isgeneratorfunction(v.py_func)}\n"  # part of the functions that iterate over it
        "from berth.compile import fingerprint\n"
        "print(len(found), all(fingerprint() in path for path in found))"
    )
    count, same = run_python(code, PYTHONPATH=str(SOURCES), XDG_CACHE_HOME=str(tmp_path)).split()
    assert int(count) > 5
    assert same == "True"


def test_a_folder_that_another_process_uses_is_not_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiling, "_KEPT", 1)
    code = (
        "import sys; from berth.compile import claim, folder_of\n"
        "import berth.compile; berth.compile.fingerprint = lambda room='': 'aaaa'\n"
        "assert claim(''); print(folder_of(), flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(SOURCES), "XDG_CACHE_HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        used = Path(holder.stdout.readline().strip())
        for age, name in enumerate(("aaaa", "bbbb", "cccc", "dddd")):
            (used.parent / name).mkdir(exist_ok=True)
            os.utime(used.parent / name, (age, age))
        compiling.claim.cache_clear()
        assert compiling.claim("")
        left = {path.name for path in used.parent.iterdir()}
        assert left == {"aaaa", "dddd", compiling.fingerprint()}
    finally:
        holder.communicate()
    compiling.claim.cache_clear()
    assert compiling.claim("")
    assert "aaaa" not in {path.name for path in used.parent.iterdir()}
    compiling.claim.cache_clear()


def test_a_folder_that_vanishes_meanwhile_does_not_turn_the_cache_off(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (compiling.cache_folder()).mkdir(parents=True)
    (compiling.cache_folder() / "gone").symlink_to(tmp_path / "nowhere")  # listed, and then not there
    compiling.claim.cache_clear()
    assert compiling.claim("")
    compiling.claim.cache_clear()


def test_a_disk_that_fails_costs_the_cache_and_not_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    compiling.claim.cache_clear()
    assert compiling.claim("") is False
    assert compiling.entry(_twice)(21) == 42
    compiling.claim.cache_clear()


def _twice(number):
    return 2 * number
