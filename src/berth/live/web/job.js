// @ts-check
// The page of one job: its state and the cause, the end of its log if it failed, attempts and their cost, facts, map, log.

import {cancel, copyId, mayTouch, prioritise, resubmit} from "./actions.js";
import {NoAnswer, Refused, get, getText} from "./api.js";
import {atMostEvery, el, oncePerFrame, table} from "./dom.js";
import {ahead, count, devices, duration, moment, plural, since, usd} from "./format.js";
import {ClusterMap} from "./map.js";
import {STATES} from "./state.js";

const LAST_LINES = 20, TAIL_BYTES = 1 << 16, OVER = ["finished", "failed", "cancelled"];

export function jobPage(app, root, id) {
  const part = encodeURIComponent(id);
  const title = el("h1", {text: id}), pill = el("span", {class: "pill"}), sub = el("p", {class: "quiet", text: " "}), facts = el("dl", {class: "facts"});
  const reason = el("p", {class: "reason", text: " "}), buttons = el("div", {class: "buttons"}), tail = el("div", {class: "tail", hidden: true});
  const attempts = el("div", {class: "attempts"}), steps = el("div"), events = el("div");
  const map = new ClusterMap(app, {tall: 300, focus: () => { const seats = seatsOf(app, id); return seats.length ? seats : null; }, onJob: (job) => { location.hash = `#/job/${encodeURIComponent(job.id)}`; }});
  const mapNote = el("span", {class: "quiet"});
  const log = el("section", {class: "wide", hidden: true});
  const sections = [
    el("section", {class: "wide jobhead"}, el("a", {class: "back", href: "#/jobs", text: "‹ jobs"}), el("div", {class: "headline"}, title, pill), sub, reason, tail, buttons),
    el("section", {class: "wide"}, el("h2", {text: "Attempts"}), attempts),
    el("section", {class: "wide"}, el("h2", {text: "Facts"}), facts),
    el("section", {class: "wide"}, el("div", {class: "title"}, el("h2", {text: "Where it is"}), mapNote), map.node),
    el("section", {}, el("h2", {text: "Step time by tier"}), steps),
    el("section", {class: "events"}, el("h2", {text: "Events"}), events),
    log];
  const reading = el("p", {class: "quiet", text: "reading …"});
  root.append(reading);
  let panel = null, job = null, known = null, lost = false, tailOf = null; // lost: `known` is of the state, for want of an answer

  async function read() {
    try {
      const [row, history] = await Promise.all([get(`jobs/${part}`), get(`jobs/${part}/history`)]);
      known = {row, why: app.live ? await get(`jobs/${part}/why`) : null, history};
      lost = false;
    } catch (error) {
      if (error instanceof Refused) { (reading.isConnected ? reading : sub).textContent = error.message; return; }
      if (!(error instanceof NoAnswer)) throw error;
      if (known && !lost) return; // the banner says that there is no answer
      lost = true;
    }
    show();
  }

  // An error that is not of the connection: the page says so, and the browser's console has it.
  function failed(error) {
    (reading.isConnected ? reading : sub).textContent = `This page can't show the job: ${error.message}.`;
    throw error;
  }

  // All sections at once, so that the layout is stable.
  function open() { if (reading.isConnected) { reading.replaceWith(...sections); map.resize(); } }

  // Everything as of the moment that the page shows.
  function show() {
    if (lost) known = ofState(app, id);
    if (known) { fill(); open(); } else {
      reading.textContent = "The controller does not answer, and this page has not read the job before.";
      if (!reading.isConnected) root.replaceChildren(reading);
    }
  }

  function fill() {
    const {row, why, history, partial} = known, then = app.at, past = (time) => then === null || time <= then;
    job = row;
    const state = then === null ? row.state : stateAt(app, row, id), now = then === null;
    title.replaceChildren(row.name || row.id, ...(row.name && row.name !== row.id ? [el("small", {class: "id", text: row.id})] : []));
    document.title = `${row.name || row.id} – berth`;
    pill.textContent = state;
    pill.dataset.state = state;
    sub.textContent = `${row.user ? `${row.user}, ` : ""}${devices(row)}${row.priority ? `, priority ${row.priority}` : ""}`;
    const seen = history.events.filter((event) => past(event.time));
    for (const section of sections.slice(4)) section.hidden = Boolean(partial); // not in the state
    reason.textContent = partial ? partial : now ? (why ? sentence(why, app.time, row) : "") : `This is the job at ${moment(then, app.live)}.${lastOf(app, seen)}`;
    facts.replaceChildren(...factsOf(app, row, why, now).flatMap(([name, value]) => [el("div", {}, el("dt", {text: name}), el("dd", {text: value}))]));
    actions(row, partial);
    const shown = history.attempts.filter((one) => past(one.placed)).map((one) => asOf(one, past));
    attempts.replaceChildren(shown.length ? attemptsTable(app, row, shown) : el("p", {class: "quiet", text: partial ? "It was not running." : now ? "It has not been started yet." : "It had not been started yet."}));
    steps.replaceChildren(...stepsOf(app, why, history.steps_by_tier));
    events.replaceChildren(table(["when", "what", "details"], seen.map((event) => [moment(event.time, app.live), event.kind, details(event)]), {words: [1, 2]}));
    log.hidden = !(app.live && mayTouch(app, row.user) && row.attempts) || Boolean(partial);
    if (!log.hidden && !panel) {
      panel = logPanel(row.id);
      log.append(panel.node);
    }
    if (panel && !partial) panel.about(row);
    lastLines(row, state);
    draw();
  }

  // The end of the log of a job that failed, or whose last attempt did.
  async function lastLines(row, state) {
    const wanted = app.live && app.at === null && mayTouch(app, row.user) && row.attempts && ["failed", "delayed"].includes(state) ? row.attempts : null;
    if (tailOf === wanted) return;
    tailOf = wanted;
    tail.hidden = wanted === null;
    if (wanted === null) return;
    try {
      const [text] = await getText(`jobs/${part}/logs?attempt=${wanted}&tail=${TAIL_BYTES}`);
      const lines = text.trimEnd().split("\n").slice(-LAST_LINES);
      tail.replaceChildren(el("h2", {text: lines[0] ? `Its last ${plural(lines.length, "line")}` : "It has written nothing"}), ...(lines[0] ? [el("pre", {class: "log short", role: "region", tabindex: "0", "aria-label": "last lines of the log", text: lines.join("\n")})] : []));
    } catch (error) { tail.replaceChildren(el("p", {class: "quiet", text: error.message})); }
  }

  function actions(row, partial) {
    const over = OVER.includes(row.state), allowed = app.live && !partial && app.at === null && mayTouch(app, row.user), key = `${over} ${allowed}`;
    if (buttons.dataset.key === key) return;
    buttons.dataset.key = key;
    const button = (name, text, run, look) => el("button", {type: "button", id: name, class: look, text, onclick: run});
    buttons.replaceChildren(...[
      allowed && !over ? button("cancel", "Cancel …", () => cancel(job), "danger") : null,
      allowed && !over && app.admin ? button("priority", "Priority …", () => prioritise(job)) : null,
      allowed && over && row.spec?.run ? button("resubmit", "Submit again …", () => resubmit(job)) : null,
      button("copy", "Copy id", () => copyId(id))].filter(Boolean));
  }

  const draw = oncePerFrame(() => {
    const seats = seatsOf(app, id);
    mapNote.textContent = seats.length ? "its devices are highlighted" : app.at === null ? "it holds no devices now" : "it held no devices at this moment";
    map.draw();
  });
  const again = atMostEvery(400, () => read().catch(failed)), moved = oncePerFrame(() => { if (known || lost) show(); });
  const offs = [app.on("job", (event) => { if (event.detail === id) again(); }), app.on("change", draw), app.on("theme", () => map.repaint()),
    app.on("link", () => { if (app.connected) again(); }), app.on("moment", moved)];
  const clock = setInterval(() => { if (app.live && app.connected && app.at === null) again(); }, 5000);
  read().catch(failed);
  return {destroy() { offs.forEach((off) => off()); clearInterval(clock); map.destroy(); if (panel) panel.destroy(); }};
}

