"""Draws docs/assets/tour.svg: what three commands really print, as a picture of a terminal."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMANDS = [
    "network bert-large --gpus 16 --cluster 4x20x8:H100 --congestion 5",
    "trace info examples/day.csv --cluster 4x20x8 | tail -8",
]
HERE = Path(__file__).resolve().parent
JOBS = "trace generate {out} --jobs 2000 --cluster 4x20x8 --load 0.9 --seed 7 --force"


def main() -> None:
    """Runs the commands and stores the picture."""
    console = Console(record=True, width=80, file=io.StringIO())
    bin_folder = Path(sys.executable).parent
    day = HERE.parent / "examples" / "day.csv"
    subprocess.run([bin_folder / "berth", *JOBS.format(out=day).split()], check=True, capture_output=True)
    for command in COMMANDS:
        shell = f"PATH={bin_folder}:$PATH berth {command}"
        result = subprocess.run(
            shell, shell=True, cwd=HERE.parent, capture_output=True, text=True, check=True
        )
        console.print(Text(f"$ berth {command}", style="bold cyan"))
        console.print(Text(result.stdout.rstrip()))
    day.unlink()
    picture = console.export_svg(title="berth", unique_id="berth")
    (HERE / "assets" / "tour.svg").write_text(
        "\n".join(line.rstrip() for line in picture.splitlines()) + "\n"
    )


if __name__ == "__main__":
    main()
