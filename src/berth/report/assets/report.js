// Draws the report: curves and bars as SVG, the occupancy map on a canvas. No library, no request.
const MINUTE = 60, HOUR = 3600, DAY = 86400;

function duration(seconds) {
  const s = Math.round(seconds);
  if (seconds < 60) return `${+seconds.toPrecision(3)}s`;
  for (const [big, unit, small, smaller] of [[DAY, "d", HOUR, "h"], [HOUR, "h", MINUTE, "m"], [MINUTE, "m", 1, "s"]]) {
    if (s >= big) {
      const whole = Math.round(s / small) * small, rest = Math.round((whole % big) / small);
      return `${Math.floor(whole / big)}${unit}${rest ? rest + smaller : ""}`;
    }
  }
  return "0s";
}

// A moment where neighbours are less than an hour apart: 1d16:45, or 1d16:45:30.
function moment(seconds, step) {
  if (step >= HOUR) return duration(seconds);
  const s = Math.round(seconds), two = (value) => String(Math.floor(value)).padStart(2, "0");
  const day = s >= DAY ? `${Math.floor(s / DAY)}d` : "";
  return `${day}${two((s % DAY) / HOUR)}:${two((s % HOUR) / MINUTE)}${step < MINUTE ? ":" + two(s % MINUTE) : ""}`;
}

const percent = (share) => `${Math.round(share * 100)}%`;
const count = (value) => (value >= 100 ? Math.round(value) : +value.toPrecision(3)).toLocaleString("en");

function timeTicks(from, to, most) {
  const steps = [1, 5, 15, 60, 300, 900, 1800, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 5 * DAY, 10 * DAY,
    20 * DAY, 50 * DAY, 100 * DAY, 365 * DAY, 1000 * DAY, 10000 * DAY];
  const step = steps.find((one) => (to - from) / one <= most) || (to - from) / most;
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) ticks.push(at);
  return ticks;
}

function niceTicks(top, most) {
  const raw = top / most, power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw) || 1;
  const ticks = [];
  for (let at = 0; at <= top * 1.0001; at += step) ticks.push(at);
  return ticks;
}

function logTicks(from, to) {
  const marks = [0.01, 0.1, 1, 10, MINUTE, 10 * MINUTE, HOUR, 10 * HOUR, DAY, 10 * DAY, 100 * DAY, 1000 * DAY];
  return marks.filter((mark) => mark >= from && mark <= to);
}

// One chart: curves {label, x, y, colour} over a shared x; `look` says how axes and values are written.
function chart(id, curves, look) {
  const figure = document.getElementById(id);
  if (!figure) return;
  figure.replaceChildren();
  const width = Math.max(280, figure.clientWidth), height = look.height || 240;
  const left = 48, right = 10, top = 8, bottom = 24;
  const svg = element("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": look.title}, figure);
  const scaleX = look.log ? (v) => Math.log(Math.max(v, look.from)) : (v) => v;
  const x = (v) => left + (scaleX(v) - scaleX(look.from)) / (scaleX(look.to) - scaleX(look.from)) * (width - left - right);
  const y = (v) => height - bottom - v / look.top * (height - top - bottom);
  for (const tick of look.durations ? timeTicks(0, look.top, 5) : niceTicks(look.top, 4)) {
    element("line", {class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick)}, svg);
    element("text", {x: left - 6, y: y(tick) + 4, "text-anchor": "end"}, svg).textContent = look.value(tick);
  }
  const ticks = look.log ? logTicks(look.from, look.to) : timeTicks(look.from, look.to, Math.max(3, width / 90));
  let used = -1e9;
  for (const tick of ticks) {
    if (x(tick) - used < 44 || x(tick) > width - 16) continue;
    used = x(tick);
    element("line", {class: "grid", x1: used, x2: used, y1: top, y2: height - bottom}, svg);
    element("text", {x: used, y: height - 7, "text-anchor": "middle"}, svg).textContent = duration(tick);
  }
  element("line", {class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom}, svg);
  for (const curve of curves) {
    let path = "", pen = "M";
    curve.x.forEach((at, i) => {
      if (curve.y[i] === null) { pen = "M"; return; }
      path += `${pen}${x(at).toFixed(1)} ${y(Math.min(curve.y[i], look.top)).toFixed(1)}`;
      pen = "L";
    });
    element("path", {class: `curve s${curve.colour}`, d: path}, svg);
  }
  if (curves.length > 1 || look.legend) legend(figure, curves.map((curve) => [curve.label, curve.colour]));
  follow(figure, svg, curves, look, {x, left, right, top, bottom, width, height});
}

