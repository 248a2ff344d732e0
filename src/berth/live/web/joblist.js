// Jobs in rows: those who wait with their reason, those who run with their place, those that are over.

import {get} from "./api.js";
import {atMostEvery, el, oncePerFrame, put} from "./dom.js";
import {ahead, count, duration, moment, plural} from "./format.js";
import {List} from "./list.js";
import {Reasons} from "./reasons.js";
import {STATES} from "./world.js";

const COLUMNS = {
  waiting: ["#", "job", "user", "GPUs", "why", "waits", "runs for", "starts"],
  running: ["", "job", "user", "GPUs", "where", "runs", "within one", "evicted"],
  over: ["", "job", "user", "GPUs", "ended", "ran", "state", "evicted"],
};
const CLASSES = ["place", "name", "user", "gpus", "why", "since", "left", "starts"];

export class JobList {
  constructor(app, kind) {
    Object.assign(this, {app, kind, filter: ""});
    this.refresh = oncePerFrame(() => this.show());
    this.reasons = new Reasons(app, this.refresh);
    this.list = new List({
      label: `jobs, ${kind}`, key: (job) => job.id,
      make: () => el("div", {class: "job"}, ...CLASSES.map((name) => el("span", {class: name}))),
      fill: (row, job, index) => this.fill(row, job, index),
      open: (job) => { location.hash = `#/job/${encodeURIComponent(job.id)}`; },
      inSight: (jobs) => { if (this.kind === "waiting") this.reasons.want(jobs.map((job) => job.id)); },
    });
    this.empty = el("p", {class: "empty quiet"});
    this.head = el("div", {class: "job heads", "aria-hidden": "true"}, ...CLASSES.map((name) => el("span", {class: name})));
    this.node = el("div", {class: "jobs"}, this.head, this.list.node, this.empty);
    this.readOver = atMostEvery(1500, () => this.fetchOver().catch(() => {}));
    this.choose(kind);
    const changed = () => { this.reasons.readOrder(); if (this.kind === "over") this.readOver(); this.refresh(); };
    this.offs = [app.on("change", changed)];
    this.clock = setInterval(() => { if (app.at === null) this.list.draw(); }, 1000);
    this.reasons.readOrder();
  }

  destroy() {
    this.offs.forEach((off) => off());
    clearInterval(this.clock);
    this.list.destroy();
  }

  choose(kind) {
    this.kind = kind;
    this.list.node.scrollTop = 0;
    [...this.head.children].forEach((head, i) => put(head, COLUMNS[kind][i]));
    this.node.dataset.kind = kind;
    if (kind === "over") this.readOver();
    this.refresh();
  }

  search(text) {
    this.filter = text.trim().toLowerCase();
    this.list.node.scrollTop = 0;
    this.refresh();
  }

  async fetchOver() {
    if (!this.app.live || this.app.at !== null) return;
    const {jobs} = await get("jobs?over=true&limit=1000");
    this.ended = jobs.map((job) => ({...job, told: true}));
    this.refresh();
  }

  jobs() {
    const world = this.app.world;
    if (this.kind === "waiting") return this.reasons.sorted(world.waiting());
    if (this.kind === "running") return world.running().sort((a, b) => b.gpus - a.gpus || a.index - b.index);
    if (this.app.live && this.app.at === null) return this.ended || [];
    return world.over().sort((a, b) => b.ended - a.ended);
  }

  show() {
    let jobs = this.jobs();
    const all = jobs.length;
    if (this.filter) jobs = jobs.filter((job) => `${job.id} ${job.name} ${job.user}`.toLowerCase().includes(this.filter));
    this.list.set(jobs);
    const none = {waiting: "Nobody waits.", running: "Nothing runs.", over: "Nothing has ended yet."}[this.kind];
    put(this.empty, jobs.length ? "" : all ? "No job here answers to that." : none);
  }

  fill(row, job, index) {
    const texts = this[this.kind === "over" ? "overTexts" : this.kind === "running" ? "runningTexts" : "waitingTexts"](job, index);
    CLASSES.forEach((name, i) => { put(row.children[i], texts[i]); });
    row.children[1].title = texts[1];
    row.children[4].title = texts[4];
  }

  waitingTexts(job, index) {
    const {app} = this, now = app.time, place = app.live && app.at === null ? this.reasons.places.get(job.id) : index;
    const texts = [place === undefined ? "" : count(place + 1), prioritised(job), job.user, count(job.gpus)];
    if (app.live && app.at === null) {
      const told = this.reasons.of(job.id);
      return [...texts, told?.blocker || told?.sentence || "…", duration(now - job.since), told?.remaining_s ? duration(told.remaining_s) : "-",
        told ? ahead(told.expected_start, now) : "…"];
    }
    const world = app.world, next = job.tries.map((one) => world.attempts[one]).find((one) => one.time > now);
    const why = job.evictions ? "evicted; why it waits since is not recorded" : "why it waits is not recorded";
    const then = next ? `; later starts within one ${world.cluster.tiers[next.tier].name}` : "; does not start before the end of the record";
    return [...texts, why + then, duration(now - job.since), "-", next ? moment(next.time, app.live) : "-"];
  }

  runningTexts(job) {
    const world = this.app.world, attempt = world.attempts[job.attempt];
    const names = attempt.seats.map(([machine, , numbers]) => `${world.cluster.machines[machine].name}:${numbers.length}`);
    const where = names.slice(0, 6).join(", ") + (names.length > 6 ? ` and ${plural(names.length - 6, "more machine")}` : "");
    const since = attempt.began ?? attempt.time;
    const runs = STATES[job.state] === "starting" ? "starts" : duration(this.app.time - since);
    return ["", named(job), job.user, count(job.gpus), where, runs, world.cluster.tiers[attempt.tier].name, times(job.evictions)];
  }

  overTexts(job) {
    const first = job.told ? job.first_start : job.tries.length ? this.app.world.attempts[job.tries[0]].time : null;
    const ran = first === null ? "-" : duration(job.ended - first);
    return ["", named(job), job.user, count(job.gpus), `${duration(Math.max(0, this.app.time - job.ended))} ago, ${moment(job.ended, this.app.live)}`,
      ran, job.told ? job.state : STATES[job.state], times(job.evictions)];
  }
}

const named = (job) => (job.name && job.name !== job.id ? `${job.id}  ${job.name}` : job.id);
const prioritised = (job) => named(job) + (job.priority ? `  priority ${job.priority}` : "");
const times = (value) => (value ? `${value}×` : "-");
