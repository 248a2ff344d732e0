"""`berth export`: write a trained model for serving."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from berth.cli import complete
from berth.cli.evaluate import Best
from berth.cli.options import AsJson, Force, argument, option
from berth.cli.output import check_folder, notify
from berth.errors import InputError
from berth.report import terminal
from berth.units import format_bytes

EXAMPLES = (
    "berth export run1 --out served",
    "berth export run1 --best --out served",
    "berth export run1 mine.py:make_model --out served",
)


def export(
    checkpoint: Annotated[str, argument("DIR", "Folder of checkpoints (`berth train --checkpoint`).")],
    model: Annotated[
        str | None,
        argument(
            "MODEL", "Your own model as path.py:make_model; not needed for the zoo.", complete=complete.zoo
        ),
    ] = None,
    out: Annotated[str, option("DIR", "Folder to write.")] = "served",
    step: Annotated[int | None, option("N", "Step of the checkpoint.", shown="the newest")] = None,
    best: Best = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a model for serving: torch.export programs, and its rows as files that can be mapped into memory."""
    from berth.train.serving.export import export_for_serving

    check_folder(out, option="--out")
    if best and step is not None:
        raise InputError("--best and --step exclude each other", hint="give one of them")
    wanted: int | Literal["best"] | None = "best" if best else step
    written = export_for_serving(checkpoint, out, model, step=wanted, overwrite=force, notify=notify)
    if as_json:
        terminal.print_json(
            {"folder": out, "step": written.step, "rows": written.rows, "bytes": written.bytes}
        )
        return
    rows = ", ".join(f"{count:,} rows of {name}" for name, count in written.rows.items())
    typer.echo(f"wrote {out} of step {written.step:,}: {rows}; {format_bytes(written.bytes)}")
