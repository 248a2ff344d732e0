"""How a run ended: with every job that can run, or with some that never finish, and why."""

from __future__ import annotations

from berth.errors import InputError
from berth.simulate.livelock import RESTORING, WAKING
from berth.simulate.run import Run
from berth.units import format_count, format_seconds

_NAMED = 5


def unfinished_note(run: Run) -> str | None:
    """Which jobs never finish under this policy, and why; None: there are none."""
    if not run.unfinished:
        return None
    named = ", ".join(run.unfinished[:_NAMED]) + (" ..." if len(run.unfinished) > _NAMED else "")
    count = format_count(len(run.unfinished), "job")
    verb = "finishes" if len(run.unfinished) == 1 else "finish"
    return f"{run.policy}: {count} never {verb} ({named}): {_why(run)}"


def _why(run: Run) -> str:
    stopped = format_seconds(float(run.clock[0]["now"]))
    if run.livelock == RESTORING:
        return (
            f"stopped at {stopped}, since no progress is made; jobs take each other's place before they have "
            "restored (longer turns or a lower eviction cost would help)"
        )
    if run.livelock == WAKING:
        return (
            f"stopped at {stopped}, since its `wake` asks to be called again and again and nothing happens "
            "(return a time at which an answer changes, or inf)"
        )
    if (run.world.hosts["down"] > 0).any():
        return "machines that they need stay down"
    return "this policy never starts them"


def require_finished(run: Run) -> Run:
    """Refuses a run with jobs left over, where its figures are to be compared with others."""
    note = unfinished_note(run)
    if note is not None:
        raise InputError(note, hint="a comparison needs the same jobs under every policy")
    return run
