// Who is where: the journal's records, folded in the browser as the controller folds them.
//
// Every change remembers what it replaced, so that time can be walked both ways; who holds which device is written
// anew from the attempts that stand, which is cheaper than being clever.

export const QUEUED = 0, DELAYED = 1, STARTING = 2, RUNNING = 3, FINISHED = 4, FAILED = 5, CANCELLED = 6, UNKNOWN = 7;
export const STATES = ["queued", "delayed", "starting", "running", "finished", "failed", "cancelled", "unknown"];
const SHUT = {lost: 1, drained: 2, closed: 4};
export const LOST = 1, DRAINED = 2;
const FACTS = ["state", "since", "attempt", "evictions", "failures", "ended", "priority"];
const MOST_RESTARTS = 3; // of a job that says nothing else

export class World {
  constructor(cluster) {
    this.cluster = cluster;
    this.sizes = cluster.machines.map((machine) => machine.devices.reduce((sum, [, n]) => sum + n, 0));
    this.first = []; // device number of each machine's first device
    let next = 0;
    for (const size of this.sizes) { this.first.push(next); next += size; }
    this.devices = next;
    this.jobs = []; // facts that don't change, and those that do
    this.byId = new Map();
    this.attempts = [];
    this.unavailable = new Uint8Array(this.sizes.length);
    this.external = new Int32Array(this.sizes.length);
    this.owner = new Int32Array(next).fill(-1);
    this.changes = [];
    this.at = 0; // changes that are applied
    this.peak = {time: 0, busy: -1};
    this.busy = 0;
    this.ownerStale = true;
  }

  // The state of one moment, as the controller tells it.
  load(now) {
    const told = now.jobs;
    (told.id || []).forEach((id, i) => {
      const state = STATES.indexOf({evicting: "queued", stopping: "cancelled"}[told.state[i]] || told.state[i]);
      this.add({id, name: told.name[i], user: told.user[i], gpus: told.gpus[i], priority: told.priority[i],
        restarts: told.restarts[i], submitted: told.submitted[i], state, since: told.since[i],
        evictions: told.evictions[i], failures: told.failures[i]});
    });
    for (const attempt of now.attempts) {
      const job = this.jobs[this.byId.get(attempt.job)];
      job.attempt = this.attempts.push({...attempt, job: job.index}) - 1;
    }
    for (const [machine, why] of Object.entries(now.unavailable)) this.unavailable[machine] = why.reduce((mask, one) => mask | SHUT[one], 0);
    for (const [machine, devices] of Object.entries(now.external)) this.external[machine] = devices;
    return this;
  }

  add(facts) {
    const job = {name: "job", user: "", gpus: 1, priority: 0, restarts: MOST_RESTARTS, submitted: 0, state: UNKNOWN, since: 0,
      attempt: -1, evictions: 0, failures: 0, ended: null, tries: [], ...facts, index: this.jobs.length};
    this.jobs.push(job);
    this.byId.set(job.id, job.index);
    return job;
  }

  // Folds one record; the world must stand at its end.
  take(record, keep = true) {
    const fold = FOLDS[record.kind];
    if (!fold) return;
    this.keeps = keep;
    fold(this, record, record.job === null || record.job === undefined ? null : this.jobs[this.byId.get(record.job)]);
  }

  change(job, time, after) {
    const before = {};
    for (const fact of FACTS) if (fact in after) before[fact] = job[fact];
    this.push({time, job, before, after});
  }

  machine(machine, time, mask, external) {
    const before = [this.unavailable[machine], this.external[machine]];
    this.push({time, machine, before, after: [mask, external]});
  }

  push(change) {
    const busy = this.busy;
    this.apply(change, change.after);
    if (this.keeps) { this.changes.push(change); this.at = this.changes.length; }
    if (this.busy > busy && this.busy > this.peak.busy) this.peak = {time: change.time, busy: this.busy};
  }

  apply(change, facts) {
    this.ownerStale = true;
    if (change.job) {
      if ("attempt" in facts) this.busy += this.held(facts.attempt) - this.held(change.job.attempt);
      Object.assign(change.job, facts);
    } else [this.unavailable[change.machine], this.external[change.machine]] = facts;
  }

  held(attempt) {
    return attempt < 0 ? 0 : this.jobs[this.attempts[attempt].job].gpus;
  }

