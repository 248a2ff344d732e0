// @ts-check
// Formats numbers as the terminal and the reports do.

const MINUTE = 60, HOUR = 3600, DAY = 86400;
const UNITS = [{big: DAY, unit: "d", small: HOUR, smaller: "h"}, {big: HOUR, unit: "h", small: MINUTE, smaller: "m"}, {big: MINUTE, unit: "m", small: 1, smaller: "s"}];

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return "-";
  const s = Math.round(seconds);
  if (s < 60) return seconds > 0 && seconds < 0.5 ? "<1s" : `${s}s`; // half a second more or less does not matter
  for (const {big, unit, small, smaller} of UNITS) {
    if (s >= big) {
      const whole = Math.round(s / small) * small, rest = Math.round((whole % big) / small);
      return `${Math.floor(whole / big)}${unit}${rest ? rest + smaller : ""}`;
    }
  }
  return "0s";
}

// How long ago something was, to the minute.
export function since(seconds) {
  if (seconds < 45) return "just now";
  return `${duration(Math.max(MINUTE, Math.round(seconds / MINUTE) * MINUTE))} ago`;
}

const two = (value) => String(Math.floor(value)).padStart(2, "0");

// A point in time: by the clock if the cluster is live, since the start if it is simulated.
export function moment(time, live) {
  if (time === null || time === undefined) return "-";
  if (!live) {
    const s = Math.max(0, Math.round(time));
    return `${s >= DAY ? `${Math.floor(s / DAY)}d ` : ""}${two((s % DAY) / HOUR)}:${two((s % HOUR) / MINUTE)}:${two(s % MINUTE)}`;
  }
  const at = new Date(time * 1000), clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  if (at.toDateString() === new Date().toDateString()) return clock;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock}`;
}

export const count = (value) => Math.round(value).toLocaleString("en");
export const percent = (share) => `${Math.round(share * 100)}%`;
export const plural = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;

// The devices of a job: GPUs and cores apart, where it asks for both.
export function devices(job) {
  if (!job.cores) return plural(job.gpus, "device");
  return job.gpus ? `${plural(job.gpus, "GPU")} and ${plural(job.cores, "core")}` : plural(job.cores, "core");
}

export function usd(value) {
  if (value === null || value === undefined) return "-";
  return `$${value >= 100 ? count(value) : value.toFixed(2)}`;
}

export function ahead(time, now) {
  if (time === null || time === undefined) return "-";
  return time <= now + 0.5 ? "now" : `in ${duration(time - now)}`;
}
