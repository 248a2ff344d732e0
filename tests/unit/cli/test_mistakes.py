"""Whatever is wrong with what the user gave is one message, exit code 2, and nothing on standard output."""

from __future__ import annotations

import sys

import pytest

JOBS = "job_id,submit_s,num_gpu,duration_s\na,0,1,10\nb,5,2,20\n"
FILES = {
    "good.csv": JOBS.encode(),
    "empty": b"",
    "empty.py": b"",
    "binary": bytes(range(256)) * 4,
    "binary.py": bytes(range(256)),
    "half.yaml": b"name: x\nfoo: [1, 2\n",
    "half.json": b'{"layers": [1, {"a": ',
    "half.parquet": b"PAR1" + bytes(40),
    "deep.yaml": b"[" * 5000,
    "deep.json": b"[" * 5000,
    "job.yaml": b"run: 7\nname: [1]\n",
    "state/journal.sqlite": b"",
    "state/tokens.json": b"[1]",
    "listed/endpoint.json": b"[]",
    "garbage/journal.sqlite": b"garbage" * 100,
}
SCENE = ("--cluster", "1x2x4", "--policy", "fifo")

USAGE = [
    ("simulat", "no such command 'simulat'\n  did you mean 'simulate'?\n  see berth --help"),
    (
        "simulate --cluste 2",
        "no such option: --cluste\n  did you mean --cluster?\n  see berth simulate --help",
    ),
    ("sim", "no such command 'sim'\n  did you mean 'simulate'?\n  see berth --help"),
    ("squeue", "no such command 'squeue'\n  did you mean 'queue'?\n  see berth --help"),
    ("pl", "no such command 'pl'\n  did you mean 'plan'?\n  see berth --help"),
    ("xyzzy", "no such command 'xyzzy'\n  see berth --help"),
    ("simulate", "missing argument 'TRACE'\n  example: berth simulate "),
    ("plan check", "missing argument 'FILE'\n  example: berth plan check "),
    ("plan chek x", "nothing is expected after the model: x\n  did you mean 'check'?"),
    ("train ctrdnn --steps 0", "invalid value for '--steps': should be greater than or equal to 1"),
    ("network fit x --leave-out two", "invalid value for '--leave-out': should be a valid integer"),
    ("queue --limit 0", "invalid value for '--limit'"),
]

READ = [
    ("cluster show none.yaml", "none.yaml: no such file"),
    ("cluster show folder", "folder: is a folder, not a file"),
    ("cluster show half.yaml", "half.yaml:3:1: did not find expected"),
    ("cluster show deep.yaml", "deep.yaml:1:65: is nested more than 64 deep"),
    ("models binary", "no model is called 'binary'"),
    ("trace info folder", "folder: is a folder, not a file"),
    ("trace info empty", "empty: is empty"),
    ("trace info binary", "binary: is binary, not text"),
    ("network fit none.csv", "none.csv: no such file"),
    ("network fit folder", "folder: is a folder, not a file"),
    ("network fit binary", "binary:2: is not text"),
    ("plan --problem half.json", "half.json:1:22: is not valid JSON"),
    ("plan check half.json", "half.json:1:22: is not valid JSON"),
    ("plan check deep.json", "deep.json: is not JSON that berth can read: nested too deep"),
    ("policies binary.py:Mine", "binary.py:1: SyntaxError"),
    ("policies empty.py:Mine", "empty.py: no policy is called 'Mine'\n  there are none"),
    ("submit job.yaml", "job.yaml:1:6: run: input should be a valid string or a valid list (given: 7)"),
    ("view none.parquet --no-open", "none.parquet: no such file"),
    ("view half.parquet --no-open", "half.parquet: is not a log of events"),
    ("replay folder", "folder/journal.sqlite: there is no journal"),
    ("replay binary", "binary: file is not a database"),
    ("table info folder", "folder: holds no checkpoint"),
]

WRITTEN = [
    ("network fit good.csv --out folder", "folder: is a folder, not a file\n  --out names a file to write"),
    (
        "network fit good.csv --out good.csv",
        "good.csv: exists already\n  choose another name, or give --force",
    ),
    ("trace generate good.csv", "good.csv: exists already"),
    ("trace convert good.csv no/such.csv", "no/such.csv: can't be written: there is no such folder"),
    ("plan nce --devices T4 --throughput 1k --html folder", "folder: is a folder, not a file"),
    ("profile nce --out good.csv", "good.csv: exists already"),
    ("profile nce --job-profile no/job.yaml", "no/job.yaml: can't be written"),
    ("simulate good.csv --cluster 2x2 --html no/r.html", "no/r.html: can't be written"),
    ("simulate good.csv --cluster 2x2 --policy fifo --log folder", "folder: is a folder, not a file"),
    ("sweep --cluster 2x2 --out good.csv", "good.csv: is a file, not a folder\n  --out names a folder"),
    ("train nce --checkpoint good.csv", "good.csv: is a file, not a folder"),
    ("train nce --checkpoint good.csv/run", "good.csv: is a file, not a folder"),
    ("up --state good.csv", "good.csv: is a file, not a folder"),
]

