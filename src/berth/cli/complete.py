"""Shell completion: names known to berth or to a controller. Never raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module

Names = Callable[[], Iterable[str]]


def completer(names: Names) -> Callable[[str], list[str]]:
    """Return a completer for these names; it offers none if they are unavailable."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names() if name.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - a completion has nowhere to show an error
            return []

    return complete


def _of(module: str, function: str) -> Names:
    """Names that a function of berth returns, imported only if a shell asks."""

    def names() -> Iterable[str]:
        return getattr(import_module(f"berth.{module}"), function)()  # type: ignore[no-any-return]

    return names


def _live(path: str, key: str, name: str, **query: int) -> Names:
    """Names in an answer of the controller."""

    def names() -> Iterable[str]:
        from berth.cli.live_options import Controller

        return [row[name] for row in Controller().client().get(path, **query)[key]]

    return names


clusters = completer(_of("cluster.load", "presets"))
devices = completer(_of("cluster.catalogue", "known_devices"))
policies = completer(_of("schedule.policies.registry", "policy_names"))
models = completer(_of("workload.profiles", "profile_names"))
zoo = completer(_of("zoo", "zoo"))
jobs = completer(_live("jobs", "jobs", "id", limit=200))
machines = completer(_live("cluster", "machines", "name"))