  // Walks to a moment, whichever way it lies.
  seek(time) {
    const changes = this.changes;
    while (this.at < changes.length && changes[this.at].time <= time) this.apply(changes[this.at], changes[this.at++].after);
    while (this.at > 0 && changes[this.at - 1].time > time) this.apply(changes[--this.at], changes[this.at].before);
  }

  toEnd() {
    while (this.at < this.changes.length) this.apply(this.changes[this.at], this.changes[this.at++].after);
  }

  // Job of every device; -1: nobody's.
  owners() {
    if (!this.ownerStale) return this.owner;
    this.owner.fill(-1);
    for (const job of this.jobs) {
      if (job.attempt < 0) continue;
      for (const [machine, , numbers] of this.attempts[job.attempt].seats) {
        const first = this.first[machine];
        for (const number of numbers) this.owner[first + number] = job.index;
      }
    }
    this.ownerStale = false;
    return this.owner;
  }

  waiting() { return this.jobs.filter((job) => job.state === QUEUED || job.state === DELAYED); }
  running() { return this.jobs.filter((job) => job.state === STARTING || job.state === RUNNING); }
  over() { return this.jobs.filter((job) => job.state >= FINISHED && job.state < UNKNOWN); }

  // Devices by what is done with them.
  counts() {
    const owners = this.owners();
    let busy = 0, unavailable = 0, external = 0;
    for (let machine = 0; machine < this.sizes.length; machine++) {
      const from = this.first[machine], to = from + this.sizes[machine];
      let held = 0;
      for (let device = from; device < to; device++) if (owners[device] >= 0) held++;
      busy += held;
      if (this.unavailable[machine]) unavailable += this.sizes[machine] - held;
      else external += Math.min(this.external[machine], this.sizes[machine] - held);
    }
    return {busy, unavailable, external, free: this.devices - busy - unavailable - external};
  }
}

const wait = (world, job, time, more = {}) => world.change(job, time, {state: QUEUED, since: time, attempt: -1, ...more});
const over = (world, job, time, state) => world.change(job, time, {state, attempt: -1, ended: time});

const FOLDS = {
  submitted(world, record, job) {
    if (job) return;
    const {spec} = record;
    const made = world.add({id: record.job, name: spec.name || "job", user: record.user, gpus: spec.gpus || 1,
      priority: spec.priority || 0, restarts: spec.restarts ?? MOST_RESTARTS, submitted: record.time});
    wait(world, made, record.time);
  },
  start: place,
  move: place,
  evict(world, record, job) {
    if (job && job.attempt >= 0) wait(world, job, record.time, {evictions: job.evictions + 1});
  },
  started(world, record, job) {
    if (!job || job.attempt < 0 || world.attempts[job.attempt].token !== record.token) return;
    world.attempts[job.attempt].began = record.time;
    world.change(job, record.time, {state: RUNNING});
  },
  exited(world, record, job) {
    if (!job) return;
    const codes = record.codes || [];
    if (job.state >= FINISHED) return;
    if (record.done || (codes.length && codes.every((code) => code === 0) && !record.stopped)) { over(world, job, record.time, FINISHED); return; }
    if (job.attempt < 0 || world.attempts[job.attempt].token !== record.token) return;
    const failures = job.failures + (record.lost ? 0 : 1);
    if (failures > job.restarts) over(world, job, record.time, FAILED);
    else world.change(job, record.time, {state: DELAYED, since: record.time, attempt: -1, failures});
  },
  ready(world, record, job) { if (job) wait(world, job, record.time); },
  cancelled(world, record, job) { if (job) over(world, job, record.time, CANCELLED); },
  prioritised(world, record, job) { if (job) world.change(job, record.time, {priority: record.priority}); },
  machine(world, record) {
    const {machine} = record, bit = SHUT[record.why];
    world.machine(machine, record.time, record.is ? world.unavailable[machine] | bit : world.unavailable[machine] & ~bit, world.external[machine]);
    if (!record.is || record.why !== "lost") return;
    for (const job of world.running()) {
      const here = world.attempts[job.attempt].seats.some(([at]) => at === machine);
      if (here) wait(world, job, record.time, {evictions: job.evictions + 1});
    }
  },
  external(world, record) { world.machine(record.machine, record.time, world.unavailable[record.machine], record.devices); },
};

function place(world, record, job) {
  if (!job) return;
  const {token, tier, seats, time} = record;
  const attempt = world.attempts.push({job: job.index, token, tier, seats, time, began: null}) - 1;
  job.tries.push(attempt);
  world.change(job, time, {state: world.settled ? RUNNING : STARTING, attempt});
}
