// Curves over time with uPlot, in the house's colours.

import UPlot from "./vendor/uplot/uPlot.esm.js";
import {colours} from "./colours.js";
import {el} from "./dom.js";
import {duration, moment} from "./format.js";

const HEIGHT = 210, HOUR = 3600, DAY = 86400;
const TIMES = [0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 5 * DAY, 10 * DAY, 50 * DAY, 100 * DAY, 500 * DAY];

export class Chart {
  // `curves`: {label, colour (0-7), values, fill, grows: between two samples too}; `value` writes a number.
  constructor(app, {value, sync}) {
    Object.assign(this, {app, value, sync});
    this.node = el("div", {class: "chart"});
    this.watch = new ResizeObserver(() => {
      if (this.plot && Math.abs(this.plot.width - this.node.clientWidth) > 1) this.plot.setSize({width: this.node.clientWidth, height: HEIGHT});
    });
    this.watch.observe(this.node);
  }

  destroy() { this.watch.disconnect(); this.plot?.destroy(); }

  set(times, curves) {
    const shape = curves.map((curve) => curve.label).join("|"), data = [times, ...curves.map((curve) => curve.values)];
    if (this.plot && shape === this.shape) { this.plot.setData(data); return; }
    this.plot?.destroy();
    this.shape = shape;
    this.last = curves;
    this.plot = new UPlot(this.options(curves), data, this.node);
  }

  // In other colours.
  restyle() {
    if (!this.plot) return;
    const {data} = this.plot, [times] = data, curves = this.last.map((curve, i) => ({...curve, values: data[i + 1]}));
    this.shape = null;
    this.set(times, curves);
  }

  options(curves) {
    const look = colours(), {app, value} = this, stepped = UPlot.paths.stepped({align: 1}), straight = UPlot.paths.linear();
    const axis = {stroke: look.quiet, grid: {stroke: look.grid, width: 1}, ticks: {stroke: look.line, width: 1}, font: "12px system-ui, sans-serif"};
    return {
      width: this.node.clientWidth || 320, height: HEIGHT,
      scales: {x: {time: app.live, range: (_, low, high) => (app.live ? [low, high] : app.span())}, y: {range: (_, low, high) => [0, Math.max(1, high * 1.06)]}},
      axes: [app.live ? {...axis, space: 84, values: (_, ticks, __, ___, step) => ticks.map((tick) => clock(tick, step))} : {...axis, incrs: TIMES, values: (_, ticks) => ticks.map((tick) => duration(tick))},
        {...axis, size: 64, ...(value === duration ? {incrs: TIMES} : {}), values: (_, ticks) => ticks.map((tick) => value(tick))}],
      series: [{label: "at", value: (_, time) => (time === null || time === undefined ? (app.live ? "now" : "the end") : moment(time, app.live))},
        ...curves.map((curve) => ({label: curve.label, stroke: look.series[curve.colour % 8], width: 1.6, paths: curve.grows ? straight : stepped,
          fill: curve.fill ? withAlpha(look.series[curve.colour % 8]) : undefined, points: {show: false},
          value: (plot, number, at, index) => written(index === null || index === undefined ? plot.data[at].at(-1) : number, value)}))],
      cursor: {sync: {key: this.sync}, points: {size: 6}, drag: {x: true, y: false}},
      hooks: {draw: [(plot) => this.mark(plot)]},
    };
  }

  // The moment that is looked at.
  mark(plot) {
    if (this.app.at === null) return;
    const x = Math.round(plot.valToPos(this.app.at, "x", true)), {left, top, width, height} = plot.bbox;
    if (x < left || x > left + width) return;
    plot.ctx.save();
    plot.ctx.strokeStyle = colours().ink;
    plot.ctx.setLineDash([4, 4]);
    plot.ctx.beginPath();
    plot.ctx.moveTo(x, top);
    plot.ctx.lineTo(x, top + height);
    plot.ctx.stroke();
    plot.ctx.restore();
  }

  redraw() { this.plot?.redraw(false); }
}

// A tick by the clock; days where a step is days.
function clock(time, step) {
  const at = new Date(time * 1000);
  if (step >= DAY) return at.toLocaleDateString("en-GB", {day: "numeric", month: "short"});
  return at.toLocaleTimeString("en-GB", {hour: "2-digit", minute: "2-digit", ...(step < 60 ? {second: "2-digit"} : {})});
}

const written = (number, value) => (number === null || number === undefined ? "-" : value(number));
const withAlpha = (colour) => colour.replace(/^rgb\((.*)\)$/, "rgba($1, 0.16)");
