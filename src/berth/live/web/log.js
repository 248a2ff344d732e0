// What a member of the gang writes, as it writes it.

import {getText} from "./api.js";
import {el} from "./dom.js";

const KEPT = 300_000, PIECE = 1 << 18; // characters on the page, bytes at once

export function logPanel(id) {
  const rank = el("input", {type: "number", min: 0, value: 0, id: "rank", onchange: () => restart()});
  const attempt = el("select", {id: "attempt", onchange: () => restart()});
  const follow = el("input", {type: "checkbox", checked: true, id: "follow"});
  const text = el("pre", {class: "log", tabindex: "0", "aria-label": "log"});
  const node = el("div", {}, el("div", {class: "title"}, el("h2", {text: "Log"}),
    el("label", {}, "attempt ", attempt), el("label", {}, "rank ", rank), el("label", {}, follow, " follow")), text);
  let offset = 0, round = 0, timer = 0, ended = false, quiet = 0;

  async function read(mine) {
    if (!attempt.value) { again(mine, 1000); return; }
    try {
      const query = `attempt=${attempt.value}&rank=${Number(rank.value) || 0}&offset=${offset}&limit=${PIECE}`;
      const [piece, next] = await getText(`jobs/${encodeURIComponent(id)}/logs?${query}`);
      if (mine !== round) return;
      if (piece) add(piece);
      quiet = piece ? 0 : quiet + 1;
      offset = next;
      if (!ended || quiet < 3) again(mine, piece.length >= PIECE / 2 ? 0 : 1000);
    } catch (error) {
      if (mine !== round) return;
      if (!text.textContent) text.textContent = error.message;
      again(mine, 3000);
    }
  }

  function again(mine, ms) { timer = setTimeout(() => { if (mine === round) read(mine); }, ms); }

  function add(piece) {
    const all = text.textContent.length ? text.textContent + piece : piece;
    text.textContent = all.length > KEPT ? `…${all.slice(-KEPT)}` : all;
    if (follow.checked) text.scrollTop = text.scrollHeight;
  }

  function restart() {
    round++;
    clearTimeout(timer);
    offset = quiet = 0;
    text.textContent = "";
    read(round);
  }

  return {
    node,
    about(job) {
      const per = job.spec?.per === "machine" ? new Set((job.places || []).map((place) => place.machine)).size || job.gpus : job.gpus;
      rank.max = per - 1;
      const over = ["finished", "failed", "cancelled"].includes(job.state), resumed = ended && !over;
      ended = over;
      if (attempt.childElementCount === job.attempts && !resumed) return;
      const newest = !attempt.value || Number(attempt.value) === attempt.childElementCount;
      while (attempt.childElementCount < job.attempts) attempt.append(el("option", {text: String(attempt.childElementCount + 1)}));
      if (newest && job.attempts) { attempt.value = String(job.attempts); restart(); }
    },
    destroy() { round++; clearTimeout(timer); },
  };
}