// What the page knows of a job without the controller: its facts as of when the controller last answered, where it was at the
// moment that is shown, and the last reason that was read while it waits.
function ofState(app, id) {
  const {state, present} = app, find = (from) => from.jobs[from.byId.get(id)], then = find(state), job = find(present) ?? (app.at === null ? null : then);
  if (!job) return null;
  const one = then && then.attempt >= 0 ? state.attempts[then.attempt] : null, reason = app.reasons.get(id), {machines, tiers} = state.cluster;
  const attempts = one ? [{number: "-", placed: one.time, began: one.began ?? undefined, tier: tiers[one.tier].name,
    places: Object.fromEntries(one.seats.map(([machine, , numbers]) => [machines[machine].name, numbers.length]))}] : [];
  const waits = reason?.blocker ? ` The job ${reason.blocker} (modelled, as of then).` : reason?.sentence ? ` Why it waited: ${reason.sentence}.` : "";
  const partial = `The controller does not answer: this is what the page had read before.${app.at === null ? waits : ""}`;
  const {name, user, gpus, priority, submitted, evictions} = job;
  return {row: {id, name, user, gpus, priority, submitted, evictions, state: STATES[job.state]}, why: null, partial, history: {events: [], attempts, steps_by_tier: []}};
}

// The state of a job at the moment that is shown, from the journal.
function stateAt(app, row, id) {
  const job = app.state.jobs[app.state.byId.get(id)];
  if (!job || app.at < row.submitted) return "not submitted";
  return STATES[job.state];
}

