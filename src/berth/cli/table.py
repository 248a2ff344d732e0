"""`berth table`: inspect, compare, shrink and export saved embedding tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli.options import AsJson, Force, argument, flag, option
from berth.cli.output import check_output, notify
from berth.cli.verbs import Verbs
from berth.errors import InputError
from berth.report import terminal
from berth.units import format_count

if TYPE_CHECKING:
    from berth.train.checkpoint.inspect import SavedTable

app = Verbs(
    help="Inspect, export, shrink and compare the tables of checkpoints.",
)

Folder = Annotated[str, argument("DIR", "Folder of checkpoints (`berth train --checkpoint`).")]
Name = Annotated[str | None, option("NAME", "Which table.", "--table", shown="the only one")]
Step = Annotated[int | None, option("N", "Step of the checkpoint.", shown="the newest")]


@app.verb("berth table info run1", "berth table info run1 --step 500 --json")
def info(folder: Folder, table: Name = None, step: Step = None, as_json: AsJson = False) -> None:
    """Show rows, sizes and lengths of the tables of a checkpoint."""
    from berth.train.checkpoint.inspect import open_checkpoint, saved_table, table_names

    _, chain = open_checkpoint(folder, step, notify)
    names = [table] if table is not None else table_names(chain)
    found = [_facts(saved_table(folder, name, chain[-1].step)) for name in names]
    if as_json:
        terminal.print_json({"step": chain[-1].step, "kind": chain[-1].kind, "tables": found})
        return
    rows = [
        [
            one["table"],
            f"{one['rows']:,}",
            str(one["dim"]),
            one["optimiser"],
            f"{one['mean_length']:.4g}",
            f"{one['longest']:.4g}",
            f"{one['waiting']:,}" if one["waiting"] else "-",
        ]
        for one in found
    ]
    columns = ["table", "rows", "dim", "optimiser", "mean length", "longest", "waiting"]
    rest = "" if len(chain) == 1 else f", {len(chain) - 1} over the full one of step {chain[0].step:,}"
    out = terminal.console()
    out.print(terminal.table(f"Tables after step {chain[-1].step:,} ({chain[-1].kind}{rest})", columns, rows))
    out.print("length: of a row's weights as a vector", style="dim")


@app.verb("berth table export run1 rows.parquet", "berth table export run1 --dense weights.pt")
def export(
    folder: Folder,
    out: Annotated[str | None, argument("FILE", "Parquet file for the table.")] = None,
    table: Name = None,
    step: Step = None,
    with_optimiser: Annotated[
        bool, flag("Include the optimiser state of each row.", "--with-optimiser")
    ] = False,
    dense: Annotated[str | None, option("FILE", "Dense weights as a torch state dict.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a table as Parquet, or the dense weights for `torch.load(weights_only=True)`."""
    from berth.train.checkpoint.export import export_dense, export_table
    from berth.train.checkpoint.inspect import saved_table

    if out is None and dense is None:
        raise InputError("nothing to write", hint="name a Parquet file, or --dense FILE")
    check_output(out, force, option="FILE")
    check_output(dense, force, option="--dense")
    written: dict[str, dict[str, int]] = {}
    if out is not None:
        saved = saved_table(folder, table, step, notify)
        step = saved.step  # so that both files are of one checkpoint, and damaged ones are reported once
        written[out] = {"rows": export_table(saved, out, state=with_optimiser)}
    if dense is not None:
        written[dense] = {"weights": export_dense(folder, dense, step, notify)}
    if as_json:
        terminal.print_json({"written": written})
        return
    for file, count in written.items():
        typer.echo(f"wrote {file}: " + ", ".join(f"{number:,} {what}" for what, number in count.items()))


@app.verb("berth table shrink run1 run1-small --shorter-than 0.01")
def shrink(
    folder: Folder,
    out: Annotated[str, argument("NEW_DIR", "Folder for the smaller checkpoint.")],
    table: Name = None,
    step: Step = None,
    shorter_than: Annotated[
        float | None, option("X", "Drop rows whose weights, as a vector, are shorter.")
    ] = None,
    days: Annotated[int, option("N", "Days of decay to apply.", min=1)] = 1,
    as_json: AsJson = False,
) -> None:
    """Write a copy without unneeded rows; training can resume from the copy."""
    from berth.train.checkpoint.export import write_changed
    from berth.train.checkpoint.inspect import saved_table, shrink_table

    before = saved_table(folder, table, step, notify)
    after = shrink_table(before, days=days, shorter_than=shorter_than)
    write_changed(folder, out, after)
    kept = len(after.state.keys)
    rows = len(before.state.keys)
    if as_json:
        terminal.print_json({"written": out, "table": before.spec.name, "rows": rows, "kept": kept})
        return
    share = kept / rows if rows else 1.0
    typer.echo(f"wrote {out}: {kept:,} of {format_count(rows, 'row')} of {before.spec.name} ({share:.1%})")


@app.verb("berth table diff run1 run2", "berth table diff run1 run1 --step 500")
def diff(
    first: Folder,
    second: Annotated[str, argument("OTHER", "Folder to compare with.")],
    table: Name = None,
    step: Annotated[int | None, option("N", "Step in the first folder.")] = None,
    other_step: Annotated[int | None, option("N", "Step in the other.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how a table differs between two checkpoints, row by row."""
    from berth.train.checkpoint.inspect import diff_tables, saved_table

    here = saved_table(first, table, step, notify)
    there = saved_table(second, table, other_step, notify)
    found = diff_tables(here, there)
    if as_json:
        document: dict[str, Any] = {"steps": [here.step, there.step], **asdict(found)}
        document["most_changed"] = [{"key": key % 2**64, "distance": far} for key, far in found.most_changed]
        terminal.print_json(document)
        return
    rows = [
        [f"only in {first}, step {here.step:,}", f"{found.only_first:,}"],
        [f"only in {second}, step {there.step:,}", f"{found.only_second:,}"],
        ["the same in both", f"{found.same:,}"],
        ["changed", f"{found.changed:,}"],
        ["largest change of a weight", f"{found.largest:.4g}"],
        ["mean distance of the changed", f"{found.mean:.4g}"],
        *([f"key {key % 2**64}", f"{far:.4g}"] for key, far in found.most_changed),
    ]
    terminal.console().print(terminal.table(f"Table {here.spec.name}", ["rows", ""], rows))


def _facts(saved: SavedTable) -> dict[str, Any]:
    import numpy as np

    lengths = np.sqrt((saved.weights.astype(np.float64) ** 2).sum(axis=1))
    return {
        "table": saved.spec.name,
        "rows": len(saved.state.keys),
        "dim": saved.spec.dim,
        "optimiser": saved.spec.optimiser.kind,
        "bytes": int(saved.state.records.nbytes + saved.state.keys.nbytes),
        "mean_length": float(lengths.mean()) if len(lengths) else 0.0,
        "longest": float(lengths.max(initial=0.0)),
        "waiting": len(saved.state.waiting_keys),
        "day": saved.state.day,
    }
