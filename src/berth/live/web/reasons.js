// Why jobs wait and when they should start, for the rows in sight only; and the order of the queue.

import {get} from "./api.js";
import {atMostEvery} from "./dom.js";

const FRESH_MS = 4000, MOST = 200;

export class Reasons {
  constructor(app, changed) {
    Object.assign(this, {app, changed});
    this.places = new Map(); // place in the queue, by id
    this.known = new Map();
    this.wanted = [];
    this.readOrder = atMostEvery(1500, () => this.order().catch(() => {}));
    this.readReasons = atMostEvery(300, () => this.reasons().catch(() => {}));
  }

  get asks() { return this.app.live && this.app.at === null && this.app.connected; }

  async order() {
    if (!this.asks) return;
    const {order} = await get("queue");
    this.places = new Map(order.map((id, place) => [id, place]));
    this.changed();
  }

  // These rows are in sight: their sentences are asked for if they are not fresh.
  want(ids) {
    this.wanted = ids.slice(0, MOST);
    const now = performance.now();
    if (this.asks && this.wanted.some((id) => !(this.known.get(id)?.until > now))) this.readReasons();
  }

  async reasons() {
    const now = performance.now(), ids = this.wanted.filter((id) => !(this.known.get(id)?.until > now));
    if (!ids.length || !this.asks) return;
    const told = await get(`reasons?ids=${ids.map(encodeURIComponent).join(",")}`);
    for (const id of ids) this.known.set(id, {...told[id], until: performance.now() + FRESH_MS, heard: this.app.time});
    this.changed();
  }

  of(id) { return this.known.get(id); }

  // Waiting jobs as the controller orders them; those it has not told of yet come last.
  sorted(jobs) {
    const place = (job) => (this.asks ? this.places.get(job.id) ?? Infinity : 0);
    return jobs.sort((a, b) => place(a) - place(b) || a.since - b.since || a.index - b.index);
  }
}
