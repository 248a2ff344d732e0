// @ts-check
// Requests to the controller, the token that they carry, and the event stream.
//
// The token comes from the address once (#token=, or #code= for a code that works once), is removed from there, and is
// kept for this tab only.

const KEY = "berth.token";

export const bearsToken = () => /^#(token|code)=/.test(location.hash);

export async function takeFromAddress() {
  const found = /^#(token|code)=([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", location.pathname + "#/");
  const value = found[1] === "token" ? found[2] : await tokenFor(found[2]);
  if (value) sessionStorage.setItem(KEY, value);
}

async function tokenFor(code) {
  const options = {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({code})};
  const response = await fetch("/api/v1/login", options);
  return response.ok ? (await response.json()).token : "";
}

export const token = () => sessionStorage.getItem(KEY) || "";
export const keep = (value) => sessionStorage.setItem(KEY, value.trim());
export const forget = () => sessionStorage.removeItem(KEY);

export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

// No answer, or a connection that breaks within one.
export class NoAnswer extends Error {
  constructor() { super("the controller does not answer"); }
}

const headers = () => ({Authorization: `Bearer ${token()}`});

async function checked(response) {
  if (response.ok) return response;
  let message = `status ${response.status}`;
  try {
    const body = await response.json(), detail = body.detail;
    message = Array.isArray(detail) ? detail.map((one) => one.msg).join("; ") : String(detail || message);
    if (body.hint) message += ` (${body.hint})`;
  } catch { /* the status is the message */ }
  throw new Refused(response.status, message);
}

const address = (path) => `/api/v1/${path}`;

async function answer(path, options) {
  let response;
  try { response = await fetch(address(path), options); } catch { throw new NoAnswer(); }
  return checked(response);
}

async function textOf(response) {
  try { return await response.text(); } catch { throw new NoAnswer(); }
}

export async function get(path) {
  return JSON.parse(await textOf(await answer(path, {headers: headers(), cache: "no-store"})));
}

export async function post(path, body = {}) {
  const options = {method: "POST", headers: {...headers(), "Content-Type": "application/json"}, body: JSON.stringify(body)};
  return JSON.parse(await textOf(await answer(path, options)));
}

export async function getText(path) {
  const response = await answer(path, {headers: headers(), cache: "no-store"});
  return [await textOf(response), Number(response.headers.get("x-next-offset") || 0)];
}

const SILENT_MS = 40_000; // the server sends something at least every 15 s

// Reads server-sent events over fetch, because EventSource can't send a token: calls `onEvent` for each until the stream
// ends or it returns false; throws when the connection breaks.
export async function listen(after, opened, onEvent) {
  const stop = new AbortController();
  let silence = setTimeout(() => stop.abort(), SILENT_MS);
  try {
    /** @type {RequestInit} */
    const options = {headers: {...headers(), "Last-Event-ID": String(after)}, cache: "no-store", signal: stop.signal};
    const response = await checked(await fetch(address("events"), options));
    opened();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(() => stop.abort(), SILENT_MS);
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parse(block);
        if (event && onEvent(event) === false) { stop.abort(); return; }
      }
    }
  } finally {
    clearTimeout(silence);
  }
}

function parse(block) {
  const event = {kind: "message", seq: null, data: ""};
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) event.seq = Number(line.slice(4));
    else if (line.startsWith("event: ")) event.kind = line.slice(7);
    else if (line.startsWith("data: ")) event.data += line.slice(6);
  }
  if (!event.data) return null;
  event.data = JSON.parse(event.data);
  return event;
}
