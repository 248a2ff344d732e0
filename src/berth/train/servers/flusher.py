"""Sending on what a socket did not take at once, while the worker computes."""

from __future__ import annotations

import select
import threading

from berth.train.servers.channel import Channel

_PAUSE_MS = 200  # then another connection has its turn


class Flusher:
    """A thread that sends on what a socket did not take at once, while the worker computes. It never spins."""

    def __init__(self) -> None:
        self._waiting: set[Channel] = set()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._open = True

    def watch(self, channel: Channel) -> None:
        """Send on what this connection has left, if anything."""
        if not channel.has_outgoing:
            return
        with self._change:
            self._waiting.add(channel)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="berth-flusher", daemon=True)
                self._thread.start()
            self._change.notify()

    def close(self) -> None:
        """End the thread."""
        with self._change:
            self._open = False
            self._change.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or not self._open)
                if not self._open:
                    return
                channels = list(self._waiting)
            for channel in channels:
                broken = not self._sends(channel)
                with self._change:
                    if broken or not channel.has_outgoing:
                        self._waiting.discard(channel)

    @staticmethod
    def _sends(channel: Channel) -> bool:
        """Send some; a connection that is broken is for the worker to notice."""
        try:
            poll = select.poll()
            poll.register(channel, select.POLLOUT)
            poll.poll(_PAUSE_MS)
            channel.flush()
        except (OSError, ValueError):
            return False
        return True
