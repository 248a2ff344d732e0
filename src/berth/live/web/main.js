// @ts-check
// The page: logs in, builds the frame, and shows the view that the address names.

import {Refused, bearsToken, forget, keep, takeFromAddress, token} from "./api.js";
import {App} from "./app.js";
import {atMostEvery, el, put} from "./dom.js";
import {moment} from "./format.js";
import {atOf, hashOf, keepMoment} from "./address.js";
import {jobPage} from "./job.js";
import {jobs} from "./jobs.js";
import {help, keys} from "./keys.js";
import {machines} from "./machines.js";
import {overview} from "./overview.js";
import {scrubber} from "./scrubber.js";
import {applyKept, themeButton} from "./theme.js";
import {whatIf} from "./whatif.js";

const SERIES_MS = 5000;
const top = document.getElementById("top"), main = document.getElementById("main"), foot = document.getElementById("time");
const app = new App();
let view = {destroy() {}};
globalThis.berth = app; // for the browser's console and tests

// A view whose module is loaded when it is first shown.
function later(file, name) {
  return (app_, root) => {
    const made = {destroy() { made.gone = true; }};
    import(file).then((module) => { if (!made.gone) Object.assign(made, module[name](app_, root)); });
    return made;
  };
}

function routes() {
  const found = {"#/": ["Cluster", overview], "#/jobs": ["Jobs", jobs], "#/machines": ["Machines", machines], "#/trends": ["Trends", later("./trends.js", "trends")]};
  if (app.live) found["#/what-if"] = ["What if", whatIf];
  return found;
}

function frame() {
  const links = Object.entries(routes()).map(([hash, [name]]) => el("a", {href: hash, text: name}));
  const about = el("span", {class: "about quiet"});
  const banner = el("div", {class: "banner", role: "alert", hidden: true});
  const theme = themeButton(() => app.emit("theme"));
  top.replaceChildren(el("div", {class: "inner"}, el("a", {class: "brand", href: "#/", text: "berth"}), about,
    el("nav", {"aria-label": "Views"}, ...links), theme,
    el("button", {type: "button", class: "icon", "aria-label": "Keyboard", title: "Keyboard", text: "?", onclick: help})), banner);
  const show = () => {
    banner.hidden = app.connected && !(app.live && app.at !== null);
    banner.classList.toggle("lost", !app.connected);
    put(banner, !app.connected ? `The controller does not answer since ${moment(app.lostAt, true)}. The page shows the cluster as it was then, and keeps trying.`
      : app.at === null ? "" : `This is the cluster at ${moment(app.at, app.live)}. “live” goes back to now.`);
  };
  const name = () => {
    const policy = app.live && app.at !== null ? "" : `, ${app.me.policy}`; // in the past it may have been another one
    put(about, `${app.me.cluster.name}${policy}${app.live ? "" : ": simulated"}`);
    about.title = about.textContent;
  };
  name();
  app.on("me moment", name);
  app.on("link moment", show);
}

function route() {
  const hash = hashOf(), job = /^#\/job\/(.+)$/.exec(hash);
  const known = routes(), [, make] = known[hash] || known["#/"];
  view.destroy();
  main.replaceChildren(...(job ? [] : [el("h1", {class: "unseen", text: (known[hash] || known["#/"])[0]})]));
  main.className = job ? "job-page" : `view-${hash.slice(2) || "cluster"}`;
  document.title = job ? "berth" : `${(known[hash] || known["#/"])[0]} – berth`; // a job's page adds its name
  view = job ? jobPage(app, main, decodeURIComponent(job[1])) : make(app, main);
  for (const link of top.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === (job ? "#/jobs" : hash);
    if (here) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  window.scrollTo(0, 0);
}

function askForToken(why) {
  const input = el("input", {type: "password", name: "token", autocomplete: "off", required: true, "aria-label": "Token"});
  const form = el("form", {class: "token", onsubmit: (event) => { event.preventDefault(); keep(input.value); location.reload(); }},
    el("h1", {text: "berth"}), el("p", {text: why}),
    el("p", {class: "quiet", text: "`berth dashboard` opens this page with a token; `berth token` creates one for another user. It is kept for this tab only."}),
    input, el("button", {type: "submit", class: "primary", text: "Open"}));
  view.destroy();
  top.replaceChildren();
  foot.replaceChildren();
  main.className = "";
  main.replaceChildren(form);
  input.focus();
}

async function start() {
  await takeFromAddress();
  applyKept();
  if (!token()) { askForToken("This page needs a token."); return; }
  try {
    await app.begin();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) { forget(); askForToken("The controller does not know this token."); return; }
    main.replaceChildren(el("p", {class: "bad", text: `The data could not be read: ${error.message}. Trying again …`}));
    setTimeout(start, 2000);
    return;
  }
  frame();
  const time = scrubber(app, foot);
  keys({view: () => view, routes: Object.keys(routes()), time});
  let shown = null;
  const arrived = () => {
    if (bearsToken()) return;
    const at = atOf();
    if (at !== null && at !== app.at) app.emit("visit", at); // a link to a moment
    else if (app.at !== null) keepMoment(app); // other views show the same moment
    const {hash} = location, view = hash.replace(/[?&]at=[^&]*/, "");
    if (view !== shown) { shown = view; route(); }
  };
  window.addEventListener("hashchange", arrived);
  app.on("moment", atMostEvery(400, () => keepMoment(app))); // browsers limit changes of the address
  arrived();
  if (!app.live) return;
  app.addEventListener("unknown", () => { forget(); askForToken("The controller does not know this token any more."); });
  app.follow();
  setInterval(() => { if (app.connected && !document.hidden) app.readSeries().catch(() => {}); }, SERIES_MS);
}

// A page that is already open accepts an address with a token, too.
window.addEventListener("hashchange", async () => { if (bearsToken()) { await takeFromAddress(); location.reload(); } });
start();
