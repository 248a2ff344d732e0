"""What a user may ask for a job; an admin may ask for anything that the job's schema allows."""

from __future__ import annotations

from dataclasses import dataclass

from berth.errors import InputError
from berth.live.spec import JobSpec
from berth.units import format_seconds


class DeniedError(InputError):
    """The caller may not do this."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that a user may ask for."""

    priority: int = 0
    grace_s: float = 600.0
    restarts: int = 100

    def check(self, spec: JobSpec) -> None:
        """Refuse a user's job that asks for more, and say what is allowed."""
        for name, asked, most in (
            ("priority", spec.priority, self.priority),
            ("restarts", spec.restarts, self.restarts),
        ):
            if asked > most:
                raise DeniedError(f"a user's {name} is at most {most}, and {asked} is asked for", hint=_HINT)
        if spec.grace > self.grace_s:
            raise DeniedError(
                f"a user's grace is at most {format_seconds(self.grace_s)}, "
                f"and {format_seconds(spec.grace)} is asked for",
                hint=_HINT,
            )


_HINT = "an admin may ask for more; `berth up` sets these bounds"