// An attempt without what happened to it after the moment that is shown.
function asOf(one, past) {
  const kept = {...one};
  if (kept.began !== undefined && !past(kept.began)) delete kept.began;
  if (kept.left !== undefined && !past(kept.left)) for (const key of ["left", "left_for", "by"]) delete kept[key];
  if (kept.ended !== undefined && !past(kept.ended)) for (const key of ["ended", "code", "codes", "cause", "detail"]) delete kept[key];
  return kept;
}

function seatsOf(app, id) {
  const state = app.state, job = state.jobs[state.byId.get(id)];
  return job && job.attempt >= 0 ? state.attempts[job.attempt].seats : [];
}

function sentence(why, now, row) {
  const text = why.reason.sentence, parts = [];
  if (why.reason.code === "over") {
    const cause = text.split(", ").slice(1).join(", "), code = row.code ? `exit code ${row.code}` : "";
    const what = {finished: "Finished", failed: "Failed", cancelled: "Cancelled"}[row.state] || row.state;
    return `${what} ${since(now - row.ended)}${cause || code ? `: ${[cause, code].filter(Boolean).join(", ")}` : ""}.`;
  }
  if (why.places) {
    parts.push(`Why there: ${text}.`);
    if (why.overdue_s) parts.push(`It is ${duration(why.overdue_s)} overdue: it runs longer than expected.`);
    else if (why.expected_end) parts.push(`It should end ${ahead(why.expected_end, now)} (modelled).`);
    return parts.join(" ");
  }
  if (why.reason.code !== "no-room" || !(why.blocker || why.summary)) parts.push(text[0].toUpperCase() + text.slice(1) + "."); // else it repeats the blocker
  if (why.blocker) parts.push(`It ${why.blocker} (modelled).`);
  else if (why.summary) parts.push(why.summary[0].toUpperCase() + why.summary.slice(1) + ".");
  if (why.expected_start && why.position && !why.blocker?.includes("starts ")) parts.push(`It should start ${ahead(why.expected_start, now)} (modelled).`);
  return parts.join(" ");
}

