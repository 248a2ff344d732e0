// What can be done to a job or a machine from here; each asks first.

import {post} from "./api.js";
import {confirmed} from "./dialog.js";

const part = encodeURIComponent;

export const mayTouch = (app, user) => app.live && (app.admin || app.me.user === user);

export function cancel(job) {
  return confirmed({title: `Cancel ${job.id}?`, danger: true, action: "Cancel the job",
    text: `${job.name}: ${job.state === "queued" ? "it will not run." : "what runs of it is told to stop."} This can't be undone.`},
  () => post(`jobs/${part(job.id)}/cancel`), (answer) => `${answer.job} ${answer.state}`);
}

export function prioritise(job) {
  return confirmed({title: `Priority of ${job.id}`, action: "Set it", text: "Higher goes first.",
    fields: [{name: "priority", label: "priority", type: "number", step: 1, min: -1000, max: 1000, value: job.priority, required: true}]},
  ({priority}) => post(`jobs/${part(job.id)}/priority`, {priority: Number(priority)}),
  (answer) => `${answer.job} has priority ${answer.priority}`);
}

export function drain(machine, back) {
  return confirmed({title: back ? `Let ${machine} take jobs again?` : `Drain ${machine}?`, action: back ? "Undrain" : "Drain",
    text: back ? "" : "It takes no new jobs; what runs there goes on."},
  () => post(`machines/${part(machine)}/${back ? "undrain" : "drain"}`),
  () => (back ? `${machine} takes jobs again` : `${machine} takes no new jobs`));
}
