"""How a run ended: with every job that can run, or with some that never will be done, and why."""

from __future__ import annotations

from berth.errors import InputError
from berth.simulate.run import Run
from berth.units import format_count, format_seconds

_NAMED = 5


def unfinished_note(run: Run) -> str | None:
    """One sentence about the jobs that never finish under this policy; None: there are none."""
    if not run.unfinished:
        return None
    named = ", ".join(run.unfinished[:_NAMED]) + (" ..." if len(run.unfinished) > _NAMED else "")
    count = format_count(len(run.unfinished), "job")
    verb = "finishes" if len(run.unfinished) == 1 else "finish"
    return f"{run.policy}: {count} never {verb} ({named}): {_why(run)}; the figures are those of the others"


def _why(run: Run) -> str:
    if run.standstill:
        since = format_seconds(float(run.clock[0]["now"]))
        return (
            f"after {since} nothing gets done, since jobs take each other's place before they have restored "
            "(longer rounds or a lower eviction cost would help)"
        )
    if (run.world.hosts["down"] > 0).any():
        return "machines that they need stay down"
    return "this policy never starts them"


def require_finished(run: Run) -> Run:
    """Refuses a run with jobs left over, where its figures are to be compared with others."""
    note = unfinished_note(run)
    if note is not None:
        raise InputError(note.rsplit(";", 1)[0], hint="a comparison needs the same jobs under every policy")
    return run
