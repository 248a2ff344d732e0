"""An exported model predicts what the trained one does, in a process without berth."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from berth.errors import InputError
from berth.train import (
    Admission,
    ClickStream,
    Embedding,
    Initialiser,
    export_for_serving,
    fit,
    load_for_inference,
)
from berth.train.data import Share
from berth.train.data.files import FileStream
from berth.train.data.sample import write_criteo
from berth.train.metrics import auc
from berth.train.recipes import make_recipe
from berth.train.serving.export import _write_program, served_columns
from berth.train.trainer import Trainer

ROOT = Path(__file__).resolve().parents[3]
BATCH, STEPS = 64, 3

# Runs in a process in which berth can't be imported: saves what examples/serve.py predicts for stored inputs.
PROGRAM = """
import sys
sys.modules["berth"] = None
sys.path.insert(0, sys.argv[1])
import numpy as np, torch
from serve import Served, latency_ms
try:
    import berth
    raise SystemExit("berth was imported")
except ImportError:
    pass
torch.set_num_threads(1)
for folder in sys.argv[2:]:
    served = Served(folder + "/served")
    inputs = {name: torch.from_numpy(value) for name, value in np.load(folder + "/inputs.npz").items()}
    np.save(folder + "/one.npy", served.predict({name: value[:1] for name, value in inputs.items()}).numpy())
    np.save(folder + "/all.npy", served.predict(inputs).numpy())
    for examples in (1, 256):
        p50, p99 = latency_ms(served, inputs, examples, repeats=20)
        print(f"{served.manifest['model']}, batch of {examples}: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
assert not any(name.startswith("berth.") for name in sys.modules)
"""


def predict_without_berth(*folders):
    """Run examples/serve.py on the exports, and return its printed lines."""
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(ROOT / "examples"), *map(str, folders)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=900).stdout


def prepared(model, data, folder, reference=None):
    """Train, export, and store inputs: seen examples, and unseen ones with keys that have no row."""
    fit(model, data, steps=STEPS, batch=BATCH, checkpoints=str(folder / "run"))
    export_for_serving(folder / "run", folder / "served", reference)
    parts = [next(data.batches(30, step, Share(), 0)).inputs for step in (0, 10**6)]
    inputs = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    np.savez(folder / "inputs.npz", **inputs)
    return inputs


def check_equal(folder, inputs, reference=None):
    model = load_for_inference(folder / "run", reference)
    with torch.no_grad():
        expected = model(inputs).numpy()
        first = model({name: value[:1] for name, value in inputs.items()}).numpy()
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(np.load(folder / "all.npy"), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.load(folder / "one.npy"), first, rtol=1e-6, atol=1e-6)


MODELS = [
    *("ctrdnn-8", "dlrm", "dcn-v2", "deepfm", "wide-deep", "mmoe"),
    *(str(ROOT / "examples" / own) for own in ("own_model.py", "train_own_model.py:make_model")),
]


@pytest.mark.slow
def test_models_of_the_zoo_and_your_own_predict_without_berth(tmp_path):
    inputs = {}
    for number, name in enumerate(MODELS):
        recipe = make_recipe(name, batch=BATCH)
        inputs[name] = prepared(recipe.model, recipe.data, tmp_path / str(number), name)
    print(predict_without_berth(*(tmp_path / str(number) for number in range(len(MODELS)))))
    for number, name in enumerate(MODELS):
        check_equal(tmp_path / str(number), inputs[name], name)


@pytest.mark.slow
def test_thirty_lines_without_berth_predict_for_known_keys(tmp_path):
    program = ROOT / "examples" / "serve_short.py"
    code = [line for line in program.read_text().splitlines() if line and not line.startswith('"""')]
    assert len(code) <= 30
    assert "import berth" not in program.read_text()
    assert "from berth" not in program.read_text()
    recipe = make_recipe("dcn-v2", batch=BATCH)
    inputs = prepared(recipe.model, recipe.data, tmp_path, "dcn-v2")
    known = {name: value[:30] for name, value in inputs.items()}  # the model has trained on them
    np.savez(tmp_path / "known.npz", **known)
    command = [sys.executable, "-P", str(program), str(tmp_path / "served"), str(tmp_path / "known.npz")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900).stdout
    output, latency = printed.splitlines()
    with torch.no_grad():
        expected = load_for_inference(tmp_path / "run", "dcn-v2")(known).numpy()
    np.testing.assert_allclose(json.loads(output), expected, rtol=1e-6, atol=1e-6)
    print(latency)
    assert re.fullmatch(r"30 examples in \d+\.\d\d ms", latency)


class Flattened(nn.Module):
    """Two tables with other initial rows and admission; keys are flattened, and computed for one table."""

    def __init__(self, admission=None, initialiser=None):
        super().__init__()
        torch.manual_seed(1)
        self.rows = Embedding(4, name="rows", admission=admission, initialiser=initialiser)
        self.pairs = Embedding(2, name="pairs", initialiser=Initialiser("normal", 0.1, 7))
        self.top = nn.Linear(26 * 4 + 2, 1)

    def forward(self, inputs):
        slots = inputs["slots"][:, :, 0]
        rows = self.rows(slots.flatten()).reshape(slots.shape[0], -1)
        pairs = self.pairs(slots[:, 0] * 31 + slots[:, 1])
        return self.top(torch.cat([rows, pairs], dim=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("admission", "initialiser"),
    [
        (None, Initialiser("uniform", 0.5, 3)),
        (Admission("count", 2), Initialiser("uniform", 0.5, 3)),
        (Admission("probability", 0.5), Initialiser("normal", 0.5, 2**40)),
        (Admission("score", 0.3), None),
    ],
    ids=["uniform", "count", "probability", "score"],
)
def test_unknown_keys_read_as_in_training(admission, initialiser, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from serve import Served

    model = Flattened(admission, initialiser)
    inputs = prepared(model, ClickStream(), tmp_path, Flattened(admission, initialiser))
    loaded = load_for_inference(tmp_path / "run", Flattened(admission, initialiser))
    with torch.no_grad():
        expected = loaded(inputs)
        rows = loaded.rows(inputs["slots"])
    served = Served(tmp_path / "served")
    torch.testing.assert_close(served.rows("rows", inputs["slots"]), rows, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(served.predict(inputs), expected, rtol=1e-6, atol=1e-6)
    if admission is not None:
        assert (rows == 0).all(dim=-1).any()


@pytest.mark.slow
def test_rows_are_not_read_when_an_export_is_loaded(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from serve import Served

    prepared(Flattened(), ClickStream(), tmp_path, Flattened())
    keys, weights, _ = Served(tmp_path / "served").tables["rows"]
    assert isinstance(keys, np.memmap)
    assert isinstance(weights, np.memmap)
    assert (np.diff(keys) > 0).all()
    manifest = json.loads((tmp_path / "served" / "manifest.json").read_text())
    assert manifest["inputs"]["slots"] == {"dtype": "int64", "shape": ["batch", 26, 1]}
    assert manifest["lookups"] == ["rows", "pairs"]


class KeysFromRows(Flattened):
    def forward(self, inputs):
        first = self.rows(inputs["slots"][:, 0, 0])
        return self.top(self.rows(inputs["slots"][:, :, 0] + (first[:, :1] * 1e6).long()).flatten(1))


class OneSize(Flattened):
    def forward(self, inputs):
        return super().forward(inputs) * torch.ones(len(inputs["dense"]), 1)


class Branching(Flattened):
    def forward(self, inputs):
        output = super().forward(inputs)
        return output if inputs["dense"].sum() > 0 else -output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (KeysFromRows, "keys of this model depend on rows"),
        (Branching, "torch.export can't trace this model"),
        (OneSize, "does not take a batch of another size"),
    ],
)
def test_a_model_that_can_not_be_exported_is_refused(model, message, tmp_path, capfd):
    made = model()
    if model is KeysFromRows:
        made.top = nn.Linear(26 * 4, 1)
    fit(made, ClickStream(), steps=1, batch=BATCH, checkpoints=str(tmp_path / "run"))
    again = model()
    again.top = made.top
    with pytest.raises(InputError, match=message):
        export_for_serving(tmp_path / "run", tmp_path / "served", again)
    assert not (tmp_path / "served").exists()
    assert "aten" not in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
def test_the_stored_check_notices_changed_rows(tmp_path):
    recipe = make_recipe("dcn-v2", batch=BATCH)
    prepared(recipe.model, recipe.data, tmp_path, "dcn-v2")
    stored, keys = np.load(tmp_path / "served/check.npz"), np.load(tmp_path / "served/table-0.keys.npy")
    assert np.isin(stored["inputs/slots"], keys).all()  # unknown ones would read as drawn from their hash
    command = [sys.executable, str(ROOT / "examples/serve.py"), str(tmp_path / "served")]

    def difference():
        printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900).stdout
        return float(re.search(r"largest difference ([0-9.e+-]+)", printed)[1])

    assert difference() < 1e-5
    weights = np.load(tmp_path / "served/table-0.weights.npy", mmap_mode="r+")
    weights[:] = 1.0
    weights.flush()
    assert difference() > 1e-3


def test_an_existing_folder_is_kept(tmp_path):
    fit(Flattened(), ClickStream(), steps=1, batch=BATCH, checkpoints=str(tmp_path / "run"))
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "mine.txt").touch()
    with pytest.raises(InputError, match="exists already"):
        export_for_serving(tmp_path / "run", tmp_path / "served", Flattened())
    for other in ("served", "run"):  # not even with --force
        before = sorted((tmp_path / other).rglob("*"))
        with pytest.raises(InputError, match="is not an export of berth"):
            export_for_serving(tmp_path / "run", tmp_path / other, Flattened(), overwrite=True)
        assert sorted((tmp_path / other).rglob("*")) == before


@pytest.mark.slow
def test_an_export_is_replaced_and_other_folders_stay(tmp_path):
    fit(Flattened(), ClickStream(), steps=1, batch=BATCH, checkpoints=str(tmp_path / "run"))
    (tmp_path / "served.partial").mkdir()
    export_for_serving(tmp_path / "run", tmp_path / "served", Flattened())
    (tmp_path / "served" / "old").touch()
    export_for_serving(tmp_path / "run", tmp_path / "served", Flattened(), overwrite=True)
    assert not (tmp_path / "served" / "old").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "served", "served.partial"]
    assert (tmp_path / "served").stat().st_mode == (tmp_path / "served.partial").stat().st_mode


