// @ts-check
// The strip above the numbers: failed and evicted jobs, machines that take no jobs, a silent back end. Hidden if all is well now; in the
// past it says so, since what is below must not jump while one looks for a moment.

import {get} from "./api.js";
import {atMostEvery, el} from "./dom.js";
import {count, plural, since} from "./format.js";
import {DRAINED, FAILED, LOST} from "./state.js";

const EVERY_MS = 15_000, FAILED_S = 86400, EVICTED_S = 3600, NAMED = 3;

export function attention(app) {
  const node = el("section", {class: "attention", "aria-label": "Needs attention", hidden: true});
  const read = atMostEvery(2000, async () => {
    if (!app.live || !app.connected) return;
    try { app.problems = await get("attention"); } catch { return; } // the banner shows that the controller is gone
    app.emit("problems");
  });
  let before = "";

  function show() {
    const items = itemsOf(app), signature = JSON.stringify(items);
    node.hidden = !items.length;
    if (signature === before) return;
    before = signature;
    node.replaceChildren(...items.map(({kind, href, title, note}) =>
      el(href ? "a" : "span", {class: kind, href}, el("b", {text: title}), note ? el("span", {text: note}) : null)));
  }

  const offs = [app.on("change", () => { read(); show(); }), app.on("problems moment", show)];
  const timer = setInterval(() => { read(); show(); }, EVERY_MS);
  read();
  show();
  return {node, destroy() { offs.forEach((off) => off()); clearInterval(timer); }};
}

// Jobs that failed in the last day, and evictions of the last hour, at the moment that is shown.
export function problemsAt(app) {
  if (app.live && app.at === null) return app.problems || {failed: {count: 0, jobs: []}, evicted: {count: 0, jobs: []}, machines: []};
  const {state, time} = app, changes = state.changes;
  const failed = state.jobs.filter((job) => job.state === FAILED && time - job.ended < FAILED_S);
  let evicted = 0;
  for (let i = state.at - 1; i >= 0 && changes[i].time > time - EVICTED_S; i--) if (changes[i].after.evictions) evicted++;
  const machines = [];
  state.unavailable.forEach((mask, i) => { if (mask) machines.push({machine: state.cluster.machines[i].name, why: mask & LOST ? "lost" : mask & DRAINED ? "drained" : "closed"}); });
  return {failed: {count: failed.length, jobs: failed}, evicted: {count: evicted, jobs: []}, machines};
}

function itemsOf(app) {
  const {failed, evicted, machines, trouble, warnings = []} = problemsAt(app), now = app.time, items = [];
  if (trouble) items.push({kind: "bad", title: "back end", note: trouble});
  for (const one of warnings) if (one.sentence !== trouble) items.push({kind: "bad", title: "blocked", note: one.sentence});
  if (failed.count) {
    const [last] = failed.jobs, when = last ? `${last.name}${last.sentence ? `: ${last.sentence}` : ""}, ${since(now - last.ended)}` : "";
    items.push({kind: "bad", href: "#/jobs?show=failed", title: `${count(failed.count)} failed`, note: when});
  }
  const lost = machines.filter((one) => one.why === "lost"), shut = machines.filter((one) => one.why !== "lost");
  if (lost.length) items.push({kind: "bad", href: "#/machines?show=unavailable", ...machineItem(lost, "lost", now)});
  if (evicted.count) items.push({kind: "warn", href: "#/jobs?show=evicted", title: `${plural(evicted.count, "eviction")}`, note: "in the last hour"});
  if (shut.length) items.push({kind: "warn", href: "#/machines?show=unavailable", ...machineItem(shut, shut[0].why, now)});
  if (!items.length && app.at !== null) items.push({kind: "calm", title: "nothing needs attention", note: "at this moment"});
  return items;
}

function machineItem(list, word, now) {
  const [{machine, since: from, by}] = list;
  if (list.length > 1) return {title: `${count(list.length)} machines ${word}`, note: list.slice(0, NAMED).map((one) => one.machine).join(", ") + (list.length > NAMED ? " …" : "")};
  return {title: `${machine} ${word}`, note: [from ? since(now - from) : "", by ? `by ${by}` : ""].filter(Boolean).join(" ")};
}
