// What the colours of the map mean.

import {colours} from "./colours.js";
import {el} from "./dom.js";
import {count, plural} from "./format.js";

const MOST = 8;

export function legend(app, map) {
  const node = el("div", {class: "legend"});
  const entry = (colour, text, mark = "") => {
    const swatch = el("i", {class: `swatch ${mark}`});
    swatch.style.backgroundColor = colour;
    return el("span", {}, swatch, text);
  };
  let before = "";
  function show() {
    const look = colours(), entries = [...meaning(app, map, look)];
    const signature = entries.map((one) => one.join("\t")).join("\n");
    if (signature === before) return;
    before = signature;
    node.replaceChildren(...entries.map((one) => entry(...one)));
  }
  return {node, show};
}

function* meaning(app, map, look) {
  const world = app.world;
  if (map.mode === "tier") {
    for (const [i, tier] of world.cluster.tiers.entries()) yield [look.tiers[Math.min(i, 4)], `within one ${tier.name}`];
  } else if (map.mode === "user") {
    const held = new Map();
    for (const job of world.running()) held.set(job.user, (held.get(job.user) || 0) + job.gpus);
    const users = [...held].sort((a, b) => b[1] - a[1]);
    for (const [user, gpus] of users.slice(0, MOST)) yield [look.series[map.userColour(user)], `${user || "nobody"} ${count(gpus)}`];
    if (users.length > MOST) yield ["transparent", `and ${plural(users.length - MOST, "more user")}`];
  } else yield [look.jobs[4], "a colour for each job"];
  yield [look.empty, "free"];
  yield [look.drained, "takes no jobs", "hatch"];
  yield [look.lost, "lost", "cross"];
  if (world.external.some(Boolean)) yield [look.others, "held by others"];
}
