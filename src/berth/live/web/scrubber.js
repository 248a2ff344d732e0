// @ts-check
// The time slider at the foot of the page, for a simulation and for the live journal.

import {toast} from "./actions.js";
import {el, oncePerFrame, put} from "./dom.js";
import {moment, percent} from "./format.js";
import {FAILED, LOST} from "./state.js";
import {colours} from "./theme.js";

const TICKS_PX = 130, NICE_S = [1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000, 2592000, 8640000];
const STEPS = 10_000, PLAY_S = 45; // duration of a playback of the whole record
const MOST_EVENTS = 0.98, TAIL = 1 / 3; // a long tail with few events is hidden at first

export function scrubber(app, root) {
  const range = el("input", {type: "range", min: 0, max: STEPS, step: 1, value: STEPS, "aria-label": "Moment", id: "moment"});
  const track = el("canvas", {"aria-hidden": "true"}), label = el("output", {id: "shown"});
  const play = el("button", {type: "button", class: "icon", id: "play", "aria-label": "Play", text: "▶"});
  const back = el("button", {type: "button", id: "live", text: "live", hidden: !app.live});
  const whole = el("button", {type: "button", id: "whole", text: "whole run", hidden: true, "aria-pressed": "false"});
  root.append(play, el("div", {class: "track"}, track, range), label, whole, back);
  let playing = 0, wanted = null, reading = null, cut = null;

  const from = () => app.from ?? app.series?.time[0] ?? app.time - 1;
  const until = () => (app.live ? app.lostAt ?? app.clock : cut ?? app.until ?? app.me.end);
  const share = (time) => (time - from()) / Math.max(1e-9, until() - from());

  function crop() {
    const changes = app.past.changes, late = changes.length ? changes[Math.floor(changes.length * MOST_EVENTS)].time : 0;
    const short = late - app.from < TAIL * (app.until - app.from);
    whole.hidden = !short;
    cut = short && whole.getAttribute("aria-pressed") === "false" ? late : null;
  }

  async function ready() {
    if (app.past && !app.pastStale) return;
    reading ??= app.readPast((n) => put(label, `reading ${n.toLocaleString("en")} …`));
    try { await reading; } finally { reading = null; }
    draw();
    if (app.cut) toast("The journal is not shown from its beginning: placements before its last part, or on another cluster, are not drawn.");
  }

  const go = oncePerFrame(() => { if (wanted !== null && app.past) { app.look(wanted); show(); } });

  async function visit(time) {
    wanted = time;
    try {
      await ready();
      if (app.live && time > app.readAt) await app.readPast(); // reads what is new
      go();
    } catch (error) { toast(error.message, true); }
  }

  function live() {
    stop();
    wanted = null;
    app.look(null);
    show();
  }

  function stop() {
    cancelAnimationFrame(playing);
    playing = 0;
    put(play, "▶");
    play.setAttribute("aria-label", "Play");
  }

  async function start() {
    try { await ready(); } catch (error) { toast(error.message, true); return; }
    put(play, "❚❚");
    play.setAttribute("aria-label", "Pause");
    let last = performance.now(), time = app.at ?? from();
    if (time >= until() - 1e-6) time = from();
    const tick = (now) => {
      time += (now - last) / 1000 * (until() - from()) / PLAY_S;
      last = now;
      if (time >= until()) { if (app.live) { live(); return; } time = until(); }
      app.look(time);
      show();
      if (time >= until()) stop(); else playing = requestAnimationFrame(tick);
    };
    playing = requestAnimationFrame(tick);
  }

  function show() {
    const at = app.at;
    range.value = at === null ? STEPS : Math.round(STEPS * share(at));
    const words = at !== null ? moment(at, app.live) : app.connected ? "now" : `since ${moment(app.lostAt, true)}`;
    put(label, words);
    range.setAttribute("aria-valuetext", words);
    back.classList.toggle("on", at === null && app.connected);
    put(back, app.connected ? "live" : "no answer");
    document.body.classList.toggle("looking-back", app.live && at !== null);
  }

  // Draws the devices in use behind the slider.
  function drawTrack() {
    const width = track.clientWidth, height = track.clientHeight, series = app.series, ratio = window.devicePixelRatio || 1;
    track.width = width * ratio;
    track.height = height * ratio;
    if (!series || !series.time.length || !width) return;
    const pen = track.getContext("2d"), devices = app.state.devices;
    pen.scale(ratio, ratio);
    pen.fillStyle = colours().series[0];
    pen.globalAlpha = 0.28;
    pen.beginPath();
    pen.moveTo(0, height);
    let y = height;
    series.time.forEach((time, i) => {
      const x = Math.max(0, Math.min(1, share(time))) * width;
      pen.lineTo(x, y);
      y = height - series.busy[i] / Math.max(1, devices) * height;
      pen.lineTo(x, y);
    });
    if (app.live) pen.lineTo(width, y);
    pen.lineTo(app.live ? width : Math.min(1, share(series.time[series.time.length - 1])) * width, height);
    pen.fill();
    pen.globalAlpha = 1;
    drawTicks(pen, width, height);
    drawMarks(pen, width);
    range.title = `in use: ${percent(series.busy[series.busy.length - 1] / Math.max(1, devices))} at the end`;
  }

  // The time axis: round times, as many as have space.
  function drawTicks(pen, width, height) {
    const span = until() - from(), step = NICE_S.find((one) => span / one <= width / TICKS_PX) || NICE_S[NICE_S.length - 1];
    const offset = app.live ? new Date().getTimezoneOffset() * -60 : 0; // round by the local clock
    pen.fillStyle = colours().quiet;
    pen.font = "10px system-ui, sans-serif";
    for (let at = Math.ceil((from() + offset) / step) * step - offset; at <= until(); at += step) {
      const x = share(at) * width;
      pen.fillRect(x, height - 4, 1, 4);
      if (x > 20 && x < width - 20) { const text = tickText(at, step, app.live); pen.fillText(text, x - pen.measureText(text).width / 2, height - 7); }
    }
  }

  // Failures and lost machines in red, evictions and drained machines in amber.
  function drawMarks(pen, width) {
    const look = colours();
    for (const {time, job, after} of app.past?.changes || []) {
      const bad = job ? after.state === FAILED : after[0] & LOST, warns = job ? after.evictions : after[0];
      if (!bad && !warns) continue;
      pen.fillStyle = bad ? look.bad : look.warn;
      pen.fillRect(share(time) * width, 0, 1.5, 6);
    }
  }
  const draw = oncePerFrame(drawTrack);

  range.addEventListener("input", () => { stop(); const part = range.value / STEPS; visit(from() + part * (until() - from())); });
  play.addEventListener("click", () => (playing ? stop() : start()));
  back.addEventListener("click", live);
  whole.addEventListener("click", () => {
    whole.setAttribute("aria-pressed", whole.getAttribute("aria-pressed") === "false");
    crop(); show(); draw();
    app.emit("series");
  });
  app.on("visit", (event) => { stop(); visit(event.detail); });
  app.on("series theme", draw);
  app.on("link", () => { show(); draw(); });
  new ResizeObserver(draw).observe(track);
  if (!app.live) ready().then(() => { crop(); show(); draw(); app.emit("series"); }).catch((error) => toast(error.message, true));
  show();
  draw();
  app.span = () => [from(), until()];
  return {live, toggle: () => play.click()};
}

function tickText(time, step, live) {
  if (!live) return step >= 86400 ? `${Math.round(time / 86400)}d` : moment(time, false).replace(/:00$/, "");
  const at = new Date(time * 1000);
  if (step >= 86400) return at.toLocaleDateString("en-GB", {day: "numeric", month: "short"});
  return at.toLocaleTimeString("en-GB", {hour: "2-digit", minute: "2-digit", ...(step < 60 ? {second: "2-digit"} : {})});
}
