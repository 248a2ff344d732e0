"""The log as a table: readable, the same to the bit, and the same again after a trip through a file."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from berth.errors import InputError
from berth.schedule.policies.registry import load_policy
from berth.simulate.events import SCHEMA, digest, event_frame, read_events, write_events
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


def test_an_empty_log_is_a_table_too():
    run = simulate(jobs([(0, 9, 50)]), cluster([2, 2]), EXERCISES["fit-first"], LOGGED)
    assert event_frame(run).is_empty()
    assert dict(event_frame(run).schema) == SCHEMA


def test_a_file_that_is_no_log_is_refused(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="is not a log of events"):
        read_events(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="no such file"):
        read_events(tmp_path / "missing.parquet")


# Policy and network -> SHA-256 of the log of 300 jobs on 4 racks of 4 machines of 8 devices. A change
# of these lines is a change of what berth decides, or of the model's numbers: say in the change which and why.
GOLDEN: dict[str, str] = {
    "strict off": "7ae5731416b01507db4497fec3be7ee08d0e40b42c41294bdd363b56c52b9ba4",
    "strict on": "0fc934f5232a22cb05f93460b908aeb485f26ad0502fe4ad5108050a1c450200",
    "backfill off": "7ac33f0b038bbfca51c81bc3a40aeb96f018474f683bcd13c6c19c1fc061488d",
    "backfill on": "734f0e0f26c9440849ac13878048256427db8e6afb56bf15dfbed156537700f1",
    "least-left off": "cfc9630dcc2a774348da7b051f97f9ff1331db3848fd4fe1d582f908a755226e",
    "least-left on": "a566d861a8a05d43fcae83ada8ba1f22a2f5c869aa0784d4b38ac954b682ac80",
    "everything off": "ce0239d405539a652531703a320ba44e0380972553d0e771a62ac5ff18557e21",
    "everything on": "19e6e0f653f6c4cdba3d45ff23574a9e783b1431b91f6072a033c58fe3d15e0f",
    "gittins off": "5558ade117b732c28f0adcf7e23c5d99770deb79761099ecb5c4064bfa2757ae",
    "gittins on": "2c29a6afa61ffd344e4e002189f487a48896ccb37f54743aa145bb22e1965f07",
    "themis off": "82b119331dc4e4ba2f62be3cbaf7b4ae1f8b32490ffc5d6a040218b13c437f4e",
    "themis on": "e16320bba0157dd94608adc4ead3438d421257ce9367006e9ae0086abc23f44b",
    "gandiva off": "c9f300d788b2830ac380b3828e6beb1da8984e892ceb8ea5157beb36a6aad95e",
    "gandiva on": "6bf0820382701d77d6eee2e3d9fec72c2c1ee85764711213498ef169efba724d",
    "lwf off": "f45917f140e493fbe3c10ebd8d7c5091f0326d2195825fa01085081a7db83092",
    "lwf on": "3ec101f8552f9b645cd1aa4b7c52efc639dc41f7a684371f116fe69d67ec7fe8",
}


NOT_WRITTEN_DOWN = [
    "berth",
    "berth:order=las",
    "dally",
    "dally:mode=tuned",
]  # the same in every process, though


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
from test_events import GOLDEN, NOT_WRITTEN_DOWN, golden_digest
for name in [*GOLDEN, *(policy + " on" for policy in NOT_WRITTEN_DOWN)]:
    print(name, golden_digest(*name.split()), sep="|")
"""


def digests_of_another_process(seed: str) -> dict[str, str]:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(folder=os.path.dirname(__file__))],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split("|") for line in result.stdout.splitlines())


@pytest.mark.slow
def test_the_order_of_hashes_and_another_process_change_nothing():
    first, second = digests_of_another_process("0"), digests_of_another_process("4242")
    assert first == second
    assert first.items() >= GOLDEN.items()
    assert all(golden_digest(policy, "on") == first[f"{policy} on"] for policy in NOT_WRITTEN_DOWN)
