"""What a device costs others, by hand: the demand for each type, its average over time, and the price of a shape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from berth.schedule import scarcity
from berth.schedule.delay_timers import record_wait
from berth.schedule.records import WINDOW
from berth.schedule.scarcity import (
    SHARES,
    add_demand,
    count_demand,
    preferred_shape,
    price_of,
    price_shape,
    refuses,
    set_prices,
    size_of,
    update_prices,
)
from berth.schedule.totals import charge_user, fill_totals


def plain(kernel: Any) -> Any:
    """The Python function that a kernel is compiled from."""
    return getattr(kernel, "py_func", kernel)


INTERPRETED = (
    *("usd_left", "size_of", "refuses", "preferred_shape", "add_demand"),
    *("price_shape", "price_of", "price_for"),
)


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels of scarcity.py that call each other, as Python functions."""
    for name in INTERPRETED:
        monkeypatch.setattr(scarcity, name, plain(getattr(scarcity, name)))


def world_of(**prices: Any) -> Any:
    """A world of two device types, of which four and eight devices exist and two and eight are free."""
    known = {
        "priced_s": 0.0,
        "priced_for": 0,
        "price_version": 0,
        "waiting_for": [0, 0],
        "wanted": [0, 0],
        "waiting_below": [0, 0],
        "wanted_below": [0, 0],
        "mean_waiting": [0.0, 0.0],
        "arrivals": 0,
        "mean_usd": 0.0,
        "price_s": [0.0, 0.0],
    }
    groups = np.empty((1, 1), object)
    groups[0, 0] = SimpleNamespace(free=[2, 8])
    return SimpleNamespace(
        state=[SimpleNamespace(device_types=2, queue_start=0, queue_stop=0)],
        scarcity=[SimpleNamespace(**{**known, **prices})],
        cluster=[SimpleNamespace(devices=[4, 8])],
        groups=groups,
    )


@pytest.mark.parametrize(
    ("job", "waiting", "wanted"),
    [
        # three devices of either type: half a job and one and a half devices for each
        ({"shape": -1, "gpus": 3, "device_type_mask": 0b11}, [1 / 2, 1 / 2], [3 / 2, 3 / 2]),
        ({"shape": -1, "gpus": 3, "device_type_mask": 0b10}, [0, 1], [0, 3]),
        # two of the first type, or one of it and four of the second, whichever was best when it joined
        ({"shape": 0, "counted_shape": 0}, [1, 0], [2, 0]),
        ({"shape": 0, "counted_shape": 1}, [1, 1], [1, 4]),
    ],
    ids=["either type", "one type", "one shape", "another shape"],
)
@pytest.mark.parametrize("more", [1, -1], ids=["joins", "leaves"])
def test_a_gang_counts_for_each_type_by_its_share_and_other_jobs_for_those_of_one_shape(
    job, waiting, wanted, more
):
    world = world_of()
    world.jobs, world.shapes = [SimpleNamespace(**job)], [shape(2, 0), shape(1, 4)]
    found = [10 * SHARES, 10 * SHARES], [20 * SHARES, 20 * SHARES]
    plain(add_demand)(world, 0, more, *found)
    assert found == (
        [SHARES * (10 + more * jobs) for jobs in waiting],
        [SHARES * (20 + more * devices) for devices in wanted],
    )


@pytest.mark.parametrize(
    ("now", "mean"),
    [(0.0, 1.0), (1200.0, 1.5), (3600.0, 2.0), (10_800.0, 2.5)],
)
def test_the_demand_is_averaged_over_about_an_hour(now, mean):
    """Three jobs wait where one did on average: of the difference of two, span / (span + 3,600 s) is added."""
    world = world_of(waiting_for=[3 * SHARES, 0], mean_waiting=[1.0, 0.0])
    plain(update_prices)(world, now)
    assert world.scarcity[0].mean_waiting == [mean, 0.0]
    assert world.scarcity[0].priced_s == now


@pytest.mark.parametrize(
    ("wanted", "price_s"),
    [
        (0, 0.0),
        (1, 0.5**4 / 4),  # half of the two free devices
        (2, 1 / 4),
        (9, 1 / 4),  # more than are free: the price of a type that is short
    ],
)
def test_the_price_of_a_type_falls_with_the_fourth_power_of_wanted_by_free_devices(wanted, price_s):
    world = world_of(wanted=[wanted * SHARES, 0])
    plain(set_prices)(world, 7)
    assert world.scarcity[0].price_s == [price_s, 0.0]
    assert (world.scarcity[0].priced_for, world.scarcity[0].price_version) == (7, 1)


