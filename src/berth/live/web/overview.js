// The first view: numbers, the map, the queue.

import {drain} from "./actions.js";
import {el, oncePerFrame} from "./dom.js";
import {plural} from "./format.js";
import {JobList} from "./joblist.js";
import {legend} from "./legend.js";
import {ClusterMap} from "./map.js";
import {Stats} from "./stats.js";
import {DRAINED, LOST} from "./world.js";

const MODES = {job: "job", user: "user", tier: "spread"};

export function overview(app, root) {
  const stats = new Stats(app), jobs = new JobList(app, "waiting");
  const map = new ClusterMap(app, {
    onJob: (job) => { location.hash = `#/job/${encodeURIComponent(job.id)}`; },
    onMachine: (machine) => {
      const {name} = app.world.cluster.machines[machine], unavailable = app.world.unavailable[machine];
      if (app.live && app.admin && app.at === null && !(unavailable & LOST)) drain(name, Boolean(unavailable & DRAINED));
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
  root.append(
    stats.node,
    el("section", {class: "mapped"},
      el("div", {class: "title"}, el("h2", {text: "Cluster"}),
        el("span", {class: "quiet", text: `${plural(app.me.cluster.machines.length, "machine")}, tiers ${tiers}`}),
        el("fieldset", {class: "switch"}, el("legend", {text: "colour by"}), ...radios)),
      map.node, key.node),
    el("section", {class: "queue"},
      el("div", {class: "title"}, el("h2", {text: "Queue"}), el("a", {href: "#/jobs", text: "all jobs"})),
      jobs.node));
  const show = oncePerFrame(() => { map.draw(); stats.show(); key.show(); painted(); });
  const offs = [app.on("change", show), app.on("theme", () => { map.repaint(); key.show(); }), app.on("series", () => stats.show())];
  map.resize();
  stats.show();
  key.show();
  painted();
  const clock = setInterval(() => { if (app.at === null) stats.show(); }, 1000);
  return {list: jobs.list, map, destroy() { offs.forEach((off) => off()); clearInterval(clock); jobs.destroy(); map.destroy(); }};
}

function painted() {
  if (!performance.getEntriesByName("berth:painted").length) performance.mark("berth:painted");
}
