"""Trace formats, detected by file content, never by file name."""

from __future__ import annotations

from berth.errors import TraceError, UnknownNameError, nearest
from berth.workload.formats.base import CsvFormat, Format, Head, ParsedJobs
from berth.workload.formats.csv_formats import ALIBABA_2020, ALIBABA_2023, HELIOS, PHILLY_CSV, PLAIN, TIRESIAS
from berth.workload.formats.json_lines import JSON_LINES
from berth.workload.formats.philly_json import PHILLY_JSON
from berth.workload.formats.refused import refuse_known

__all__ = ["FORMATS", "CsvFormat", "Format", "Head", "ParsedJobs", "detect", "named"]

_ALL: tuple[Format, ...] = (
    PLAIN,
    JSON_LINES,
    PHILLY_CSV,
    PHILLY_JSON,
    HELIOS,
    ALIBABA_2020,
    ALIBABA_2023,
    TIRESIAS,
)
_SIMILAR = 0.9
FORMATS: dict[str, Format] = {kind.name: kind for kind in _ALL}


def named(name: str) -> Format:
    """Return the format of this name."""
    if name not in FORMATS:
        raise UnknownNameError("trace format", name, FORMATS)
    return FORMATS[name]


def detect(head: Head, source: str) -> Format:
    """Return the format of a file by its beginning."""
    for kind in _ALL:
        if kind.recognises(head):
            return kind
    refuse_known(head, source)
    raise _unknown(head, source)


def _unknown(head: Head, source: str) -> TraceError:
    """An error that names the closest format and its missing columns; a similar name counts nearly as the name."""

    def found(kind: CsvFormat) -> float:
        similar = len(_similar(kind, head))
        return (sum(name in head.fields for name in kind.needs) + _SIMILAR * similar) / len(kind.needs)

    best = max((kind for kind in _ALL if isinstance(kind, CsvFormat)), key=found)
    if found(best) >= 0.5:
        missing = [name for name in best.needs if name not in head.fields]
        renamed = ", ".join(f"{near} to {name}" for name, near in _similar(best, head).items())
        hints = [f"rename {renamed};"] if renamed else []
        what = f"looks like {best.title}, but has no column {', '.join(missing)}"
        columns = f"its columns: {', '.join(head.fields)}"
        return TraceError(what, where=f"{source}:1", hint=" ".join([*hints, columns]))
    shown = head.text.split("\n", 1)[0][:60]
    return TraceError(
        f"is not a trace format that berth knows; it begins {shown!r}",
        where=source,
        hint="write it as CSV with the columns job_id,submit_s,num_gpu,duration_s",
    )


def _similar(kind: CsvFormat, head: Head) -> dict[str, str]:
    """The columns that a format misses, each with the column of the file that may be meant."""
    others = [name for name in head.fields if name not in kind.needs]
    missing = [name for name in kind.needs if name not in head.fields]
    return {name: near for name in missing if (near := nearest(name, others)) is not None}
