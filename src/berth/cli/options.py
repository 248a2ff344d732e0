"""Options shared by many commands."""

from __future__ import annotations

from typing import Annotated

import typer

_MAX_EXAMPLES = 10_000_000  # of a batch: more would not fit into memory

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        metavar="N",
        min=1,
        max=_MAX_EXAMPLES,
        help="Examples per batch.",
        show_default="depends on the model",
    ),
]
Html = Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a report as one HTML file.")]
JobProfileFile = Annotated[
    str | None,
    typer.Option(
        "--job-profile",
        metavar="FILE",
        help="Write a job profile for `berth simulate` and `berth models` (YAML).",
    ),
]
Port = Annotated[
    int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port to listen on; 0: any.")
]
