"""The log as a table: readable, the same to the bit, and the same again after a trip through a file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

import pytest

from berth.errors import InputError
from berth.schedule.policies.registry import load_policy
from berth.simulate.events import SCHEMA, digest, event_frame, read_events, read_facts, write_events
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, faults, jobs
from berth.testing.policies import EXERCISES

LOGGED = Setting(network="off", log=True)


def test_events_are_named_in_words():
    trace = jobs([(0, 3, 50), (10, 1, 10)])
    setting = Setting(network="off", log=True, faults=faults([(20, 0, "drain"), (30, 0, "undrain")]))
    frame = event_frame(simulate(trace, cluster([2, 2]), EXERCISES["fit-first"], setting))
    assert frame.schema == SCHEMA
    columns = ["time_s", "event", "job", "machine", "tier", "reason", "gpus", "device", "places"]
    assert frame.select(columns).rows() == [
        (0.0, "arrived", "j0", None, None, "none", 3, None, None),
        (0.0, "started", "j0", None, "network", "nearest", 3, "GPU", ["m0:2", "m1:1"]),
        (10.0, "arrived", "j1", None, None, "none", 1, None, None),
        (10.0, "started", "j1", None, "machine", "nearest", 1, "GPU", ["m1:1"]),
        (20.0, "finished", "j1", None, "machine", "nearest", 1, None, None),
        (20.0, "drained", None, "m0", None, "none", 0, None, None),
        (30.0, "undrained", None, "m0", None, "none", 0, None, None),
        (50.0, "finished", "j0", None, "network", "nearest", 3, None, None),
    ]


def test_a_gang_names_the_type_of_its_devices():
    machines = cluster([{"V100": 2, "P100": 4}, {"P100": 4}])
    frame = event_frame(simulate(jobs([(0, 4, 9), (0, 2, 9)]), machines, EXERCISES["fit-first"], LOGGED))
    starts = frame.filter(frame["event"] == "started").select("job", "device", "places").rows()
    assert starts == [("j0", "P100", ["m0:4"]), ("j1", "V100-16", ["m0:2"])]


def test_a_log_survives_its_file(tmp_path):
    run = simulate(jobs([(0, 3, 50), (10, 9, 10)]), cluster([2, 2]), EXERCISES["fit-first"], LOGGED)
    write_events(run, tmp_path / "events.parquet")
    again = read_events(tmp_path / "events.parquet")
    assert again.equals(event_frame(run), null_equal=True)
    assert digest(again) == digest(event_frame(run))


def test_the_name_of_a_log_is_not_a_pattern(tmp_path):
    runs = [
        simulate(jobs([(0, 3, seconds)]), cluster([2, 2]), EXERCISES["fit-first"], LOGGED)
        for seconds in (50, 60)
    ]
    for run, name in zip(runs, ("log[1].parquet", "log1.parquet"), strict=True):
        write_events(run, tmp_path / name)
    assert read_events(tmp_path / "log[1].parquet").equals(event_frame(runs[0]), null_equal=True)
    assert read_facts(tmp_path / "log[1].parquet") is not None


def test_an_empty_log_is_a_table_too():
    run = simulate(jobs([(0, 9, 50)]), cluster([2, 2]), EXERCISES["fit-first"], LOGGED)
    assert event_frame(run).is_empty()
    assert dict(event_frame(run).schema) == SCHEMA


def test_a_file_that_is_not_a_log_is_refused(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="is not a log of events"):
        read_events(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="no such file"):
        read_events(tmp_path / "missing.parquet")


# Policy and network -> SHA-256 of the log of 300 jobs on 4 racks of 4 machines of 8 devices. A change
# of these lines is a change of what berth decides, or of the model's numbers: say in the change which and why.
GOLDEN: dict[str, str] = {
    "strict off": "7ae5731416b01507db4497fec3be7ee08d0e40b42c41294bdd363b56c52b9ba4",
    "strict on": "f5e51223aa9ec9c48eb1a2b8d6a33c6ea2f7ff27cc33bf6d4dedf23a7e93f07e",
    "backfill off": "1c62d0859e0445ec617bb29bc9d64c32e1f166adaed838a3b7f6692966519ea7",
    "backfill on": "b3340c848b6c588a432b0fd65fbd9e2c3b23d145ca124bf871f6f969f0c526ed",
    "least-left off": "cfc9630dcc2a774348da7b051f97f9ff1331db3848fd4fe1d582f908a755226e",
    "least-left on": "5aaa39ce826afd7ae139beca6e0ac36ce406fa76c6f041caab63b6657b9831f0",
    "everything off": "f47dc44ab4b98cf5dac73b194db5106d45c6dd2de8b5c76c81fec246c0f544dd",
    "everything on": "54148023ec1ad73b842a53fcc7e4b639b9ca6a1fe711d7ebe275e5535b8c87fe",
    "gittins off": "a2315bfa8ba1cb68085efd58433404a23bda1a94ab546d1540aff19680c6cd66",
    "gittins on": "8292b9faf4b8eb2e2e430b762c5e851d5f54c295f4320b1c4f6fb7d82c239c4a",
    "themis off": "82b119331dc4e4ba2f62be3cbaf7b4ae1f8b32490ffc5d6a040218b13c437f4e",
    "themis on": "a7e7cc5dce13555ef9a53c147efdb65c2123d3a7ddd0ed26f619d4112fc820d6",
    "gandiva off": "c9f300d788b2830ac380b3828e6beb1da8984e892ceb8ea5157beb36a6aad95e",
    "gandiva on": "0aef23b9b7b01d7e09f3a505e281606d19cda788e89591d8722947a3111a0a58",
    "lwf off": "f45917f140e493fbe3c10ebd8d7c5091f0326d2195825fa01085081a7db83092",
    "lwf on": "b83db0f513be270413106bfa172f14a1f326d82cdbcb9d143bc08540707d6abf",
    "berth off": "8431ae6f4a76c39cb5ba146ebb7132128107dac9afcfc8a8c52da550be2bcde0",
    "berth on": "6951320f44a8b421864c3523e606a85b00834e4c0ec5c44b19d2e9bcb216b958",
    "berth:order=las on": "bcfc7b3f78edd108e66a48564187eb8e0e00b5fc99229f057d16892d5a278058",
    "dally on": "70e59fba19ae5bf9aead632dd15ae938c51c91f86b9b8801c43e24106ea6dd9e",
    "dally:mode=tuned on": "72569a06ca83634a786791bf936d09ec02248b84e7238a6913289a1d5a698409",
}


def golden_digest(policy: str, network: str) -> str:
    sizes, state, rows = [1, 2, 3, 4, 8, 12, 16, 24], 1, []
    for number in range(300):
        state = (1103515245 * state + 12345) % 2**31  # no generator that could change under us
        rows.append((40.0 * number, sizes[state // 65536 % 8], 200.0 + state // 512 % 4000))
    nested = [[8] * 4] * 4
    setting = Setting(network=network, congestion=5.0, log=True, seed=3)
    chosen = EXERCISES.get(policy) or load_policy(policy)
    return digest(event_frame(simulate(jobs(rows), cluster(nested), chosen, setting)))


@pytest.mark.parametrize("name", GOLDEN)
def test_the_same_trace_setting_and_seed_give_the_same_log_to_the_bit(name):
    policy, network = name.split()
    assert golden_digest(policy, network) == GOLDEN[name]


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from test_events import golden_digest
for name in sys.argv[1:]:
    print(name, golden_digest(*name.split()), sep="|")
"""


def digests_of_another_process(names: Iterable[str], hash_seed: str) -> dict[str, str]:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(folder=os.path.dirname(__file__)), *names],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split("|") for line in result.stdout.splitlines())


@pytest.mark.slow
def test_the_order_of_hashes_and_another_process_change_nothing():
    assert digests_of_another_process(GOLDEN, "0") == GOLDEN
    assert digests_of_another_process(GOLDEN, "4242") == GOLDEN