function factsOf(app, row, why, now) {
  const {live} = app, spec = row.spec || {};
  const found = [["submitted", moment(row.submitted, live)], ["attempts", String(row.attempts ?? "-")], ["evictions", String(row.evictions)]];
  if (now && why?.position) found.push(["place in the queue", String(why.position)]);
  if (row.priority !== undefined) found.push(["priority", String(row.priority)]);
  if (!now) return [found[0], ...found.slice(3)]; // the others are of now
  if (row.ended !== undefined && row.ended !== null) found.push(["ended", moment(row.ended, live)], ["in all", duration(row.ended - row.submitted)]);
  else if (row.remaining_s) found.push(["expected to take", `${duration(row.remaining_s)} more`]);
  if (row.code !== undefined && row.code !== null) found.push(["exit code", String(row.code)]);
  if (spec.model) found.push(["model", typeof spec.model === "string" ? spec.model : spec.model.name || "inline"]);
  if (row.shape) found.push([row.ended || !row.places ? "alternative" : "runs as", row.shape]);
  for (const [name, devices] of alternativesOf(why, spec)) found.push([`alternative ${name}`, devices]);
  if (spec.run) found.push(["runs", Array.isArray(spec.run) ? spec.run.join(" ") : spec.run]);
  return found;
}

// The name and the devices of each alternative: as the controller has them, else as they were submitted.
function alternativesOf(why, spec) {
  if (why?.alternatives) return why.alternatives.map((one) => [one.name, `${one.devices}, takes ${duration(one.run_s)}${one.usd === null || one.usd === undefined ? "" : `, costs ${usd(one.usd)}`}${one.fits_now ? `, fits now within one ${one.fits_now}` : ""}`]);
  return (spec.alternatives || []).map((one) => [one.name, (one.parts || []).flatMap((part) => Object.entries(part.devices || {})).map(([device, n]) => `${n} ${device}`).join(" + ")]);
}

function attemptsTable(app, row, attempts) {
  const rows = attempts.map((one, i) => {
    const places = Object.entries(one.places).map(([name, n]) => `${name}:${n}`);
    const where = places.slice(0, 5).join(", ") + (places.length > 5 ? ` and ${places.length - 5} more` : "");
    const until = one.ended ?? one.left ?? (app.at ?? (row.ended || app.time)), began = one.began ?? one.placed, next = attempts[i + 1];
    const ended = left(one) || (one.ended === undefined ? (row.ended && app.at === null ? "-" : "still there") : ending(one));
    const button = el("button", {type: "button", class: "link", text: moment(one.placed, app.live), title: "Show the cluster at this moment",
      onclick: () => app.emit("visit", one.placed)});
    return [String(one.number), button, where, one.tier, duration(Math.max(0, until - began)), ended, cost(row, one, next)];
  });
  return table(["#", "placed", "where", "within one", "ran", "ended by", "cost of the restart"], rows, {words: [1, 2, 3, 5, 6]});
}

// The cause of an attempt's end, if the back end knows it, and the exit code.
function ending(one) {
  const exit = one.code !== undefined && one.code !== null ? `exit ${one.code}` : "lost";
  if (!one.cause || one.cause === "exit") return exit;
  return (one.detail ? `${one.cause} (${one.detail})` : one.cause) + (one.code ? `, ${exit}` : "");
}

// Why an attempt was stopped, and for which jobs.
function left(one) {
  const by = one.by || [];
  return one.left_for && by.length ? `${one.left_for} by ${by.slice(0, 3).join(", ")}${by.length > 3 ? " …" : ""}` : one.left_for;
}

// The time from the stop until the job ran again, also times its devices.
function cost(row, one, next) {
  if (one.left === undefined) return "-";
  if (!next || (next.began === undefined && next.placed === undefined)) return "not running again yet";
  const lost = Math.max(0, (next.began ?? next.placed) - one.left);
  return `${duration(lost)}, ${duration(lost * row.gpus)} of GPU time`;
}

function stepsOf(app, why, steps) {
  const measured = new Map(steps.map((row) => [row.tier, row]));
  const modelled = why?.slowdown_by_tier || {};
  const tiers = app.me.cluster.tiers.map((tier) => tier.name).filter((name) => name in modelled || measured.has(name));
  if (!tiers.length) return [el("p", {class: "quiet", text: app.live ? "No steps were measured." : "A log of events has no step times."})];
  return [table(["within one", "step (modelled)", "step (measured)"], tiers.map((name) => {
    const found = measured.get(name);
    return [name, name in modelled ? `${modelled[name].toFixed(2)}×` : "-", found ? `${found.seconds.toPrecision(3)} s, mean of ${count(found.count)}` : "-"];
  }), {words: [0]})];
}

