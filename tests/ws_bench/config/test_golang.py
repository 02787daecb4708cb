"""Durations and booleans as Go reads and prints them."""

import pytest

from ws_bench.config.golang import format_bool, format_duration, parse_bool, parse_duration
from ws_bench.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("2m27.81s", 147.81),
        ("1m30s", 90.0),
        ("1h", 3600.0),
        ("250ms", 0.25),
        ("1.5h", 5400.0),
        ("100us", 0.0001),
        ("100µs", 0.0001),
        (".5s", 0.5),
        ("0", 0.0),
        ("+3s", 3.0),
    ],
)
def test_reads_a_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "s", "1x", "-5s", "1s ", "1 s", "1s2", "abc", "1..5s"])
def test_refuses_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="invalid duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.0004, "0s"),
        (0.0005, "1ms"),
        (0.853, "853ms"),
        (1.0, "1s"),
        (8.539, "8.539s"),
        (31.816, "31.816s"),
        (31.8, "31.8s"),
        (59.9996, "1m0s"),
        (90.0, "1m30s"),
        (147.81, "2m27.81s"),
        (3600.0, "1h0m0s"),
        (3723.004, "1h2m3.004s"),
    ],
)
def test_prints_a_duration_rounded_to_milliseconds(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_what_is_printed_is_read_back() -> None:
    for millis in (1, 999, 1000, 61_001, 147_810, 3_600_000, 86_399_999):
        assert parse_duration(format_duration(millis / 1000)) == pytest.approx(millis / 1000)


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True"])
def test_reads_true(text: str) -> None:
    assert parse_bool(text) is True


@pytest.mark.parametrize("text", ["0", "f", "F", "false", "FALSE", "False"])
def test_reads_false(text: str) -> None:
    assert parse_bool(text) is False


@pytest.mark.parametrize("text", ["", "yes", "on", "tRUE", "2"])
def test_refuses_other_booleans(text: str) -> None:
    with pytest.raises(UsageError, match="invalid boolean"):
        parse_bool(text)


def test_prints_booleans_in_lower_case() -> None:
    assert (format_bool(True), format_bool(False)) == ("true", "false")
