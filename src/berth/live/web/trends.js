// @ts-check
// Numbers over time: use, queue, waits, timers, cost; and the load of the racks' up-links.

import UPlot from "./vendor/uplot/uPlot.esm.js";
import {el, oncePerFrame, put} from "./dom.js";
import {count, duration, moment, percent, plural, usd} from "./format.js";
import {racksOf} from "./layout.js";
import {colours} from "./theme.js";

const MOST_TIMERS = 8;
const RANGES = {"last hour": 3600, "last 6 hours": 21600, "last day": 86400, "all": Infinity};
const RANGE_KEY = "berth.range";

export function trends(app, root) {
  const charts = {};
  const card = (name, title, note, value, extra) => {
    charts[name] = new Chart(app, {value, sync: "trends"});
    const quiet = el("p", {class: "quiet", text: note});
    const node = el("section", {}, el("div", {class: "title"}, el("h2", {text: title}), extra), quiet, charts[name].node);
    root.append(node);
    return {node, quiet};
  };
  const range = el("select", {"aria-label": "Time range", id: "range", hidden: !app.live, onchange: () => { sessionStorage.setItem(RANGE_KEY, range.value); rescale(); }},
    ...Object.keys(RANGES).map((name) => el("option", {text: name, value: name})));
  range.value = sessionStorage.getItem(RANGE_KEY) || "all";
  card("use", "Devices", "In use, free, and on machines that take no jobs.", count, range);
  card("queue", "Jobs", app.live ? "Waiting, waiting for a nearer placement, and running." : "Waiting and running.", count);
  card("wait", "Waits", "Of the jobs waiting at a time: mean and longest.", duration);
  const tier = el("select", {"aria-label": "Tier", id: "tier", onchange: () => show()});
  const carried = links(app);
  root.append(carried.node);
  const cost = card("cost", "Cost per hour", "Of the devices in use, at list prices.", usd);
  const timed = card("timers", "Timers", " ", duration, tier);
  timed.node.hidden = true; // until a policy has some

  function show() {
    const series = app.series;
    if (!series || !series.time.length) return;
    charts.use.set(series.time, [
      {label: "in use", colour: 0, values: series.busy, fill: true}, {label: "free", colour: 2, values: series.free},
      {label: "unavailable", colour: 5, values: series.unavailable}]);
    charts.queue.set(series.time, [{label: "waiting", colour: 1, values: series.queued, fill: true},
      ...(app.live ? [{label: "by choice", colour: 3, values: series.holding}] : []), {label: "running", colour: 0, values: series.running}]);
    charts.wait.set(series.time, [{label: "mean", colour: 4, values: series.mean_wait_s, grows: true},
      {label: "longest", colour: 1, values: series.longest_wait_s, grows: true}]);
    cost.node.hidden = series.usd_per_hour.every((value) => value === null); // the price of a device is unknown
    charts.cost.set(series.time, [{label: "in use", colour: 6, values: series.usd_per_hour, fill: true}]);
    timers(series);
  }

  function timers(series) {
    const tiers = [...new Set(series.timers.map((one) => one.tier))];
    if (tiers.length !== tier.childElementCount) tier.replaceChildren(...tiers.map((name) => el("option", {text: name, value: name})));
    timed.node.hidden = !tiers.length;
    if (!tiers.length) return;
    const chosen = series.timers.filter((one) => one.tier === tier.value).sort((a, b) => a.gpus - b.gpus);
    put(timed.quiet, `How long jobs of a size wait for one ${tier.value}.${chosen.length > MOST_TIMERS ? " The largest sizes are shown." : ""}`);
    charts.timers.set(series.time, chosen.slice(-MOST_TIMERS).map((one, i) => ({label: plural(one.gpus, "GPU"), colour: i, values: one.seconds})));
  }

  // Live, all charts show the same last part.
  function rescale() { for (const chart of Object.values(charts)) { chart.range = RANGES[range.value] ?? Infinity; chart.fit(); } }
  const moved = oncePerFrame(() => { carried.show(); Object.values(charts).forEach((chart) => chart.redraw()); });
  const changed = oncePerFrame(() => carried.show());
  const offs = [app.on("series", show), app.on("moment", moved), app.on("change", changed),
    app.on("theme", () => Object.values(charts).forEach((chart) => chart.restyle()))];
  rescale();
  show();
  carried.show();
  return {destroy() { offs.forEach((off) => off()); Object.values(charts).forEach((chart) => chart.destroy()); }};
}

