"""The controller's numbers in the text that Prometheus reads."""

from __future__ import annotations

from berth.live import views
from berth.live.controller import Controller

_HELP = {
    "berth_jobs": "Jobs that are not over, by state.",
    "berth_devices": "Devices, by what is done with them.",
    "berth_submitted_total": "Jobs taken since the journal began.",
    "berth_passes_total": "Scheduling passes since this controller started.",
    "berth_pass_seconds": "Seconds that the last pass took.",
    "berth_journal_records": "Records in the journal.",
    "berth_machines_shut": "Machines that take no jobs, by why.",
    "berth_backend_up": "1 if the back end answered when it was last asked.",
    "berth_timer_seconds": "How long jobs of a size hold out for a tier.",
}
_TYPES = {"berth_submitted_total": "counter", "berth_passes_total": "counter"}


def metrics_text(controller: Controller) -> str:
    """All of them."""
    books = controller.books
    counts = views.counts(books)
    shut: dict[str, int] = {"lost": 0, "drained": 0, "closed": 0}
    for reasons in books.shut:
        for reason in reasons:
            shut[reason] += 1
    busy = counts["devices"] - counts["free"] - counts["shut"]
    rows: dict[str, list[tuple[str, float]]] = {
        "berth_jobs": [(f'{{state="{state}"}}', counts[state]) for state in ("queued", "delayed", "placed")],
        "berth_devices": [
            ('{use="busy"}', max(0, busy)),
            ('{use="free"}', counts["free"]),
            ('{use="shut"}', counts["shut"]),
        ],
        "berth_submitted_total": [("", books.submitted)],
        "berth_passes_total": [("", controller.passes)],
        "berth_pass_seconds": [("", controller.pass_s)],
        "berth_journal_records": [("", controller.store.seq)],
        "berth_machines_shut": [(f'{{why="{why}"}}', number) for why, number in shut.items()],
        "berth_backend_up": [("", 0 if controller.trouble else 1)],
        "berth_timer_seconds": _timers(controller),
    }
    lines: list[str] = []
    for name, values in rows.items():
        lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} {_TYPES.get(name, 'gauge')}"]
        lines += [f"{name}{labels} {value!r}" for labels, value in values]
    return "\n".join(lines) + "\n"


def _timers(controller: Controller) -> list[tuple[str, float]]:
    books = controller.books
    found = []
    for at, gpus in enumerate(books.world.demands["gpus"].tolist()):
        for tier, name in enumerate(books.setup.tiers):
            if gpus > 0:
                timer = float(books.world.wait_stats["timer_s"][at, tier])
                found.append((f'{{gpus="{gpus}",tier="{_escaped(name)}"}}', timer))
    return found


def _escaped(text: str) -> str:
    """A name as the value of a label."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
