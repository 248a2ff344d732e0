// @ts-check
// The state of the cluster, from the journal's records applied as the controller applies them.
//
// Every change stores what it replaced, so that time can go both ways. The job of each device is recomputed from the
// current attempts when it is needed.

export const QUEUED = 0, DELAYED = 1, STARTING = 2, RUNNING = 3, FINISHED = 4, FAILED = 5, CANCELLED = 6, UNKNOWN = 7;
export const STATES = ["queued", "delayed", "starting", "running", "finished", "failed", "cancelled", "unknown"];
const UNAVAILABLE = {lost: 1, drained: 2, closed: 4};
export const LOST = 1, DRAINED = 2;
const FACTS = ["state", "since", "attempt", "evictions", "failures", "ended", "priority"];
const DEFAULT_RESTARTS = 3;

export class ClusterState {
  constructor(cluster) {
    this.cluster = cluster;
    this.sizes = cluster.machines.map((machine) => machine.devices.reduce((sum, [, n]) => sum + n, 0));
    this.first = []; // number of each machine's first device
    let next = 0;
    for (const size of this.sizes) { this.first.push(next); next += size; }
    this.devices = next;
    this.jobs = []; // constant and changing attributes
    this.byId = new Map();
    this.attempts = [];
    this.unavailable = new Uint8Array(this.sizes.length);
    this.external = new Int32Array(this.sizes.length);
    this.owner = new Int32Array(next).fill(-1);
    this.changes = [];
    this.at = 0; // number of changes that are applied
    this.ownerStale = true;
    this.startsAtOnce = false; // a simulated gang runs as soon as it is placed
    this.keeps = true;
  }

  // Takes over the state of one moment from the controller.
  load(now) {
    const columns = now.jobs;
    (columns.id || []).forEach((id, i) => {
      const state = STATES.indexOf({evicting: "queued", stopping: "cancelled"}[columns.state[i]] || columns.state[i]);
      this.add({id, name: columns.name[i], user: columns.user[i], gpus: columns.gpus[i], cores: columns.cores?.[i] ?? 0, priority: columns.priority[i],
        restarts: columns.restarts[i], submitted: columns.submitted[i], state, since: columns.since[i],
        evictions: columns.evictions[i], failures: columns.failures[i]});
    });
    for (const attempt of now.attempts) {
      const job = this.jobs[this.byId.get(attempt.job)];
      job.attempt = this.attempts.push({...attempt, job: job.index}) - 1;
    }
    for (const [machine, why] of Object.entries(now.unavailable)) this.unavailable[machine] = why.reduce((mask, one) => mask | UNAVAILABLE[one], 0);
    for (const [machine, devices] of Object.entries(now.external)) this.external[machine] = devices;
    return this;
  }

  add(facts) {
    const job = {name: "job", user: "", gpus: 1, cores: 0, priority: 0, restarts: DEFAULT_RESTARTS, submitted: 0, state: UNKNOWN, since: 0,
      attempt: -1, evictions: 0, failures: 0, ended: null, tries: [], ...facts, index: this.jobs.length};
    this.jobs.push(job);
    this.byId.set(job.id, job.index);
    return job;
  }

  // Applies one record; all earlier changes must be applied.
  applyRecord(record, keep = true) {
    const handler = HANDLERS[record.kind];
    if (!handler) return;
    this.keeps = keep;
    handler(this, record, record.job === null || record.job === undefined ? null : this.jobs[this.byId.get(record.job)]);
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
    this.apply(change, change.after);
    if (this.keeps) { this.changes.push(change); this.at = this.changes.length; }
  }

  apply(change, facts) {
    this.ownerStale = true;
    if (change.job) Object.assign(change.job, facts);
    else [this.unavailable[change.machine], this.external[change.machine]] = facts;
  }

  // Goes to a time, forwards or backwards.
  seek(time) {
    const changes = this.changes;
    while (this.at < changes.length && changes[this.at].time <= time) this.apply(changes[this.at], changes[this.at++].after);
    while (this.at > 0 && changes[this.at - 1].time > time) this.apply(changes[--this.at], changes[this.at].before);
  }

  toEnd() {
    while (this.at < this.changes.length) this.apply(this.changes[this.at], this.changes[this.at++].after);
  }

  // The job of every device; -1: none.
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

  waiting() { return this.jobs.filter(waits); }
  waits(id) { return waits(this.jobs[this.byId.get(id)]); }
  running() { return this.jobs.filter((job) => job.state === STARTING || job.state === RUNNING); }
  ended() { return this.jobs.filter((job) => job.state >= FINISHED && job.state < UNKNOWN); }

  // Devices by use.
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

const waits = (job) => job !== undefined && (job.state === QUEUED || job.state === DELAYED);
const wait = (state, job, time, more = {}) => state.change(job, time, {state: QUEUED, since: time, attempt: -1, ...more});
const end = (state, job, time, as) => state.change(job, time, {state: as, attempt: -1, ended: time});

const HANDLERS = {
  submitted(state, record, job) {
    if (job) return;
    const {spec} = record;
    const made = state.add({id: record.job, name: spec.name || "job", user: record.user, gpus: spec.gpus || 1,
      priority: spec.priority || 0, restarts: spec.restarts ?? DEFAULT_RESTARTS, submitted: record.time});
    wait(state, made, record.time);
  },
  start: place,
  move: place,
  evict(state, record, job) {
    if (job && job.attempt >= 0) wait(state, job, record.time, {evictions: job.evictions + 1});
  },
  started(state, record, job) {
    if (!job || job.attempt < 0 || state.attempts[job.attempt].token !== record.token) return;
    state.attempts[job.attempt].began = record.time;
    state.change(job, record.time, {state: RUNNING});
  },
  exited(state, record, job) {
    if (!job) return;
    const codes = record.codes || [];
    if (job.state >= FINISHED) return;
    if (record.done || (codes.length && codes.every((code) => code === 0) && !record.stopped)) { end(state, job, record.time, FINISHED); return; }
    if (job.attempt < 0 || state.attempts[job.attempt].token !== record.token) return;
    const failures = job.failures + (record.lost ? 0 : 1);
    if (failures > job.restarts) end(state, job, record.time, FAILED);
    else state.change(job, record.time, {state: DELAYED, since: record.time, attempt: -1, failures});
  },
  ready(state, record, job) { if (job) wait(state, job, record.time); },
  cancelled(state, record, job) { if (job) end(state, job, record.time, CANCELLED); },
  prioritised(state, record, job) { if (job) state.change(job, record.time, {priority: record.priority}); },
  machine(state, record) {
    const {machine} = record, bit = UNAVAILABLE[record.why];
    state.machine(machine, record.time, record.is ? state.unavailable[machine] | bit : state.unavailable[machine] & ~bit, state.external[machine]);
    if (!record.is || record.why !== "lost") return;
    for (const job of state.running()) {
      const here = state.attempts[job.attempt].seats.some(([at]) => at === machine);
      if (here) wait(state, job, record.time, {evictions: job.evictions + 1});
    }
  },
  external(state, record) { state.machine(record.machine, record.time, state.unavailable[record.machine], record.devices); },
};

function place(state, record, job) {
  if (!job) return;
  const {token, tier, seats, time} = record;
  const attempt = state.attempts.push({job: job.index, token, tier, seats, time, began: null}) - 1;
  job.tries.push(attempt);
  state.change(job, time, {state: state.startsAtOnce ? RUNNING : STARTING, attempt});
}