// Up-links of racks and the jobs that cross them, at the moment shown. Modelled: a job in several racks is assumed to
// use the up-link of each with all its devices there.
const MOST_LINKS = 24;

function links(app) {
  const racks = racksOf(app.me.cluster), level = app.me.cluster.tiers.length > 2 ? app.me.cluster.tiers[1].name : "cluster";
  const rackOf = [], size = racks.map(() => 0);
  racks.forEach((rack, at) => rack.machines.forEach((machine) => { rackOf[machine] = at; }));
  const body = el("div", {class: "links"}), note = el("p", {class: "quiet"});
  const node = el("section", {}, el("div", {class: "title"}, el("h2", {text: "Links"})), note, body);
  function show() {
    const state = app.state, load = racks.map((rack) => ({name: rack.name, jobs: 0, devices: 0}));
    racks.forEach((rack, at) => { size[at] = rack.machines.reduce((sum, machine) => sum + state.sizes[machine], 0); });
    for (const job of state.running()) {
      const here = new Map();
      for (const [machine, , numbers] of state.attempts[job.attempt].seats) here.set(rackOf[machine], (here.get(rackOf[machine]) || 0) + numbers.length);
      if (here.size > 1) for (const [at, devices] of here) { load[at].jobs++; load[at].devices += devices; }
    }
    const rows = load.map((one, at) => ({...one, share: one.devices / Math.max(1, size[at])}));
    const shown = rows.length > MOST_LINKS ? rows.sort((a, b) => b.share - a.share).slice(0, MOST_LINKS) : rows;
    note.textContent = racks.length < 2 ? `There is one ${level} only: no job crosses an up-link.`
      : `Jobs that cross the up-link of each ${level}, with their devices there (modelled).${rows.length > MOST_LINKS ? ` The ${MOST_LINKS} busiest of ${rows.length}.` : ""}`;
    body.replaceChildren(...(racks.length < 2 ? [] : shown.map(row)));
  }
  return {node, show};
}

function row({name, jobs, devices, share}) {
  const bar = el("i");
  bar.style.width = percent(Math.min(1, share));
  const words = jobs ? `${plural(jobs, "job")}, ${plural(devices, "device")}` : "idle";
  return el("div", {class: "uplink"}, el("span", {text: name}), el("div", {class: "bar"}, bar), el("span", {class: "quiet", text: words}));
}

// Curves over time with uPlot, in the colours of the theme.
const HEIGHT = 210, HOUR = 3600, DAY = 86400;
const TIMES = [0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 5 * DAY, 10 * DAY, 50 * DAY, 100 * DAY, 500 * DAY];

class Chart {
  // `curves`: {label, colour (0-7), values, fill, grows: between two samples too}; `value` writes a number.
  constructor(app, {value, sync}) {
    this.app = app;
    this.value = value;
    this.sync = sync;
    this.range = Infinity; // seconds before the end that are shown
    this.plot = null;
    this.node = el("div", {class: "chart"});
    this.watch = new ResizeObserver(() => {
      if (this.plot && Math.abs(this.plot.width - this.node.clientWidth) > 1) this.plot.setSize({width: this.node.clientWidth, height: HEIGHT});
    });
    this.watch.observe(this.node);
  }

  destroy() { this.watch.disconnect(); this.plot?.destroy(); }

  set(times, curves) {
    const shape = curves.map((curve) => curve.label).join("|"), data = [times, ...curves.map((curve) => curve.values)];
    if (this.plot && shape === this.shape) { this.plot.setData(data); return; }
    this.plot?.destroy();
    this.shape = shape;
    this.last = curves;
    this.plot = new (/** @type {any} */ (UPlot))(this.options(curves), data, this.node);
  }

