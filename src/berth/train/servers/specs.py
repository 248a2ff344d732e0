"""Descriptions of tables as they travel: JSON of plain fields, made into the same facts on the other side."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from berth.errors import RefusedError, WireError
from berth.train.sparse import TableSpec
from berth.train.tables import Admission, Initialiser, Life, Optimiser


def to_json(spec: TableSpec) -> dict[str, Any]:
    """A table's description in plain values."""
    return asdict(spec)


def from_json(facts: Any) -> TableSpec:
    """The description that `to_json` was given."""
    try:
        admission, life = facts["admission"], facts["life"]
        optimiser = {**facts["optimiser"], "bounds": tuple(facts["optimiser"]["bounds"])}
        return TableSpec(
            str(facts["name"]),
            int(facts["dim"]),
            Optimiser(**optimiser),
            Initialiser(**facts["initialiser"]),
            Admission(**admission) if admission else None,
            Life(**life) if life else None,
        )
    except (KeyError, TypeError) as error:
        raise WireError(f"a table is described in a way this version does not know: {error}") from error


def must_agree(mine: TableSpec, theirs: TableSpec) -> None:
    """Two descriptions of one name are of the same table."""
    if mine != theirs:
        mine_facts, their_facts = to_json(mine), to_json(theirs)
        unlike = ", ".join(name for name in mine_facts if mine_facts[name] != their_facts[name])
        raise RefusedError(f"table {mine.name!r} is there already with another {unlike}")
