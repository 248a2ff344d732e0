"""The devices of each attempt, by number: as assigned, and as still held.

A device is *given* to the attempt that was decided last, and *held* by every attempt on it that has not ended. A pass
assigns devices before their holders have left, so the two differ for a while.
"""

from __future__ import annotations

from collections.abc import Iterable

from berth.cluster.model import Cluster
from berth.live.job import Seat

Device = tuple[int, int]  # machine, number


class Devices:
    """All devices of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._numbers: dict[tuple[int, int], range] = {}
        for index, machine in enumerate(cluster.machines):
            first = 0
            for kind, count in machine.devices:
                self._numbers[index, kind] = range(first, first + count)
                first += count
        self._given: dict[Device, str] = {}
        self._held: dict[Device, list[str]] = {}
        self.blocked: dict[
            int, tuple[int, ...]
        ] = {}  # by machine: held by attempts that the journal does not know

    def block(self, machine: int, numbers: Iterable[int]) -> None:
        """Set which devices of a machine are held by attempts that the journal does not know."""
        self.blocked[machine] = tuple(numbers)
        if not self.blocked[machine]:
            del self.blocked[machine]

    def count_blocked(self, machine: int, kind: int) -> int:
        """Return how many devices of one type on a machine are blocked."""
        return len({*self.blocked.get(machine, ())} & {*self._numbers.get((machine, kind), ())})

    def has(self, machine: int, kind: int, numbers: Iterable[int]) -> bool:
        """Whether a machine has these devices of this type."""
        return set(numbers) <= set(self._numbers.get((machine, kind), ()))

    def free(self, machine: int, kind: int) -> list[int]:
        """Return the devices of one type on a machine that are not given to an attempt."""
        return [n for n in self._numbers.get((machine, kind), ()) if (machine, n) not in self._given]

    def pick(self, machine: int, kind: int, count: int) -> Seat:
        """Return the lowest free numbers; those that no attempt holds first, blocked ones last."""
        blocked, free = self.blocked.get(machine, ()), self.free(machine, kind)
        free.sort(key=lambda number: (number in blocked, (machine, number) in self._held, number))
        assert len(free) >= count, f"machine {machine} has {len(free)} free devices of {count}"
        return Seat(machine, kind, tuple(sorted(free[:count])))

    def give(self, token: str, seats: Iterable[Seat]) -> None:
        """Assign devices to a new attempt."""
        for device in _devices(seats):
            assert device not in self._given, f"device {device} is assigned twice"
        self.restore(token, seats, given=True)

    def restore(self, token: str, seats: Iterable[Seat], *, given: bool) -> None:
        """Restore an attempt; those decided earlier come first."""
        for device in _devices(seats):
            if given:
                self._given[device] = token
            self._held.setdefault(device, []).append(token)

    def take_back(self, token: str, seats: Iterable[Seat]) -> None:
        """Unassign the devices of an attempt, which may still hold them."""
        for device in _devices(seats):
            if self._given.get(device) == token:
                del self._given[device]

    def left(self, token: str, seats: Iterable[Seat]) -> None:
        """Remove an attempt that has ended."""
        for device in _devices(seats):
            holders = self._held[device]
            holders.remove(token)
            if not holders:
                del self._held[device]

    def ahead(self, token: str, seats: Iterable[Seat]) -> list[str]:
        """Return the attempts that must end before this one is launched."""
        found: dict[str, None] = {}
        for device in _devices(seats):
            holders = self._held[device]
            found |= dict.fromkeys(holders[: holders.index(token)])
        return list(found)

    def holders(self) -> dict[int, dict[int, str]]:
        """Return by machine the attempt that each device is given to."""
        found: dict[int, dict[int, str]] = {}
        for (machine, number), token in self._given.items():
            found.setdefault(machine, {})[number] = token
        return found


def _devices(seats: Iterable[Seat]) -> Iterable[Device]:
    return ((seat.machine, number) for seat in seats for number in seat.devices)