function swatch(parent, colour) {
  const mark = document.createElementNS(SVG, "svg");
  mark.setAttribute("viewBox", "0 0 18 10");
  element("line", {class: `curve s${colour}`, x1: 0, x2: 18, y1: 5, y2: 5}, mark);
  parent.appendChild(mark);
}

function legend(figure, entries) {
  const box = tag("div", figure, undefined, "legend");
  for (const [label, colour] of entries) {
    const entry = tag("span", box);
    swatch(entry, colour);
    entry.append(label);
  }
}

// A cursor that reads the curves.
function follow(figure, svg, curves, look, frame) {
  const cursor = element("line", {class: "cursor", y1: frame.top, y2: frame.height - frame.bottom, visibility: "hidden"}, svg);
  const tip = tag("div", figure, undefined, "tip");
  const hide = () => { cursor.setAttribute("visibility", "hidden"); tip.style.display = "none"; };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * frame.width;
    if (at < frame.left || at > frame.width - frame.right) { hide(); return; }
    const share = (at - frame.left) / (frame.width - frame.left - frame.right);
    const value = look.log ? Math.exp(Math.log(look.from) + share * Math.log(look.to / look.from))
      : look.from + share * (look.to - look.from);
    cursor.setAttribute("x1", at); cursor.setAttribute("x2", at); cursor.setAttribute("visibility", "visible");
    tip.replaceChildren();
    tag("b", tip, duration(value));
    for (const curve of curves) {
      let i = curve.x.findIndex((one) => one > value);
      i = i < 0 ? curve.x.length - 1 : Math.max(0, i - 1);
      if (curve.y[i] === null || curve.y[i] === undefined) continue;
      const line = tag("div", tip);
      swatch(line, curve.colour);
      line.append(`${curve.label}: ${look.value(curve.y[i])}`);
    }
    tip.style.display = "block";
    const px = event.clientX - box.left;
    tip.style.left = `${px > box.width / 2 ? px - tip.offsetWidth - 14 : px + 14}px`;
    tip.style.top = `${Math.max(0, event.clientY - box.top - 20)}px`;
  });
}

const bins = data.runs.length ? data.runs[0].queue.length : 0;
const middles = Array.from({length: bins}, (_, i) => data.from + (i + 0.5) / bins * (data.to - data.from));

function drawCurves() {
  const series = (key) => data.runs.map((run, i) => ({label: run.name, x: middles, y: run[key], colour: i}));
  const most = (key) => Math.max(1e-9, ...data.runs.flatMap((run) => run[key]));
  const span = {from: data.from, to: data.to};
  chart("queue", series("queue"), {...span, top: Math.max(1, most("queue") * 1.05), value: count, title: "Waiting jobs over time"});
  chart("use", series("use"), {...span, top: 1, value: percent, title: "GPUs held over time"});
  const all = data.runs.flatMap((run) => run.jct);
  const jct = data.runs.map((run, i) => ({
    label: run.name, x: run.jct, y: run.jct.map((_, q) => q / Math.max(1, run.jct.length - 1)), colour: i}));
  const least = Math.max(0.01, Math.min(...all.filter((v) => v > 0), 1e9));
  chart("jct", jct, {from: least, to: Math.max(least * 10, ...all), top: 1, log: true, value: percent,
    title: "Distribution of completion times"});
}

function choices(id, redraw, runs) {
  const select = document.getElementById(id);
  if (!select) return () => 0;
  runs.forEach(([label, index]) => { tag("option", select, label).value = index; });
  select.addEventListener("change", redraw);
  return () => Number(select.value);
}

const named = data.runs.map((run, i) => [run.name, i]);
const learned = named.filter(([, i]) => data.runs[i].timers.length);

function drawTimers() {
  if (!learned.length) return;
  const lines = data.runs[timersOf()].timers;
  const curves = lines.map((line, i) => ({...line, colour: i}));
  const top = Math.max(1, ...lines.flatMap((line) => line.y.filter((v) => v !== null))) * 1.05;
  chart("timers", curves, {from: data.from, to: data.to, top, value: duration, durations: true, legend: true, title: "Timers over time"});
}

