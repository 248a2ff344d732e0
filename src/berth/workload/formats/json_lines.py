"""berth's JSON lines: one job per line, plain or with parts and alternatives.

    {"job_id": "a", "submit_s": 0, "num_gpu": 8, "duration_s": 3600, "user": "ada"}
    {"job_id": "b", "submit_s": 5, "work": "2B examples", "batch": 65536, "alternatives": [
        {"parts": [{"name": "all", "devices": {"V100-16": 8}}], "step": {"near": "40ms", "network": "90ms"}}]}

Each job is on one line; the second is broken here to be read.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Self

import polars as pl
import yaml
from pydantic import BeforeValidator, Field, model_validator

from berth.errors import InputError, TraceError
from berth.spec import locate, locate_repeated_key, validate
from berth.workload.formats.base import Head, ParsedJobs
from berth.workload.parsing.stream import TraceStream
from berth.workload.shape_spec import Amount, OfferSpec, ShapeSpec, offer_of
from berth.workload.shapes import LONGEST_S, MAX_ALTERNATIVES, Offer
from berth.workload.trace import NEEDED, OPTIONAL, BadRow, BadRowCollector

_PLAIN = (*NEEDED, *OPTIONAL)
_DEEPEST = 64  # as in YAML, see `berth.spec`
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')  # texts too: their brackets do not count
# the column is looked for in this many bad rows, of this length: that takes much longer than reading them
_LOCATED, _LONGEST_LOCATED = 100, 100_000
_SPOT = re.compile(r":1:(\d+)")  # of a mistake in one line, as `berth.spec` writes it
# an id may be a number, as in CSV
_Id = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
_Alternatives = Annotated[list[ShapeSpec], Field(min_length=1, max_length=MAX_ALTERNATIVES)]


class JobLine(OfferSpec):
    """One line."""

    job_id: Annotated[_Id, Field(min_length=1)]
    submit_s: Annotated[float, Field(le=LONGEST_S)]
    num_gpu: Annotated[int, Field(gt=0, lt=2**31)] | None = None
    duration_s: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = None
    model: str | None = None
    user: _Id | None = None
    vc: _Id | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    device: str | None = None
    name: str | None = None
    estimate_s: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = None
    preemptible: Annotated[int, Field(ge=0, le=1)] | None = None
    batch: Amount | None = None
    alternatives: _Alternatives | None = None  # type: ignore[assignment]

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.alternatives is None:
            for name in ("num_gpu", "duration_s"):
                if getattr(self, name) is None:
                    raise InputError(f"{name} is missing", hint="or give `work` and `alternatives`")
            if self.work is not None or self.deadline is not None:
                raise InputError("`work` and `deadline` belong to a job with `alternatives`")
        elif self.num_gpu is not None or self.duration_s is not None:
            raise InputError("give `alternatives`, or `num_gpu` and `duration_s`, not both")
        return self


class _JsonLines:
    name = "jsonl"
    title = "berth's JSON lines"

    def recognises(self, head: Head) -> bool:
        """An object per line, the first with a job's id and submission."""
        first = head.text.split("\n", 1)[0]
        return first.startswith("{") and '"job_id"' in first and '"submit_s"' in first

    def read(self, source: TraceStream, head: Head, bad_rows: BadRowCollector) -> ParsedJobs:
        """All jobs, a line at a time."""
        columns: dict[str, list[Any]] = {name: [] for name in (*_PLAIN, "line")}
        offers: dict[str, Offer] = {}
        rows = bad = 0
        for number, text in _lines(source):
            if not text.strip():
                continue
            rows += 1
            try:
                job, offer = _job(
                    text, f"{source.name}:{number}", locates=bad < _LOCATED and len(text) <= _LONGEST_LOCATED
                )
            except InputError as error:
                spot, bad = _SPOT.fullmatch(error.where or ""), bad + 1
                column = int(spot[1]) if spot is not None else None
                bad_rows.add(1, [BadRow(number, column, "", "", _reason(error))])
                continue
            if offer is not None:
                offers.setdefault(job["job_id"], offer)
            for name in _PLAIN:
                columns[name].append(job[name])
            columns["line"].append(number)
        schema = {name: pl.Float64() for name in ("priority", "estimate_s", "preemptible")}
        return ParsedJobs(pl.DataFrame(columns, schema_overrides=schema), rows, offers=offers)


def _lines(source: TraceStream) -> Iterator[tuple[int, str]]:
    decode, left, number = codecs.getincrementaldecoder("utf-8")().decode, "", 1
    try:
        for piece in source.pieces():
            *whole, left = (left + decode(piece)).split("\n")
            yield from enumerate(whole, number)
            number += len(whole)
    except UnicodeDecodeError:
        raise TraceError("is not text (UTF-8)", where=f"{source.name}:{number}") from None
    yield number, left


def _job(text: str, where: str, *, locates: bool) -> tuple[dict[str, Any], Offer | None]:
    """The columns of a line's job, and its offer; `locates`: errors have the column, as `:1:17`."""
    _refuse_deep_nesting(text)
    try:
        data = json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise TraceError(f"is not JSON: {error.msg}", where=f":1:{error.colno}") from None
    except InputError as error:
        found = locate_repeated_key(text) if locates else None
        error.where = None if found is None else f":1:{found[1]}"
        raise
    except ValueError:  # of an integer beyond the digits that Python converts
        raise TraceError("holds a number of too many digits") from None
    if not isinstance(data, dict):
        raise TraceError("is not a JSON object")

    written = validate(data, JobLine, text if locates else "", "")
    job = {name: getattr(written, name) for name in _PLAIN}
    if written.alternatives is None:
        return job, None
    paths: dict[str, tuple[int | str, ...]] = {}

    def position(*path: int | str) -> str:
        paths[repr(path)] = path  # looked for in the text if it is needed
        return repr(path)

    try:
        offer = offer_of(written, position)
    except InputError as error:
        path = paths.get(error.where or "")
        error.where = None if path is None or not locates else _position(text, path)
        raise
    offer = replace(offer, where=(where,) * len(offer.alternatives))
    first = offer.alternatives[0]
    job["num_gpu"], job["duration_s"] = sum(first.devices.values()), offer.near_s(first)
    return job, offer


def _position(text: str, path: Sequence[int | str]) -> str | None:
    """The column of the value at a path of keys, as `:1:17`; None for JSON that is not YAML."""
    try:
        return f":1:{locate(text, path)[1]}"
    except (yaml.YAMLError, ValueError):
        return None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object; plain `json` keeps the last of two equal keys."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for at, key in enumerate(keys) if key in keys[:at])
        raise TraceError(f"{twice!r:.60} is given twice in one object", hint="remove one of the two")
    return found


def _refuse_deep_nesting(text: str) -> None:
    """The parser builds nested values by recursion, of which Python allows only so much."""
    if text.count("[") + text.count("{") <= _DEEPEST:
        return
    depth = 0
    for found in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth > _DEEPEST:
            raise TraceError(f"is nested more than {_DEEPEST} deep", where=f":1:{found.start() + 1}")


def _reason(error: InputError) -> str:
    """The message without its position, which the row has, on one line."""
    hint = f"; {error.hint}" if error.hint else ""
    what = re.sub(r"\n(:1:\d+)?: ", "; ", error.what)  # of several mistakes in a line
    return " ".join((what + hint).split())


JSON_LINES = _JsonLines()
