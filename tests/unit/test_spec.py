"""Mistakes in YAML are shown where they stand."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field

from berth.errors import SpecError
from berth.spec import Bandwidth, Spec, load, locate, parse


class Link(Spec):
    name: str
    bandwidth: Bandwidth


class House(Spec):
    rooms: Annotated[int, Field(gt=0)]
    links: tuple[Link, ...] = ()


GOOD = "rooms: 2\nlinks:\n  - {name: a, bandwidth: 25GB/s}\n"


def test_a_good_file_becomes_an_object(tmp_path):
    path = tmp_path / "house.yaml"
    path.write_text(GOOD)
    assert load(path, House).links[0].bandwidth == 25e9


BAD = {
    "a wrong unit": (
        "rooms: 2\nlinks:\n  - name: a\n    bandwidth: 25GB\n",
        "h.yaml:4:16",
        "is not a bandwidth",
    ),
    "no unit": ("rooms: 2\nlinks:\n  - {name: a, bandwidth: 25}\n", "h.yaml:3:26", "has no unit"),
    "an unknown key": ("rooms: 2\nlnks: []\n", "h.yaml:2:1", "unknown key; did you mean 'links'?"),
    "an unknown key below": ("rooms: 1\nlinks: [{name: a, bandwith: 1GB/s}]\n", "h.yaml:2:9", "is missing"),
    "a missing key": ("links: []\n", "h.yaml:1:1", "rooms: is missing"),
    "a negative number": ("rooms: -3\n", "h.yaml:1:8", "greater than 0"),
    "a number as text": ("rooms: many\n", "h.yaml:1:8", "valid integer"),
    "a key given twice": ("rooms: 1\nrooms: 2\n", "h.yaml:2:1", "'rooms' is given twice"),
    "broken YAML": ("rooms: [1\nlinks: }\n", "h.yaml:2:", "expected"),
    "a tab": ("rooms:\t1\n\tlinks: []\n", "h.yaml:2:1", "found a tab"),
    "a list": ("- 1\n- 2\n", "h.yaml:1:1", "holds a list"),
    "only text": ("hello\n", "h.yaml:1:1", "holds a text"),
    "nothing": ("", "h.yaml", "is empty"),
    "only a comment": ("# soon\n", "h.yaml", "is empty"),
    "a list as a key": ("? [1, 2]\n: 3\n", "h.yaml:1:3", "plain name"),
    "a set as a key": ("? !!set {a: null}\n: 3\n", "h.yaml:1:3", "plain name"),
    "not a number": ("rooms: .nan\n", "h.yaml:1:8", "finite"),
    "an object of Python's": ("rooms: !!python/object:os.system {}\n", "h.yaml:1:8", "could not determine"),
}


@pytest.mark.parametrize(("text", "where", "what"), BAD.values(), ids=BAD)
def test_a_mistake_is_named_at_its_line_and_column(text, where, what):
    with pytest.raises(SpecError) as caught:
        parse(text, House, "h.yaml")
    assert str(caught.value.where).startswith(where)
    assert what in str(caught.value)


def test_several_mistakes_are_one_message_with_the_first_five():
    text = "rooms: 0\nlinks:\n" + "  - {name: a, bandwidth: 1}\n" * 9
    with pytest.raises(SpecError) as caught:
        parse(text, House, "h.yaml")
    message = str(caught.value)
    assert message.count("has no unit") == 4
    assert "... and 5 more" in message


def test_files_that_are_not_a_specification_are_refused(tmp_path):
    (tmp_path / "garbage.yaml").write_bytes(bytes(range(128, 256)))
    (tmp_path / "nul.yaml").write_bytes(b"rooms: 1\0")
    for name, what in {
        "absent.yaml": "no such file",
        ".": "is a folder",
        "garbage.yaml": "is not text",
        "nul.yaml": "is binary",
    }.items():
        with pytest.raises(SpecError, match=what):
            load(tmp_path / name, House)


def test_endless_nesting_is_refused():
    with pytest.raises(SpecError):
        parse("rooms: " + "[" * 100_000, House, "h.yaml")


def test_a_place_found_later_can_be_located():
    assert locate(GOOD, ("links", 0, "name")) == (3, 12)
    assert locate(GOOD, ("links", 7)) == (3, 3)
