// @ts-check
// The first view: what needs attention, numbers, the map with its legend, the queue.

import {drain} from "./actions.js";
import {attention, problemsAt} from "./attention.js";
import {el, oncePerFrame, put} from "./dom.js";
import {count, duration, percent, plural, usd} from "./format.js";
import {JobList} from "./jobs.js";
import {ClusterMap} from "./map.js";
import {DRAINED, LOST} from "./state.js";
import {colours} from "./theme.js";

const MODES = {job: "job", user: "user", tier: "spread"};

export function overview(app, root) {
  const stats = new Stats(app), jobs = new JobList(app, "waiting"), strip = attention(app);
  const map = new ClusterMap(app, {
    onJob: (job) => { location.hash = `#/job/${encodeURIComponent(job.id)}`; },
    onMachine: (machine) => {
      const {name} = app.state.cluster.machines[machine], unavailable = app.state.unavailable[machine];
      if (app.live && app.admin && app.at === null && !(unavailable & LOST)) drain(name, Boolean(unavailable & DRAINED), jobsOn(app.state, machine));
    },
  });
  map.mode = sessionStorage.getItem("berth.colour") || "job";
  const key = legend(app, map);
  const radios = Object.entries(MODES).map(([mode, word]) => el("label", {},
    el("input", {type: "radio", name: "colour", value: mode, checked: map.mode === mode, onchange: () => {
      map.mode = mode;
      sessionStorage.setItem("berth.colour", mode);
      map.repaint();
      key.show();
    }}), el("span", {text: word})));
  const tiers = app.me.cluster.tiers.map((tier) => tier.name).join(", ");
  const queued = el("span", {class: "quiet"});
  root.append(
    strip.node,
    stats.node,
    el("section", {class: "mapped"},
      el("div", {class: "title"}, el("h2", {text: "Cluster"}),
        el("span", {class: "quiet", text: `${plural(app.me.cluster.machines.length, "machine")}, tiers ${tiers}`}),
        el("fieldset", {class: "switch"}, el("legend", {text: "colour by"}), ...radios)),
      map.node, key.node),
    el("section", {class: "queue"},
      el("div", {class: "title"}, el("h2", {text: "Queue"}), queued, el("a", {href: "#/jobs", text: "all jobs"})),
      jobs.node));
  const about = () => put(queued, app.live && app.at === null ? `policy ${app.me.policy}; times are modelled` : "");
  const show = oncePerFrame(() => { map.draw(); stats.show(); key.show(); about(); painted(); });
  const offs = [app.on("change me", show), app.on("theme", () => { map.repaint(); key.show(); }), app.on("series problems", () => stats.show())];
  map.resize();
  stats.show();
  key.show();
  about();
  painted();
  const clock = setInterval(() => { if (app.at === null && app.connected) stats.show(); }, 1000);
  return {list: jobs.list, map, destroy() { offs.forEach((off) => off()); clearInterval(clock); strip.destroy(); jobs.destroy(); map.destroy(); }};
}

const jobsOn = (state, machine) => [...new Set(state.owners().subarray(state.first[machine], state.first[machine] + state.sizes[machine]).filter((one) => one >= 0))]
  .map((one) => state.jobs[one].name || state.jobs[one].id);

function painted() {
  if (!performance.getEntriesByName("berth:painted").length) performance.mark("berth:painted");
}

// The cluster in a few numbers: use, jobs, waits, cost.
class Stats {
  constructor(app) {
    this.app = app;
    this.tiles = {};
    this.node = el("section", {class: "stats", "aria-label": "The cluster in numbers"});
    for (const [name, label] of [["use", "devices in use"], ["running", "jobs running"], ["waiting", "jobs waiting"],
      ["failures", "failed in 24 hours"], ["cost", "in use, per hour"]]) {
      const value = el("b", {text: "-"}), note = el("small", {text: " "});
      this.tiles[name] = {value, note};
      const href = {running: "#/jobs?show=running", waiting: "#/jobs?show=waiting", failures: "#/jobs?show=failed"}[name];
      this.node.append(el(href ? "a" : "div", {class: `stat ${name}`, href}, el("span", {text: label}), value, note));
    }
    this.bar = el("i");
    this.node.querySelector(".use").append(el("div", {class: "bar"}, this.bar));
  }

