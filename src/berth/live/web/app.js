// @ts-check
// The data of the page: one object that the views read, updated by the controller's events.

import {Refused, get, listen} from "./api.js";
import {ClusterState} from "./state.js";

const MOST_RECORDS = 400_000; // of a live journal that the page reads
const PAGE = 5_000;
const MOST_ENDED = 20_000; // jobs that ended while the page was open

export class App extends EventTarget {
  constructor() {
    super();
    this.me = null;
    this.present = null; // live only
    this.past = null; // read on the first look back
    this.at = null; // the time shown; null: now
    this.series = null;
    this.connected = true;
    this.reasons = new Map(); // of waiting jobs, as last read: the next view has them too, also while there is no answer
    this.places = new Map(); // in the queue, by id; the same
    this.lostAt = null; // when the controller stopped to answer
    this.skew = 0; // seconds that the controller's clock is ahead of the browser's
  }

  get live() { return this.me.live; }
  get admin() { return this.me.role === "admin"; }
  get state() { return this.at === null || !this.past ? this.present : this.past; }
  get time() { return this.at ?? this.lostAt ?? this.clock; } // without a controller nothing is known of later
  get clock() { return Date.now() / 1000 + this.skew; }
  emit(name, detail) { this.dispatchEvent(new CustomEvent(name, {detail})); }

  on(names, run) {
    for (const name of names.split(" ")) this.addEventListener(name, run);
    return () => names.split(" ").forEach((name) => this.removeEventListener(name, run));
  }

  // Reads the user, the cluster and its state; fails if the token is not valid.
  async begin() {
    const [me, now] = await Promise.all([get("me"), get("now")]);
    this.me = me;
    this.setPresent(now);
    if (!this.live) this.at = now.time;
    this.readSeries().catch(() => {}); // the next interval reads it again
  }

  async readPresent() {
    this.setPresent(await get("now"));
  }

  setPresent(now) {
    this.skew = now.time - Date.now() / 1000;
    this.present = new ClusterState(this.me.cluster).load(now);
    this.seq = now.seq;
    this.mostJobs = 2 * this.present.jobs.length + MOST_ENDED;
    this.dropReasons(this.reasons.keys());
    this.emit("change");
  }

  // Forgets the reasons of these jobs unless they wait: a job that waits again does so for another reason.
  dropReasons(ids) {
    for (const id of ids) if (!this.present.waits(id)) this.reasons.delete(id);
  }

  // Follows the controller as long as the page is open, and reconnects.
  async follow() {
    for (let tries = 0; ; tries++) {
      try {
        await listen(this.seq, () => { tries = 0; this.link(true); }, (event) => this.onEvent(event));
      } catch (error) {
        if (error instanceof Refused && error.status === 401) { this.emit("unknown"); return; }
      }
      if (this.rereads) { this.rereads = false; tries = 0; } else {
        this.link(false);
        await new Promise((done) => setTimeout(done, Math.min(5000, 300 * 2 ** tries)));
      }
      try {
        this.me = await get("me");
        this.emit("me"); // the policy or the cluster may be another one
        await this.readPresent();
        if (this.past) this.pastStale = true;
      } catch (error) {
        if (error instanceof Refused && error.status === 401) { this.emit("unknown"); return; }
        this.link(false);
      }
    }
  }

  link(connected) {
    if (this.connected === connected) return;
    this.connected = connected;
    this.lostAt = connected ? null : this.clock;
    this.emit("link");
    this.emit("change");
  }

  // Handles one event; false: some were missed, and the state is read again.
  onEvent({seq, kind, data}) {
    if (kind === "gap" || (seq !== null && seq > this.seq + 1)) { this.rereads = true; return false; }
    if (seq === null || seq <= this.seq) return true;
    this.seq = seq;
    if (kind === "opened") { this.rereads = true; return false; }
    this.present.applyRecord(data, false);
    if (data.job) this.dropReasons([data.job]);
    if (this.present.jobs.length > this.mostJobs) { this.rereads = true; return false; } // drops jobs that have ended
    if (kind !== "pass" && kind !== "learned") {
      if (data.job) this.emit("job", data.job);
      this.emit("change");
    }
    return true;
  }

  // Reads the journal from its beginning (or as much as a page can hold), later only what is new.
  async readPast(progress = () => {}) {
    if (this.past && !this.pastStale) await this.readOn(progress);
    else {
      const past = new ClusterState(this.me.cluster);
      past.startsAtOnce = !this.live; // a simulated gang runs as soon as it is placed
      this.pastSeq = this.live ? Math.max(0, this.seq - MOST_RECORDS) : 0;
      this.cut = this.pastSeq > 0;
      this.from = null;
      await this.readOn(progress, past);
    }
  }

  async readOn(progress, past = this.past) {
    const began = this.clock;
    for (let whole = false; !whole;) {
      const page = await get(`journal?after=${this.pastSeq}&limit=${PAGE}`);
      past.toEnd();
      for (const record of page.records) past.applyRecord(record);
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
    if (this.at !== null) { past.seek(this.at); this.emit("change"); }
  }

  // Shows a moment; null: now.
  look(time) {
    this.at = time;
    if (time !== null) this.past.seek(time);
    this.emit("moment");
    this.emit("change");
  }

  // The place of a time in the samples: the last one that is not later.
  sampleAt(time) {
    const times = this.series.time;
    let low = 0, high = times.length;
    while (low < high) { const mid = (low + high) >> 1; if (times[mid] <= time) low = mid + 1; else high = mid; }
    return Math.max(0, low - 1);
  }

  async readSeries() {
    const known = this.series?.complete ? this.series : null; // else samples from the journal are still to come
    const after = known && known.time.length ? known.time[known.time.length - 1] - 120 : -1;
    const {complete, ...more} = await get(`series?after=${Math.max(-1, after)}`);
    this.series = {...(known ? joined(known, more, after) : more), complete};
    this.emit("series");
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
