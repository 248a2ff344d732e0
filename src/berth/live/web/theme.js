// @ts-check
// Dark and light theme: as the system has it until the user chooses; and the theme's colours for canvases.

import {el} from "./dom.js";

const SERIES = 8, TIERS = 5, HUES = 18;
let cached = null;

export function colours() {
  if (cached) return cached;
  const probe = document.createElement("i");
  document.body.append(probe);
  const read = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
  const list = (letter, n) => Array.from({length: n}, (_, i) => read(letter + i));
  const dark = isDark();
  cached = {
    ...Object.fromEntries(["card", "ink", "quiet", "line", "grid", "empty", "lost", "drained", "others", "bad", "warn"].map((name) => [name, read(name)])),
    series: list("s", SERIES), tiers: list("t", TIERS),
    // jobs: equal steps around the colour wheel at one lightness, then at another
    jobs: Array.from({length: 2 * HUES}, (_, i) => {
      const second = i >= HUES, light = dark ? (second ? 0.66 : 0.78) : (second ? 0.6 : 0.72);
      return `oklch(${light} ${second ? 0.13 : 0.12} ${(i % HUES) * (360 / HUES) + (second ? 10 : 0)})`;
    }),
  };
  probe.remove();
  return cached;
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

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
    cached = null;
    changed();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
  return button;
}