function drawMap() {
  const figure = document.getElementById("map");
  figure.replaceChildren();
  const map = data.runs[mapOf()].map;
  document.getElementById("map-word").textContent = map.word;
  const width = Math.max(280, figure.clientWidth), left = Math.min(110, width / 4), bottom = 22;
  const row = Math.max(7, Math.min(24, 340 / map.names.length)), height = row * map.names.length + bottom;
  const canvas = tag("canvas", figure), ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio; canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d"), look = getComputedStyle(document.documentElement);
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, sans-serif";
  const cells = map.rows.length ? map.rows[0].length : 1, wide = (width - left - 10) / cells;
  map.rows.forEach((shares, r) => {
    shares.forEach((share, c) => {
      pen.fillStyle = `rgba(${look.getPropertyValue("--heat")}, ${(share / 100) ** 1.6})`;
      pen.fillRect(left + c * wide, r * row, wide + 0.3, row - 1);
    });
  });
  pen.fillStyle = look.getPropertyValue("--quiet");
  pen.textAlign = "right";
  const every = Math.ceil(12 / row);
  map.names.forEach((name, r) => { if (r % every === 0) pen.fillText(name.slice(0, 16), left - 6, r * row + row / 2 + 4); });
  pen.textAlign = "center";
  for (const tick of timeTicks(data.from, data.to, Math.max(3, width / 100))) {
    const at = left + (tick - data.from) / (data.to - data.from) * (width - left - 10);
    if (at < width - 20) pen.fillText(duration(tick), at, height - 5);
  }
  const tip = tag("div", figure, undefined, "tip");
  canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    const c = Math.floor((px - left) / wide), r = Math.floor(py / row);
    if (c < 0 || c >= cells || r >= map.names.length) { tip.style.display = "none"; return; }
    tip.textContent = `${map.names[r]}, ${duration(data.from + (c + 0.5) / cells * (data.to - data.from))}: ${map.rows[r][c]}% held`;
    tip.style.display = "block";
    tip.style.left = `${px > box.width / 2 ? px - tip.offsetWidth - 12 : px + 12}px`;
    tip.style.top = `${Math.max(0, py - 34)}px`;
  });
}

const MOST_ROWS = 50;
const fromInput = document.getElementById("gantt-from"), lengthInput = document.getElementById("gantt-length");

function ganttWindow() {
  const span = data.end - data.from;
  const length = span * 2000 ** (Number(lengthInput.value) / 100 - 1);
  const from = data.from + (span - length) * Number(fromInput.value) / 1000;
  document.getElementById("gantt-from-text").textContent = moment(from, MINUTE);
  document.getElementById("gantt-length-text").textContent = duration(length);
  return [from, from + length];
}

// Attempts by job, and the jobs that waited or ran in the window.
function jobsInside(gantt, from, to) {
  const stories = gantt.jobs.map(() => []);
  for (const attempt of gantt.attempts) stories[attempt[0]].push(attempt);
  const inside = [];
  stories.forEach((attempts, job) => {
    if (attempts.length && gantt.jobs[job][3] <= to && attempts[attempts.length - 1][2] >= from) inside.push(job);
  });
  return [stories, inside];
}

function drawGantt() {
  const figure = document.getElementById("gantt"), gantt = data.runs[ganttOf()].gantt;
  figure.replaceChildren();
  const [from, to] = ganttWindow();
  const [stories, inside] = jobsInside(gantt, from, to);
  const shown = inside.slice(0, MOST_ROWS), row = 15;
  const width = Math.max(280, figure.clientWidth), left = width < 500 ? 92 : 150, right = 10, bottom = 24;
  const height = Math.max(1, shown.length) * row + bottom + 4;
  const svg = element("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Jobs in the window"}, figure);
  const x = (v) => left + (Math.min(Math.max(v, from), to) - from) / (to - from) * (width - left - right);
  const ticks = timeTicks(from, to, Math.max(3, width / 100));
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : to - from;
  for (const tick of ticks) {
    element("line", {class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: height - bottom}, svg);
    if (x(tick) < width - 28) element("text", {x: x(tick), y: height - 7, "text-anchor": "middle"}, svg).textContent = moment(tick, step);
  }
  shown.forEach((job, r) => drawJob(svg, gantt.jobs[job], stories[job], r * row + 2, row, x, left, from, to));
  const rest = inside.length - shown.length;
  const kept = gantt.jobs.length < gantt.of ? `Drawn from the ${gantt.jobs.length} jobs with most GPU time of ${gantt.of.toLocaleString("en")}. ` : "";
  document.getElementById("gantt-note").textContent = kept + (inside.length ? "" : "No job in this window. ")
    + (rest > 0 ? `${rest} more job${rest === 1 ? "" : "s"} in this window: shorten it to see them.` : "");
  const box = tag("div", figure, undefined, "legend");
  data.tiers.forEach((name, i) => {
    const entry = tag("span", box), mark = document.createElementNS(SVG, "svg");
    mark.setAttribute("viewBox", "0 0 18 10");
    element("rect", {class: `t${Math.min(i, 4)}`, width: 18, height: 10, rx: 2}, mark);
    entry.append(mark, `within one ${name}`);
  });
}

