"""Writes docs/reference/ from the code: commands, keys of the YAML files, catalogues, HTTP API, Python."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

REFERENCE = Path(__file__).parent / "reference"


def main() -> None:
    """Makes the five pages."""
    import http_page
    import python_page

    from berth.cluster.spec import ClusterSpec
    from berth.live.spec import JobSpec
    from berth.plan.files import PlanSpec
    from berth.plan.profile.spec import LayerProfileSpec
    from berth.workload.profiles import ProfileSpec

    REFERENCE.mkdir(exist_ok=True)
    (REFERENCE / "commands.md").write_text(commands())
    pages = [
        ("A cluster", ClusterSpec),
        ("A profile", ProfileSpec),
        ("A profile of layers", LayerProfileSpec),
        ("A plan", PlanSpec),
        ("A job", JobSpec),
    ]
    yaml = "# YAML\n\nUnknown keys are refused; quantities carry their unit.\n\n"
    (REFERENCE / "yaml.md").write_text(yaml + "\n".join(section(title, model) for title, model in pages))
    (REFERENCE / "catalogue.md").write_text(catalogue())
    (REFERENCE / "api.md").write_text(http_page.page())
    (REFERENCE / "python.md").write_text(python_page.page())


def commands() -> str:
    """The help of every command, as Markdown."""
    result = subprocess.run(
        [sys.executable, "-m", "typer", "--app", "app", "berth.cli.main", "utils", "docs", "--name", "berth"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    text = result.stdout.replace("# `berth`", "# Commands", 1)
    return re.sub(r"^Examples?:\n((?:  .*\n)+)", _console, text, flags=re.MULTILINE)


def _console(found: re.Match[str]) -> str:
    """The examples of one command, to be copied."""
    lines = [f"$ {line.strip()}" for line in found.group(1).splitlines()]
    return "\n".join(["**Examples**:\n", "```console", *lines, "```", ""])


def section(title: str, model: type[BaseModel]) -> str:
    """The keys of one YAML file and of everything below it."""
    schema = model.model_json_schema()
    parts = [
        (title, schema),
        *((name.removesuffix("Spec"), part) for name, part in schema.get("$defs", {}).items()),
    ]
    return "\n".join(table(name, part) for name, part in parts if part.get("properties"))


def table(title: str, part: dict[str, Any]) -> str:
    """One mapping: key, what it holds, whether it must be there, and what it means."""
    about = (part.get("description") or "").strip()
    head = "| key | holds | default | meaning |\n|---|---|---|---|\n"
    return f"## {title}\n\n{about}\n\n{head}" + "".join(rows(part))


def rows(part: dict[str, Any]) -> Iterator[str]:
    """A line per key."""
    required = part.get("required", [])
    for name, field in part["properties"].items():
        default = "**needed**" if name in required else shown(field.get("default"))
        yield f"| `{name}` | {kind(field)} | {default} | {field.get('description', '')} |\n"


def shown(default: object) -> str:
    """A default as people write it."""
    return "" if default in (None, [], {}, ()) else f"`{default}`"


def kind(field: dict[str, Any]) -> str:
    """What a value looks like, with an example where it is a quantity."""
    options = [option for option in field.get("anyOf", [field]) if option.get("type") != "null"]
    return " or ".join(one_kind(option | {"quantity": field.get("quantity")}) for option in options)


def one_kind(option: dict[str, Any]) -> str:
    """One of the alternatives."""
    if example := option.get("quantity"):
        return f"`{example}`"
    if reference := option.get("$ref"):
        return str(reference).rsplit("/", 1)[-1].removesuffix("Spec").lower()
    if option.get("type") == "array":
        return f"list of {kind(option.get('items', {}))}"
    if option.get("type") == "object":
        values = option.get("additionalProperties")
        return f"name: {kind(values)}" if isinstance(values, dict) else "name: value"
    if values := option.get("enum"):
        return " or ".join(f"`{value}`" for value in values)
    return {"integer": "whole number", "number": "number", "string": "text"}.get(
        option.get("type", ""), "value"
    )


def catalogue() -> str:
    """What the catalogue commands print."""
    text = "# Devices and models\n"
    for title, command in [
        ("Devices", ["cluster", "devices"]),
        ("Presets", ["cluster", "presets"]),
        ("Models", ["models"]),
    ]:
        program = Path(sys.executable).with_name("berth")
        result = subprocess.run([program, *command], capture_output=True, text=True, check=True)
        text += f"\n## {title}\n\n`berth {' '.join(command)}`\n\n```text\n{result.stdout.rstrip()}\n```\n"
    return text


if __name__ == "__main__":
    main()
