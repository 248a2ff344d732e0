"""Whether the choice of devices depends on times that are not certain, and how much longer they would have to be."""

from __future__ import annotations

from collections.abc import Iterator

from berth.plan.candidates import QUICK
from berth.plan.plan import Plan
from berth.plan.rental import uncertainties, with_times_scaled
from berth.plan.search.exact import exact
from berth.plan.stage_reasons import device_mix, slowest

_HALVINGS = 5  # of the uncertainty: to a thirtieth of it


def flips(plan: Plan, second: Plan) -> Iterator[str]:
    """Yield a sentence if the next best plan costs so little more that the uncertainty of times covers it."""
    found = uncertainties(plan.problem)
    used = {*plan.worker_counts, *second.worker_counts}
    widest = max((spread for name, spread in found.items() if name in used), default=0.0)
    if widest == 0.0 or second.cost_usd / plan.cost_usd - 1 >= widest:
        return
    name = plan.stages[slowest(plan)].type_name
    if (flip := _flip(plan, name, found.get(name, 0.0))) is None:
        yield f"That is within the uncertainty of the times (±{widest:.0%}): the choice may flip."
        return
    longer, other = flip
    yield (
        f"That is within the uncertainty of the times: the choice flips to {device_mix(other)} if those of {name} are "
        f"about {longer:.0%} longer than assumed."
    )


def _flip(plan: Plan, name: str, spread: float) -> tuple[float, Plan] | None:
    """Return by what share times of a type have to be longer for another choice of types, and that choice."""
    low, high = 0.0, spread
    if (other := _other_choice(plan, name, high)) is None:
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if (found := _other_choice(plan, name, middle)) is None:
            low = middle
        else:
            high, other = middle, found
    return high, other


def _other_choice(plan: Plan, name: str, longer: float) -> Plan | None:
    """Return the optimum if the times of a type are longer; None if its stages run on the same types."""
    best = exact(with_times_scaled(plan.problem, {name: 1 + longer}), QUICK).plan
    return best if best and set(best.worker_counts) != set(plan.worker_counts) else None
