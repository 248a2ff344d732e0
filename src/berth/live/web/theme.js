// Dark and light: as the system has it, until somebody chooses.

import {forgetColours, isDark} from "./colours.js";
import {el} from "./dom.js";

const KEY = "berth.theme";

export function applyKept() {
  const kept = localStorage.getItem(KEY);
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
}

export function themeButton(changed) {
  const root = document.documentElement;
  const button = el("button", {class: "icon", type: "button", id: "theme", onclick: () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem(KEY, root.dataset.theme);
    show();
  }});
  function show() {
    button.textContent = isDark() ? "☀" : "☾";
    button.setAttribute("aria-label", isDark() ? "Light colours" : "Dark colours");
    button.title = button.getAttribute("aria-label");
    forgetColours();
    changed();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
  return button;
}
