// @ts-check
// Tables of jobs: waiting with their reasons, running with their machines, evicted, failed, ended; and the view of all.

import {get} from "./api.js";
import {atMostEvery, el, oncePerFrame, put} from "./dom.js";
import {ahead, count, devices, duration, moment, plural, since} from "./format.js";
import {queryOf} from "./address.js";
import {racksOf} from "./layout.js";
import {List, heads} from "./list.js";
import {STATES} from "./state.js";

const KINDS = {waiting: "waiting", running: "running", evicted: "evicted", failed: "failed", over: "ended"};

export function jobs(app, root) {
  const asked = queryOf().get("show"), kept = sessionStorage.getItem("berth.jobs");
  const list = new JobList(app, asked in KINDS ? asked : kept in KINDS ? kept : "waiting", {sortable: true});
  const counts = {};
  const radios = Object.entries(KINDS).map(([kind, word]) => {
    counts[kind] = el("em");
    return el("label", {class: kind}, el("input", {type: "radio", name: "kind", value: kind, checked: list.kind === kind, onchange: () => {
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
    for (const kind of Object.keys(KINDS)) put(counts[kind], list.countOf(kind));
  };
  const offs = [app.on("change", show), app.on("ended", show)];
  list.readOver();
  show();
  return {list: list.list, search, destroy() { offs.forEach((off) => off()); list.destroy(); }};
}

const COLUMNS = {
  waiting: ["#", "job", "user", "devices", "why", "waits", "runs for", "starts"],
  running: ["", "job", "user", "devices", "where", "runs", "within one", "evicted"],
  over: ["", "job", "user", "devices", "ended", "ran", "state", "evicted"],
};
COLUMNS.evicted = ["", "job", "user", "devices", "where", "state since", "state", "evicted"];
COLUMNS.failed = ["", "job", "user", "devices", "why", "ended", "exit code", "evicted"];
const CLASSES = ["place", "name", "user", "gpus", "why", "since", "left", "starts"];
const [NAME, USER, GPUS, SINCE, LAST] = [1, 2, 3, 5, 7];
const MOST_OVER = 1000, OVER = new Set(["over", "failed"]);

export class JobList {
  constructor(app, kind, {sortable = false} = {}) {
    this.app = app;
    this.kind = kind;
    this.filter = "";
    this.sortBy = null; // [column, down]
    this.ended = null; // jobs of the store, once they were read
    this.refresh = oncePerFrame(() => this.show());
    this.reasons = new Reasons(app, this.refresh);
    this.list = new List({
      label: "jobs", key: (job) => job.id, height: 46, make,
      fill: (row, job) => this.fill(row, job),
      open: (job) => { location.hash = addressOf(job); },
      inSight: (jobs) => { if (this.kind === "waiting") this.reasons.want(jobs.map((job) => job.id)); },
    });
    this.empty = el("p", {class: "empty quiet"});
    this.head = heads(CLASSES, {kind: "job", sort: sortable ? (column) => this.sort(column) : null});
    this.node = el("div", {class: "jobs", role: "table", "aria-label": "Jobs"}, this.head.node, this.list.node, this.empty);
    this.readOver = atMostEvery(1500, () => this.fetchOver().catch(() => {}));
    this.choose(kind);
    const changed = () => { this.reasons.readOrder(); if (this.ended) this.readOver(); this.refresh(); };
    this.offs = [app.on("change", changed), app.on("moment", () => { this.facts = null; })];
    this.clock = setInterval(() => { if (app.at === null && app.connected) this.list.draw(); }, 1000);
    this.reasons.readOrder();
  }

  destroy() {
    this.offs.forEach((off) => off());
    clearInterval(this.clock);
    this.list.destroy();
  }

  choose(kind) {
    this.kind = kind;
    this.list.narrowHeight = kind === "waiting" ? 90 : 72;
    this.sortBy = null;
    this.list.node.scrollTop = 0;
    this.node.dataset.kind = kind;
    if (OVER.has(kind)) this.readOver();
    this.refresh();
  }

  search(text) {
    this.filter = text.trim().toLowerCase();
    this.list.node.scrollTop = 0;
    this.refresh();
  }

  // Sorts by a column, then the other way round, then not.
  sort(column) {
    const [known, down] = this.sortBy || [];
    this.sortBy = known !== column ? [column, false] : down ? null : [column, true];
    this.refresh();
  }

  async fetchOver() {
    if (!this.app.live || this.app.at !== null) return;
    const {jobs} = await get(`jobs?over=true&limit=${MOST_OVER}`);
    this.ended = jobs.map((job) => ({...job, fromStore: true}));
    this.app.emit("ended");
    this.refresh();
  }

  // Jobs of a kind at the moment that is shown.
  of(kind) {
    const {state, live, at} = this.app;
    if (kind === "waiting") return this.reasons.sorted(state.waiting());
    if (kind === "running") return state.running().sort((a, b) => b.gpus - a.gpus || a.index - b.index);
    if (kind === "evicted") return [...state.running(), ...state.waiting()].filter((job) => job.evictions).sort((a, b) => b.evictions - a.evictions);
    const over = live && at === null ? this.ended || [] : state.ended().sort((a, b) => b.ended - a.ended);
    return kind === "failed" ? over.filter((job) => stateOf(job) === "failed") : over;
  }

  countOf(kind) {
    if (OVER.has(kind) && this.app.live && this.app.at === null && !this.ended) return "";
    const {length} = this.of(kind);
    return count(length) + (OVER.has(kind) && (this.ended || []).length === MOST_OVER ? "+" : "");
  }

  show() {
    let jobs = this.of(this.kind);
    const all = jobs.length;
    if (this.filter) jobs = jobs.filter((job) => `${job.id} ${job.name} ${job.user}`.toLowerCase().includes(this.filter));
    if (this.sortBy) {
      const [column, down] = this.sortBy, key = KEYS[column];
      jobs = [...jobs].sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (down ? -1 : 1));
    }
    this.node.toggleAttribute("data-past", !this.app.live || this.app.at !== null); // durations and places in the queue are known for now only
    this.head.show(COLUMNS[this.kind], this.sortBy, (i) => i in KEYS);
    this.node.setAttribute("aria-rowcount", String(jobs.length + 1));
    this.list.set(jobs);
    put(this.empty, jobs.length ? "" : all ? "No job matches the search." : this.nothing());
  }

  nothing() {
    const {live, at} = this.app, submit = live && at === null ? " Submit one: berth submit --gpus 1 -- python train.py" : "";
    return {waiting: `No jobs are waiting.${submit}`, running: `No jobs are running.${submit}`, over: "No jobs have ended yet.",
      evicted: "No waiting or running job was evicted.", failed: "No jobs have failed."}[this.kind];
  }

  fill(row, job) {
    const texts = this[OVER.has(this.kind) ? "overTexts" : this.kind === "running" ? "runningTexts" : this.kind === "evicted" ? "evictedTexts" : "waitingTexts"](job);
    CLASSES.forEach((name, i) => { if (i !== NAME) put(row.children[i], texts[i]); });
    row.children[GPUS].dataset.unit = job.cores ? "" : job.gpus === 1 ? " GPU" : " GPUs"; // shown on phones, without the heads
    row.children[GPUS].title = job.cores ? devices(job) : "";
    const [link, chip] = row.children[NAME].children, state = stateOf(job);
    link.setAttribute("href", addressOf(job));
    link.title = named(job);
    put(link.firstChild, job.name || job.id);
    put(link.lastChild, job.name && job.name !== job.id ? job.id : "");
    chip.hidden = !job.priority;
    put(chip, `priority ${job.priority > 0 ? "+" : "−"}${Math.abs(job.priority)}`);
    row.children[4].title = texts[4];
    row.dataset.state = state;
  }

  waitingTexts(job) {
    const {app} = this, now = app.time, present = app.live && app.at === null, place = present ? this.reasons.places.get(job.id) : undefined;
    const texts = [place === undefined ? "" : count(place + 1), "", job.user, sizeOf(job)];
    if (present) {
      const known = this.reasons.of(job.id);
      return [...texts, untimed(known?.blocker || known?.sentence || "…"), duration(now - job.since), known?.remaining_s ? duration(known.remaining_s) : "-",
        known ? (known.start_overdue_s ? `${duration(known.start_overdue_s)} overdue` : ahead(known.expected_start, now)) : "…"];
    }
    const next = nextStart(app, job);
    return [...texts, this.pastWhy(job, next), duration(now - job.since), "", next ? moment(next.time, app.live) : "-"];
  }

  // What was free at a moment of the past: the scheduler's own reasons are not in the journal.
  pastWhy(job, next) {
    const {state} = this.app;
    if (this.facts?.state !== state || this.facts.at !== state.at) this.facts = {state, at: state.at, ...freeIn(state)};
    const {free, most, word} = this.facts, evicted = job.evictions ? "evicted; " : "";
    const room = `needs ${devices(job)}; ${count(free)} free${free >= job.gpus && most < free ? `, at most ${count(most)} in one ${word}` : ""}`;
    return evicted + room + (next ? `; later starts within one ${state.cluster.tiers[next.tier].name}` : "");
  }

  runningTexts(job) {
    const state = this.app.state, attempt = state.attempts[job.attempt], began = attempt.began ?? attempt.time;
    const runs = STATES[job.state] === "starting" ? "starts" : duration(this.app.time - began);
    return ["", "", job.user, sizeOf(job), placesOf(state, attempt), runs, state.cluster.tiers[attempt.tier].name, times(job.evictions)];
  }

  evictedTexts(job) {
    const {state, time} = this.app, attempt = job.attempt >= 0 ? state.attempts[job.attempt] : null;
    const from = attempt ? attempt.began ?? attempt.time : job.since;
    return ["", "", job.user, sizeOf(job), attempt ? placesOf(state, attempt) : "waits again", duration(time - from), STATES[job.state], times(job.evictions)];
  }

  overTexts(job) {
    const {app} = this, when = since(app.time - job.ended);
    if (this.kind === "failed") {
      return ["", "", job.user, sizeOf(job), job.fromStore ? causeOf(job) : "its exit is in its events", when, job.code === undefined || job.code === null ? "-" : String(job.code), times(job.evictions)];
    }
    const first = job.fromStore ? job.first_start : job.tries.length ? app.state.attempts[job.tries[0]].time : null;
    return ["", "", job.user, sizeOf(job), `${when}, ${moment(job.ended, app.live)}`, first === null ? "-" : duration(job.ended - first), stateOf(job), times(job.evictions)];
  }
}

const KEYS = {[NAME]: (job) => (job.name || job.id).toLowerCase(), [USER]: (job) => job.user, [GPUS]: (job) => job.gpus,
  [SINCE]: (job) => -(job.ended ?? job.since ?? 0), [LAST]: (job) => job.evictions};
const named = (job) => (job.name && job.name !== job.id ? `${job.name} ${job.id}` : job.id);
const sizeOf = (job) => (job.cores ? `${count(job.gpus)} + ${count(job.cores)} cores` : count(job.gpus));
const times = (value) => (value ? `${value}×` : "-");
const stateOf = (job) => (job.fromStore ? job.state : STATES[job.state]);
const addressOf = (job) => `#/job/${encodeURIComponent(job.id)}`;
const causeOf = (job) => (job.cause ? [job.cause === "exit" ? "its command exited with an error" : job.cause, job.detail].filter(Boolean).join(": ") : "-");

function make() {
  const cells = CLASSES.map((name) => el("span", {class: name}));
  cells[NAME].append(el("a", {}, el("b"), el("small", {class: "id"})), el("span", {class: "chip", hidden: true}));
  return el("div", {class: "job"}, ...cells);
}

function placesOf(state, attempt) {
  const names = attempt.seats.map(([machine, , numbers]) => `${state.cluster.machines[machine].name}:${numbers.length}`);
  return names.slice(0, 6).join(", ") + (names.length > 6 ? ` and ${plural(names.length - 6, "more machine")}` : "");
}

// The blocker without the time of the start, which has a column of its own and is newer there.
const untimed = (text) => text.replace(/; starts (?:now|in [^\s;]+)(?= |;|$)/, "; starts").replace(/; starts(?=;|$)/, "");
const nextStart = (app, job) => job.tries.map((one) => app.state.attempts[one]).find((one) => one.time > app.time);

// Free devices, and the most in one rack.
function freeIn(state) {
  const owners = state.owners(), racks = racksOf(state.cluster);
  const inRack = racks.map((rack) => rack.machines.reduce((sum, machine) => {
    if (state.unavailable[machine]) return sum;
    let free = state.sizes[machine] - state.external[machine];
    for (let i = 0; i < state.sizes[machine]; i++) if (owners[state.first[machine] + i] >= 0) free--;
    return sum + Math.max(0, free);
  }, 0));
  const level = state.cluster.tiers.length > 2 ? 1 : state.cluster.tiers.length - 1;
  return {free: inRack.reduce((sum, n) => sum + n, 0), most: Math.max(...inRack), word: state.cluster.tiers[level].name};
}

// Reasons and expected starts, only for the rows in sight; and the order of the queue.
const FRESH_MS = 4000, MOST = 200;

class Reasons {
  constructor(app, changed) {
    this.app = app;
    this.changed = changed;
    this.known = app.reasons;
    this.wanted = [];
    this.readOrder = atMostEvery(1500, () => this.order().catch(() => {}));
    this.readReasons = atMostEvery(300, () => this.reasons().catch(() => {}));
  }

  get present() { return this.app.live && this.app.at === null; }
  get asks() { return this.present && this.app.connected; }
  get places() { return this.app.places; }

  async order() {
    if (!this.asks) return;
    const {order} = await get("queue");
    this.app.places = new Map(order.map((id, place) => [id, place]));
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
    this.app.dropReasons(ids); // they may have started meanwhile
    this.changed();
  }

  of(id) { return this.known.get(id); }

  // Waiting jobs in the controller's order; those without a known place come last.
  sorted(jobs) {
    const place = (job) => (this.present ? this.places.get(job.id) ?? Infinity : 0);
    return jobs.sort((a, b) => place(a) - place(b) || a.since - b.since || a.index - b.index);
  }
}
