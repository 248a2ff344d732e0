"""A real `berth up`, forked from the process that has imported what it needs (preloaded.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from berth.testing.up import Up
from preloaded import forking, programs


class ForkedUp(Up):
    """A controller on this machine; its commands are forked, too."""

    def __init__(self, state: Path, *options: str) -> None:
        super().__init__(state, *options)
        self.program = [str(programs() / "berth")]

    def start(self) -> Self:
        with forking():
            return super().start()
