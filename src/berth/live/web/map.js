// @ts-check
// The cluster map: every device is a cell on a canvas, the cells of a gang are joined. Only changed cells are painted.

import {el} from "./dom.js";
import {devices, plural} from "./format.js";
import {hit, layOut} from "./layout.js";
import {LOST} from "./state.js";
import {colours} from "./theme.js";

const FREE = -1, OTHERS = -2; // colour keys in addition to those of jobs
const FONT = "12px system-ui, sans-serif";
const HATCH = 1 << 20, CROSS = 1 << 21, DIM = 1 << 22, JOINED = 1 << 23;
const colourIn = (key) => (key & (HATCH - 1)) - 2; // an index of the palette, FREE or OTHERS
const LABELLED = 4, LEAST_CELL = 11; // devices of a gang that has a label, and the smallest cells with one

export class ClusterMap {
  // `focus()` returns the placement to highlight, or null; all other devices are dimmed.
  constructor(app, {focus = () => null, tall = 560, onJob = (job) => {}, onMachine = (machine) => {}} = {}) {
    this.app = app;
    this.focus = focus;
    this.tall = tall;
    this.mode = "job"; // what colours mean
    this.base = el("canvas", {role: "img"});
    this.over = el("canvas", {class: "over", "aria-hidden": "true"});
    this.tip = el("div", {class: "tip", hidden: true});
    this.node = el("figure", {class: "map"}, this.base, this.over, this.tip);
    this.users = new Map();
    this.over.addEventListener("pointermove", (event) => this.point(event));
    this.over.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.leave(); });
    this.over.addEventListener("click", (event) => {
      const place = this.at(event), touched = event.pointerType === "touch" && !this.samePlace(place);
      this.point(event);
      if (!place || touched) return; // the first touch only shows the tip
      const job = this.jobAt(place);
      if (job) onJob(job); else onMachine(place.machine);
    });
    this.sizeWatch = new ResizeObserver(() => { if (Math.abs(this.node.clientWidth - (this.width || 0)) > 1) this.resize(); });
    this.sizeWatch.observe(this.node);
  }

  destroy() { this.sizeWatch.disconnect(); }

  resize() {
    const state = this.app.state;
    this.width = this.node.clientWidth;
    if (!this.width || !state) return;
    const measured = this.base.getContext("2d");
    measured.font = FONT;
    this.made = layOut(state.cluster, state.sizes, this.width, this.tall, (text) => measured.measureText(text).width);
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(this.made.height * ratio);
      canvas.style.height = `${this.made.height}px`;
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.repaint();
  }

  // Paints everything: after a change of size, theme or colouring.
  repaint() {
    const state = this.app.state;
    if (!this.made || !state) return;
    const pen = this.base.getContext("2d"), look = colours();
    pen.clearRect(0, 0, this.made.width, this.made.height);
    this.painted = new Int32Array(state.devices).fill(-1 << 24);
    this.owners = new Int32Array(state.devices).fill(-3);
    pen.fillStyle = look.quiet;
    pen.font = FONT;
    for (const block of this.made.blocks) pen.fillText(clip(pen, block.name, block.width), block.x, block.y + 10);
    if (this.made.named) {
      pen.textAlign = "right";
      state.cluster.machines.forEach((machine, i) => {
        const box = this.made.boxes[i];
        pen.fillText(clip(pen, machine.name, box.names - 6), box.x - 6, box.y + this.made.cell / 2 + 4);
      });
      pen.textAlign = "left";
    }
    this.draw();
  }

  draw() {
    const state = this.app.state;
    if (!this.made || !state) return;
    const owners = state.owners(), {cell, pitch, boxes} = this.made, pen = this.base.getContext("2d");
    const look = colours(), lit = this.lit(state);
    if (this.mode === "job") this.jobColours = coloursOf(state, look.jobs.length);
    for (let machine = 0; machine < state.sizes.length; machine++) {
      const from = state.first[machine], to = from + state.sizes[machine], box = boxes[machine], unavailable = state.unavailable[machine];
      const mark = unavailable & LOST ? CROSS : unavailable ? HATCH : 0;
      let others = mark ? 0 : state.external[machine], changed = false;
      for (let device = to - 1; device >= from; device--) {
        const owner = owners[device];
        let key = owner >= 0 ? this.colourOf(state, state.jobs[owner]) : others-- > 0 ? OTHERS : FREE;
        key = (key + 2) | mark | (lit && !lit.has(device) ? DIM : 0) | (owner >= 0 && device + 1 < to && owners[device + 1] === owner ? JOINED : 0);
        if (key === this.painted[device] && owner === this.owners[device]) continue;
        this.painted[device] = key;
        this.owners[device] = owner;
        changed = true;
      }
      if (changed) this.paintMachine(pen, look, state, machine);
    }
    const {busy, free, unavailable} = state.counts();
    this.base.setAttribute("aria-label",
      `${plural(state.devices, "device")}: ${busy} in use, ${free} free, ${unavailable} unavailable. The list of machines has the same as text.`);
    if (this.pointed) this.outline();
  }

  // Paints the cells of a machine, and the names of the gangs that have enough of them.
  paintMachine(pen, look, state, machine) {
    const {cell, pitch, boxes} = this.made, box = boxes[machine], from = state.first[machine], size = state.sizes[machine];
    pen.clearRect(box.x, box.y, size * pitch, cell);
    for (let i = 0; i < size; i++) this.paint(pen, look, this.painted[from + i], box.x + i * pitch, box.y, cell);
    if (cell < LEAST_CELL) return;
    for (let i = 0, next; i < size; i = next) {
      next = i + 1;
      const owner = this.owners[from + i];
      while (next < size && this.owners[from + next] === owner) next++;
      if (owner >= 0 && state.jobs[owner].gpus + state.jobs[owner].cores >= LABELLED && next - i >= LABELLED) this.label(pen, state.jobs[owner], box.x + i * pitch, box.y, (next - i) * pitch - (pitch - cell), this.painted[from + i], this.palette(look)[colourIn(this.painted[from + i])]);
    }
  }

  label(pen, job, x, y, width, key, colour) {
    const {cell} = this.made, size = Math.min(12, cell - 1);
    pen.save();
    pen.beginPath();
    pen.rect(x, y, width, cell); // nothing of a letter is outside of what is painted again
    pen.clip();
    pen.globalAlpha = key & DIM ? 0.4 : 1;
    pen.fillStyle = "#10151c"; // on all colours of jobs, light or dark theme
    pen.font = `${size}px system-ui, sans-serif`;
    const text = clip(pen, job.name || job.id, width - 8), base = y + cell / 2 + size / 3;
    if (key & (HATCH | CROSS)) { // no stripes behind the letters
      pen.strokeStyle = colour;
      pen.lineWidth = 4;
      pen.lineJoin = "round";
      pen.strokeText(text, x + 4, base);
    }
    pen.fillText(text, x + 4, base);
    pen.restore();
  }

  paint(pen, look, key, x, y, cell) {
    const colour = colourIn(key), wide = key & JOINED ? this.made.pitch : cell;
    pen.globalAlpha = key & DIM ? 0.22 : 1;
    pen.fillStyle = colour === FREE ? (key & CROSS ? look.lost : key & HATCH ? look.drained : look.empty)
      : colour === OTHERS ? look.others : this.palette(look)[colour];
    pen.fillRect(x, y, wide, cell);
    if (key & (HATCH | CROSS) && cell > 4) {
      pen.strokeStyle = look.card;
      pen.lineWidth = Math.max(1, cell / 9);
      pen.beginPath();
      pen.moveTo(x + 1, y + cell - 1); pen.lineTo(x + cell - 1, y + 1);
      if (key & CROSS) { pen.moveTo(x + 1, y + 1); pen.lineTo(x + cell - 1, y + cell - 1); }
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }

  palette(look) { return this.mode === "job" ? look.jobs : this.mode === "user" ? look.series : look.tiers; }

  colourOf(state, job) {
    if (this.mode === "tier") return Math.min(state.attempts[job.attempt].tier, 4);
    if (this.mode === "user") return this.userColour(job.user);
    return this.jobColours.get(job.index);
  }

  userColour(user) {
    if (!this.users.has(user)) this.users.set(user, this.users.size % 8);
    return this.users.get(user);
  }

  lit(state) {
    const seats = this.focus();
    if (!seats) return null;
    const found = new Set();
    for (const [machine, , numbers] of seats) for (const number of numbers) found.add(state.first[machine] + number);
    return found;
  }

  at(event) {
    const box = this.over.getBoundingClientRect();
    return this.made ? hit(this.made, this.app.state.sizes, event.clientX - box.left, event.clientY - box.top) : null;
  }

  jobAt(place) {
    const state = this.app.state;
    if (!place || place.device === null) return null;
    const owner = state.owners()[state.first[place.machine] + place.device];
    return owner >= 0 ? state.jobs[owner] : null;
  }

  samePlace(place) {
    const job = this.jobAt(place), before = this.jobAt(this.pointed);
    return place && this.pointed && (job ? job === before : place.machine === this.pointed.machine && !before);
  }

  point(event) {
    this.pointed = this.at(event);
    if (!this.pointed) { this.leave(); return; }
    this.outline();
    const box = this.node.getBoundingClientRect(), tip = this.tip, job = this.jobAt(this.pointed);
    this.over.classList.add("pointed");
    tip.replaceChildren(...this.words(job, this.pointed.machine));
    tip.hidden = false;
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const left = Math.min(Math.max(0, x > box.width / 2 ? x - tip.offsetWidth - 14 : x + 14), Math.max(0, box.width - tip.offsetWidth));
    tip.style.left = `${left}px`;
    tip.style.top = `${y > box.height / 2 ? y - tip.offsetHeight - 10 : y + 14}px`;
  }

  words(job, machine) {
    const state = this.app.state, {name} = state.cluster.machines[machine], unavailable = state.unavailable[machine];
    const lines = [];
    if (job) {
      const attempt = state.attempts[job.attempt], tier = state.cluster.tiers[attempt.tier].name;
      lines.push(el("b", {text: `${job.id}  ${job.name}`}), el("div", {text: `${job.user ? `${job.user}, ` : ""}${devices(job)} within one ${tier}`}));
      if (job.evictions) lines.push(el("div", {text: `evicted ${plural(job.evictions, "time")}`}));
    } else lines.push(el("b", {text: unavailable & LOST ? "lost" : unavailable ? "takes no jobs" : "free"}));
    const rest = job && unavailable ? ` (${unavailable & LOST ? "lost" : "drained"})` : "";
    const held = state.external[machine] ? `, ${state.external[machine]} held by others` : "";
    lines.push(el("div", {class: "quiet", text: name + rest + held}));
    return lines;
  }

  // Outlines every device of the gang under the pointer.
  outline() {
    const pen = this.over.getContext("2d"), state = this.app.state, {cell, pitch, boxes} = this.made;
    pen.clearRect(0, 0, this.made.width, this.made.height);
    const job = this.jobAt(this.pointed);
    pen.strokeStyle = colours().ink;
    pen.lineWidth = cell > 6 ? 1.6 : 1;
    const seats = job ? state.attempts[job.attempt].seats
      : [[this.pointed.machine, 0, [...Array(state.sizes[this.pointed.machine]).keys()]]];
    for (const [machine, , numbers] of seats) {
      for (const number of numbers) pen.strokeRect(boxes[machine].x + number * pitch - 0.5, boxes[machine].y - 0.5, cell + 1, cell + 1);
    }
  }

  leave() {
    this.pointed = null;
    this.tip.hidden = true;
    this.over.classList.remove("pointed");
    if (this.made) this.over.getContext("2d").clearRect(0, 0, this.made.width, this.made.height);
  }
}

