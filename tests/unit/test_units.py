"""Quantities are read and printed as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth import units
from berth.errors import QuantityError

READ = [
    (units.bytes_per_second, "25GB/s", 25e9),
    (units.bytes_per_second, "400Gbit/s", 50e9),
    (units.bytes_per_second, "400 Gbps", 50e9),
    (units.bytes_per_second, "1GiB/s", 2**30),
    (units.seconds, "936ns", 936e-9),
    (units.seconds, "1us", 1e-6),
    (units.seconds, "12h", 43_200),
    (units.seconds, "1h30m", 5_400),
    (units.seconds, "2d 6h", 194_400),
    (units.seconds, "1e3s", 1000),
    (units.seconds, "0", 0),
    (units.seconds, 0, 0),
    (units.size_bytes, "80GiB", 80 * 2**30),
    (units.size_bytes, "340MB", 340_000_000),
    (units.size_bytes, "1_000kB", 1_000_000),
    (units.usd_per_hour, "$2.42/h", 2.42),
    (units.usd_per_hour, "$ 24/d", 1.0),
    (units.flops, "312TFLOPS", 312e12),
    (units.per_second, "100k/s", 1e5),
    (units.per_second, 1500, 1500),
]


@pytest.mark.parametrize(("read", "text", "value"), READ, ids=[str(text) for _, text, _ in READ])
def test_reads_what_people_write(read, text, value):
    assert read(text) == pytest.approx(value, rel=1e-12)


REFUSED = [
    (units.bytes_per_second, "25", "has no unit"),
    (units.bytes_per_second, 25, "has no unit"),
    (units.bytes_per_second, "25GB", "is not a bandwidth: unit 'GB'"),
    (units.bytes_per_second, "25gb/s", "is not a bandwidth"),
    (units.seconds, "12 parsecs", "is not a duration: unit 'parsecs'"),
    (units.seconds, "h", "is not a duration"),
    (units.seconds, "", "is not a duration"),
    (units.seconds, "1h30", "is not a duration"),
    (units.seconds, True, "is not a duration"),
    (units.seconds, None, "is not a duration"),
    (units.seconds, "nan", "is not a duration"),
    (units.seconds, "1e400s", "is not a duration"),
    (units.seconds, "1e308w", "is not a duration: too large"),
    (units.size_bytes, "1e300EB", "is not a size: too large"),
    (units.usd_per_hour, "2.42/h", "is not a price"),
    (units.usd_per_hour, "€2.42/h", "is not a price"),
    (units.size_bytes, "$80GiB", "is not a size"),
]


@pytest.mark.parametrize(("read", "text", "complaint"), REFUSED, ids=[str(text) for _, text, _ in REFUSED])
def test_refuses_ambiguous_text_and_shows_an_example(read, text, complaint):
    with pytest.raises(QuantityError, match="write it like") as caught:
        read(text)
    assert complaint in caught.value.what


PRINTED = [
    (units.format_seconds, 0, "0s"),
    (units.format_seconds, 1.67e-15, "0s"),
    (units.format_seconds, 936.25e-9, "936ns"),
    (units.format_seconds, 0.0005, "500us"),
    (units.format_seconds, 1.25, "1.25s"),
    (units.format_seconds, 59.99, "1m"),
    (units.format_seconds, 3599, "59m59s"),
    (units.format_seconds, 3600, "1h"),
    (units.format_seconds, 9000, "2h30m"),
    (units.format_seconds, 90_061, "1d1h"),
    (units.format_seconds, -90, "-1m30s"),
    (units.format_seconds, math.inf, "never"),
    (units.format_bytes, 80 * 2**30, "80GiB"),
    (units.format_bytes, 340_000_000, "340MB"),
    (units.format_bytes, 0, "0B"),
    (units.format_bandwidth, 25e9, "25GB/s"),
    (units.format_bandwidth, 0.9999e9, "1GB/s"),
    (units.format_usd_per_hour, 2.42, "$2.42/h"),
    (units.format_usd_per_hour, 12_345.6, "$12345.60/h"),
    (units.format_usd, 1_234.5, "$1,234.50"),
    (units.format_usd, 0.0012, "$0.0012"),
    (units.format_flops, 312e12, "312TFLOPS"),
    (units.format_rate, 1e5, "100k/s"),
]


@pytest.mark.parametrize(("show", "value", "text"), PRINTED, ids=[text for _, _, text in PRINTED])
def test_prints_the_same_way(show, value, text):
    assert show(value) == text


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_a_printed_duration_can_be_read_again(value):
    assert units.seconds(units.format_seconds(value)) == pytest.approx(value, rel=0.02)


@given(st.floats(min_value=1.0, max_value=1e18))
def test_a_printed_bandwidth_can_be_read_again(value):
    assert units.bytes_per_second(units.format_bandwidth(value)) == pytest.approx(value, rel=0.01)


@given(st.integers(min_value=1, max_value=2**60))
def test_a_printed_size_can_be_read_again(value):
    assert units.size_bytes(units.format_bytes(value)) == pytest.approx(value, rel=0.01)


@given(st.floats(min_value=1e-6, max_value=1e9))
def test_a_printed_price_can_be_read_again(value):
    assert units.usd_per_hour(units.format_usd_per_hour(value)) == pytest.approx(value, rel=0.01, abs=0.006)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2.0),
        ("1", 1.0),
        ("3", 3.0),
        ("3.5", None),
        ("nan", None),
        ("inf", None),
        ("two", None),
        ("", None),
    ],
)
def test_a_number_is_within_its_bounds_or_none(text, value):
    assert units.number_between(text, 1, 3) == value
