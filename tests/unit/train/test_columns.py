"""Columns of files get their roles: from YAML, or from types and names."""

from __future__ import annotations

import gzip

import numpy as np
import polars as pl
import pytest
import torch

from berth.errors import InputError
from berth.train import Trainer
from berth.train.data import Share, criteo
from berth.train.data.columns import Layout
from berth.train.data.files import FileStream
from berth.train.data.rows import slot_bases
from berth.train.embedding import Embedding

FRAME = pl.DataFrame(
    {
        "session": ["a", "b", "c", "d"],
        "user_id": [7, 8, 9, 7],
        "city": ["paris", None, "oslo", "paris"],
        "price": [1.5, None, -3.0, 0.25],
        "age": [20, 30, 40, 50],
        "tags": [[1, 2], [], None, [3]],
        "words": [["x"], ["y", "x"], [], None],
        "click": [1, 0, 0, 1],
        "buy": [0, 0, 1, 1],
        "w": [1.0, 2.0, 0.5, 0.0],
    }
)
ROLES = """labels: [click, buy]
slots: [user_id, city]
multi: {tags: mean, words: sum}
dense: [price, age]
weight: w
"""


@pytest.fixture
def files(tmp_path):
    FRAME.write_parquet(tmp_path / "log.parquet")
    separated = [
        pl.col(name).list.eval(pl.element().cast(pl.String)).list.join("|") for name in ("tags", "words")
    ]
    text = FRAME.with_columns(separated)
    text.write_csv(tmp_path / "log.csv")
    (tmp_path / "log.tsv.gz").write_bytes(gzip.compress(text.write_csv(separator="\t").encode()))
    (tmp_path / "roles.yaml").write_text(ROLES)
    return tmp_path


def whole(stream):
    return next(stream.batches(100, 0, Share(), 0))


@pytest.mark.slow
def test_roles_make_inputs_labels_and_weights(files):
    batch = whole(FileStream(files / "log.parquet", columns=files / "roles.yaml", shuffled=False))
    assert {name: tuple(value.shape) for name, value in batch.inputs.items()} == {
        "slots": (4, 2, 1), "dense": (4, 2), "tags": (4, 2), "words": (4, 2),
    }  # fmt: skip
    bases = slot_bases(4)
    assert (batch.inputs["slots"][:, 0, 0].numpy() == bases[0] + 1 + np.array([7, 8, 9, 7])).all()
    city = batch.inputs["slots"][:, 1, 0]
    assert city[0] == city[3] != city[2]
    assert city[1] == bases[1]  # missing
    assert batch.inputs["tags"].tolist() == [
        [bases[2] + 2, bases[2] + 3], [-1, -1], [-1, -1], [bases[2] + 4, -1],
    ]  # fmt: skip
    words = batch.inputs["words"]
    assert words[0, 0] == words[1, 1] != words[1, 0]
    assert (words == -1).tolist() == [[False, True], [False, False], [True, True], [True, True]]
    expected = [
        [np.log(2.5), np.log(21)],
        [0, np.log(31)],
        [-np.log(4), np.log(41)],
        [np.log(1.25), np.log(51)],
    ]
    torch.testing.assert_close(batch.inputs["dense"], torch.tensor(expected).float())
    assert batch.labels.tolist() == [[1, 0], [0, 0], [0, 1], [1, 1]]
    assert batch.weights.tolist() == [1.0, 2.0, 0.5, 0.0]


@pytest.mark.parametrize("name", ["log.csv", "log.tsv.gz"])
def test_text_with_a_header_reads_as_parquet_does(files, name):
    roles = ROLES.replace("user_id, ", "")  # ids in text are text, so integers differ
    (files / "roles.yaml").write_text(roles.replace("tags: mean, ", ""))
    first, second = (
        whole(FileStream(files / one, columns=files / "roles.yaml")) for one in ("log.parquet", name)
    )
    for key, value in first.inputs.items():
        torch.testing.assert_close(second.inputs[key], value)
    assert torch.equal(first.labels, second.labels)
    assert torch.equal(first.weights, second.weights)


def test_roles_left_out_are_inferred_and_given_ones_complete(files):
    path = files / "log.parquet"
    layout = FileStream(path, columns="{labels: [click], ignore: [session, buy, w]}").layout
    assert layout.slots == {"slots": ("user_id", "city")}
    assert layout.dense == {"dense": ("price", "age")}
    assert layout.multi == {"tags": "sum", "words": "sum"}
    layout = FileStream(path, columns={"labels": "buy", "slots": ["user_id"], "dense": []}).layout
    assert (layout.labels, layout.slots, layout.dense) == (("buy",), {"slots": ("user_id",)}, {"dense": ()})
    assert FileStream(path, columns=layout).layout == layout
    assert Layout.from_json(layout.to_json()) == layout