// The colour of each running job: it keeps the one that it was given first, in this tab, also after a reload. A new job
// is given one that no other has, if there is one, and of those one that is unlike the colours beside it, and all others.
const KEPT = "berth.colours", MOST_KEPT = 2000;
const given = new Map(Object.entries(JSON.parse(sessionStorage.getItem(KEPT) || "{}"))); // by id
let saving = 0;

function coloursOf(state, many) {
  const jobs = state.running(), found = new Map(), used = new Uint16Array(many), fresh = [];
  for (const job of jobs) {
    const colour = given.get(job.id);
    if (colour === undefined) fresh.push(job); else { found.set(job.index, colour); used[colour]++; }
  }
  const beside = fresh.length ? neighbours(state) : null;
  for (const job of fresh) {
    const colour = farthest(hash(job.id) % many, used, beside(job).map((index) => found.get(index)).filter((one) => one !== undefined));
    found.set(job.index, colour);
    used[colour]++;
    given.set(job.id, colour);
  }
  if (fresh.length) remember(state);
  return found;
}

// The colour that the fewest jobs have and that is farthest from its neighbours' (a third of the wheel is enough) and
// from those of all other jobs, which count half; of equal ones the first after `start`.
export function farthest(start, used, near) {
  const many = used.length, hues = many / 2, least = Math.min(...used), taken = [];
  used.forEach((jobs, colour) => { if (jobs) taken.push(colour); });
  const nearest = (colour, others) => others.reduce((found, other) => Math.min(found, unlike(colour, other, hues)), hues);
  let best = start, most = -1;
  for (let i = 0; i < many; i++) {
    const colour = (start + i) % many;
    if (used[colour] > least) continue;
    const distance = Math.min(hues / 3, nearest(colour, near)) + nearest(colour, taken) / 2;
    if (distance > most) { most = distance; best = colour; }
  }
  return best;
}

