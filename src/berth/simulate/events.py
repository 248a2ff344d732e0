"""The log of a run as a table: what happened when, to which job, where, and why.

One row per event. Events of machines (failed, repaired, drained, undrained) name the machine; all others name
the job. A gang's places are written `machine:devices`, and all its devices are of the one type in `device`.
The same trace, cluster, policy and setting give the same table to the bit; `digest` puts that into one line.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from berth.cluster.serialize import cluster_to_dict
from berth.errors import InputError
from berth.files import write_parquet
from berth.schedule.reasons import CODES
from berth.schedule.records import Array
from berth.simulate.engine_state import Event
from berth.simulate.run import Run

EVENTS: dict[int, str] = {event: event.name.lower() for event in Event}
_FACTS = "berth"  # key in the metadata of the file
SCHEMA: dict[str, pl.DataType] = {
    "time_s": pl.Float64(),
    "event": pl.String(),
    "job": pl.String(),  # null for a machine's events
    "machine": pl.String(),  # null for a job's events
    "tier": pl.String(),  # where the job runs; null while it does not
    "reason": pl.String(),
    "gpus": pl.Int32(),
    "device": pl.String(),  # type of the devices; null where no places are named
    "places": pl.List(pl.String()),  # of a start and a move
    "until_s": pl.Float64(),
    "saves_s": pl.Float64(),
    "shape": pl.String(),  # of a job with alternatives; null for a plain gang
    # of each place, where a shape has several: its device type, and @N in a tied part
    "types": pl.List(pl.String()),
}
_OF_SHAPES = ("shape", "types")  # null in all rows of a run of plain gangs, and then not in its digest


def event_frame(run: Run) -> pl.DataFrame:
    """The log of a run that was made with `Setting(log=True)`."""
    if not run.setting.log:
        raise InputError("this run kept no log", hint="simulate with Setting(log=True)")
    log, cluster = run.log, run.cluster
    of_job = log["job"] >= 0
    machines = pl.Series([machine.name for machine in cluster.machines], dtype=pl.String)
    tiers = pl.Series([tier.name for tier in cluster.tiers], dtype=pl.String)
    devices = pl.Series([kind.name for kind in cluster.device_types], dtype=pl.String)
    columns = {
        "time_s": pl.Series(log["time"]),
        "event": _named(EVENTS, log["what"]),
        "job": _picked(run.trace.frame["job_id"], log["job"], of_job),
        "machine": _picked(machines, -1 - log["job"], ~of_job),
        "tier": _picked(tiers, log["tier"], log["tier"] >= 0),
        "reason": _named(CODES, log["reason"]),
        "gpus": pl.Series(log["gpus"]),
        "device": _picked(devices, _first_device_type(log, run.log_places), log["count"] > 0),
        "places": _places(log, run.log_places, machines),
        "until_s": pl.Series(log["until"]),
        "saves_s": pl.Series(log["saves"]),
        "shape": _picked(pl.Series(run.jobs.shapes.names, dtype=pl.String), log["shape"], log["shape"] >= 0),
        "types": _types(run, devices),
    }
    return pl.DataFrame(columns, schema=SCHEMA)


def write_events(run: Run, path: str | Path) -> None:
    """Writes the log of a run as Parquet, with the cluster and the jobs' owners in the file's metadata."""
    write_parquet(event_frame(run), path, compression="zstd", metadata={_FACTS: _packed(run)})


def _packed(run: Run) -> str:
    jobs = run.trace.frame.select("job_id", "user", "model").to_dict(as_series=False)
    facts = {
        "cluster": cluster_to_dict(run.cluster),
        "policy": run.policy,
        "trace": run.trace.source,
        "jobs": jobs,
    }
    return base64.b64encode(zlib.compress(json.dumps(facts).encode())).decode()


def read_facts(path: str | Path) -> dict[str, Any] | None:
    """What a log says of its run: cluster, policy, trace and jobs; None: it was written without."""
    packed = pl.read_parquet_metadata(path).get(_FACTS)
    if packed is None:
        return None
    try:
        facts: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    except (ValueError, zlib.error) as error:
        raise InputError("what it says of its run can't be read", where=str(path), hint=str(error)) from error
    return facts


def read_events(path: str | Path) -> pl.DataFrame:
    """Reads a log that `write_events` wrote."""
    if not Path(path).is_file():
        raise InputError("no such file", where=str(path), hint="`berth simulate --log FILE` writes one")
    try:
        frame = pl.read_parquet(path, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError("is not a log of events", where=str(path), hint=str(error).split("\n")[0]) from error
    if "shape" not in frame.columns:  # written before jobs had shapes
        frame = frame.with_columns(pl.lit(None, SCHEMA[name]).alias(name) for name in _OF_SHAPES)
    if dict(frame.schema) != SCHEMA:
        raise InputError("is not a log of events", where=str(path), hint=f"columns: {', '.join(SCHEMA)}")
    return frame


def digest(frame: pl.DataFrame) -> str:
    """SHA-256 of a log: numbers by their bits, texts by their letters, column after column."""
    total = hashlib.sha256()
    for name in SCHEMA:
        column = frame[name]
        if name in _OF_SHAPES and column.null_count() == len(column):
            continue
        if column.dtype == pl.List(pl.String):
            column = column.list.join(",")
        if column.dtype == pl.String:
            total.update("\n".join(column.fill_null("").to_list()).encode())
        else:
            numbers = column.to_numpy()
            total.update(numbers.astype(numbers.dtype.newbyteorder("<")).tobytes())
        total.update(b"\0")
    return total.hexdigest()


def _named(names: dict[int, str], codes: Array) -> pl.Series:
    table = np.full(max(names) + 1, "", dtype=object)
    for code, name in names.items():
        table[code] = name
    return pl.Series(table[codes], dtype=pl.String)


def _picked(names: pl.Series, index: Array, where: Array) -> pl.Series:
    """`names[index]`, null where the mask is not set."""
    wanted = pl.Series(np.where(where, index, 0)).set(pl.Series(~where), None)
    return names.gather(wanted) if len(wanted) else pl.Series([], dtype=pl.String)


def _first_device_type(log: Array, places: Array) -> Array:
    if not len(places):
        return np.zeros(len(log), np.int32)
    return places["device_type"][np.minimum(log["places"], len(places) - 1)]


def _places(log: Array, places: Array, machines: pl.Series) -> pl.Series:
    """Per event, in the cluster's order of machines."""
    text = machines.gather(places["machine"]) + ":" + pl.Series(places["gpus"]).cast(pl.String)
    return _per_event(log, places, text)


def _types(run: Run, devices: pl.Series) -> pl.Series:
    """Device type and tied part of each place, in the same order; null for attempts without several types or ties."""
    log, places = run.log, run.log_places
    vector = np.append(run.world.shapes["vector"], 0)[log["shape"]] > 0
    if not vector.any():
        return pl.Series([None] * len(log), dtype=pl.List(pl.String))
    part = pl.Series(places["part"])
    tied = pl.select(pl.when(part >= 0).then("@" + part.cast(pl.String)).otherwise(pl.lit(""))).to_series()
    found = _per_event(log, places, devices.gather(places["device_type"]) + tied)
    return pl.select(pl.when(pl.Series(vector)).then(found)).to_series()


def _per_event(log: Array, places: Array, text: pl.Series) -> pl.Series:
    texts = pl.DataFrame(
        {"event": np.repeat(np.arange(len(log)), log["count"]), "machine": places["machine"], "text": text}
    )
    lists = (
        texts.sort("event", "machine", maintain_order=True).group_by("event", maintain_order=True).agg("text")
    )
    every = pl.DataFrame({"event": np.arange(len(log))})
    return every.join(lists, on="event", how="left", maintain_order="left")["text"]
