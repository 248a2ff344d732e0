"""`berth data`: check the columns of training data, and generate files to try a training."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from berth.cli.options import AsJson, Force, argument, option
from berth.cli.output import check_output
from berth.cli.quantities import read_positive
from berth.cli.verbs import Verbs
from berth.report import terminal
from berth.units import amount

app = Verbs(help="Check training data, or generate some.")


@app.verb("berth data show clicks.parquet", "berth data show clicks.csv --columns roles.yaml")
def show(
    path: Annotated[str, argument("PATH", "Parquet, CSV or TSV, or a folder of them.")],
    columns: Annotated[
        str | None, option("FILE", "Roles of columns, as in `berth train`.", shown="inferred for Parquet")
    ] = None,
    rows: Annotated[int, option("N", "Rows to read.", min=1)] = 10_000,
    as_json: AsJson = False,
) -> None:
    """Show the role of each column, and the first unreadable rows."""
    from berth.train.data import Share
    from berth.train.data.files import FileStream

    stream = FileStream(path, columns=columns, shuffled=False)
    batch = next(stream.batches(rows, 0, Share(), 0))
    inputs = {name: list(value.shape[1:]) for name, value in batch.inputs.items()}
    labels = batch.labels.reshape(batch.examples, -1).double().mean(dim=0).tolist()
    facts: dict[str, Any] = {
        "columns": stream.layout.to_json(),
        "inputs": inputs,
        "rows": batch.examples,
        "unreadable": stream.bad_rows,
        "positive": dict(zip(stream.layout.labels, labels, strict=True)),
    }
    if as_json:
        terminal.print_json(facts | {"first_unreadable": stream.first_bad})
        return
    layout = stream.layout
    table = [["label", name, f"{share:.2%} are 1"] for name, share in facts["positive"].items()]
    table += [["slot", name, f"input {group}"] for group, names in layout.slots.items() for name in names]
    table += [["multi", name, f"input {name}, by {pooling}"] for name, pooling in layout.multi.items()]
    table += [["dense", name, f"input {group}"] for group, names in layout.dense.items() for name in names]
    table += [["weight", layout.weight, ""]] if layout.weight is not None else []
    out = terminal.console()
    out.print(terminal.table(f"{path}: {batch.examples:,} rows read", ["role", "column", ""], table))
    for text in stream.first_bad[:5]:
        out.print(text, markup=False)


@app.verb("berth data criteo --rows 100k --out day_0.tsv")
def criteo(
    out: Annotated[str, option("FILE", "File to write (TSV).")],
    rows: Annotated[str, option("N", "Rows, e.g. 100k.")] = "100k",
    seed: Annotated[int, option("N", "Random seed.", min=0)] = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Generate a file in Criteo's format, with labels whose best possible AUC is known."""
    from berth.train.data.sample import write_criteo

    check_output(out, force, option="--out")
    count = max(2, round(read_positive("--rows", amount, rows)))
    best = write_criteo(out, count, seed)
    if as_json:
        terminal.print_json({"file": out, "rows": count, "best_auc": best})
        return
    typer.echo(f"wrote {out}: {count:,} rows; best possible AUC {best:.4f}")
