// All machines as a list: devices, state, jobs, and a button to drain each.

import {drain} from "./actions.js";
import {el, oncePerFrame, put} from "./dom.js";
import {racksOf} from "./layout.js";
import {List} from "./list.js";
import {DRAINED, LOST} from "./state.js";

const CLASSES = ["name", "rack", "state", "kinds", "free", "who"];
const HEADS = {name: "machine", rack: "rack", state: "state", kinds: "devices", free: "free", who: "jobs"};

export function machines(app, root) {
  const {cluster} = app.me, rackOf = [];
  for (const rack of racksOf(cluster)) for (const machine of rack.machines) rackOf[machine] = rack.name;
  const acts = () => app.live && app.admin && app.at === null;
  const list = new List({label: "machines", key: (machine) => machine, narrowHeight: 56, make: () => {
    const row = el("div", {class: "machine"}, ...CLASSES.map((name) => el("span", {class: name})));
    row.append(el("button", {type: "button", onclick: () => {
      drain(cluster.machines[row.item].name, Boolean(app.state.unavailable[row.item] & DRAINED));
    }}));
    return row;
  }, fill: (row, machine) => {
    const texts = words(app.state, rackOf, machine), button = row.lastChild;
    CLASSES.forEach((name, i) => put(row.children[i], texts[i]));
    row.dataset.state = texts[2];
    put(button, app.state.unavailable[machine] & DRAINED ? "undrain" : "drain");
    button.hidden = !acts();
  }});
  const search = el("input", {type: "search", id: "search", placeholder: "machine, rack or state", "aria-label": "Search machines", autocomplete: "off",
    oninput: () => show()});
  root.append(el("section", {class: "tall"},
    el("div", {class: "title"}, el("h2", {text: "Machines"}), search),
    el("div", {class: "jobs"}, el("div", {class: "machine heads", "aria-hidden": "true"}, ...CLASSES.map((name) => el("span", {class: name, text: HEADS[name]}))), list.node)));
  const show = oncePerFrame(() => {
    const wanted = search.value.trim().toLowerCase(), all = cluster.machines.map((_, i) => i);
    list.set(wanted ? all.filter((machine) => words(app.state, rackOf, machine).join(" ").toLowerCase().includes(wanted)) : all);
  });
  const off = app.on("change", show);
  show();
  return {list, search, destroy() { off(); list.destroy(); }};
}

function words(state, rackOf, machine) {
  const {name, devices} = state.cluster.machines[machine], unavailable = state.unavailable[machine], owners = state.owners();
  const held = owners.subarray(state.first[machine], state.first[machine] + state.sizes[machine]).filter((owner) => owner >= 0);
  const jobs = [...new Set(held)].map((owner) => state.jobs[owner].id);
  const condition = unavailable & LOST ? "lost" : unavailable & DRAINED ? "drained" : unavailable ? "closed" : state.external[machine] ? "shared with others" : "up";
  const kinds = devices.map(([kind, n]) => `${n} × ${state.cluster.device_types[kind].name}`).join(", ");
  const free = unavailable ? 0 : state.sizes[machine] - held.length - state.external[machine];
  const who = jobs.slice(0, 4).join(", ") + (jobs.length > 4 ? ` and ${jobs.length - 4} more` : "");
  return [name, rackOf[machine], condition, kinds, String(Math.max(0, free)), who];
}
