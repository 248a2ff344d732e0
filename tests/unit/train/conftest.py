"""The small training of these tests, and the result of its undisturbed run."""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path
from types import ModuleType

import pytest
from two_hosts import two_hosts  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "small_training", Path(__file__).with_name("small_training.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.train(
        tmp_path_factory.mktemp("first"), steps=4
    ).close()  # kernels are loaded once, not in each child
    return module


@pytest.fixture(scope="session")
def uninterrupted(small, tmp_path_factory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert small.in_child(lambda: small.train(folder / "saved", folder / "log")) == 0
    return small.losses(folder / "log")


@pytest.fixture(scope="session")
def killed() -> int:
    return -signal.SIGKILL
