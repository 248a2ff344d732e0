"""Measures `HostRates` of this machine."""

from __future__ import annotations

from datetime import date

from berth.plan.profile.host import HostRates
from berth.plan.profile.layer_profile import short
from berth.plan.profile.machine import describe_core, torch_version
from berth.plan.threads import single_thread
from berth.train.measure.contention import measure_contention
from berth.train.measure.disturbance import DISTURBED, Measurer, Report
from berth.train.measure.loop import decode_bytes_per_s, loop_s
from berth.train.measure.messages import all_reduce, stage_messages
from berth.train.measure.row_storage import disk_row_s, fresh_byte_s, new_row_s
from berth.train.measure.rows import local_rates, served_rates
from berth.train.tables.memory import keep_freed_memory
from berth.workload.profile import Provenance

_EXTRA_S = 30.0  # for repeating measurements that were disturbed


def measure_host(report: Report = lambda what: None, *, repeats: int = 7) -> HostRates:
    """Return the rates of this machine; takes half a minute, and up to a minute while other programs run."""
    keep_freed_memory()  # as training does
    measured = Measurer(report, _EXTRA_S)
    with single_thread():
        contention = measured("all cores at once", measure_contention)
        local = measured("tables in the worker", lambda: local_rates(repeats))
        served = measured("servers", lambda: served_rates(repeats))
        new_s, fresh_s = measured("new rows", lambda: (new_row_s(), fresh_byte_s()))
        step_s, example_s = measured("the loop around a model", loop_s)
        decode = measured("reading", decode_bytes_per_s)
        sum_call_s, sum_bytes_per_s = measured("all-reduce", lambda: all_reduce(repeats))
        disk_s = measured("rows on disk", lambda: disk_row_s(repeats))
        stage_call_s, stage_byte_s = measured("messages between stages", lambda: stage_messages(repeats))
    disturbed = f", disturbed: {measured.worst}" if measured.worst.total > DISTURBED else ""
    note = (
        f"one core of {describe_core()}, CPU time, median of {repeats}, {contention}, torch {torch_version()}, "
        f"{date.today()}{disturbed}"
    )
    return HostRates(
        server_pull_s_per_row=served.pull_s_per_row,
        server_push_s_per_row=served.push_s_per_row,
        server_call_s=served.server_call_s,
        client_row_s=served.client_row_s,
        client_lookup_s=served.client_lookup_s,
        client_call_s=served.client_call_s,
        local_row_s=local.row_s,
        local_lookup_s=local.lookup_s,
        local_call_s=local.call_s,
        new_row_s=new_s,
        fresh_byte_s=fresh_s,
        worker_step_s=short(step_s),
        worker_example_s=short(example_s),
        decode_bytes_per_s=decode,
        allreduce_call_s=short(sum_call_s),
        allreduce_bytes_per_s=short(sum_bytes_per_s),
        disk_row_s=short(disk_s),
        stage_call_s=short(stage_call_s),
        stage_byte_s=short(stage_byte_s),
        row_slowdown=contention.rows.median,
        compute_slowdown_at=contention.compute_slowdown_at,
        source=Provenance("measured", note, date.today().year),
    )
