"""The devices of a member as its machine calls them."""

from __future__ import annotations

import json

import pytest

from berth.live.supervise import Part


@pytest.mark.parametrize(
    ("given", "visible"),
    [
        ("", ["1", "4", "6"]),
        ("0,2,3", ["0", "2", "3"]),
        ("GPU-aa,GPU-bb,GPU-cc", ["GPU-aa", "GPU-bb", "GPU-cc"]),
        ("0,1", ["1", "4", "6"]),  # not what was asked for: berth's own numbers
    ],
)
def test_an_engine_that_counts_devices_names_those_of_its_own_choice(given, visible, tmp_path):
    members = [
        {"rank": 0, "local_rank": 0, "machine": "other", "devices": [0]},
        *(
            {"rank": k + 1, "local_rank": k, "machine": "here", "devices": [n]}
            for k, n in enumerate((1, 4, 6))
        ),
    ]
    (tmp_path / "launch.json").write_text(
        json.dumps({"members": members, "env": {}, "job": "j", "attempt": 1, "token": "t"})
    )
    part = Part(tmp_path, "here", given)
    assert [environment_of(part, member)["CUDA_VISIBLE_DEVICES"] for member in part.members] == visible


def environment_of(part: Part, member: dict) -> dict[str, str]:
    return part._environment(member, {"address": "here", "port": 1})