def test_raw_rows_are_encoded_as_berth_reads_them_from_files(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from serve import encode

    rows = [
        {
            "click": 1,
            "id": 7,
            "city": "paris",
            "hex": "00ff",
            "price": 2.5,
            "age": None,
            "tags": ["x", "y", "z"],
        },
        {"click": 0, "id": 2**62, "city": None, "hex": "123456789", "price": -1.0, "age": 3, "tags": []},
        {"click": 0, "id": -1, "city": "oslo", "hex": "g", "price": 0.0, "age": 0, "tags": None},
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "log.parquet")
    for columns in (
        {"labels": "click", "slots": ["id", "city", "hex"], "multi": ["tags"]},
        {"labels": "click", "slots": {"a": ["id"], "b": ["hex"]}, "scale": "none", "max_ids": 2},
    ):
        stream = FileStream(tmp_path / "log.parquet", columns=columns, shuffled=False)
        expected = next(stream.batches(3, 0, Share(), 0)).inputs
        encoded = encode(json.loads(json.dumps(stream.layout.to_json())), rows)
        assert encoded.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(encoded[name], value)


ROWS = [
    {"click": 1, "a": "", "b": "+5", "price": None, "tags": ["x", None, "y", "z"], "words": "a||b"},
    {"click": 0, "a": None, "b": "10", "price": None, "tags": [None], "words": ""},
    {"click": 0, "a": "g", "b": "", "price": 2.0, "tags": ["", "10"], "words": None},
]
TEXT_ROWS = [
    {"click": 1, "a": 10, "b": "ff", "price": "1.5", "words": "a||b|10"},
    {"click": 0, "a": 123456789123, "b": "", "price": "", "words": ""},
    {"click": 0, "a": None, "b": "paris", "price": -2, "words": "10"},
]


@pytest.mark.parametrize(("name", "rows"), [("log.parquet", ROWS), ("log.csv", TEXT_ROWS)])
def test_missing_empty_and_text_ids_are_encoded_as_training_reads_them(name, rows, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from serve import encode

    lists = [column for column in ("tags", "words") if column in rows[0]]
    columns = {"labels": "click", "slots": ["a", "b"], "multi": lists, "dense": ["price"], "max_ids": 2}
    if name == "log.csv":
        lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
        (tmp_path / name).write_text("\n".join([",".join(rows[0]), *lines, ""]))
    else:
        pl.DataFrame(rows).write_parquet(tmp_path / name)
    stream = FileStream(tmp_path / name, columns=columns, shuffled=False)
    expected = next(stream.batches(3, 0, Share(), 0)).inputs
    encoded = encode(served_columns(stream.describe()), rows)
    for part, value in expected.items():
        torch.testing.assert_close(encoded[part], value, msg=lambda text, part=part: f"{part}: {text}")


@pytest.mark.slow
def test_criteo_from_a_generated_file_to_predictions_without_berth(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from serve import Served, encode

    best = write_criteo(tmp_path / "day_0.tsv", 30_000)
    write_criteo(tmp_path / "day_1.tsv", 4_000, seed=1)
    log, run = tmp_path / "day_0.tsv", tmp_path / "run"
    trainer = Trainer("dlrm", log, eval_data=tmp_path / "day_1.tsv", batch=256, checkpoints=str(run))
    result = trainer.fit()
    trainer.close()
    assert result.examples == 30_000
    export_for_serving(run, tmp_path / "served")
    served = Served(tmp_path / "served")
    columns = served.manifest["columns"]
    names = [*columns["labels"], *columns["dense"]["dense"], *columns["slots"]["slots"]]
    lines = (tmp_path / "day_1.tsv").read_text().splitlines()
    rows = [dict(zip(names, line.split("\t"), strict=True)) for line in lines]
    scores = served.predict(encode(columns, rows))[:, 1].numpy()
    found = auc(scores, np.array([row["label"] == "1" for row in rows]))
    print(f"held-out AUC {found:.4f} of at most {best:.4f}; in training {result.evaluation.auc:.4f}")
    assert found == pytest.approx(result.evaluation.auc, abs=1e-4)
    assert 0.66 < found < best


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_does_not_end_the_process():
    program = torch.export.export(torch.nn.Linear(2, 1), (torch.ones(1, 2),))
    with pytest.raises(OSError, match="No space left"):
        _write_program(program, Path("/dev/full"))
