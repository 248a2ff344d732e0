// @ts-check
// All machines as a table: devices, state and since when, jobs, and a button to drain each.

import {drain} from "./actions.js";
import {el, oncePerFrame, put} from "./dom.js";
import {racksOf} from "./layout.js";
import {queryOf} from "./address.js";
import {attention} from "./attention.js";
import {since} from "./format.js";
import {List, heads} from "./list.js";
import {DRAINED, LOST} from "./state.js";

const CLASSES = ["name", "rack", "state", "kinds", "free", "who"];
const HEADS = ["machine", "rack", "state", "devices", "free", "jobs", "action"];

export function machines(app, root) {
  const {cluster} = app.me, rackOf = [];
  for (const rack of racksOf(cluster)) for (const machine of rack.machines) rackOf[machine] = rack.name;
  const acts = () => app.live && app.admin && app.at === null;
  const list = new List({label: "machines", key: (machine) => machine, narrowHeight: 56, make: () => {
    const row = el("div", {class: "machine"}, ...CLASSES.map((name) => el("span", {class: name})));
    row.append(el("span", {class: "act"}, el("button", {type: "button", onclick: () => {
      drain(cluster.machines[row.item].name, Boolean(app.state.unavailable[row.item] & DRAINED), jobsOn(app.state, row.item).map((job) => job.name));
    }})));
    return row;
  }, fill: (row, machine) => {
    const texts = words(app.state, rackOf, machine), button = row.lastChild.firstChild;
    CLASSES.forEach((name, i) => { if (name !== "who") put(row.children[i], texts[i]); });
    put(row.children[2], texts[2] + sinceOf(app, texts[0], texts[2]));
    links(row.children[5], jobsOn(app.state, machine));
    row.dataset.state = texts[2];
    put(button, app.state.unavailable[machine] & DRAINED ? "undrain" : "drain");
    button.setAttribute("aria-label", `${button.textContent} ${texts[0]}`);
    button.hidden = !acts();
  }});
  const search = el("input", {type: "search", id: "search", placeholder: "machine, rack or state", "aria-label": "Search machines", autocomplete: "off",
    oninput: () => show()});
  const only = el("input", {type: "checkbox", id: "unavailable", checked: queryOf().get("show") === "unavailable", onchange: () => show()});
  const named = heads([...CLASSES, "act"], {kind: "machine"}), counted = el("span", {class: "quiet"}), strip = attention(app);
  named.show(HEADS, null);
  const body = el("div", {class: "jobs", role: "table", "aria-label": "Machines"}, named.node, list.node);
  root.append(el("section", {class: "tall"},
    el("div", {class: "title"}, el("h2", {text: "Machines"}), counted, search, el("label", {}, only, " unavailable only")), body));
  const show = oncePerFrame(() => {
    const wanted = search.value.trim().toLowerCase(), shut = app.state.unavailable;
    const all = cluster.machines.map((_, i) => i).filter((i) => !only.checked || shut[i]);
    put(counted, `${cluster.machines.length}, ${shut.filter(Boolean).length} unavailable`);
    body.setAttribute("aria-rowcount", String(all.length + 1));
    list.set(wanted ? all.filter((machine) => words(app.state, rackOf, machine).join(" ").toLowerCase().includes(wanted)) : all);
  });
  const off = app.on("change problems", show);
  show();
  return {list, search, destroy() { off(); strip.destroy(); list.destroy(); }};
}

// Since when a machine takes no jobs, and by which user; for the present only.
function sinceOf(app, name, state) {
  const found = app.live && app.at === null && (app.problems?.machines || []).find((one) => one.machine === name && one.why === state);
  return found && found.since ? ` ${since(app.time - found.since)}${found.by ? ` by ${found.by}` : ""}` : "";
}

const SHOWN = 4;

function jobsOn(state, machine) {
  const held = state.owners().subarray(state.first[machine], state.first[machine] + state.sizes[machine]).filter((owner) => owner >= 0);
  return [...new Set(held)].map((owner) => state.jobs[owner]);
}

function links(node, jobs) {
  const signature = jobs.map((job) => job.id).join();
  if (node.dataset.jobs === signature) return;
  node.dataset.jobs = signature;
  node.replaceChildren(...jobs.slice(0, SHOWN).flatMap((job, i) => [i ? ", " : "", el("a", {href: `#/job/${encodeURIComponent(job.id)}`, text: job.name || job.id})]),
    jobs.length > SHOWN ? ` and ${jobs.length - SHOWN} more` : "");
}

function words(state, rackOf, machine) {
  const {name, devices} = state.cluster.machines[machine], unavailable = state.unavailable[machine], owners = state.owners();
  const held = owners.subarray(state.first[machine], state.first[machine] + state.sizes[machine]).filter((owner) => owner >= 0);
  const condition = unavailable & LOST ? "lost" : unavailable & DRAINED ? "drained" : unavailable ? "closed" : state.external[machine] ? "shared with others" : "up";
  const kinds = devices.map(([kind, n]) => `${n} × ${state.cluster.device_types[kind].name}`).join(", ");
  const free = unavailable ? 0 : state.sizes[machine] - held.length - state.external[machine];
  return [name, rackOf[machine], condition, kinds, String(Math.max(0, free)), jobsOn(state, machine).map((job) => `${job.id} ${job.name}`).join(" ")];
}