def test_ids_that_are_text_are_not_those_that_are_numbers(files):
    roles = {"labels": "click", "slots": ["user_id", "city"], "multi": ["tags"], "dense": []}
    saved = {
        name: FileStream(files / name, columns=roles).describe()["columns"]
        for name in ("log.parquet", "log.csv")
    }
    for name, other, message in (
        (
            "log.parquet",
            "log.csv",
            "ids of column 'user_id', 'tags' are numbers in this file, but text in the training",
        ),
        (
            "log.csv",
            "log.parquet",
            "ids of column 'user_id', 'tags' are text in this file, but numbers in the training",
        ),
    ):
        FileStream(files / name, columns=Layout.from_json(saved[name]))
        with pytest.raises(InputError, match=message) as error:
            FileStream(files / name, columns=Layout.from_json(saved[other]))
        assert "convert" in error.value.hint
        del saved[other]["number_ids"]  # as in a checkpoint of an earlier version
        FileStream(files / name, columns=Layout.from_json(saved[other]))
        saved[other] = FileStream(files / other, columns=roles).describe()["columns"]
    (files / "roles.yaml").unlink()
    (files / "log.tsv.gz").unlink()
    with pytest.raises(
        InputError, match=r"log\.parquet: ids .* are numbers in this file, but text in .*log\.csv"
    ):
        whole(FileStream(files, columns=roles))


def test_groups_and_patterns_are_inputs_by_name(files):
    slots, dense = "{user: [user_id], where: [city]}", "{money: [pri*], rest: [age, w]}"
    columns = f"{{labels: click, slots: {slots}, multi: [], dense: {dense}}}"
    stream = FileStream(files / "log.parquet", columns=columns, shuffled=False)
    inputs = whole(stream).inputs
    assert {name: tuple(value.shape) for name, value in inputs.items()} == {
        "user": (4, 1, 1), "where": (4, 1, 1), "money": (4, 1), "rest": (4, 2),
    }  # fmt: skip
    assert "columns" in stream.describe()


def test_scale_separator_and_the_longest_list_are_options(files):
    columns = "{labels: click, slots: [city], multi: [tags], dense: [price], scale: none, max_ids: 1}"
    batch = whole(FileStream(files / "log.parquet", columns=columns, shuffled=False))
    assert batch.inputs["dense"][:, 0].tolist() == [1.5, 0.0, -3.0, 0.25]
    assert batch.inputs["tags"].shape == (4, 1)


@pytest.mark.parametrize(
    ("roles", "place", "message", "hint"),
    [
        ("labels: click\ndense: [price, prise]\n", "2:16", "no column 'prise'", "did you mean 'price'? columns: ses"),
        ("labels: click\nslots:\n  user: [zzz]\n", "3:10", "has no column 'zzz'", "columns: session, user_id, city"),
        ("labels: click\ndense: [city]\n", "2:9", "column 'city' .* has type String", "needs numbers"),
        ("labels: click\nslots: [price]\n", "2:9", "column 'price' .* has type Float64", "integers or text"),
        ("labels: click\nmulti: [age]\n", "2:9", "column 'age' .* has type Int64", "lists of integers or text"),
        ("labels: city\n", "1:9", "column 'city' .* has type String", "0 or 1"),
        ("labels: click\nslots: [city]\nignore: [city]\n", "3:10", "two roles: slots and ignore", "once"),
        ("labels: click\nslotz: [city]\n", "2:1", "slotz", "slots"),
        ("labels: click\nmulti: {tags: median}\n", "2:15", "median", "sum"),
    ],
)  # fmt: skip
def test_a_wrong_role_is_reported_at_its_line(files, roles, place, message, hint):
    (files / "roles.yaml").write_text(roles)
    with pytest.raises(InputError, match=message) as error:
        FileStream(files / "log.parquet", columns=files / "roles.yaml")
    assert f"roles.yaml:{place}" in str(error.value)
    assert hint in str(error.value)


