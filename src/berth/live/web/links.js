// Up-links of racks and the jobs that cross them, at the moment that is looked at. Modelled: a job that stands in
// several racks is taken to use the up-link of each of them with all the devices it has there.

import {el} from "./dom.js";
import {percent, plural} from "./format.js";
import {racksOf} from "./layout.js";

const MOST = 24;

export function links(app) {
  const racks = racksOf(app.me.cluster), level = app.me.cluster.tiers.length > 2 ? app.me.cluster.tiers[1].name : "cluster";
  const rackOf = [], size = racks.map(() => 0);
  racks.forEach((rack, at) => rack.machines.forEach((machine) => { rackOf[machine] = at; }));
  const body = el("div", {class: "links"}), note = el("p", {class: "quiet"});
  const node = el("section", {class: app.live ? null : "wide"}, el("div", {class: "title"}, el("h2", {text: "Links"})), note, body);
  function show() {
    const world = app.world, load = racks.map((rack) => ({name: rack.name, jobs: 0, devices: 0}));
    racks.forEach((rack, at) => { size[at] = rack.machines.reduce((sum, machine) => sum + world.sizes[machine], 0); });
    for (const job of world.running()) {
      const here = new Map();
      for (const [machine, , numbers] of world.attempts[job.attempt].seats) here.set(rackOf[machine], (here.get(rackOf[machine]) || 0) + numbers.length);
      if (here.size > 1) for (const [at, devices] of here) { load[at].jobs++; load[at].devices += devices; }
    }
    const rows = load.map((one, at) => ({...one, share: one.devices / Math.max(1, size[at])}));
    const shown = rows.length > MOST ? rows.sort((a, b) => b.share - a.share).slice(0, MOST) : rows;
    note.textContent = racks.length < 2 ? `There is one ${level} only: no job crosses an up-link.`
      : `Jobs that cross the up-link of each ${level}, with their devices there (modelled).${rows.length > MOST ? ` The ${MOST} busiest of ${rows.length}.` : ""}`;
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
