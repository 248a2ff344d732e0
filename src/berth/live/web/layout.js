// @ts-check
// The layout of the map: racks side by side, in each a row of cells per machine.

const CELLS = [26, 22, 18, 15, 13, 11, 9, 8, 7, 6, 5, 4, 3];
const LABEL = 15, BETWEEN = 12, MOST_ROWS = 40, MOST_NAME = 120, EASY = 7;

// Racks with their machines; without racks, all machines are in one group.
export function racksOf(cluster) {
  const level = cluster.tiers.length > 2 ? 1 : cluster.tiers.length - 1;
  const racks = cluster.group_names[level].map((name) => ({name, machines: []}));
  cluster.groups[level].forEach((group, machine) => racks[group].machines.push(machine));
  return racks;
}

// The largest cells with which the map is at most `tall`, or two thirds of it while cells are easy to hit; else the
// smallest cells.
export function layOut(cluster, sizes, width, tall, measure) {
  const racks = racksOf(cluster);
  const longest = Math.min(MOST_NAME, Math.max(...cluster.machines.map((machine) => measure(machine.name))) + 8);
  for (const cell of CELLS) {
    const made = flow(racks, sizes, width, cell, longest);
    if (made && (made.height <= (cell > EASY ? tall * 2 / 3 : tall) || cell === CELLS[CELLS.length - 1])) return made;
  }
  return flow(racks, sizes, Math.max(width, 200), CELLS[CELLS.length - 1], longest, true);
}

function flow(racks, sizes, width, cell, longest, force = false) {
  const pitch = cell + (cell > 6 ? 2 : 1), named = cell >= 11;
  const names = named ? longest : 0;
  const blocks = [], boxes = new Array(sizes.length);
  let x = 0, y = 0, high = 0;
  for (const rack of racks) {
    const broad = Math.max(...rack.machines.map((machine) => sizes[machine])) * pitch + names;
    const columns = Math.ceil(rack.machines.length / MOST_ROWS);
    const rows = Math.ceil(rack.machines.length / columns), wide = columns * (broad + 4) - 4;
    if (wide > width && !force) return null;
    if (x > 0 && x + wide > width) { x = 0; y += high + BETWEEN; high = 0; }
    blocks.push({name: rack.name, x, y, width: wide});
    rack.machines.forEach((machine, i) => {
      const column = Math.floor(i / rows);
      boxes[machine] = {x: x + column * (broad + 4) + names, y: y + LABEL + (i % rows) * pitch, names};
    });
    high = Math.max(high, LABEL + rows * pitch);
    x += wide + BETWEEN;
  }
  return {cell, pitch, named, blocks, boxes, width, height: y + high};
}

// The machine and device at a point, or null.
export function hit(made, sizes, x, y) {
  for (let machine = 0; machine < sizes.length; machine++) {
    const box = made.boxes[machine];
    if (y < box.y || y >= box.y + made.pitch || x < box.x - box.names || x >= box.x + sizes[machine] * made.pitch) continue;
    return {machine, device: x >= box.x ? Math.floor((x - box.x) / made.pitch) : null};
  }
  return null;
}
