// The house's colours, as a canvas can use them, in the theme that stands.

const SERIES = 8, TIERS = 5, HUES = 18;
let known = null;

export function colours() {
  if (known) return known;
  const probe = document.createElement("i");
  document.body.append(probe);
  const read = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
  const list = (letter, n) => Array.from({length: n}, (_, i) => read(letter + i));
  const dark = isDark();
  known = {
    ...Object.fromEntries(["card", "ink", "quiet", "line", "grid", "empty", "lost", "drained", "others"].map((name) => [name, read(name)])),
    series: list("s", SERIES), tiers: list("t", TIERS),
    // jobs: even steps round the wheel at one lightness, then again at another
    jobs: Array.from({length: 2 * HUES}, (_, i) => {
      const second = i >= HUES, light = dark ? (second ? 0.66 : 0.78) : (second ? 0.6 : 0.72);
      return `oklch(${light} ${second ? 0.13 : 0.12} ${(i % HUES) * (360 / HUES) + (second ? 10 : 0)})`;
    }),
  };
  probe.remove();
  return known;
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export const forgetColours = () => { known = null; };

export function hash(text) {
  let value = 2166136261;
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 16777619);
  return (value ^ (value >>> 15)) >>> 0;
}
