// The page: finds out who looks, puts up the frame, and shows the view that the address names.

import {Refused} from "./api.js";
import {App} from "./app.js";
import {el, put} from "./dom.js";
import {moment} from "./format.js";
import {jobPage} from "./job.js";
import {jobs} from "./jobs.js";
import {help, keys} from "./keys.js";
import {machines} from "./machines.js";
import {overview} from "./overview.js";
import {scrubber} from "./scrubber.js";
import {applyKept, themeButton} from "./theme.js";
import {bearsToken, forget, keep, takeFromAddress, token} from "./token.js";
import {whatIf} from "./whatif.js";

const SERIES_MS = 5000;
const top = document.getElementById("top"), main = document.getElementById("main"), foot = document.getElementById("time");
const app = new App();
let view = {destroy() {}};
globalThis.berth = app; // for whoever looks with the console

// A view whose module is read when it is first shown.
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
  const about = app.live ? `${app.me.cluster.name}, ${app.me.policy}` : `${app.me.cluster.name}, ${app.me.policy}: simulated`;
  const banner = el("div", {class: "banner", role: "alert", hidden: true});
  const theme = themeButton(() => app.tell("theme"));
  top.replaceChildren(el("div", {class: "inner"}, el("a", {class: "brand", href: "#/", text: "berth"}), el("span", {class: "about quiet", text: about, title: about}),
    el("nav", {"aria-label": "Views"}, ...links), theme,
    el("button", {type: "button", class: "icon", "aria-label": "Keyboard", title: "Keyboard", text: "?", onclick: help})), banner);
  const show = () => {
    banner.hidden = app.connected && !(app.live && app.at !== null);
    banner.classList.toggle("lost", !app.connected);
    put(banner, app.connected ? (app.at === null ? "" : `You look at ${moment(app.at, app.live)}. “live” goes back to now.`)
      : "The controller does not answer. What you see may be old; the page keeps trying.");
  };
  app.on("link moment", show);
}

function route() {
  const hash = location.hash.split("?")[0] || "#/", job = /^#\/job\/(.+)$/.exec(hash);
  const known = routes(), [, make] = known[hash] || known["#/"];
  view.destroy();
  main.replaceChildren();
  main.className = job ? "job-page" : `view-${hash.slice(2) || "cluster"}`;
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
    el("p", {class: "quiet", text: "berth dashboard opens this page with one; berth token makes one for another user. It is kept for this tab only."}),
    input, el("button", {type: "submit", class: "primary", text: "Look"}));
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
    main.replaceChildren(el("p", {class: "bad", text: `Nothing could be read: ${error.message}. Trying again …`}));
    setTimeout(start, 2000);
    return;
  }
  frame();
  const time = scrubber(app, foot);
  keys({view: () => view, routes: Object.keys(routes()), time});
  window.addEventListener("hashchange", () => { if (!bearsToken()) route(); });
  route();
  if (!app.live) return;
  app.addEventListener("unknown", () => { forget(); askForToken("The controller does not know this token any more."); });
  app.follow();
  setInterval(() => { if (app.connected && !document.hidden) app.readSeries().catch(() => {}); }, SERIES_MS);
}

// An address with a token may be given to a page that is open already, also to one that asks for it.
window.addEventListener("hashchange", async () => { if (bearsToken()) { await takeFromAddress(); location.reload(); } });
start();
