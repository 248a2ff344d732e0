"""What a device costs others, by hand: the demand for each type, its average over time, and the price of a shape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from berth.schedule.delay_timers import record_wait
from berth.schedule.records import WINDOW
from berth.schedule.scarcity import SHARES, add_demand, price_of, price_shape, set_prices, update_prices
from berth.schedule.totals import charge_user, fill_totals


def plain(kernel: Any) -> Any:
    """The Python function that a kernel is compiled from."""
    return getattr(kernel, "py_func", kernel)


def world_of(**state: Any) -> Any:
    """A world of two device types, of which four and eight devices exist and two and eight are free."""
    known = {
        "device_types": 2,
        "priced_s": 0.0,
        "priced_for": 0,
        "price_version": 0,
        "queue_start": 0,
        "queue_stop": 0,
        "waiting_for": [0, 0],
        "wanted": [0, 0],
        "waiting_below": [0, 0],
        "wanted_below": [0, 0],
        "mean_waiting": [0.0, 0.0],
        "price_s": [0.0, 0.0],
    }
    groups = np.empty((1, 1), object)
    groups[0, 0] = SimpleNamespace(free=[2, 8])
    return SimpleNamespace(
        state=[SimpleNamespace(**{**known, **state})],
        cluster=[SimpleNamespace(devices=[4, 8])],
        groups=groups,
    )


@pytest.mark.parametrize(
    ("job", "waiting", "wanted"),
    [
        # three devices of either type: half a job and one and a half devices for each
        ({"shape": -1, "gpus": 3, "device_type_mask": 0b11}, [1 / 2, 1 / 2], [3 / 2, 3 / 2]),
        ({"shape": -1, "gpus": 3, "device_type_mask": 0b10}, [0, 1], [0, 3]),
        # two of the first type, or one of it and four of the second: half of each shape
        ({"shape": 0, "first_shape": 0, "shape_count": 2}, [1, 1 / 2], [2 / 2 + 1 / 2, 4 / 2]),
        ({"shape": 0, "first_shape": 0, "shape_count": 1}, [1, 0], [2, 0]),
    ],
    ids=["either type", "one type", "two shapes", "one shape"],
)
@pytest.mark.parametrize("more", [1, -1], ids=["joins", "leaves"])
def test_a_job_counts_for_each_type_by_the_share_of_its_choices_that_need_it(job, waiting, wanted, more):
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
    assert world.state[0].mean_waiting == [mean, 0.0]
    assert world.state[0].priced_s == now


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
    assert world.state[0].price_s == [price_s, 0.0]
    assert (world.state[0].priced_for, world.state[0].price_version) == (7, 1)


def shape(*need: int, usd_excess: float = 0.0) -> Any:
    return SimpleNamespace(need=need, usd_excess=usd_excess, priced=0, price_waiting=0.0, price_running=0.0)


@pytest.mark.parametrize(
    ("need", "below", "usd_excess", "waits", "runs"),
    [
        # 3 jobs wait for the first type, 2 on average. A waiting job is one of them: half of 3 - 1 + 2 by device, and
        # of 3 + 2 for one that runs; times 4 and a price of 1/8 s.
        ((1, 0), 0, 0.0, 2.0 * 0.5, 2.5 * 0.5),
        ((2, 0), 0, 0.0, 4.0 * 0.5, 5.0 * 0.5),
        # one waits for the second type, none on average, and its price is 1/2 s
        ((0, 1), 0, 0.0, 0.0, 0.5 * 2.0),
        ((1, 1), 0, 0.0, 1.0, 1.25 + 1.0),
        # a shape in which the work costs 1.5 times more is priced by 0.2 x 1.5 beside
        ((1, 0), 0, 1.5, 1.0 + 0.3, 1.25 + 0.3),
        # one of the three is of lower priority: two count, and two thirds of the average
        ((1, 0), 1, 0.0, 0.5 * (2 - 1 + 4 / 3) * 0.5, 0.5 * (2 + 4 / 3) * 0.5),
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
