// A small table; every cell is text, or a node made elsewhere.

import {el} from "./dom.js";

export function table(heads, rows, {words = []} = {}) {
  const look = (i) => (words.includes(i) ? "words" : null);
  return el("div", {class: "scroll"}, el("table", {},
    el("thead", {}, el("tr", {}, ...heads.map((text, i) => el("th", {text, scope: "col", class: look(i)})))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, i) => el("td", {class: look(i)}, cell)))))));
}
