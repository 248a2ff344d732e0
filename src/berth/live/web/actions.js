// @ts-check
// Dialogs, toasts, and the actions on a job or a machine, each after a confirmation.

import {post} from "./api.js";
import {el} from "./dom.js";

// Shows a dialog; resolves to the values of its form, or to null if it is closed.
function ask({title, text, fields = [], action, danger = false}) {
  return new Promise((done) => {
    const inputs = fields.map(({name, label, ...rest}) => el("label", {}, el("span", {text: label}), el("input", {name, ...rest})));
    const dialog = el("dialog", {class: "ask", "aria-labelledby": "ask-title"},
      el("form", {method: "dialog"},
        el("h2", {id: "ask-title", text: title}),
        text ? el("p", {text}) : null,
        ...inputs,
        el("div", {class: "buttons"},
          el("button", {type: "button", text: "Leave it", onclick: () => dialog.close()}),
          el("button", {type: "submit", class: danger ? "danger" : "primary", text: action, value: "yes"}))));
    dialog.addEventListener("close", () => {
      const values = Object.fromEntries(inputs.map((one) => one.querySelector("input")).map((input) => [input.name, input.value]));
      dialog.remove();
      done(dialog.returnValue === "yes" ? values : null);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function toast(text, bad = false) {
  const node = el("div", {class: bad ? "toast bad" : "toast"}, el("span", {text}),
    el("button", {type: "button", class: "icon", "aria-label": "Close", text: "×", onclick: () => node.remove()}));
  document.getElementById("toasts").append(node);
  if (!bad) setTimeout(() => node.remove(), 5000);
}

// Asks for confirmation, runs the action and shows its result.
async function confirmed(question, run, describe) {
  const values = await ask(question);
  if (!values) return;
  try {
    const answer = await run(values);
    toast(describe(answer));
  } catch (error) {
    toast(error.message, true);
  }
}

const part = encodeURIComponent;

export const mayTouch = (app, user) => app.live && (app.admin || app.me.user === user);

export function cancel(job) {
  return confirmed({title: `Cancel ${job.id}?`, danger: true, action: "Cancel the job",
    text: `${job.name}: ${job.state === "queued" ? "it will not run." : "its processes are stopped."} This can't be undone.`},
  () => post(`jobs/${part(job.id)}/cancel`), (answer) => `${answer.job} ${answer.state}`);
}

export function resubmit(job) {
  return confirmed({title: `Submit ${job.name} again?`, action: "Submit", text: `A new job with the spec of ${job.id}.`},
    () => post("jobs", {spec: job.spec}), (answer) => { location.hash = `#/job/${part(answer.job)}`; return `submitted as ${answer.job}`; });
}

export async function copyId(id) {
  try { await navigator.clipboard.writeText(id); toast(`${id} copied`); } catch { toast("The browser does not allow copying.", true); }
}

export function prioritise(job) {
  return confirmed({title: `Priority of ${job.id}`, action: "Set it", text: "Higher goes first.",
    fields: [{name: "priority", label: "priority", type: "number", step: 1, min: -1000, max: 1000, value: job.priority, required: true}]},
  ({priority}) => post(`jobs/${part(job.id)}/priority`, {priority: Number(priority)}),
  (answer) => `${answer.job} has priority ${answer.priority}`);
}

export function drain(machine, back, jobs = []) {
  const running = jobs.length ? `These continue: ${jobs.slice(0, 8).join(", ")}${jobs.length > 8 ? ` and ${jobs.length - 8} more` : ""}.` : "No job is on it.";
  return confirmed({title: back ? `Let ${machine} take jobs again?` : `Drain ${machine}?`, action: back ? "Undrain" : "Drain",
    text: back ? "" : `It takes no new jobs. ${running}`},
  () => post(`machines/${part(machine)}/${back ? "undrain" : "drain"}`),
  () => (back ? `${machine} takes jobs again` : `${machine} takes no new jobs`));
}
