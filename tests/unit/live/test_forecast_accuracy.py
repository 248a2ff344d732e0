"""A forecast is what then happens, to the second, where jobs take as long as they state and no other job comes."""

from __future__ import annotations

import math
from random import Random

import pytest

from berth.live import commands, forecast, views
from berth.live.backend import AttemptStatus, Forget, Launch, MachineStatus, Observation, Pace, Stop
from berth.live.outlook import IN_TIME, SPARE, Outlook
from berth.live.records import DRAINED
from berth.live.snapshot import copy_of

pytestmark = pytest.mark.slow
POLICIES = ["berth", "fifo", "fit-first", "easy", "srtf", "dally", "tiresias", "gandiva", "berth:order=las"]
CLUSTERS = ["2x2x4:V100-16", "1x3x8:V100-16", "2x3x8:V100-16", "4:V100-16", "3x1x4:V100-16"]
MODELS = ["vgg16", "resnet50", "bert-large"]
SPANS = [60, 300, 600, 1200, 3600, 7200, 4321]


class StatedBackend:
    """Starts and stops at once; a job works for as long as it states, at the speed that the state model."""

    name = "stated"
    pace = Pace()

    def __init__(self, cluster, clock):
        self._cluster, self._clock = cluster, clock
        self.state = lambda: None
        self._lives, self._left = {}, {}
        self.starts, self.ends = {}, {}

    def cluster(self):
        return self._cluster

    def close(self):
        pass

    def next_end(self):
        return min((end for end, _, _, seen in self._lives.values() if seen is None), default=math.inf)

    def observe(self):
        now = self._clock.monotonic()
        for token, (end, stall, slow, seen) in self._lives.items():
            if seen is None and end <= now:
                self._lives[token] = (end, stall, slow, AttemptStatus("ended", codes=(0,), done=True))
                self.ends[self.state().attempts[token].job] = now
        machines = {machine.name: MachineStatus() for machine in self._cluster.machines}
        return Observation(
            {token: life[3] or AttemptStatus("running") for token, life in self._lives.items()}, machines
        )

    def apply(self, orders):
        for order in orders:
            if isinstance(order, Launch):
                self._launch(order)
            elif isinstance(order, Stop):
                self._stop(order.token)
            elif isinstance(order, Forget):
                self._lives.pop(order.token, None)
        return orders

    def _launch(self, order):
        if order.token in self._lives:
            return
        now, state = self._clock.monotonic(), self.state()
        job, rules = state.jobs[order.job], state.world.rules[0]
        slow = float(state.world.jobs[job.row]["slowdown"][state.attempts[order.token].tier])
        restore = rules["eviction_s"] if job.spec.gpus <= 8 else rules["eviction_large_s"]
        stall = now + (float(restore) if order.job in self._left else 0.0)
        left = self._left.setdefault(order.job, float(order.env["SECONDS"]))
        self.starts.setdefault(order.job, now)
        self._lives[order.token] = (stall + left * slow, stall, slow, None)

    def _stop(self, token):
        if token in self._lives and self._lives[token][3] is None:
            end, stall, slow, _ = self._lives[token]
            job = self.state().attempts[token].job
            self._left[job] -= max(0.0, self._clock.monotonic() - stall) / slow
            self._lives[token] = (end, stall, slow, AttemptStatus("ended", codes=(143,), stopped=True))


def settle(live):
    """Steps without time passing until nothing changes any more."""
    seq, orders = -1, None
    while (seq, orders) != (live.controller.store.seq, live.controller.observer.orders):
        seq, orders = live.controller.store.seq, live.controller.observer.orders
        live.step()


def next_event(live):
    ready = live.state.next_ready()
    times = (live.state.wake, ready[0] if ready else math.inf)
    return min(live.backend.next_end() - live.clock.monotonic(), min(times) - live.controller.now())


def let_pass(live, seconds):
    end = live.clock.monotonic() + seconds
    while live.clock.monotonic() + next_event(live) <= end:
        live.clock.advance(max(1e-6, next_event(live)))
        settle(live)
    live.clock.advance(end - live.clock.monotonic())