  fit() { if (this.plot) this.plot.setData(this.plot.data); }

  // Draws again in other colours.
  restyle() {
    if (!this.plot) return;
    const {data} = this.plot, [times] = data, curves = this.last.map((curve, i) => ({...curve, values: data[i + 1]}));
    this.shape = null;
    this.set(times, curves);
  }

  options(curves) {
    const look = colours(), {app, value} = this, stepped = UPlot.paths.stepped({align: 1}), straight = UPlot.paths.linear();
    const axis = {stroke: look.quiet, grid: {stroke: look.grid, width: 1}, ticks: {stroke: look.line, width: 1}, font: "12px system-ui, sans-serif"};
    return {
      width: this.node.clientWidth || 320, height: HEIGHT,
      scales: {x: {time: app.live, range: (_, low, high) => (app.live ? [Math.max(low, high - this.range), high] : app.span())}, y: {range: (_, low, high) => [0, Math.max(1, high * 1.06)]}},
      axes: [app.live ? {...axis, space: 84, values: (_, ticks, __, ___, step) => ticks.map((tick) => clock(tick, step))} : {...axis, incrs: TIMES, values: (_, ticks) => ticks.map((tick) => duration(tick))},
        {...axis, size: 64, ...(value === duration ? {incrs: TIMES} : {}), values: (_, ticks) => ticks.map((tick) => value(tick))}],
      series: [{label: "at", value: (plot, time) => (time === null || time === undefined ? this.when(plot) : moment(time, app.live))},
        ...curves.map((curve) => ({label: curve.label, stroke: look.series[curve.colour % 8], width: 1.6, paths: curve.grows ? straight : stepped,
          fill: curve.fill ? withAlpha(look.series[curve.colour % 8]) : undefined, points: {show: false},
          value: (plot, number, at, index) => written(index === null || index === undefined ? plot.data[at].at(this.shown(plot)) : number, value)}))],
      cursor: {sync: {key: this.sync}, points: {size: 6}, drag: {x: true, y: false}},
      hooks: {draw: [(plot) => this.mark(plot)]},
    };
  }

  // Without a pointer the legend has the values of the last sample before the moment that is shown, and its time.
  when(plot) { return this.app.at !== null ? moment(plot.data[0].at(this.shown(plot)) ?? this.app.at, this.app.live) : this.app.connected ? "now" : moment(this.app.lostAt, true); }
  shown(plot) { return this.app.at === null || !plot.data[0].length ? -1 : Math.min(plot.data[0].length - 1, this.app.sampleAt(this.app.at)); }

  // Marks the time shown.
  mark(plot) {
    if (this.app.at === null) return;
    const x = Math.round(plot.valToPos(this.app.at, "x", true)), {left, top, width, height} = plot.bbox;
    if (x < left || x > left + width) return;
    plot.ctx.save();
    plot.ctx.strokeStyle = colours().ink;
    plot.ctx.setLineDash([4, 4]);
    plot.ctx.beginPath();
    plot.ctx.moveTo(x, top);
    plot.ctx.lineTo(x, top + height);
    plot.ctx.stroke();
    plot.ctx.restore();
  }

  redraw() { this.plot?.redraw(false); this.plot?.setLegend({idx: null}, false); }
}

// A tick label: the time, or the day where steps are days.
function clock(time, step) {
  const at = new Date(time * 1000);
  if (step >= DAY) return at.toLocaleDateString("en-GB", {day: "numeric", month: "short"});
  return at.toLocaleTimeString("en-GB", {hour: "2-digit", minute: "2-digit", ...(step < 60 ? {second: "2-digit"} : {})});
}

const written = (number, value) => (number === null || number === undefined ? "-" : value(number));
const withAlpha = (colour) => colour.replace(/^rgb\((.*)\)$/, "rgba($1, 0.16)");