// The distance of two colours: around the wheel of hues, and a little for another lightness.
function unlike(a, b, hues) {
  const around = Math.abs(a % hues - b % hues), lightness = (a < hues) === (b < hues) ? 0 : 0.5;
  return Math.min(around, hues - around) + lightness;
}

// The jobs on the machines of a job, and on those above and below them.
function neighbours(state) {
  const on = state.sizes.map(() => new Set());
  for (const job of state.running()) for (const [machine] of state.attempts[job.attempt].seats) on[machine].add(job.index);
  return (job) => {
    const found = new Set();
    for (const [machine] of state.attempts[job.attempt].seats) for (const at of [machine - 1, machine, machine + 1]) on[at]?.forEach((one) => found.add(one));
    found.delete(job.index);
    return [...found];
  };
}

function remember(state) {
  clearTimeout(saving);
  saving = setTimeout(() => {
    const here = [...given].filter(([id]) => state.byId.has(id)).slice(-MOST_KEPT);
    sessionStorage.setItem(KEPT, JSON.stringify(Object.fromEntries(here)));
  }, 500);
}

function clip(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let kept = text;
  while (kept.length > 1 && pen.measureText(kept + "…").width > width) kept = kept.slice(0, -1);
  return kept + "…";
}

function hash(text) {
  let value = 2166136261;
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 16777619);
  return (value ^ (value >>> 15)) >>> 0;
}
