// What if: simulates the current jobs under another policy or with more racks.

import {post} from "./api.js";
import {el, table} from "./dom.js";
import {count, duration, plural} from "./format.js";

export function whatIf(app, root) {
  const policy = el("select", {name: "policy"}, el("option", {value: "", text: `as it is (${app.me.policy})`}),
    ...app.me.policies.filter((name) => name !== app.me.policy).map((name) => el("option", {value: name, text: name})));
  const racks = el("input", {type: "number", name: "racks", min: 0, max: 64, value: 0, step: 1});
  const result = el("div", {"aria-live": "polite"}), button = el("button", {type: "submit", class: "primary", text: "Simulate"});
  const form = el("form", {class: "what-if", onsubmit: (event) => { event.preventDefault(); ask(); }},
    el("label", {}, el("span", {text: "racks to add"}), racks), el("label", {}, el("span", {text: "policy"}), policy), button);
  root.append(el("section", {class: "wide"}, el("div", {class: "title"}, el("h2", {text: "What if"})),
    el("p", {class: "quiet", text: "The waiting and running jobs are simulated to their end, with the cluster as it is and with the change. "
      + "All of it is modelled: every job takes as long as expected, and no new jobs arrive."}), form, result));

  async function ask() {
    const body = {policy: policy.value || null, add_racks: Number(racks.value) || 0};
    if (!body.policy && !body.add_racks) { result.replaceChildren(el("p", {class: "quiet", text: "Nothing would change: add racks or choose a policy."})); return; }
    button.disabled = true;
    result.replaceChildren(el("p", {class: "quiet", text: "simulating …"}));
    try {
      result.replaceChildren(resultTable(await post("what-if", body), body));
    } catch (error) {
      result.replaceChildren(el("p", {class: "bad", text: error.message}));
    }
    button.disabled = false;
  }
  return {destroy() {}};
}

function resultTable(answer, {policy, add_racks: racks}) {
  const changed = [policy, racks ? plural(racks, "more rack") : null].filter(Boolean).join(", ");
  const row = (name, one) => [name, count(one.jobs) + (one.whole ? "" : " of more"), duration(one.mean_left_s), duration(one.last_end_s)];
  const a = answer.as_it_is, b = answer.changed;
  const change = (x, y) => (x ? `${y > x ? "+" : ""}${(100 * (y / x - 1)).toFixed(1)}%` : "-");
  return table(["from here on (modelled)", "jobs", "mean time left", "last end"],
    [row("as it is", a), row(changed, b), ["change", "", change(a.mean_left_s, b.mean_left_s), change(a.last_end_s, b.last_end_s)]], {words: [0]});
}
