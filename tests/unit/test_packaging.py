"""The distribution's name, its extras, and the hints that name them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from berth.errors import InputError
from berth.extras import DISTRIBUTION, MODULES, require

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
TEXT = {".md", ".py", ".toml", ".js", ".html", ".yaml", ".yml", ".console"}
# of that name on the public index
OTHER_PROJECT = re.compile(r"pip3? install\s+(?:-\S+\s+)*['\"]?berth(?![\w.-])")
WITH_EXTRAS = re.compile(rf"{re.escape(DISTRIBUTION)}\[([\w, -]+)\]")


def texts() -> dict[Path, str]:
    """Every text of the project, as committed or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("needs git, and a checkout of it")
    paths = [ROOT / line for line in listed.stdout.splitlines()]
    wanted = [path for path in paths if path.is_file() and (path.suffix in TEXT or path.name == "Makefile")]
    return {path: path.read_text() for path in wanted}


def test_no_text_says_to_install_another_project():
    assert OTHER_PROJECT.search("pip install 'berth[train]'")
    assert not OTHER_PROJECT.search("pip install 'berth-ml[train]'")
    found = [str(path.relative_to(ROOT)) for path, text in texts().items() if OTHER_PROJECT.search(text)]
    assert set(found) <= {"tests/unit/test_packaging.py"}


def test_the_hints_name_this_distribution_and_extras_that_it_has():
    assert PROJECT["name"] == DISTRIBUTION
    named = {
        extra.strip()
        for text in texts().values()
        for group in WITH_EXTRAS.findall(text)
        for extra in group.split(",")
    }
    assert {"train", "live", "ray"} <= named <= set(EXTRAS)


def test_every_module_is_brought_by_the_extra_that_the_hint_names():
    for module, extra in MODULES.items():
        brought = {re.split(r"[\[<>=! ]", line)[0].replace("-", "_") for line in EXTRAS[extra]}
        assert module in brought


def test_every_optional_package_that_berth_imports_has_a_hint():
    """What the sources import is core, or has its extra in the table, or comes with Python.

    berth.testing is for the tests of a policy, whose author has hypothesis installed.
    """
    core = {re.split(r"[<>=]", line)[0].replace("-", "_") for line in PROJECT["dependencies"]} | {"yaml"}
    known = core | set(MODULES) | set(sys.stdlib_module_names) | {"berth", "llvmlite", "hypothesis"}
    imports = re.compile(r"^\s*(?:from (\w+)[\w.]* import|import (\w+))", re.MULTILINE)
    found = {
        first or second
        for path in (ROOT / "src").rglob("*.py")
        for first, second in imports.findall(path.read_text())
    }
    assert found - known <= set()


def test_a_missing_package_is_one_line_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError) as error:
        require("torch", "berth train")
    assert (
        str(error.value) == "berth train needs torch, which is not installed: pip install 'berth-ml[train]'"
    )


def test_a_package_that_is_there_is_required_in_silence():
    require("torch", "berth train")