def shape(*need: int, usd_excess: float = 0.0) -> Any:
    return SimpleNamespace(need=need, usd_excess=usd_excess, priced=0, price_waiting=0.0, price_running=0.0)


@pytest.mark.parametrize(
    ("need", "below", "usd_excess", "waits", "runs"),
    [
        # 3 jobs wait for the first type, 2 on average. A waiting job is one of them: half of 3 - 1 + 2 by device, and
        # of 3 + 2 for one that runs; times 3 and a price of 1/8 s.
        ((1, 0), 0, 0.0, 2.0 * 0.375, 2.5 * 0.375),
        ((2, 0), 0, 0.0, 4.0 * 0.375, 5.0 * 0.375),
        # one waits for the second type, none on average, and its price is 1/2 s
        ((0, 1), 0, 0.0, 0.0, 0.5 * 1.5),
        ((1, 1), 0, 0.0, 0.75, 0.9375 + 0.75),
        # a shape in which the work costs 1.5 times more is priced by 0.2 x 1.5 beside
        ((1, 0), 0, 1.5, 0.75 + 0.3, 0.9375 + 0.3),
        # one of the three is of lower priority: two count, and two thirds of the average
        ((1, 0), 1, 0.0, 0.5 * (2 - 1 + 4 / 3) * 0.375, 0.5 * (2 + 4 / 3) * 0.375),
    ],
)
def test_a_shape_costs_others_half_of_what_waits_now_and_half_of_the_average(
    need, below, usd_excess, waits, runs
):
    world = world_of(
        price_version=5,
        waiting_for=[3 * SHARES, SHARES],
        waiting_below=[below * SHARES, 0],
        mean_waiting=[2.0, 0.0],
        price_s=[1 / 8, 1 / 2],
    )
    one = shape(*need, usd_excess=usd_excess)
    plain(price_shape)(world, one)
    assert (one.price_waiting, one.price_running) == pytest.approx((waits, runs), rel=1e-14)
    assert plain(price_of)(world, one, True) == one.price_waiting
    assert plain(price_of)(world, one, False) == one.price_running


def choosing(*shapes: Any, left_s: float = 100.0, started: bool = False, **prices: Any) -> Any:
    """A world with one job, described by the first of its shapes; each costs a dollar an hour."""
    world = world_of(**prices)
    named = {"shape": 0, "first_shape": 0, "shape_count": len(shapes), "counted_shape": -1}
    world.jobs = [
        SimpleNamespace(**named, estimated_remaining_s=left_s, first_start_s=5.0 if started else -1.0)
    ]
    world.shapes = [
        SimpleNamespace(**{**vars(one), "usd_per_hour": 1.0, "nearest_tier": 0, "slowdown": [1.0], "gang": 0})
        for one in shapes
    ]
    return world


def timed(unit_s: float, *need: int, excess: float = 0.0) -> Any:
    """A shape on types of its own, in which the work costs `excess` times more than in the cheapest."""
    one = shape(*need, usd_excess=excess)
    one.unit_s, one.type_excess = unit_s, excess
    return one


@pytest.mark.usefixtures("interpreted")
def test_the_size_of_a_job_is_what_its_rest_costs_over_the_mean_of_those_that_arrived():
    """In a shape that costs a quarter more, 100 s of work cost what 80 s cost in the cheapest."""
    world = choosing(timed(1.0, 1, 0, excess=0.25), left_s=100.0, mean_usd=40.0)
    assert plain(size_of)(world, 0) == 2.0
    world.scarcity[0].mean_usd = 0.0  # prices are not known
    assert plain(size_of)(world, 0) == 0.0
    world.scarcity[0].mean_usd, world.shapes[0].gang = 40.0, 1
    assert plain(size_of)(world, 0) == 0.0


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("started", "arrivals", "mean_usd"),
    [(False, 5, 20.0 + 80.0 / 5), (True, 4, 20.0)],
    ids=["arrives", "joins again"],
)
def test_each_arrival_counts_once_in_the_mean(started, arrivals, mean_usd):
    shapes = timed(1.0, 1, 0), timed(1.0, 0, 1)
    world = choosing(*shapes, left_s=100.0, started=started, arrivals=4, mean_usd=20.0)
    world.jobs[0].counted_shape = 0 if started else -1
    plain(count_demand)(world, 0, 1)
    plain(count_demand)(world, 0, -1)
    assert (world.scarcity[0].arrivals, world.scarcity[0].mean_usd) == (arrivals, mean_usd)
    assert world.scarcity[0].waiting_for == [0, 0]


