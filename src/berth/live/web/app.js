// What the page knows: one object that the views read, kept fresh by the controller's events.

import {Refused, get} from "./api.js";
import {listen} from "./stream.js";
import {World} from "./world.js";

const MOST_RECORDS = 400_000; // of a live journal, read into the page
const PAGE = 5_000;
const MOST_OVER = 20_000; // jobs that ended while the page was open

export class App extends EventTarget {
  constructor() {
    super();
    this.me = null;
    this.present = null; // live only
    this.past = null; // read when somebody looks back
    this.at = null; // the moment that is looked at; null: now
    this.series = null;
    this.connected = true;
    this.skew = 0; // seconds that the controller's clock is ahead of ours
  }

  get live() { return this.me.live; }
  get admin() { return this.me.role === "admin"; }
  get world() { return this.at === null || !this.past ? this.present : this.past; }
  get time() { return this.at === null ? Date.now() / 1000 + this.skew : this.at; }
  tell(name, detail) { this.dispatchEvent(new CustomEvent(name, {detail})); }

  on(names, run) {
    for (const name of names.split(" ")) this.addEventListener(name, run);
    return () => names.split(" ").forEach((name) => this.removeEventListener(name, run));
  }

  // Who we are and what there is; the token is tried here.
  async begin() {
    const [me, now] = await Promise.all([get("me"), get("now")]);
    this.me = me;
    this.stand(now);
    if (!this.live) this.at = now.time;
    this.readSeries().catch(() => {}); // the next look will tell
  }

  async readPresent() {
    this.stand(await get("now"));
  }

  stand(now) {
    this.skew = now.time - Date.now() / 1000;
    this.present = new World(this.me.cluster).load(now);
    this.seq = now.seq;
    this.room = 2 * this.present.jobs.length + MOST_OVER;
    this.tell("change");
  }

  // Follows the controller for as long as the page is open; lost connections are found again.
  async follow() {
    for (let tries = 0; ; tries++) {
      try {
        await listen(this.seq, () => { tries = 0; this.link(true); }, (event) => this.heard(event));
      } catch (error) {
        if (error instanceof Refused && error.status === 401) { this.tell("unknown"); return; }
      }
      if (this.again) { this.again = false; tries = 0; } else {
        this.link(false);
        await new Promise((done) => setTimeout(done, Math.min(5000, 300 * 2 ** tries)));
      }
      try {
        const me = await get("me");
        this.me = me;
        await this.readPresent();
        if (this.past) this.pastStale = true;
      } catch (error) {
        if (error instanceof Refused && error.status === 401) { this.tell("unknown"); return; }
        this.link(false);
      }
    }
  }

  link(connected) {
    if (this.connected === connected) return;
    this.connected = connected;
    this.tell("link");
  }

  // One event; false: some were missed, and everything is read anew.
  heard({seq, kind, data}) {
    if (kind === "gap" || (seq !== null && seq > this.seq + 1)) { this.again = true; return false; }
    if (seq === null || seq <= this.seq) return true;
    this.seq = seq;
    if (kind === "opened") { this.again = true; return false; }
    this.present.take(data, false);
    if (this.present.jobs.length > this.room) { this.again = true; return false; } // those that are over are let go
    if (kind !== "pass" && kind !== "learned") {
      if (data.job) this.tell("job", data.job);
      this.tell("change");
    }
    return true;
  }

  // The journal from its beginning (or as much as a page can hold), then what has come since.
  async readPast(progress = () => {}) {
    if (this.past && !this.pastStale) await this.readOn(progress);
    else {
      const past = new World(this.me.cluster);
      past.settled = !this.live; // a simulated gang runs from the moment it is placed
      this.pastSeq = this.live ? Math.max(0, this.seq - MOST_RECORDS) : 0;
      this.cut = this.pastSeq > 0;
      this.from = null;
      await this.readOn(progress, past);
    }
  }

  async readOn(progress, past = this.past) {
    const began = Date.now() / 1000 + this.skew;
    for (let whole = false; !whole;) {
      const page = await get(`journal?after=${this.pastSeq}&limit=${PAGE}`);
      past.toEnd();
      for (const record of page.records) past.take(record);
      if (this.from === null && page.records.length) this.from = page.records[0].time;
      if (page.records.length) this.until = page.records[page.records.length - 1].time;
      this.pastSeq = page.last;
      this.cut ||= page.first > 1;
      whole = page.whole;
      progress(past.changes.length);
    }
    this.past = past;
    this.pastStale = false;
    this.readAt = began;
    if (this.at !== null) { past.seek(this.at); this.tell("change"); }
  }

  // Looks at a moment; null: at now.
  look(time) {
    this.at = time;
    if (time !== null) this.past.seek(time);
    this.tell("moment");
    this.tell("change");
  }

  async readSeries() {
    const known = this.series, after = known && known.time.length ? known.time[known.time.length - 1] - 120 : -1;
    const more = await get(`series?after=${Math.max(-1, after)}`);
    this.series = known ? joined(known, more, after) : more;
    this.tell("series");
  }
}

function joined(old, more, after) {
  const kept = old.time.findIndex((time) => time > after), n = kept < 0 ? old.time.length : kept;
  const result = {};
  for (const name of Object.keys(more)) if (name !== "timers") result[name] = [...old[name].slice(0, n), ...more[name]];
  const timers = new Map();
  const add = (list, offset) => list.forEach(({gpus, tier, seconds}) => {
    const key = `${gpus}/${tier}`;
    if (!timers.has(key)) timers.set(key, {gpus, tier, seconds: new Array(result.time.length).fill(null)});
    seconds.slice(0, offset ? undefined : n).forEach((value, i) => { timers.get(key).seconds[offset + i] = value; });
  });
  add(old.timers, 0);
  add(more.timers, n);
  result.timers = [...timers.values()];
  return result;
}