  show() {
    const {app} = this, state = app.state, {busy, free, unavailable, external} = state.counts();
    const waiting = state.waiting(), running = state.running(), now = app.time;
    const away = [unavailable ? `${count(unavailable)} unavailable` : "", external ? `${count(external)} with others` : ""].filter(Boolean);
    this.set("use", `${count(busy)} of ${count(state.devices)}`, [`${count(free)} free`, ...away].join(", "));
    this.bar.style.width = percent(busy / Math.max(1, state.devices));
    const spread = running.filter((job) => state.attempts[job.attempt].tier > 0).length;
    this.set("running", count(running.length), running.length ? `${count(spread)} on more than one machine` : "none");
    const since = waiting.reduce((least, job) => Math.min(least, job.since), now);
    this.set("waiting", count(waiting.length), waiting.length ? `oldest ${duration(now - since)}${this.choice()}` : "none");
    const {failed, evicted} = problemsAt(app);
    this.set("failures", count(failed.count), evicted.count ? `${plural(evicted.count, "eviction")} in the last hour` : "no evictions in the last hour");
    this.cost(state, running);
  }

  // How many of the waiting jobs could start now, but wait for a nearer place.
  choice() {
    const {app} = this, series = app.series, last = series ? series.time.length - 1 : -1;
    const holding = app.live && app.at === null && last >= 0 ? series.holding[last] : 0;
    return holding ? `; ${count(holding)} by choice, saves ${duration(series.saves_s[last])}` : "";
  }

  cost(state, running) {
    const kinds = state.cluster.device_types;
    let total = 0;
    for (const job of running) {
      for (const [, kind, numbers] of state.attempts[job.attempt].seats) {
        const price = kinds[kind].usd_per_hour;
        total = price === null || total === null ? null : total + price * numbers.length;
      }
    }
    const known = kinds.every((kind) => kind.usd_per_hour !== null);
    this.set("cost", known && total !== null ? usd(total) : "-", known ? "at list prices of the devices" : "a device's price is unknown");
  }

  set(name, value, note) {
    put(this.tiles[name].value, value);
    put(this.tiles[name].note, note);
  }
}

// The meaning of the map's colours.
const MOST_USERS = 8;

function legend(app, map) {
  const node = el("div", {class: "legend"});
  const entry = (colour, text, mark = "") => {
    const swatch = el("i", {class: `swatch ${mark}`});
    swatch.style.backgroundColor = colour;
    return el("span", {}, swatch, text);
  };
  let before = "";
  function show() {
    const look = colours(), entries = [...meaning(app, map, look)];
    const signature = entries.map((one) => one.join("\t")).join("\n");
    if (signature === before) return;
    before = signature;
    node.replaceChildren(...entries.map((one) => entry(...one)));
  }
  return {node, show};
}

function* meaning(app, map, look) {
  const state = app.state;
  if (map.mode === "tier") {
    for (const [i, tier] of state.cluster.tiers.entries()) yield [look.tiers[Math.min(i, 4)], `within one ${tier.name}`];
  } else if (map.mode === "user") {
    const held = new Map();
    for (const job of state.running()) held.set(job.user, (held.get(job.user) || 0) + job.gpus + job.cores);
    const users = [...held].sort((a, b) => b[1] - a[1]);
    for (const [user, gpus] of users.slice(0, MOST_USERS)) yield [look.series[map.userColour(user)], `${user || "unknown"} ${count(gpus)}`];
    if (users.length > MOST_USERS) yield ["transparent", `and ${plural(users.length - MOST_USERS, "more user")}`];
  } else yield [look.jobs[4], "a colour for each job; gangs of 4 and more have labels"];
  yield [look.empty, "free"];
  yield [look.drained, "takes no jobs", "hatch"];
  yield [look.lost, "lost", "cross"];
  if (state.external.some(Boolean)) yield [look.others, "held by others"];
}
