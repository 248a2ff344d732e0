// Draws the charts of a plan: curves, staircases and points over two axes, each linear or logarithmic.

function short(value) {
  for (const [factor, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= factor * 0.9995) return `${+(value / factor).toPrecision(3)}${letter}`;
  }
  return `${+value.toPrecision(3)}`;
}

const dollars = (value) => value >= 1000 ? `$${short(value)}` : `$${value >= 0.1 ? +value.toPrecision(4) : +value.toPrecision(3)}`;
function seconds(value) {
  for (const [factor, unit] of [[1, "s"], [1e-3, "ms"]]) if (value >= factor) return `${+(value / factor).toPrecision(3)}${unit}`;
  return `${+(value * 1e6).toPrecision(3)}us`;
}
const WRITE = {rate: (v) => `${short(v)}/s`, usd: dollars, seconds, ratio: (v) => `${+v.toPrecision(3)}x`, number: short};

// A value of an axis in words; `names` are those of the values 1, 2, 3 ...
const named = (axis, value) => axis.names ? axis.names[value - 1] : WRITE[axis.unit](value);

function ticksOf(axis, from, to, most) {
  const ticks = [];
  if (axis.at) return axis.at.filter((at) => at >= from && at <= to);
  if (axis.log && to / from > 3) { // else decades have too few marks, and equal steps look almost equal
    const decades = Math.log10(to / from), marks = decades > 3 ? [1] : decades > 1.2 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
    for (let power = Math.floor(Math.log10(from)); power <= Math.log10(to); power++)
      for (const mark of marks) { const at = mark * 10 ** power; if (at >= from && at <= to) ticks.push(at); }
    return ticks;
  }
  const raw = (to - from) / most, power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw) || 1;
  for (let at = Math.ceil(from / step) * step; at <= to * 1.0001; at += step) ticks.push(at);
  return ticks;
}

function scale(axis, values, begin, end) {
  const known = values.filter((v) => v !== null && (!axis.log || v > 0));
  let from = axis.log ? Math.min(...known) : 0, to = Math.max(...known);
  if (axis.log) { const room = Math.max(1.08, (to / from) ** 0.04); from /= room; to *= room; } else to *= 1.06;
  const turn = axis.log ? Math.log : (v) => v;
  const place = (v) => begin + (turn(v) - turn(from)) / (turn(to) - turn(from) || 1) * (end - begin);
  return {from, to, place, ticks: (most) => ticksOf(axis, from, to, most)};
}

function path(curve, x, y) {
  let text = "", pen = "M", before = null;
  curve.x.forEach((at, i) => {
    if (curve.y[i] === null) { pen = "M"; before = null; return; }
    const px = x(at).toFixed(1), py = y(curve.y[i]).toFixed(1);
    if (curve.step && before !== null) text += `V${py}H${px}`;
    else text += `${pen}${px} ${py}`;
    pen = "L"; before = py;
  });
  return text;
}

const dashed = (curve) => curve.dash ? {"stroke-dasharray": "5 3"} : {};

function swatch(parent, curve) {
  const mark = element("svg", {viewBox: "0 0 18 10"}, parent);
  if (curve.points) element("circle", {class: `curve s${curve.colour}`, cx: 9, cy: 5, r: 3.5}, mark);
  else element("line", {class: `curve s${curve.colour}`, ...dashed(curve), x1: 0, x2: 18, y1: 5, y2: 5}, mark);
}

function chart(id, look) {
  const figure = document.getElementById(id);
  if (!figure) return;
  figure.replaceChildren();
  const width = Math.max(280, figure.clientWidth), height = look.height || 300;
  const left = 62, right = 14, top = 10, bottom = 42;
  const svg = element("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": look.title}, figure);
  const x = scale(look.x, look.curves.flatMap((curve) => curve.x), left, width - right);
  const y = scale(look.y, look.curves.flatMap((curve) => curve.y), height - bottom, top);
  for (const tick of y.ticks(5)) {
    element("line", {class: "grid", x1: left, x2: width - right, y1: y.place(tick), y2: y.place(tick)}, svg);
    element("text", {x: left - 6, y: y.place(tick) + 4, "text-anchor": "end"}, svg).textContent = WRITE[look.y.unit](tick);
  }
  let used = -1e9;
  for (const tick of x.ticks(width / 90)) {
    if (x.place(tick) - used < 44) continue;
    used = x.place(tick);
    element("line", {class: "grid", x1: used, x2: used, y1: top, y2: height - bottom}, svg);
    element("text", {x: used, y: height - bottom + 16, "text-anchor": "middle"}, svg).textContent = named(look.x, tick);
  }
  element("line", {class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom}, svg);
  element("text", {x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle"}, svg).textContent = look.x.label;
  for (const curve of look.curves) {
    if (!curve.points) element("path", {class: `curve s${curve.colour}`, ...dashed(curve), d: path(curve, x.place, y.place)}, svg);
    if (curve.points || curve.dots) curve.x.forEach((at, i) => {
      if (curve.y[i] !== null) element("circle", {class: `curve s${curve.colour}`, cx: x.place(at), cy: y.place(curve.y[i]), r: curve.points ? 5 : 2.5}, svg);
    });
  }
  const box = tag("div", figure, undefined, "legend");
  for (const curve of look.curves) { const entry = tag("span", box); swatch(entry, curve); entry.append(curve.label); }
  read(figure, svg, look, x, y);
}

// The nearest point to the pointer, in words.
function read(figure, svg, look, x, y) {
  const tip = tag("div", figure, undefined, "tip");
  const ring = element("circle", {class: "cursor", r: 7, fill: "none", visibility: "hidden"}, svg);
  const points = look.curves.flatMap((curve) => curve.x.map((at, i) => ({curve, i, x: x.place(at), y: curve.y[i] === null ? null : y.place(curve.y[i])})))
    .filter((point) => point.y !== null);
  const hide = () => { tip.style.display = "none"; ring.setAttribute("visibility", "hidden"); };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), factor = svg.viewBox.baseVal.width / box.width;
    const px = (event.clientX - box.left) * factor, py = (event.clientY - box.top) * factor;
    let best = null, least = 60 ** 2;
    for (const point of points) {
      const far = (point.x - px) ** 2 + (point.y - py) ** 2;
      if (far < least) { best = point; least = far; }
    }
    if (!best) { hide(); return; }
    ring.setAttribute("cx", best.x); ring.setAttribute("cy", best.y); ring.setAttribute("visibility", "visible");
    tip.replaceChildren();
    tag("b", tip, best.curve.label);
    tag("div", tip, `${named(look.x, best.curve.x[best.i])}: ${WRITE[look.y.unit](best.curve.y[best.i])}`);
    if (best.curve.texts) tag("div", tip, best.curve.texts[best.i]);
    tip.style.display = "block";
    const sx = best.x / factor;
    tip.style.left = `${sx > box.width / 2 ? sx - tip.offsetWidth - 14 : sx + 14}px`;
    tip.style.top = `${Math.max(0, best.y / factor - 20)}px`;
  });
}

const draw = () => Object.entries(data.charts).forEach(([id, look]) => chart(id, look));
draw();
let waiting = 0;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 100); });