QUANTITIES = [
    ("plan nce --devices T4 --throughput fast", "--throughput: 'fast' is not a rate\n  write it like 100k/s"),
    ("plan nce --devices T4 --deadline 5", "--deadline: '5' has no unit, so it is not a duration"),
    ("plan nce --devices T4 --throughput 1k --examples 0", "--examples is 0"),
    ("plan nce --devices T4 --throughput 1k --fixed $-1/h", "--fixed $-1/h: can't be negative"),
    ("plan nce --devices T4 --max-usd lots", "--max-usd 'lots' is not a price"),
    ("plan nce --devices T4 --throughput 1k --cpu-time 0s", "--cpu-time is 0"),
    ("plan nce --devices , --throughput 1k", "--devices names nothing"),
    ("plan bench --cpu-time soon", "--cpu-time: 'soon' is not a duration"),
    ("simulate good.csv --cluster 2x2 --eviction-cost -5s", "--eviction-cost -5s: can't be negative"),
    ("simulate good.csv --cluster 2x2 --congestion nan", "--congestion is nan"),
    ("simulate good.csv --cluster 2x2 --network congestion=x", "is not a number"),
    ("simulate good.csv --cluster 2x2 --network statc", "no network is called 'statc'"),
    ("simulate good.csv --cluster 2x2 --doubt 200%", "--doubt 200%: from 0 to below 100%"),
    ("trace generate new.csv --load 0", "--load 0: from"),
    ("trace generate new.csv --load 1e-300", "--load 1e-300: from"),
    ("trace generate new.csv --daily 2", "--daily 2: from 0 to 100%"),
    ("trace generate new.csv --span -1h", "--span -1h: can't be negative"),
    ("trace generate new.csv --mix balancd", "did you mean 'balanced'?"),
    ("train nce --examples some", "--examples: 'some' is not a number"),
    ("train nce --grace 5", "--grace: '5' has no unit"),
    ("train nce --memory 0B", "--memory is 0"),
    ("train nce --emulate T4", "--emulate T4: expected DEVICE=X"),
    ("train nce --emulate T4=2", "--emulate applies to the devices of a plan\n  add --plan FILE"),
    ("train nce --batch 1000000000000000000", "invalid value for '--batch'"),
]

CONTROLLERS = [
    ("queue --state none", "no controller has its state in"),
    ("queue --state listed", "no controller has its state in"),
    ("queue --url http://127.0.0.1:1", "there is no token for http://127.0.0.1:1\n  set BERTH_TOKEN"),
    ("token add alice --state none", "no controller has its state in"),
    ("token list --state state", "tokens.json: is damaged"),
    (
        "up --state garbage --port 0 --cluster 1x1x1",
        "journal.sqlite: the journal is damaged: file is not a database",
    ),
    ("up --state new --host 999.1.1.1", "999.1.1.1:7070 can't be used"),
]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "folder").mkdir()
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("line", "message"), [*USAGE, *READ, *WRITTEN, *QUANTITIES, *CONTROLLERS], ids=lambda text: text[:60]
)
def test_a_mistake_is_one_message_and_exit_code_two(line, message, files, berth):
    code, out, err = berth(*line.split())
    assert (code, out) == (2, "")
    assert message in err
    assert sum(reported.startswith("error: ") for reported in err.splitlines()) == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("line", [line for line, _ in [*WRITTEN, *QUANTITIES] if line.startswith("train ")])
def test_wrong_options_of_a_training_are_reported_before_torch_is_loaded(line, files, berth, monkeypatch):
    for module in ("devices", "recipes", "trainer", "worker"):
        # an import of it would be a traceback
        monkeypatch.setitem(sys.modules, f"berth.train.{module}", None)
    assert berth(*line.split())[0] == 2


ADDRESSES = [
    "http://",
    "ftp://x",
    "nonsense",
    "127.0.0.1:7070",
    "http://127.0.0.1:99999",
    "http://[::1",
    "http://a b",
]


@pytest.mark.parametrize("url", ADDRESSES)
def test_an_invalid_url_is_refused(url, berth, monkeypatch):
    monkeypatch.setenv("BERTH_TOKEN", "any")
    code, _, err = berth("queue", "--url", url)
    assert code == 2
    assert "is not a valid URL\n  write it like http://127.0.0.1:7070" in err


@pytest.mark.parametrize("token", ["", "any"])
def test_an_invalid_url_in_the_environment_is_named_as_such(token, berth, monkeypatch):
    monkeypatch.setenv("BERTH_TOKEN", token)
    monkeypatch.setenv("BERTH_URL", "foo")
    code, _, err = berth("queue")
    assert code == 2
    assert err == "error: BERTH_URL: 'foo' is not a valid URL\n  write it like http://127.0.0.1:7070\n"


def test_a_controller_that_does_not_answer_is_named(berth, monkeypatch):
    monkeypatch.setenv("BERTH_TOKEN", "any")
    assert (
        "the controller at http://127.0.0.1:1 does not answer: Connection refused"
        in berth("queue", "--url", "http://127.0.0.1:1")[2]
    )


def test_an_unknown_job_is_reported_before_anything_is_compiled(files, berth, monkeypatch):
    monkeypatch.setattr("berth.cli.scenario.warm_up", lambda policies: pytest.fail("compiled first"))
    code, _, err = berth("explain", "good.csv", "zzz", *SCENE)
    assert code == 2
    assert "good.csv: no job is called 'zzz'" in err


def test_a_group_without_a_command_shows_its_help_and_no_error(berth):
    code, out, err = berth("trace")
    assert (code, err) == (2, "")
    assert "convert" in out