// The last thing that had happened to a job by a moment of the past.
function lastOf(app, seen) {
  const last = seen[seen.length - 1];
  if (!last) return "";
  const more = details(last);
  return ` Last before that: ${last.kind} at ${moment(last.time, app.live)}${more ? ` (${more})` : ""}.`;
}

function details(event) {
  const parts = [];
  if (event.places) parts.push(Object.entries(event.places).slice(0, 4).map(([name, n]) => `${name}:${n}`).join(", "));
  if (event.tier) parts.push(`within one ${event.tier}`);
  if (event.reason) parts.push(event.reason);
  if (event.code !== undefined && event.code !== null) parts.push(`exit ${event.code}`);
  if (event.cause && event.cause !== "exit") parts.push(event.detail ? `${event.cause} (${event.detail})` : event.cause);
  for (const word of ["stopped", "done", "lost"]) if (event[word]) parts.push(word);
  if (event.priority !== undefined) parts.push(String(event.priority));
  return parts.join("; ");
}

// The output of one rank, as it is written.
const KEPT = 300_000, PIECE = 1 << 18; // characters on the page, bytes at once

function logPanel(id) {
  const rank = el("input", {type: "number", min: 0, value: 0, id: "rank", onchange: () => restart()});
  const attempt = el("select", {id: "attempt", onchange: () => restart()});
  const follow = el("input", {type: "checkbox", checked: true, id: "follow"});
  const text = el("pre", {class: "log", role: "region", tabindex: "0", "aria-label": "log"});
  const node = el("div", {}, el("div", {class: "title"}, el("h2", {text: "Log"}),
    el("label", {}, "attempt ", attempt), el("label", {}, "rank ", rank), el("label", {}, follow, " follow")), text);
  let offset = 0, round = 0, timer = 0, ended = false, quiet = 0;

  async function read(mine) {
    if (!attempt.value) { again(mine, 1000); return; }
    try {
      const query = `attempt=${attempt.value}&rank=${Number(rank.value) || 0}&offset=${offset}&limit=${PIECE}`;
      const [piece, next] = await getText(`jobs/${encodeURIComponent(id)}/logs?${query}`);
      if (mine !== round) return;
      if (piece) add(piece);
      quiet = piece ? 0 : quiet + 1;
      offset = next;
      if (!ended || quiet < 3) again(mine, piece.length >= PIECE / 2 ? 0 : 1000);
    } catch (error) {
      if (mine !== round) return;
      if (!text.textContent) text.textContent = error.message;
      again(mine, 3000);
    }
  }

  function again(mine, ms) { timer = setTimeout(() => { if (mine === round) read(mine); }, ms); }

  function add(piece) {
    const all = text.textContent.length ? text.textContent + piece : piece;
    text.textContent = all.length > KEPT ? `…${all.slice(-KEPT)}` : all;
    if (follow.checked) text.scrollTop = text.scrollHeight;
  }

  function restart() {
    round++;
    clearTimeout(timer);
    offset = quiet = 0;
    text.textContent = "";
    read(round);
  }

  return {
    node,
    about(job) {
      const per = job.spec?.per === "machine" ? new Set((job.places || []).map((place) => place.machine)).size || job.gpus : job.gpus;
      rank.max = per - 1;
      const over = ["finished", "failed", "cancelled"].includes(job.state), resumed = ended && !over;
      ended = over;
      if (attempt.childElementCount === job.attempts && !resumed) return;
      const newest = !attempt.value || Number(attempt.value) === attempt.childElementCount;
      while (attempt.childElementCount < job.attempts) attempt.append(el("option", {text: String(attempt.childElementCount + 1)}));
      if (newest && job.attempts) { attempt.value = String(job.attempts); restart(); }
    },
    destroy() { round++; clearTimeout(timer); },
  };
}
