// Numbers over time: use, queue, waits, timers, cost; and which up-links carry how much now.

import {Chart} from "./chart.js";
import {el, oncePerFrame, put} from "./dom.js";
import {count, duration, plural, usd} from "./format.js";
import {links} from "./links.js";

const MOST_TIMERS = 8;

export function trends(app, root) {
  const charts = {};
  const card = (name, title, note, value, extra) => {
    charts[name] = new Chart(app, {value, sync: "trends"});
    const quiet = el("p", {class: "quiet", text: note});
    root.append(el("section", {}, el("div", {class: "title"}, el("h2", {text: title}), extra), quiet, charts[name].node));
    return quiet;
  };
  card("use", "Devices", "In use, free, and on machines that take no jobs.", count);
  card("queue", "Jobs", app.live ? "Waiting, holding out for a nearer place, and running." : "Waiting and running.", count);
  card("wait", "Waits", "Of those who wait at a moment: mean and longest.", duration);
  const tier = el("select", {"aria-label": "Tier", id: "tier", onchange: () => show()});
  const timerNote = app.live ? card("timers", "Timers", " ", duration, tier) : null; // a log of events has none
  const costNote = card("cost", "Cost per hour", "Of the devices in use, at list prices.", usd);
  const carried = links(app);
  root.append(carried.node);

  function show() {
    const series = app.series;
    if (!series || !series.time.length) return;
    charts.use.set(series.time, [
      {label: "in use", colour: 0, values: series.busy, fill: true}, {label: "free", colour: 2, values: series.free},
      {label: "unavailable", colour: 5, values: series.unavailable}]);
    charts.queue.set(series.time, [{label: "waiting", colour: 1, values: series.queued, fill: true},
      ...(app.live ? [{label: "holding out", colour: 3, values: series.holding}] : []), {label: "running", colour: 0, values: series.running}]);
    charts.wait.set(series.time, [{label: "mean", colour: 4, values: series.mean_wait_s, grows: true},
      {label: "longest", colour: 1, values: series.longest_wait_s, grows: true}]);
    const priced = series.usd_per_hour.some((value) => value !== null);
    charts.cost.set(series.time, [{label: "in use", colour: 6, values: series.usd_per_hour, fill: true}]);
    if (!priced) put(costNote, "The price of a device is unknown, so there is no cost.");
    if (timerNote) timers(series);
  }

  function timers(series) {
    const tiers = [...new Set(series.timers.map((one) => one.tier))];
    if (tiers.length !== tier.childElementCount) tier.replaceChildren(...tiers.map((name) => el("option", {text: name, value: name})));
    tier.hidden = !tiers.length;
    const chosen = series.timers.filter((one) => one.tier === tier.value).sort((a, b) => a.gpus - b.gpus);
    put(timerNote, tiers.length
      ? `How long jobs of a size hold out for one ${tier.value}.` + (chosen.length > MOST_TIMERS ? " The largest sizes are shown." : "")
      : "This policy has no timers above zero yet.");
    charts.timers.node.hidden = !chosen.length;
    charts.timers.set(series.time, chosen.slice(-MOST_TIMERS).map((one, i) => ({label: plural(one.gpus, "GPU"), colour: i, values: one.seconds})));
  }

  const moved = oncePerFrame(() => { carried.show(); Object.values(charts).forEach((chart) => chart.redraw()); });
  const changed = oncePerFrame(() => carried.show());
  const offs = [app.on("series", show), app.on("moment", moved), app.on("change", changed),
    app.on("theme", () => Object.values(charts).forEach((chart) => chart.restyle()))];
  show();
  carried.show();
  return {destroy() { offs.forEach((off) => off()); Object.values(charts).forEach((chart) => chart.destroy()); }};
}
