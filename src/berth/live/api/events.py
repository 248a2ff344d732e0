"""Server-sent events: every committed record, in order, from where a listener left off."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from berth.live.controller import Controller
from berth.live.records import Record

_KEPT = 2_000  # records for listeners that reconnect
_MOST_BEHIND = 5_000  # records that a listener may be behind
_KEEP_ALIVE_S = 15.0
Numbered = tuple[int, Record]
Queue = asyncio.Queue[Numbered | None]


class Events:
    """Passes records from the controller's thread to listeners."""

    def __init__(self, controller: Controller) -> None:
        self._kept: deque[Numbered] = deque(maxlen=_KEPT)
        self._next = controller.store.seq + 1  # number of the first record that is passed on
        self._listeners: dict[Queue, asyncio.AbstractEventLoop] = {}
        controller.listeners.append(self._on_commit)

    def _on_commit(self, first: int, records: Sequence[Record]) -> None:
        numbered = list(enumerate(records, first))
        self._kept.extend(numbered)
        for queue, loop in list(self._listeners.items()):
            with contextlib.suppress(RuntimeError):  # its loop has just been closed
                loop.call_soon_threadsafe(self._put, queue, numbered)

    def _put(self, queue: Queue, numbered: Sequence[Numbered]) -> None:
        for one in numbered:
            if queue.qsize() >= _MOST_BEHIND:
                self._listeners.pop(queue, None)
                queue.put_nowait(None)  # too slow: it reconnects and continues where it stopped
                return
            queue.put_nowait(one)

    async def stream(self, after: int | None) -> AsyncIterator[str]:
        """Yield the text of an event stream; `after` is the number of the listener's last record."""
        queue: Queue = asyncio.Queue()
        # before reading _kept: duplicates are dropped below
        self._listeners[queue] = asyncio.get_running_loop()
        kept = list(self._kept)
        missed = [one for one in kept if after is not None and one[0] > after]
        last = after or 0
        try:
            yield "retry: 1000\n\n"
            if after is not None and (kept[0][0] if kept else self._next) > after + 1:
                yield 'event: gap\ndata: {"reason": "older records are in the journal only"}\n\n'
            for seq, record in missed:
                last = seq
                yield _event(seq, record)
            while True:
                try:
                    one = await asyncio.wait_for(queue.get(), _KEEP_ALIVE_S)
                except TimeoutError:
                    yield ": alive\n\n"
                    continue
                if one is None:
                    return
                if one[0] > last:
                    yield _event(*one)
        finally:
            self._listeners.pop(queue, None)


def _event(seq: int, record: Record) -> str:
    data = json.dumps(public(record), separators=(",", ":"))
    return f"id: {seq}\nevent: {record.kind}\ndata: {data}\n\n"


def public(record: Record) -> dict[str, Any]:
    """Return a record without what only the owner of the job may read."""
    body = record.body
    if record.kind == "submitted":
        spec = {name: body["spec"].get(name) for name in ("name", "gpus", "priority", "model", "restarts")}
        if isinstance(spec["model"], dict):
            spec["model"] = spec["model"].get("name", "inline")
        public_spec = {name: value for name, value in spec.items() if value is not None}
        body = {"user": body["user"], "spec": public_spec}
    elif record.kind == "opened":
        body = {"policy": body["policy"]}
    return {"time": record.time, "kind": record.kind, "job": record.job} | body
