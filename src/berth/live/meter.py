"""Step times of jobs: as they report them, or as a pattern finds them in their log.

Measurements go into their own table. The scheduler learns of them by a journal record, written only when a mean has
changed enough, so that a replay learns of them at the same time.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import regex

from berth.live import commands
from berth.live.controller import Controller
from berth.live.demand import sensitivity_key
from berth.live.folder import Folder
from berth.live.records import Record
from berth.live.store import StoreError

_log = logging.getLogger("berth.live")
_ENOUGH = 10  # steps before a mean is used
_NEWS = 0.05  # share by which a mean must differ from the known one
_MOST = 1 << 20  # bytes read of a file at a time
_LINE = 4096  # characters of a line that a pattern is tried on
_PATTERN_TIMEOUT_S = 0.1  # for one line
_READS_AFTER_END = 2  # the folder may be moved to the ended ones during the first


@dataclass(slots=True)
class _Reading:
    """An attempt, how far its files have been read, and the steps found so far."""

    job: str
    tier: int
    key: str  # of jobs that share its measurements
    pattern: str | None  # of steps in its log
    is_learned: bool  # not with alternatives, which state their own times
    reads_after_end: int = 0
    report_at: int = 0
    log_at: int = 0
    count: int = 0
    seconds: float = 0.0
    gave_up: bool = False  # its pattern takes too long


class Meter:
    """Reads the folders of attempts, from their launch until their end is recorded."""

    def __init__(self, controller: Controller, root: Path) -> None:
        self._controller, self._root = controller, root
        self._readings: dict[str, _Reading] = {}
        controller.listeners.append(lambda _, records: self._follow(records))
        with controller.lock:
            self._add(controller.state.attempts)

    def _follow(self, records: Sequence[Record]) -> None:
        """Take note of launches, also of attempts that end before they are read."""
        self._add([record.body["token"] for record in records if record.kind == "launch"])

    def _add(self, tokens: Iterable[str]) -> None:
        state = self._controller.state
        for token in tokens:
            if (attempt := state.attempts.get(token)) is None or token in self._readings:
                continue
            spec = state.jobs[attempt.job].spec
            key, is_learned = sensitivity_key(state.setup, spec), spec.offer is None
            self._readings[token] = _Reading(attempt.job, attempt.tier, key, spec.step_pattern, is_learned)

    def read(self) -> None:
        """Read the new step times of every attempt."""
        with self._controller.lock:
            state = self._controller.state
            readings, alive = dict(self._readings), set(state.attempts)
            known = {key: dict(tiers) for key, tiers in state.step_s.items()}
            now = state.now
        rows = []
        for token, reading in readings.items():
            if token not in alive:
                reading.reads_after_end += 1
            before = reading.count
            self._read(Folder(self._root, token), reading)
            if reading.count == before or reading.count < _ENOUGH:
                continue
            mean = reading.seconds / reading.count
            rows.append((now, reading.key, reading.job, reading.tier, reading.count, mean))
            old = known.get(reading.key, {}).get(reading.tier)
            if reading.is_learned and (old is None or abs(mean - old) > _NEWS * old):
                self._controller.ask(commands.learn(reading.key, reading.tier, mean))
        for token, reading in readings.items():
            if reading.reads_after_end >= _READS_AFTER_END:
                del self._readings[token]
        if rows:
            self._keep(rows)

    def _keep(self, rows: list[tuple[float, str, str, int, int, float]]) -> None:
        try:
            self._controller.store.note_steps(rows)
        except StoreError:
            return  # measurements may be lost: no decision depends on them

    def _read(self, folder: Folder, reading: _Reading) -> None:
        reading.report_at, lines = _new_lines(folder.steps, reading.report_at)
        for count, seconds in _reported(lines):
            reading.count += count
            reading.seconds += count * seconds
        if reading.pattern is None or reading.gave_up:
            return
        reading.log_at, lines = _new_lines(folder.log(0), reading.log_at)
        try:
            for seconds in _found(lines, reading.pattern):
                reading.count += 1
                reading.seconds += seconds
        except TimeoutError:
            reading.gave_up = True
            _log.warning(
                "%s: its step_pattern takes too long on a line of its log and is ignored",
                folder.path.name,
            )


def _new_lines(path: Path, at: int) -> tuple[int, list[str]]:
    """Return the offset after the last complete line, and the lines added before it."""
    try:
        with path.open("rb") as file:
            file.seek(at)
            data = file.read(_MOST)
    except OSError:
        return at, []
    whole = data.rfind(b"\n") + 1
    if not whole and len(data) == _MOST:
        return at + len(data), []  # a line without an end
    return at + whole, data[:whole].decode(errors="replace").splitlines()


def _reported(lines: list[str]) -> Iterator[tuple[int, float]]:
    for line in lines:
        try:
            row = json.loads(line)
            count, seconds = int(row["count"]), float(row["seconds"])
        except (ValueError, KeyError, TypeError):
            continue  # a job may write anything
        if count > 0 and 0 < seconds < math.inf:
            yield count, seconds


def _found(lines: list[str], pattern: str) -> Iterator[float]:
    search = regex.compile(pattern).search
    for line in lines:
        match = search(line[:_LINE], timeout=_PATTERN_TIMEOUT_S)
        if match is None:
            continue
        named = match.groupdict()
        try:
            value = float(named.get("seconds") or named.get("per_second") or "")
        except ValueError:
            continue
        if 0 < value < math.inf:
            yield value if named.get("seconds") else 1.0 / value
