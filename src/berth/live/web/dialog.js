// Questions before something is done, and what came of it.

import {el} from "./dom.js";

// Shows a dialog; resolves to its form's values, or to null if it was left.
export function ask({title, text, fields = [], action, danger = false}) {
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

// Asks, does it, says what came of it.
export async function confirmed(question, run, told) {
  const values = await ask(question);
  if (!values) return;
  try {
    const answer = await run(values);
    toast(told(answer));
  } catch (error) {
    toast(error.message, true);
  }
}
