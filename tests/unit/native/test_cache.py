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

from berth.native import cache
from berth.native.cache import compiled_sources, package_of
from berth.native.kernels import IndirectKernel, entry
from berth.network import _flow_kernels, _kernels

SOURCES = Path(cache.__file__).parents[2]


@pytest.mark.parametrize("name", ["berth.simulate.run", "berth.plan.evaluate"])
def test_every_compiled_function_is_in_a_source_that_the_fingerprint_covers(name):
    import_module(name)
    found = [
        (module, value)
        for module in list(sys.modules)
        if module.startswith("berth.") and not module.startswith(("berth.live", "berth.testing"))
        for value in vars(sys.modules[module]).values()
        if isinstance(value, Dispatcher | IndirectKernel)
    ]
    assert found
    packages = {package_of(value.py_func.__module__) for _, value in found}
    covered = {package: compiled_sources(package) for package in packages}
    for _, value in found:
        function = value.py_func
        file = Path(inspect.getfile(function))
        assert file in covered[package_of(function.__module__)], file


@pytest.mark.parametrize("module", [_kernels, _flow_kernels])
def test_kernels_that_do_not_import_numba_are_covered_too(module):
    assert Path(inspect.getfile(module)) in compiled_sources()


def run_python(code, **environment):
    """The last line that a fresh interpreter prints."""
    given = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=given | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_importing_the_simulator_changes_no_setting_of_the_process(tmp_path):
    code = (
        "import os, numba, polars, warnings, locale\n"  # polars sets a variable of its own
        "def settings():\n"
        "    options = {name: value for name, value in vars(numba.config).items() if name.isupper()}\n"
        "    return options, dict(os.environ), warnings.filters[:], locale.setlocale(locale.LC_ALL)\n"
        "before = settings()\n"
        "import berth.simulate\n"
        "import berth.simulate.run\n"
        "print(settings() == before)"
    )
    assert run_python(code, PYTHONPATH=str(SOURCES), XDG_CACHE_HOME=str(tmp_path)) == "True"


@pytest.mark.slow
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


@pytest.mark.slow
def test_code_that_is_read_from_disk_needs_no_part_of_the_compiler(tmp_path):
    """numba would import all that it compiles with, scipy included: half a second of CPU time in each process."""
    source = "from berth.native.kernels import entry\n@entry\ndef twice(x):\n    return 2.0 * x[0]\n"
    (tmp_path / "own.py").write_text(source)
    code = (
        "import sys, numpy, own; assert own.twice(numpy.ones(4)) == 2.0\n"
        "print(len(own.twice.stats.cache_hits), 'scipy.linalg' in sys.modules)"
    )
    given = {"PYTHONPATH": f"{tmp_path}:{SOURCES}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert [run_python(code, **given) for _ in range(2)] == ["0 True", "1 False"]


@pytest.mark.slow
def test_every_entry_is_cached_under_the_fingerprint_whatever_is_imported_first(tmp_path):
    code = (
        "import sys, berth.network.compiled, berth.network.sharing, berth.simulate.run\n"
        "from numba.core.dispatcher import Dispatcher\n"
        "modules = [m for m in list(sys.modules.values()) if m.__name__.startswith('berth.')]\n"
        "found = {v.__name__: v._cache.cache_path for m in modules for v in vars(m).values()\n"
        "    if isinstance(v, Dispatcher)\n"
        "    and not v.targetoptions.get('no_cfunc_wrapper')}\n"  # kernels are part of the entries that call them
        "from berth.native.cache import fingerprint\n"
        "print(*found, all(fingerprint() in path for path in found.values()))"
    )
    *names, same = run_python(code, PYTHONPATH=str(SOURCES), XDG_CACHE_HOME=str(tmp_path)).split()
    assert {"add", "remove", "advance"} <= set(names)
    assert same == "True"


@pytest.mark.slow
def test_a_folder_that_another_process_uses_is_not_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "_KEPT", 1)
    code = (
        "import sys; from berth.native import cache\n"
        "cache.fingerprint = lambda package='': 'aaaa'\n"
        "assert cache.lock_folder(''); print(cache.package_folder(), flush=True); sys.stdin.read()"
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
        cache._locks.clear()
        assert cache.lock_folder("")
        left = {path.name for path in used.parent.iterdir()}
        assert left == {"aaaa", "dddd", cache.fingerprint()}
    finally:
        holder.communicate()
    cache._locks.clear()
    assert cache.lock_folder("")
    assert "aaaa" not in {path.name for path in used.parent.iterdir()}
    cache._locks.clear()


def test_a_folder_that_another_process_removes_does_not_disable_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (cache.cache_folder()).mkdir(parents=True)
    (cache.cache_folder() / "gone").symlink_to(tmp_path / "nowhere")  # listed, and then not there
    cache._locks.clear()
    assert cache.lock_folder("")
    cache._locks.clear()


def test_kernels_run_without_a_cache_where_the_disk_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    cache._locks.clear()
    monkeypatch.setattr(cache, "write_failures", [])
    assert cache.write_failure() is None
    assert cache.lock_folder("") is False
    assert cache.write_failure() == "Not a directory"
    assert entry(_twice)(21) == 42
    cache._locks.clear()


def _twice(number):
    return 2 * number


@pytest.mark.slow
def test_the_folder_of_numba_is_used_in_berths_way(tmp_path):
    """A change of any source starts a new folder there too: numba's own cache would check one file only."""
    code = (
        "from berth.native.cache import package_folder\n"
        "from berth.simulate.engine import advance\n"
        "print(package_folder(), advance._cache.cache_path)"
    )
    folder, path = run_python(code, PYTHONPATH=str(SOURCES), NUMBA_CACHE_DIR=str(tmp_path)).split()
    assert Path(folder).is_relative_to(tmp_path / "berth")
    assert Path(path).is_relative_to(folder)


@pytest.mark.slow
def test_without_a_compiler_one_message_says_so(tmp_path):
    command = [sys.executable, "-m", "berth", "simulate", "generate:jobs=5", "--cluster", "1x1x8"]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "NUMBA_DISABLE_JIT is set" in done.stderr
    assert "Traceback" not in done.stderr