function drawJob(svg, [id, gpus, model, submitted], attempts, y, row, x, left, from, to) {
  const label = element("text", {x: left - 6, y: y + row / 2 + 3, "text-anchor": "end"}, svg);
  const asked = left < 100 ? gpus : `${gpus} GPU${gpus > 1 ? "s" : ""}`;
  label.textContent = `${String(id).slice(0, 12)} · ${asked}`;
  const about = `${id}: ${gpus} x ${model}, submitted ${duration(submitted)}`;
  const bar = (begin, end, high, name, words) => {
    if (end < from || begin > to) return;
    const made = element("rect", {class: name, x: x(begin), width: Math.max(0.8, x(end) - x(begin)), height: high,
      y: y + (row - 2 - high) / 2, rx: high > 4 ? 2 : 0}, svg);
    element("title", {}, made).textContent = `${about}\n${words} ${duration(end - begin)}, from ${moment(begin, MINUTE)} to ${moment(end, MINUTE)}`;
  };
  let since = submitted;
  for (const [, begin, end, tier] of attempts) {
    if (begin > since) bar(since, begin, 3, "wait", "waited");
    bar(begin, end, row - 4, `t${Math.min(tier, 4)}`, `ran within one ${data.tiers[tier]} for`);
    since = end;
  }
}

const timersOf = choices("timers-of", drawTimers, learned);
const mapOf = choices("map-of", drawMap, named);
const ganttOf = choices("gantt-of", drawGantt, named);

function start() {
  // The window opens where most jobs wait, as wide as the rows allow.
  const queue = data.runs[0].queue, peak = (queue.indexOf(Math.max(...queue)) + 0.5) / bins;
  const middle = peak * (data.to - data.from) / (data.end - data.from);
  for (let step = 90; step >= 20; step -= 5) {
    const length = 2000 ** (step / 100 - 1);
    lengthInput.value = step;
    fromInput.value = Math.round(1000 * Math.min(1, Math.max(0, (middle - length / 2) / (1 - length))));
    if (jobsInside(data.runs[0].gantt, ...ganttWindow())[1].length <= MOST_ROWS) break;
  }
  fromInput.addEventListener("input", drawGantt);
  lengthInput.addEventListener("input", drawGantt);
  if (data.to < data.end) {
    for (const place of document.querySelectorAll(".until")) {
      place.textContent = `Shown until ${duration(data.to)}; the last job ended at ${duration(data.end)}.`;
    }
  }
  draw();
  let waiting = 0;
  window.addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(draw); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

// Mean and 99th percentile of the completion times, a bar for each policy; the shortest mean first.
function drawBars() {
  const figure = document.getElementById("bars"), rows = [...(data.bars || [])].sort((a, b) => a.mean - b.mean);
  figure.replaceChildren();
  if (rows.length < 2) return;
  const width = Math.max(280, figure.clientWidth), row = 26, left = Math.min(140, width / 3), right = 118;
  const most = Math.max(...rows.map((one) => one.p99)), x = (value) => value / most * (width - left - right);
  const svg = element("svg", {viewBox: `0 0 ${width} ${rows.length * row + 4}`, role: "img", "aria-label": "mean and 99th percentile of completion times by policy"}, figure);
  rows.forEach((one, i) => {
    const y = i * row + 4;
    element("text", {class: "ink", x: left - 8, y: y + 14, "text-anchor": "end"}, svg).textContent = one.label.slice(0, 20);
    for (const [name, value] of [["bar-p99", one.p99], ["bar-mean", one.mean]]) {
      element("title", {}, element("rect", {class: name, x: left, y, width: Math.max(1, x(value)), height: row - 8, rx: 3}, svg)).textContent = `${one.label}: mean ${duration(one.mean)}, p99 ${duration(one.p99)}`;
    }
    element("text", {x: left + x(one.p99) + 6, y: y + 14}, svg).textContent = `${duration(one.mean)} / ${duration(one.p99)}`;
  });
  tag("div", figure, "Strong: mean completion time. Pale: the 99th percentile.", "legend");
}

function draw() {
  drawBars();
  drawCurves();
  drawTimers();
  drawMap();
  drawGantt();
}

if (bins) start();
