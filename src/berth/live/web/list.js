// @ts-check
// A virtual table: only rows in sight exist. All rows have the same height, so the layout is stable.

import {el, narrow, oncePerFrame} from "./dom.js";

const EXTRA = 4;

export class List {
  // `make()` creates a row, `fill(row, item, index)` updates it, `key(item)` identifies an item.
  constructor({make, fill, key, open = (item) => {}, height = 36, narrowHeight = 72, label, inSight = (items) => {}}) {
    this.make = make;
    this.fill = fill;
    this.key = key;
    this.open = open;
    this.height = height;
    this.narrowHeight = narrowHeight;
    this.inSight = inSight;
    this.items = [];
    this.rows = [];
    this.selected = null;
    this.sizer = el("div", {class: "sizer", role: "none"});
    this.node = el("div", {class: "list", tabindex: "0", role: "rowgroup", "aria-label": label}, this.sizer);
    this.draw = oncePerFrame(() => this.show());
    this.node.addEventListener("scroll", this.draw, {passive: true});
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.node);
  }

  destroy() { this.watch.disconnect(); }
  get rowHeight() { return narrow.matches ? this.narrowHeight : this.height; }

  set(items) {
    this.items = items;
    this.draw();
  }

  show() {
    const high = this.rowHeight, top = this.node.scrollTop;
    this.sizer.style.height = `${this.items.length * high}px`;
    const first = Math.max(0, Math.floor(top / high) - EXTRA);
    const last = Math.min(this.items.length, Math.ceil((top + this.node.clientHeight) / high) + EXTRA);
    while (this.rows.length < last - first) this.addRow();
    this.rows.forEach((row, i) => {
      const index = first + i, item = this.items[index];
      row.hidden = index >= last;
      if (row.hidden) return;
      row.style.transform = `translateY(${index * high}px)`;
      row.style.height = `${high}px`;
      row.item = item;
      row.classList.toggle("selected", this.key(item) === this.selected);
      row.setAttribute("aria-rowindex", String(index + 2)); // the first row has the names of the columns
      this.fill(row, item, index);
    });
    this.inSight(this.items.slice(first, last));
  }

  addRow() {
    const row = this.make();
    row.classList.add("row");
    row.setAttribute("role", "row");
    for (const cell of row.children) cell.setAttribute("role", "cell");
    row.addEventListener("click", (event) => { if (!event.target.closest("button, a")) this.open(row.item); });
    this.rows.push(row);
    this.sizer.append(row);
  }

  // Selects the next or previous row and scrolls to it.
  step(by) {
    if (!this.items.length) return;
    const known = this.items.findIndex((item) => this.key(item) === this.selected);
    const index = known < 0 ? 0 : Math.max(0, Math.min(this.items.length - 1, known + by));
    this.selected = this.key(this.items[index]);
    const top = index * this.rowHeight, {scrollTop, clientHeight} = this.node;
    if (top < scrollTop) this.node.scrollTop = top;
    else if (top + this.rowHeight > scrollTop + clientHeight) this.node.scrollTop = top + this.rowHeight - clientHeight;
    this.draw();
  }

  openSelected() {
    const item = this.items.find((one) => this.key(one) === this.selected);
    if (item) this.open(item);
  }
}

// The row with the names of the columns: a button where rows can be sorted by it.
export function heads(classes, {kind, sort = null}) {
  const cells = classes.map((name, i) => {
    const button = sort ? el("button", {type: "button", class: "link", onclick: () => sort(i)}) : null;
    return el("span", {class: name, role: "columnheader"}, button);
  });
  const node = el("div", {class: `${kind} heads`, role: "row", "aria-rowindex": "1"}, ...cells);
  // `chosen`: [column, down] by which rows are sorted, or null; `can(i)`: whether they can be.
  function show(words, chosen, can = (column) => true) {
    cells.forEach((cell, i) => {
      const by = chosen && chosen[0] === i, text = words[i] + (by ? (chosen[1] ? " ▾" : " ▴") : ""), button = cell.firstElementChild;
      const sorts = Boolean(button) && Boolean(words[i]) && can(i);
      if (button) button.hidden = !sorts;
      if (sorts) { if (button.textContent !== text) button.textContent = text; [...cell.childNodes].forEach((one) => { if (one !== button) one.remove(); }); }
      else if (cell.textContent !== text) cell.replaceChildren(...(button ? [button] : []), text);
      if (by) cell.setAttribute("aria-sort", chosen[1] ? "descending" : "ascending"); else cell.removeAttribute("aria-sort");
    });
  }
  return {node, show};
}