def random_state(crank, policy, seed, *, drains=True):
    """A cluster in the middle of its life: jobs part-way, some evicted, some waiting, perhaps a drained machine."""
    random = Random(seed)
    live = crank(cluster=random.choice(CLUSTERS), policy=policy, backend=StatedBackend)
    live.backend.state = lambda: live.state
    for number in range(random.randint(4, 14)):
        gpus = min(live.cluster.devices, random.choice([1, 1, 2, 3, 4, 4, 8, 8, 16]))
        spec = {"priority": random.choice([0, 0, 0, 50, 20, -5]), "model": random.choice(MODELS)}
        live.submit(gpus=gpus, seconds=random.choice(SPANS), job=f"j{number}", grace="0s", **spec)
        settle(live)
        let_pass(live, random.choice([1, 30, 200, 1000]))
        if drains and random.random() < 0.1:
            machine = random.choice(live.cluster.machines).name
            if DRAINED not in live.state.unavailable[commands.machine_index(live.state, machine)]:
                live.ask(commands.drain(machine))
                settle(live)
    let_pass(live, random.choice([0, 0.5, 7, 333]))
    return live


def played(live):
    return forecast.forecast(copy_of(live.state), now=live.controller.now(), pending=False)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_forecast_is_what_then_happens(crank, policy):
    compared = 0
    for seed in range(8):
        live = random_state(crank, policy, seed)
        epoch = live.controller.now() - live.clock.monotonic()
        reported, known = played(live), set(live.backend.starts)
        expected = {name: start - epoch for name, start in reported.starts.items() if name not in known}
        while next_event(live) < math.inf:
            live.clock.advance(max(1e-6, next_event(live)))
            settle(live)
        happened = {name: start for name, start in live.backend.starts.items() if name not in known}
        assert happened == pytest.approx(expected, abs=0.01), f"{policy}, seed {seed}"
        ends = {name: live.backend.ends[name] + epoch for name in reported.ends}
        assert ends == pytest.approx(reported.ends, abs=0.01), f"{policy}, seed {seed}"
        compared += len(happened) + len(ends)
    assert compared > 10


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("gandiva", "berth:order=las")])
def test_jobs_of_lower_priority_do_not_delay_the_first(crank, policy):
    compared = 0
    for seed in range(12):
        live = random_state(crank, policy, seed, drains=False)
        queue = views.queue(live.state)
        lower = [job.id for job in queue if job.spec.priority < queue[0].spec.priority]
        if lower:
            first, before = queue[0].id, played(live)
            for name in lower:
                live.ask(commands.cancel(name))
            settle(live)
            alone = played(live).starts.get(first, live.controller.now())
            assert before.starts[first] <= alone + 0.01, f"{policy}, seed {seed}"
            compared += 1
    assert compared > 3


@pytest.mark.parametrize("policy", ["easy", "fit-first", "berth"])
def test_what_is_said_to_backfill_does_not_delay_the_job_it_passes(crank, policy):
    said = 0
    for seed in range(25):
        live = random_state(crank, policy, seed, drains=False)
        now = live.controller.now()
        outlook = Outlook(copy_of(live.state), now, pending=False, events=3000)
        for name in [job.id for job in views.queue(live.state)]:
            for other, how in outlook.overtakers_of(name).first:
                if how in (IN_TIME, SPARE):
                    said += 1
                    copy = copy_of(live.state)
                    for record in commands.cancel(other)(copy, live.controller.store, now).records:
                        copy.apply(record)
                    without = forecast.forecast(copy, now=now).starts[name]
                    assert outlook.expected.starts[name] <= without + 0.01, (
                        f"{policy}, seed {seed}, {name}, {other}"
                    )
    assert said > 0


@pytest.mark.parametrize("policy", ["fifo", "fit-first", "easy", "berth"])
def test_draining_a_machine_does_not_bring_the_first_job_forward(crank, policy):
    compared = 0
    for seed in range(12):
        live = random_state(crank, policy, seed, drains=False)
        queue = views.queue(live.state)
        if not queue:
            continue
        first, before = queue[0].id, played(live)
        for machine in live.cluster.machines:
            copy = copy_of(live.state)
            for record in commands.drain(machine.name)(
                copy, live.controller.store, live.controller.now()
            ).records:
                copy.apply(record)
            after = forecast.forecast(copy, now=live.controller.now())
            assert after.starts.get(first, math.inf) >= before.starts[first] - 0.01, f"{policy}, seed {seed}"
            compared += 1
    assert compared > 10
