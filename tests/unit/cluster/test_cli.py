"""`berth cluster` as a person meets it: what it prints, and what it says when the input is wrong."""

from __future__ import annotations

import json
import sys

import pytest

from berth.cli.main import main

GOOD = "tiers: [{bandwidth: 25GB/s}, {bandwidth: 25GB/s}]\nmachines: [{devices: {T4: 1}}]\n"


@pytest.fixture
def berth(monkeypatch, capsys):
    """Runs the real entry point; returns exit code, standard output and standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["berth", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        code = stopped.value.code
        return code if isinstance(code, int) else 0, out, err

    return run


def test_show_folds_equal_racks_into_one_line(berth):
    code, out, _ = berth("cluster", "show", "4x20x8:H100")
    assert code == 0
    assert "4x20x8:H100: 640 devices on 80 machines" in out
    assert "4 racks x 20 machines x 8 H100\n" in "".join(line.rstrip() + "\n" for line in out.splitlines())
    assert "Price of all: $4403.20/h" in out


def test_show_says_plainly_that_a_price_is_unknown(berth):
    assert "Price of all: unknown (no price is known for GPU)" in berth("cluster", "show", "20x8")[1]


def test_show_of_ten_thousand_machines_is_short(berth):
    out = berth("cluster", "show", "250x40x8")[1]
    assert "250 racks x 40 machines x 8 GPU" in out
    assert len(out.splitlines()) < 30


def test_show_of_many_unlike_racks_is_cut_off_with_a_count(berth, tmp_path):
    path = tmp_path / "unlike.yaml"
    racks = "".join(f"- machines: [{{count: {size}, devices: {{T4: 1}}}}]\n" for size in range(1, 41))
    path.write_text(f"racks:\n{racks}")
    out = berth("cluster", "show", str(path))[1]
    assert "r11: 1 rack x 12 machines x 1 T4" in out
    assert "1 rack x 13 machines" not in out
    assert f"... and 28 more kinds ({sum(range(13, 41))} machines)" in out


def test_show_distinguishes_mixed_machines_and_hosts(berth, tmp_path):
    path = tmp_path / "mixed.yaml"
    path.write_text(
        "machines: [{count: 2, devices: {T4: 4, cpu-core: 16}, cores: 16, nic: 10GB/s, price: $1/h}]"
    )
    out = berth("cluster", "show", str(path))[1]
    assert "2 machines x (4 T4 + 16 cpu-core)  (16 cores, NIC 10GB/s)" in out
    assert "of which $2.00/h for the hosts" in out


@pytest.mark.parametrize("name", ["lingjun", "cloud-mix", "160", "2x4x20x8:B200"])
def test_show_fits_eighty_columns_without_breaking_a_number(berth, name):
    out = berth("cluster", "show", name)[1]
    assert max(len(line) for line in out.splitlines()) <= 80
    rows = [line for line in out.split("Tiers")[1].splitlines() if line.startswith(" ") and line.strip()]
    assert all(not row.startswith("  ") for row in rows), out


def test_show_json_is_complete(berth):
    shown = json.loads(berth("cluster", "show", "lingjun", "--json")[1])
    assert (shown["devices"], shown["machines"], shown["usd_per_hour"]) == (6776, 847, None)
    assert [tier["groups"] for tier in shown["tiers"]] == [847, 119, 3, 1]
    assert shown["tiers"][1]["devices_per_group"] == [16, 64]
    assert shown["tiers"][3]["uplink_bytes_per_s"] is None
    assert sum(_machines(kind) for kind in shown["tree"]) == 847


def _machines(kind):
    return kind["count"] * (sum(map(_machines, kind["parts"])) if "parts" in kind else 1)


def test_show_reads_a_topology_table_and_prints_its_note(berth, tmp_path):
    path = tmp_path / "topo.csv"
    path.write_text("ip,pod,tor\na,p1,s1\nb,p1,s2\nc,p2,s1\nd,p2,s2\n")
    code, out, _ = berth("cluster", "show", f"{path}:4xT4")
    assert code == 0
    assert "2 pods x 2 tor groups x 1 machine x 4 T4" in out
    assert "Note: 2 of 2 tor names recur" in out


def test_presets_are_listed_with_their_size(berth):
    rows = json.loads(berth("cluster", "presets", "--json")[1])["presets"]
    assert {row["name"]: row["devices"] for row in rows}["lingjun"] == 6776
    assert "gb200-nvl72" in berth("cluster", "presets")[1]


def test_devices_are_listed_with_their_sources(berth):
    out = berth("cluster", "devices")[1]
    assert "NVIDIA L40S datasheet 2023" in out
    assert max(len(line) for line in out.splitlines()) <= 80
    rows = {row["name"]: row for row in json.loads(berth("cluster", "devices", "--json")[1])["devices"]}
    assert rows["V100-16"]["usd_per_hour"] == 2.42
    assert rows["A10"]["usd_per_hour"] is None


@pytest.mark.parametrize("verb", ["show", "presets", "devices"])
def test_help_has_an_example(berth, verb):
    code, out, _ = berth("cluster", verb, "--help")
    assert code == 0
    assert f"berth cluster {verb}" in out.split("Example")[1]


MISTAKES = {
    "unknown key": (b"machines: [{device: {T4: 1}}]", "did you mean 'devices'?"),
    "bare bandwidth": (
        GOOD.replace("25GB/s", "25", 1).encode(),
        "'25' has no unit, so it is not a bandwidth",
    ),
    "size as bandwidth": (GOOD.replace("25GB/s", "25GB", 1).encode(), "'25GB' is not a bandwidth: unit 'GB'"),
    "duplicate names": (
        b"machines: [{name: a, devices: {T4: 1}}, {name: a, devices: {T4: 1}}]",
        "two machines are called 'a'",
    ),
    "zero": (b"machines: [{count: 0, devices: {T4: 1}}]", "greater than 0"),
    "negative": (b"machines: [{count: -3, devices: {T4: 1}}]", "greater than 0"),
    "empty file": (b"", "is empty\n  it needs one of `machines:`, `racks:` or `groups:`"),
    "binary garbage": (bytes(range(256)), "is not text"),
    "null bytes": (b"a\0b", "is binary"),
    "syntax": (b"machines: [{devices: {T4: 1}}", "fix the YAML there"),
    "duplicate key": (b"name: a\nname: b\n", "'name' is given twice"),
    "unknown device": (b"machines: [{devices: {V10: 1}}]", "did you mean 'V100'?"),
    "uneven depth": (
        b"groups: [{machines: [{devices: {T4: 1}}]}, {racks: [{machines: [{devices: {T4: 1}}]}]}]",
        "all machines must be at the same depth",
    ),
}


@pytest.mark.parametrize(("content", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_in_the_file_is_one_message_and_exit_code_2(berth, tmp_path, content, message):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    code, out, err = berth("cluster", "show", str(path))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path}")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("missing.yaml", "missing.yaml: no such file"),
        ("{folder}", "is a folder, not a file"),
        ("0x8", "has a zero in it"),
        ("4x", "an x with no number beside it"),
        ("dgx-a100", "did you mean 'dgx-a100-pod'?"),
        ("9999999x9999999", "the limit is 10,000,000"),
    ],
)
def test_a_cluster_that_does_not_exist_is_one_message_and_exit_code_2(berth, tmp_path, text, message):
    code, out, err = berth("cluster", "show", text.format(folder=tmp_path))
    assert (code, out) == (2, "")
    assert message in err


def test_show_names_a_lone_group_as_it_is_called_in_its_own_parent(berth, tmp_path):
    path = tmp_path / "twins.yaml"
    hall = (
        "{racks: [{name: %s, machines: [{devices: {T4: 2}}]}, {count: %d, machines: [{devices: {T4: 4}}]}]}"
    )
    path.write_text(f"groups:\n  - {hall % ('elm', 2)}\n  - {hall % ('oak', 3)}\n")
    _, shown, _ = berth("cluster", "show", str(path))
    assert "elm: 1 rack" in shown
    assert "oak: 1 rack" in shown
