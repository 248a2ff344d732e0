// @ts-check
// Keyboard shortcuts.

import {el} from "./dom.js";

const HELP = [["/", "search jobs"], ["j  k", "next and previous row"], ["Enter", "open it"], ["1 – 5", "the views, from left to right"],
  ["Space", "play and pause"], ["l", "back to now"], ["Esc", "close, or back to all jobs"], ["?", "this list"]];

export function keys({view, routes, time}) {
  document.addEventListener("keydown", (/** @type {any} */ event) => { // its target is an element
    const typing = event.target.closest("input:not([type=radio]):not([type=checkbox]):not([type=range]), select, textarea, dialog");
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") { escape(event.target, typing); return; }
    if (typing) return;
    const {list, search} = view();
    const acts = {
      "/": () => toSearch(search), j: () => list?.step(1), k: () => list?.step(-1), "?": help, l: () => time.live(),
      Enter: () => { if (!event.target.closest("a, button")) list?.openSelected(); },
      " ": () => { if (!event.target.closest("a, button, input:not([type=range]), pre")) time.toggle(); },
    };
    const number = Number(event.key);
    const act = acts[event.key] || (number >= 1 && number <= routes.length ? () => { location.hash = routes[number - 1]; } : null);
    if (!act) return;
    if (["/", "?", " "].includes(event.key) && !event.target.closest("a, button")) event.preventDefault();
    act();
  });

  function toSearch(search) {
    if (search) { search.focus(); return; }
    window.addEventListener("hashchange", () => view().search?.focus(), {once: true}); // after the view has changed
    location.hash = "#/jobs";
  }

  function escape(target, typing) {
    if (typing) { target.blur(); return; }
    if (location.hash.startsWith("#/job/")) location.hash = "#/jobs";
  }
}

export function help() {
  const dialog = el("dialog", {class: "ask", "aria-label": "Keyboard"}, el("h2", {text: "Keyboard"}),
    el("dl", {class: "keys"}, ...HELP.flatMap(([key, what]) => [el("dt", {}, el("kbd", {text: key})), el("dd", {text: what})])),
    el("form", {method: "dialog"}, el("div", {class: "buttons"}, el("button", {text: "Close"}))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
