// @ts-check
// What if: simulates the current jobs under another policy or with more racks, and lists which gain and lose.

import {post} from "./api.js";
import {el, put, table} from "./dom.js";
import {count, duration, plural} from "./format.js";

export function whatIf(app, root) {
  const policy = el("select", {name: "policy"}, el("option", {value: "", text: `as it is (${app.me.policy})`}),
    ...app.me.policies.filter((name) => name !== app.me.policy).map((name) => el("option", {value: name, text: name})));
  const racks = el("input", {type: "number", name: "racks", min: 0, max: 64, value: 0, step: 1});
  const result = el("div", {"aria-live": "polite"}), button = el("button", {type: "submit", class: "primary", text: "Simulate"});
  const form = el("form", {class: "what-if", onsubmit: (event) => { event.preventDefault(); ask(); }},
    el("label", {}, el("span", {text: "racks to add"}), racks), el("label", {}, el("span", {text: "policy"}), policy), button);
  const note = el("p", {class: "quiet"});
  root.append(el("section", {class: "wide"}, el("div", {class: "title"}, el("h2", {text: "What if"})), note, form, result));
  const about = () => put(note, `${app.at === null ? "" : "From now on, not from the moment that the other views show. "}`
    + "The waiting and running jobs are simulated to their end, with the cluster as it is and with the change. "
    + "All of it is modelled: every job takes as long as expected, and no new jobs arrive.");

  async function ask() {
    const body = {policy: policy.value || null, add_racks: Number(racks.value) || 0};
    if (!body.policy && !body.add_racks) { result.replaceChildren(el("p", {class: "quiet", text: "Nothing would change: add racks or choose a policy."})); return; }
    button.disabled = true;
    result.replaceChildren(el("p", {class: "quiet", text: "simulating …"}));
    try {
      const answer = await post("what-if", body);
      result.replaceChildren(resultTable(answer, body), ...changes(answer));
    } catch (error) {
      result.replaceChildren(el("p", {class: "bad", text: error.message}));
    }
    button.disabled = false;
  }
  const off = app.on("moment", about);
  about();
  return {destroy() { off(); }};
}

const percentChange = (x, y) => (x ? `${y > x ? "+" : y < x ? "−" : ""}${Math.abs(100 * (y / x - 1)).toFixed(1)} %` : "-");

function resultTable(answer, {policy, add_racks: racks}) {
  const changed = [policy, racks ? plural(racks, "more rack") : null].filter(Boolean).join(", ");
  const row = (name, one) => [name, count(one.jobs) + (one.whole ? "" : " of more"), duration(one.mean_left_s), duration(one.last_end_s)];
  const a = answer.as_it_is, b = answer.changed;
  return table(["from here on (modelled)", "jobs", "mean time left", "last end"],
    [row("as it is", a), row(changed, b), ["change", "", percentChange(a.mean_left_s, b.mean_left_s), percentChange(a.last_end_s, b.last_end_s)]], {words: [0]});
}

// Jobs that end at another time, the largest change first, with a bar to each side.
function changes({sooner, later, same, jobs}) {
  const most = Math.max(1, ...jobs.map((one) => Math.abs(one.changed_end_s - one.end_s)));
  const rows = jobs.map((one) => {
    const by = one.changed_end_s - one.end_s, bar = el("i", {class: by < 0 ? "sooner" : "later"});
    bar.style.width = `${Math.round(50 * Math.abs(by) / most)}%`;
    return [el("a", {href: `#/job/${encodeURIComponent(one.job)}`}, one.name === one.job ? one.job : `${one.name} ${one.job}`), one.user,
      duration(one.end_s), duration(one.changed_end_s), `${duration(Math.abs(by))} ${by < 0 ? "sooner" : "later"}`, el("span", {class: "swing"}, bar)];
  });
  return [el("h2", {class: "gains", text: `${count(sooner)} sooner, ${count(later)} later, ${count(same)} at the same time`}),
    ...(rows.length ? [table(["job", "user", "ends in, as it is", "with the change", "change", "sooner | later"], rows, {words: [0, 1, 5]})] : [])];
}