@pytest.mark.parametrize("name", ["bad.parquet", "bad.csv"])
def test_a_bad_value_is_reported_with_row_column_and_value(tmp_path, name):
    bad = pl.DataFrame(
        {
            "click": [1, 3, 0, 0, None],
            "buy": [0, 1, 1, 0, 1],
            "price": [1.0, 2.0, float("inf"), 4.0, 5.0],
            "w": [1.0, 1.0, 1.0, -2.0, 1.0],
            "city": ["a", "b", "c", "d", "e"],
        }
    )
    path = tmp_path / name
    bad.write_parquet(path) if name.endswith("parquet") else bad.write_csv(path)
    stream = FileStream(path, columns="{labels: [click, buy], slots: [city], dense: [price], weight: w}")
    assert whole(stream).examples == 1
    header = int(name.endswith("csv"))
    reasons = [
        "column 'click': a label is 0 or 1, got 3",
        "column 'price': inf is infinite, or too large for a float",
        "column 'w': a weight is at least 0, got -2.0",
        "column 'click': a label is 0 or 1, got nothing",
    ]
    assert stream.first_bad == [f"{path}:{row + header}: {reason}" for row, reason in enumerate(reasons, 2)]
    with pytest.raises(InputError, match="a label is 0 or 1, got 3"):
        whole(FileStream(path, columns="{labels: click, slots: [city], dense: [price]}", strict=True))


def test_text_that_is_not_a_number_is_a_bad_row(tmp_path):
    """Wherever it is: the types of columns are inferred from the first 100 lines."""
    columns = "{labels: click, slots: [city], dense: [price]}"
    rows = [f"{row % 2},{row}.5,a" for row in range(200)]
    for line in (2, 6, 180):
        lines = [
            "click,price,city",
            *rows[: line - 2],
            "0,cheap,b",
            "",
            "maybe,1,b",
            "1,,c",
            *rows[line - 2 :],
            "",
        ]
        (tmp_path / "log.csv").write_text("\n".join(lines))
        stream = FileStream(tmp_path / "log.csv", columns=columns)
        assert next(stream.batches(1000, 0, Share(), 0)).examples == 201
        assert stream.first_bad == [
            f"{tmp_path / 'log.csv'}:{line}: column 'price': 'cheap' is not a number",
            f"{tmp_path / 'log.csv'}:{line + 1}: column 'click': a label is 0 or 1, got nothing",
            f"{tmp_path / 'log.csv'}:{line + 2}: column 'click': a label is 0 or 1, got maybe",
        ]
    with pytest.raises(InputError, match=r"--columns:1:36: column 'city' of .* has type String"):
        FileStream(tmp_path / "log.csv", columns="{labels: click, slots: [], dense: [city]}")


def test_lines_with_another_number_of_fields_than_the_header_are_bad_rows(tmp_path):
    path = tmp_path / "ragged.csv"
    lines = ["click,user,item,price", "1,u1,i1,1.5", "0,u2,i2", "1", '0,"a,b",i3,2.5', "1,u4,i4,2.5,99,100"]
    path.write_text("\n".join(lines) + "\n")
    stream = FileStream(path, columns="{labels: click, slots: [user, item], dense: [price]}")
    assert whole(stream).examples == 2
    assert stream.first_bad == [
        f"{path}:{line}: expected 4 fields, as in the header, got {count}"
        for line, count in ((3, 3), (4, 1), (6, 6))
    ]


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ("0,u2,i2", "expected 4 fields, as in the header, got 3"),
        ("0,u2,i2,2.5,99", "expected 4 fields, as in the header, got 5"),
        ("", "column 'click': a label is 0 or 1, got nothing"),
    ],
)
def test_the_first_row_of_a_file_or_after_a_resumption_may_be_bad_too(first, reason, tmp_path):
    path = tmp_path / "ragged.csv"
    path.write_text("\n".join(["click,user,item,price", first, "1,u1,i1,1.5", first, "1,u3,i3,3.5", ""]))
    columns = {"labels": "click", "slots": ["user", "item"], "dense": ["price"], "scale": "none"}
    early, late = (FileStream(path, columns=columns, window=1, epochs=1) for _ in range(2))
    batches = list(early.batches(1, 0, Share(), 0))
    assert [batch.inputs["dense"].tolist() for batch in batches] == [[[1.5]], [[3.5]]]
    assert early.first_bad == [f"{path}:{line}: {reason}" for line in (2, 4)]
    late.seek(early.position(1))
    [batch] = late.batches(1, 1, Share(), 0)
    assert batch.inputs["dense"].tolist() == [[3.5]]
    assert late.first_bad == [f"{path}:4: {reason}"]


