// Lists of jobs: waiting with their reasons, running with their machines, ended; and the view of all jobs with a search.

import {get} from "./api.js";
import {atMostEvery, el, oncePerFrame, put} from "./dom.js";
import {ahead, count, duration, moment, plural} from "./format.js";
import {List} from "./list.js";
import {STATES} from "./state.js";

const KINDS = {waiting: "waiting", running: "running", over: "over"};

export function jobs(app, root) {
  const list = new JobList(app, sessionStorage.getItem("berth.jobs") || "waiting");
  const counts = {};
  const radios = Object.entries(KINDS).map(([kind, word]) => {
    counts[kind] = el("em");
    return el("label", {}, el("input", {type: "radio", name: "kind", value: kind, checked: list.kind === kind, onchange: () => {
      sessionStorage.setItem("berth.jobs", kind);
      list.choose(kind);
    }}), el("span", {}, word, " ", counts[kind]));
  });
  const search = el("input", {type: "search", id: "search", placeholder: "id, name or user", "aria-label": "Search jobs", autocomplete: "off",
    oninput: () => list.search(search.value)});
  root.append(el("section", {class: "tall"},
    el("div", {class: "title"}, el("h2", {text: "Jobs"}), search,
      el("fieldset", {class: "switch"}, el("legend", {text: "show", class: "unseen"}), ...radios)),
    list.node));
  const show = () => {
    put(counts.waiting, count(app.state.waiting().length));
    put(counts.running, count(app.state.running().length));
  };
  const off = app.on("change", show);
  show();
  return {list: list.list, search, destroy() { off(); list.destroy(); }};
}

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
    this.ended = jobs.map((job) => ({...job, fromStore: true}));
    this.refresh();
  }

  jobs() {
    const state = this.app.state;
    if (this.kind === "waiting") return this.reasons.sorted(state.waiting());
    if (this.kind === "running") return state.running().sort((a, b) => b.gpus - a.gpus || a.index - b.index);
    if (this.app.live && this.app.at === null) return this.ended || [];
    return state.ended().sort((a, b) => b.ended - a.ended);
  }

  show() {
    let jobs = this.jobs();
    const all = jobs.length;
    if (this.filter) jobs = jobs.filter((job) => `${job.id} ${job.name} ${job.user}`.toLowerCase().includes(this.filter));
    this.list.set(jobs);
    const none = {waiting: "No jobs are waiting.", running: "No jobs are running.", over: "No jobs have ended yet."}[this.kind];
    put(this.empty, jobs.length ? "" : all ? "No job matches the search." : none);
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
      const known = this.reasons.of(job.id);
      return [...texts, known?.blocker || known?.sentence || "…", duration(now - job.since), known?.remaining_s ? duration(known.remaining_s) : "-",
        known ? ahead(known.expected_start, now) : "…"];
    }
    const state = app.state, next = job.tries.map((one) => state.attempts[one]).find((one) => one.time > now);
    const why = job.evictions ? "evicted; why it waits since is not recorded" : "why it waits is not recorded";
    const then = next ? `; later starts within one ${state.cluster.tiers[next.tier].name}` : "; does not start before the end of the record";
    return [...texts, why + then, duration(now - job.since), "-", next ? moment(next.time, app.live) : "-"];
  }

  runningTexts(job) {
    const state = this.app.state, attempt = state.attempts[job.attempt];
    const names = attempt.seats.map(([machine, , numbers]) => `${state.cluster.machines[machine].name}:${numbers.length}`);
    const where = names.slice(0, 6).join(", ") + (names.length > 6 ? ` and ${plural(names.length - 6, "more machine")}` : "");
    const since = attempt.began ?? attempt.time;
    const runs = STATES[job.state] === "starting" ? "starts" : duration(this.app.time - since);
    return ["", named(job), job.user, count(job.gpus), where, runs, state.cluster.tiers[attempt.tier].name, times(job.evictions)];
  }

  overTexts(job) {
    const first = job.fromStore ? job.first_start : job.tries.length ? this.app.state.attempts[job.tries[0]].time : null;
    const ran = first === null ? "-" : duration(job.ended - first);
    return ["", named(job), job.user, count(job.gpus), `${duration(Math.max(0, this.app.time - job.ended))} ago, ${moment(job.ended, this.app.live)}`,
      ran, job.fromStore ? job.state : STATES[job.state], times(job.evictions)];
  }
}

const named = (job) => (job.name && job.name !== job.id ? `${job.id}  ${job.name}` : job.id);
const prioritised = (job) => named(job) + (job.priority ? `  priority ${job.priority}` : "");
const times = (value) => (value ? `${value}×` : "-");

// Reasons and expected starts, only for the rows in sight; and the order of the queue.
const FRESH_MS = 4000, MOST = 200;

class Reasons {
  constructor(app, changed) {
    Object.assign(this, {app, changed});
    this.places = new Map(); // place in the queue, by id
    this.known = new Map();
    this.wanted = [];
    this.readOrder = atMostEvery(1500, () => this.order().catch(() => {}));
    this.readReasons = atMostEvery(300, () => this.reasons().catch(() => {}));
  }

  get asks() { return this.app.live && this.app.at === null && this.app.connected; }

  async order() {
    if (!this.asks) return;
    const {order} = await get("queue");
    this.places = new Map(order.map((id, place) => [id, place]));
    this.changed();
  }

  // These rows are in sight: their reasons are read unless they are fresh.
  want(ids) {
    this.wanted = ids.slice(0, MOST);
    const now = performance.now();
    if (this.asks && this.wanted.some((id) => !(this.known.get(id)?.until > now))) this.readReasons();
  }

  async reasons() {
    const now = performance.now(), ids = this.wanted.filter((id) => !(this.known.get(id)?.until > now));
    if (!ids.length || !this.asks) return;
    const answer = await get(`reasons?ids=${ids.map(encodeURIComponent).join(",")}`);
    for (const id of ids) this.known.set(id, {...answer[id], until: performance.now() + FRESH_MS});
    this.changed();
  }

  of(id) { return this.known.get(id); }

  // Waiting jobs in the controller's order; those without a known place come last.
  sorted(jobs) {
    const place = (job) => (this.asks ? this.places.get(job.id) ?? Infinity : 0);
    return jobs.sort((a, b) => place(a) - place(b) || a.since - b.since || a.index - b.index);
  }
}
