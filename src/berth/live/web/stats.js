// The cluster in a few numbers: what is used, who waits, whether the waits are worth it, what it costs.

import {el, put} from "./dom.js";
import {count, duration, percent, plural, usd} from "./format.js";

export class Stats {
  constructor(app) {
    this.app = app;
    this.tiles = {};
    this.node = el("section", {class: "stats", "aria-label": "The cluster in numbers"});
    for (const [name, label] of [["use", "devices in use"], ["running", "jobs running"], ["waiting", "jobs waiting"],
      ["worth", "holding out"], ["cost", "in use, per hour"]]) {
      const value = el("b", {text: "-"}), note = el("small", {text: " "});
      this.tiles[name] = {value, note};
      this.node.append(el("div", {class: `stat ${name}`}, el("span", {text: label}), value, note));
    }
    this.bar = el("i");
    this.node.querySelector(".use").append(el("div", {class: "bar"}, this.bar));
  }

  show() {
    const {app} = this, world = app.world, {busy, free, unavailable, external} = world.counts();
    const waiting = world.waiting(), running = world.running(), now = app.time;
    const away = [unavailable ? `${count(unavailable)} unavailable` : "", external ? `${count(external)} with others` : ""].filter(Boolean);
    this.set("use", `${count(busy)} of ${count(world.devices)}`, [`${count(free)} free`, ...away].join(", "));
    this.bar.style.width = percent(busy / Math.max(1, world.devices));
    const spread = running.filter((job) => world.attempts[job.attempt].tier > 0).length;
    this.set("running", count(running.length), running.length ? `${count(spread)} on more than one machine` : "none");
    const since = waiting.reduce((least, job) => Math.min(least, job.since), now);
    this.set("waiting", count(waiting.length), waiting.length ? `longest ${duration(now - since)}` : "nobody");
    this.worth(waiting, now);
    this.cost(world, running);
  }

  // Live: what waiting should save. Looking back: how long those wait who wait.
  worth(waiting, now) {
    const {app} = this, series = app.series, last = series ? series.time.length - 1 : -1;
    const label = this.node.querySelector(".worth span");
    if (app.live && app.at === null) {
      put(label, "holding out for near places");
      const holding = last >= 0 ? series.holding[last] : 0;
      this.set("worth", plural(holding, "job"), holding ? `saves them ${duration(series.saves_s[last])} (modelled)` : "nobody waits by choice");
    } else {
      put(label, "mean wait");
      const mean = waiting.reduce((sum, job) => sum + now - job.since, 0) / (waiting.length || 1);
      this.set("worth", waiting.length ? duration(mean) : "-", "of those who wait");
    }
  }

  cost(world, running) {
    const kinds = world.cluster.device_types;
    let total = 0;
    for (const job of running) {
      for (const [, kind, numbers] of world.attempts[job.attempt].seats) {
        const price = kinds[kind].usd_per_hour;
        total = price === null || total === null ? null : total + price * numbers.length;
      }
    }
    const known = kinds.every((kind) => kind.usd_per_hour !== null);
    this.set("cost", known && total !== null ? usd(total) : "-", known ? "at list prices of the devices" : "a device's price is unknown");
  }

  set(name, value, note) {
    put(this.tiles[name].value, value);
    put(this.tiles[name].note, note);
  }
}
