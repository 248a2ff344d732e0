"""Shell completion: names known to berth or to a controller. Never raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def completer(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a completer for these names; it offers none if they are unavailable."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names() if name.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - a completion has nowhere to show an error
            return []

    return complete


def _clusters() -> Iterable[str]:
    from berth.cluster.load import presets

    return presets()


def _devices() -> Iterable[str]:
    from berth.cluster.catalogue import known_devices

    return known_devices()


def _policies() -> Iterable[str]:
    from berth.schedule.policies.registry import policy_names

    return policy_names()


def _models() -> Iterable[str]:
    from berth.workload.profiles import profile_names

    return profile_names()


def _zoo() -> Iterable[str]:
    from berth.zoo import zoo

    return zoo()


def _jobs() -> Iterable[str]:
    from berth.cli.live_options import Controller

    return [row["id"] for row in Controller().client().get("jobs", limit=200)["jobs"]]


def _machines() -> Iterable[str]:
    from berth.cli.live_options import Controller

    return [machine["name"] for machine in Controller().client().get("cluster")["machines"]]


clusters, devices, policies = completer(_clusters), completer(_devices), completer(_policies)
models, zoo = completer(_models), completer(_zoo)
jobs, machines = completer(_jobs), completer(_machines)