@pytest.mark.parametrize(
    ("size", "excess", "refused"),
    [(1.6, 1.0, False), (1.61, 1.0, True), (9.0, 0.1, False), (9.0, 0.11, True)],
)
def test_a_large_job_refuses_types_on_which_its_work_costs_a_tenth_more(size, excess, refused):
    assert plain(refuses)(SimpleNamespace(type_excess=excess), size) == refused


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("left_s", "excess", "waiting", "preferred"),
    [
        (0.0, 0.05, 0, 0),  # the first takes 10 s a unit, the second 11 s
        # of size 1 an excess of 0.2 counts 0.2 x 0.2 + 0.5 x 0.2 = 0.14: 11.4 s; at 0.1 it is 10.7 s
        (100.0, 0.2, 0, 1),
        (100.0, 0.1, 0, 0),
        # a type that one other job waits for now, none on average: 0.5 x 3 / 10 = 0.15, which is 11.5 s
        (0.0, 0.0, 2, 1),
    ],
)
def test_a_job_counts_for_the_shape_with_the_lowest_cost(left_s, excess, waiting, preferred):
    shapes = timed(10.0, 1, 0, excess=excess), timed(11.0, 0, 1)
    world = choosing(
        *shapes,
        left_s=left_s * (1.0 + excess),
        mean_usd=100.0,
        price_version=1,
        waiting_for=[waiting * SHARES, 0],
        price_s=[1 / 10, 0.0],
    )
    assert plain(preferred_shape)(world, 0, plain(size_of)(world, 0)) == preferred


def test_a_device_that_no_other_job_waits_for_costs_nothing():
    """The only job that waits does not delay itself."""
    world = world_of(waiting_for=[SHARES, 0], price_s=[1 / 4, 0.0])
    one = shape(1, 0)
    plain(price_shape)(world, one)
    assert one.price_waiting == 0.0


def test_the_totals_that_a_hook_reads_count_service_up_to_now():
    """Three devices for 50 s more than the 100 device-seconds at the last change."""
    world = world_of()
    world.users = [SimpleNamespace(devices=[2, 1], gpus=3, gpu_s=100.0, updated_s=10.0)]
    world.quotas = [SimpleNamespace(used=5, allowed=6)]
    world.cluster[0] = SimpleNamespace(device_types=2, free=[0, 0], user_devices=[0, 0])
    for quota, used, limit in ((0, 5, 6), (-1, 0, 0)):
        plain(fill_totals)(world, SimpleNamespace(user=0, quota=quota), 60.0)
        cluster = world.cluster[0]
        assert (cluster.free, cluster.user_devices, cluster.user_gpus) == ([2, 8], [2, 1], 3)
        assert cluster.user_gpu_s == 100.0 + 3 * 50.0
        assert (cluster.quota_gpus, cluster.quota_limit) == (used, limit)


def test_waits_fill_a_window_and_then_replace_the_oldest():
    stats = SimpleNamespace(at_s=[0.0] * WINDOW, wait_s=[0.0] * WINDOW, gave_up=[0] * WINDOW, next=0, count=0)
    for number in range(WINDOW + 2):
        plain(record_wait)(stats, 10.0 * number, number % 2, 100.0 + number)
        assert stats.count == min(number + 1, WINDOW)
    assert stats.next == 2
    expected = [WINDOW, WINDOW + 1, *range(2, WINDOW)]
    assert stats.wait_s == [10.0 * number for number in expected]
    assert stats.at_s == [100.0 + number for number in expected]
    assert stats.gave_up == [number % 2 for number in expected]


@pytest.mark.parametrize(("now", "gpu_s"), [(10.0, 100.0), (60.0, 100.0 + 3 * 50.0), (5.0, 100.0)])
def test_service_is_counted_up_to_a_change_of_what_a_user_holds(now, gpu_s):
    """Three devices were held since 10 s; a job of two more starts on type 1."""
    user = SimpleNamespace(devices=[2, 1], gpus=3, gpu_s=100.0, updated_s=10.0)
    world = SimpleNamespace(
        users=[user],
        jobs=[SimpleNamespace(user=0, vector=0, first_place=0)],
        places=[SimpleNamespace(host=4)],
        hosts={4: SimpleNamespace(device_type=1)},
    )
    plain(charge_user)(world, 0, 2, now)
    assert (user.gpu_s, user.updated_s, user.gpus, user.devices) == (gpu_s, max(now, 10.0), 5, [2, 3])
    plain(charge_user)(world, 0, -2, now)
    assert (user.gpu_s, user.gpus, user.devices) == (gpu_s, 3, [2, 1])
