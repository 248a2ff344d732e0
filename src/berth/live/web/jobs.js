// All jobs: waiting, running, over; with a search.

import {el, put} from "./dom.js";
import {count} from "./format.js";
import {JobList} from "./joblist.js";

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
    put(counts.waiting, count(app.world.waiting().length));
    put(counts.running, count(app.world.running().length));
  };
  const off = app.on("change", show);
  show();
  return {list: list.list, search, destroy() { off(); list.destroy(); }};
}