def test_a_column_entered_twice_is_refused(tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text("click,click,user\n1,0,u1\n0,1,u2\n")
    with pytest.raises(InputError, match=r"twice\.csv:1: column 'click' is entered twice"):
        FileStream(path, columns="{labels: click}")


@pytest.mark.parametrize("columns", [{}, {"labels": "click", "slots": ["city"], "dense": ["price"]}])
def test_a_header_without_rows_is_refused(columns, tmp_path):
    (tmp_path / "log.csv").write_text("click,price,city\n")
    with pytest.raises(InputError, match=r"log\.csv: has no rows"):
        FileStream(tmp_path / "log.csv", columns=columns)


@pytest.mark.parametrize("name", ["log.parquet", "log.csv"])
def test_a_run_over_lists_goes_on_from_any_step(tmp_path, name):
    random = np.random.default_rng(0)
    rows = 100
    frame = pl.DataFrame(
        {
            "label": random.integers(0, 2, rows),
            "city": [f"c{value}" for value in random.integers(0, 9, rows)],
            "tags": ["|".join(f"t{tag}" for tag in range(count)) for count in random.integers(0, 6, rows)],
        }
    )
    path = tmp_path / name
    frame.write_parquet(path) if name.endswith("parquet") else frame.write_csv(path)
    columns = {"labels": "label", "slots": ["city"], "multi": ["tags"], "dense": []}

    def stream():
        return FileStream(path, columns=columns, window=16, epochs=2)

    full = list(stream().batches(7, 0, Share(), 3))
    assert sum(batch.examples for batch in full) == 2 * rows
    early, late = stream(), stream()
    for _ in zip(range(9), early.batches(7, 0, Share(), 3), strict=False):
        pass
    late.seek(early.position(9))
    for batch, other in zip(full[9:], late.batches(7, 9, Share(), 3), strict=True):
        assert all(torch.equal(batch.inputs[key], other.inputs[key]) for key in batch.inputs)
        assert torch.equal(batch.labels, other.labels)


def test_keys_of_many_slots_do_not_collide(tmp_path):
    wide = pl.DataFrame({"label": [0, 1], **{f"C{slot}": [5, 6] for slot in range(300)}})
    wide.write_parquet(tmp_path / "wide.parquet")
    keys = whole(FileStream(tmp_path / "wide.parquet")).inputs["slots"]
    assert keys.shape == (2, 300, 1)
    assert len(keys.unique()) == 600


@pytest.mark.parametrize(
    ("text", "line"),
    [(b"label,city\n1,\xff\xfe\n", ""), (b"\nlabel,city\n1,oslo\n", ":1")],
    ids=["not UTF-8", "an empty header"],
)
def test_text_that_can_not_be_read_gets_one_message(text, line, tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(text)
    with pytest.raises(InputError, match="can't be read as text with columns: ") as error:
        next(FileStream(path, columns={}).batches(1, 0, Share(), 0))
    assert error.value.where == f"{path}{line}"
    assert "\n" not in error.value.what


def test_data_without_an_example_is_refused_with_the_reason(tmp_path):
    path = tmp_path / "log.parquet"
    FRAME.with_columns(click=pl.lit(3)).write_parquet(path)
    roles = {"labels": "click", "slots": ["user_id"], "multi": [], "dense": []}
    with pytest.raises(InputError, match=r"the first of 4 is .*log\.parquet:1: column 'click': .* got 3"):
        whole(FileStream(path, columns=roles))
    FRAME.clear().write_parquet(path)
    with pytest.raises(InputError, match="has no rows"):
        whole(FileStream(path, columns=roles))


@pytest.mark.parametrize("name", ["empty.tsv", "empty.tsv.gz"])
def test_an_empty_file_needs_no_header_where_the_training_data_has_none(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"") if name.endswith(".gz") else b"")
    with pytest.raises(InputError, match="has no rows"):
        whole(FileStream(path, columns=criteo.LAYOUT))


def test_a_trainer_takes_roles_of_columns(files):
    """By name and by class; held-out data has the same roles."""
    path = files / "log.parquet"
    roles = {"labels": ["click", "buy"], "slots": ["user_id", "city"], "multi": [], "dense": ["price", "age"]}
    with Trainer("mmoe", path, columns=roles, eval_data=path, batch=2) as trainer:
        assert set(trainer.fit().tasks) == {"click", "buy"}
        assert trainer.evaluate(path).examples == 4

    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = Embedding(1)

        def forward(self, inputs):
            return self.rows(inputs["slots"]).sum(dim=(1, 2, 3)) + inputs["dense"].sum(dim=1)

    one = {**roles, "labels": "buy"}
    given = Trainer(Wide, path, columns=one, batch=4).fit(steps=3).losses
    stream = FileStream(path, columns=one, epochs=None)
    assert given == Trainer(Wide, stream, batch=4).fit(steps=3).losses
    with pytest.raises(InputError, match="columns describe files"):
        Trainer(Wide, [({"slots": [1]}, 1)], columns=roles)
