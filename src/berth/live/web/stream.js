// Server-sent events over fetch: EventSource can't send a token, and a token does not belong into an address.

import {open} from "./api.js";

const SILENT_MS = 40_000; // the server says something at least every 15 s

// Calls `tell(seq, record)` for each event until the stream ends; throws when it breaks.
export async function listen(after, opened, tell) {
  const stop = new AbortController();
  let silence = setTimeout(() => stop.abort(), SILENT_MS);
  try {
    const response = await open("events", {"Last-Event-ID": String(after)}, stop.signal);
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
        if (event && tell(event) === false) { stop.abort(); return; }
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
