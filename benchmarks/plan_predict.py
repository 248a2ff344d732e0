"""Predicts the seconds of a synchronous step of processes that share the cores of one machine.

What a worker and a server compute in a step comes from the planner's own formula (`problem_for`, `with_counts`), with
the counts of the run. Here it is put on a machine with fewer cores than processes, which a planned cluster avoids.

The steps of a worker, as `berth.train` runs them: rows of the batch (asked for at the end of the step before) are
spread, forward and backward, gradients of rows are summed and pushed together with the request for the next rows;
while servers update and look up, dense gradients are all-reduced and dense weights updated. Servers start when the
last worker has pushed. A thread reads the next batches meanwhile. So a step has two phases, the second one from the
last push to the next rows; in each of them threads share the cores if there are fewer cores than busy threads. Then a
process that gets an answer also waits until another one gives up its core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from berth.plan.plan import Plan, schedule_for, with_counts
from berth.plan.profile.host import HostRates
from berth.plan.profile.layer_profile import DeviceTimes, LayerProfile
from berth.plan.rental import server_needs
from berth.plan.world import MACHINE, SERVERS, UTILISATION, WorldOptions
from berth.plan.world_problem import problem_for

CORE = "cpu-core"
HANDOVER_S = 3e-3  # fitted where processes outnumber cores: about a tick of Linux's scheduler, 4 ms at 250 Hz
_NO_NIC = 1e15  # bytes per second: processes of one machine
_ROUNDS = 3  # of predicting a step, and from it how busy the other cores are


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """Seconds of one step, by part; CPU seconds are those of one process of the role."""

    step_s: float
    worker_cpu_s: float  # of the thread that trains
    server_cpu_s: float
    reader_cpu_s: float  # of the thread that reads, in every worker
    cores_s: float  # all CPU seconds over the cores
    busy_cores: float  # share of the other cores that are busy while one is
    compute_s: float  # with rows
    allreduce_s: float
    optimiser_s: float


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of a run on one machine; `servers` 0 means tables in the only worker."""

    workers: int
    servers: int
    batch: int  # examples of one worker
    cores: int


def predict_step(
    profile: LayerProfile,
    rates: HostRates,
    run: Processes,
    *,
    reader_s: float | None = None,
    new_share: float = 0.0,
    times: DeviceTimes | None = None,
    host_share: float = 1.0,
    busy_cores: float | None = None,
) -> StepPrediction:
    """Return the seconds of a step.

    `reader_s` is the CPU time of reading a worker's batch, by default that of Parquet; `new_share` is the share of
    distinct rows that do not exist yet. `times` are those of the device that computes, by default a core of this
    machine; during `host_share` of them a core is busy. `busy_cores` is the share of the other cores that other
    programs or processes keep busy, by default what the run itself does.
    """
    if times is not None:
        profile = replace(profile, devices=(replace(times, device=CORE),))
    rates = rates.with_new_rows(new_share)

    def predicted(busy: float) -> StepPrediction:
        return _on_shared_cores(plan_of(profile, rates, run, busy), run, reader_s, host_share, busy)

    found = predicted(busy_cores or 0.0)
    for _ in range(_ROUNDS - 1 if busy_cores is None else 0):
        found = predicted(_busy_cores(found, run.cores))
    return found


def plan_of(profile: LayerProfile, rates: HostRates, run: Processes, busy_cores: float) -> Plan:
    """Return the run as the planner sees it: one stage of all layers with the counts of the run."""
    place = SERVERS if run.servers else MACHINE
    options = WorldOptions(
        batch=run.workers * run.batch,
        tables=(place,),
        micro=(1,),
        busy_cores=busy_cores,
        nic_share=_NO_NIC,
    )
    problem = problem_for(profile, [CORE], run.workers * run.batch, options=options, rates=rates)
    cuts = [(0, len(problem.layers) - 1, 0)]
    return with_counts(problem, schedule_for(problem, 1, 1), cuts, [run.workers], [run.servers])


def _on_shared_cores(
    plan: Plan, run: Processes, reader_s: float | None, host_share: float, busy: float
) -> StepPrediction:
    stage, batch, source = plan.stages[0], plan.problem.batch, plan.problem.source
    assert source is not None
    compute, optimiser = stage.compute_s * batch, stage.optimiser_s * batch - plan.problem.loop_s
    server = 0.0
    if run.servers:
        needed = server_needs(plan, stage).lookups * UTILISATION * batch / plan.throughput
        server = needed / run.servers
        # The planner charges the messages of a worker to one server.
        tables = sum(layer.touched_bytes > 0 for layer in source.profile.layers)
        more = tables * (run.servers - 1)
        compute += more * source.rates.client_call_s
        server += run.workers * more / run.servers * source.rates.server_call_s
    reader = plan.problem.host.readers_s * UTILISATION / run.workers if reader_s is None else reader_s
    hidden = stage.sync_s * batch + optimiser + plan.problem.loop_s  # while servers update and look up
    hidden_cpu = hidden - optimiser * (1 - host_share)
    front_cpu = _host_seconds(plan, compute, run.batch, host_share)
    front = max(compute, run.workers * front_cpu / run.cores)
    back = max(hidden, server, (run.workers * hidden_cpu + run.servers * server) / run.cores)
    total = run.workers * (front_cpu + hidden_cpu + reader) + run.servers * server
    waiting = HANDOVER_S if run.servers and run.workers + run.servers > run.cores else 0.0
    return StepPrediction(
        step_s=max(front + back, reader, total / run.cores) + waiting,
        worker_cpu_s=front_cpu + hidden_cpu,
        server_cpu_s=server,
        reader_cpu_s=reader,
        cores_s=total / run.cores,
        busy_cores=busy,
        compute_s=compute,
        allreduce_s=stage.sync_s * batch,
        optimiser_s=optimiser,
    )


def _host_seconds(plan: Plan, compute: float, batch: int, host_share: float) -> float:
    """Return the part of `compute` that takes a core: rows always, the model's layers for `host_share` of them."""
    source = plan.problem.source
    assert source is not None
    layers = float(source.profile.on(CORE).at(batch).sum())
    return compute - layers * (1 - host_share)


def _busy_cores(step: StepPrediction, cores: int) -> float:
    """Return the share of the other cores that are busy while one is, if the work of a step is spread evenly."""
    if cores < 2:
        return 0.0
    return min(1.0, max(0.0, step.cores_s * cores / step.step_s - 1.0) / (cores - 1))
