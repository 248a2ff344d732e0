// @ts-check
// Creates elements. Text only becomes text: nothing on the page reads markup from a string.

export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A function that runs at most once per frame.
export function oncePerFrame(run) {
  let asked = 0;
  return () => { if (!asked) asked = requestAnimationFrame(() => { asked = 0; run(); }); };
}

// A function that runs at most once per interval, and again after the last call.
export function atMostEvery(ms, run) {
  let last = -Infinity, waiting = 0;
  return () => {
    if (waiting) return;
    const left = Math.max(0, last + ms - performance.now());
    waiting = setTimeout(() => { waiting = 0; last = performance.now(); run(); }, left);
  };
}

export const narrow = matchMedia("(max-width: 720px)");

// A small table; every cell is text or a node. On a phone rows of more than three cells are blocks, with the names of the columns.
export function table(heads, rows, {words = []} = {}) {
  const look = (i) => (words.includes(i) ? "words" : null);
  return el("div", {class: heads.length > 3 ? "scroll stacks" : "scroll"}, el("table", {},
    el("thead", {}, el("tr", {}, ...heads.map((text, i) => el("th", {text, scope: "col", class: look(i)})))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, i) => el("td", {class: look(i), "data-column": heads[i]}, cell)))))));
}
