"""Distributions since the start: percentiles between two looks, and bounds of the buckets beside them."""

import json
import urllib.request
from array import array
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Histogram

from backend_kit.kpi import Kpi
from backend_kit.kpi.exposition import MetricsServer
from backend_kit.kpi.rollup import FOLD_ABOVE, Distribution, Rollup, Seen, nearest_rank
from tests.support.patience import PATIENCE_S


def values_of(seen: Seen) -> list[float]:
    return [value for value, count in seen["values"] for _ in range(count)]


@given(st.lists(st.floats(1e-4, 1e7), min_size=1, max_size=200))
def test_every_value_is_kept_within_0_4_percent(values: list[float]) -> None:
    distribution = Distribution()
    distribution.count(array("d", values))
    seen = distribution.seen()
    assert seen["count"] == len(values)
    assert seen["sum"] == pytest.approx(sum(values))
    assert values_of(seen) == pytest.approx(sorted(values), rel=0.004)


def test_zero_is_zero() -> None:
    distribution = Distribution()
    distribution.count(array("d", [0.0, 0.0]))
    assert distribution.seen()["values"] == [(0.0, 2)]


@pytest.mark.parametrize("count", [100, FOLD_ABOVE + 10])
def test_each_sample_counts_once_however_often_it_is_looked_at_and_taken(count: int) -> None:
    rollup = Rollup(kept=True)
    for number in range(count):
        rollup.add(1.0 + number)
        if number % 40 == 0:
            rollup.seen()
        if number % 70 == 0:
            rollup.take()
    seen = rollup.seen()
    assert seen is not None
    assert seen["count"] == count
    assert seen["sum"] == sum(range(1, count + 1))
    stats = rollup.take()
    assert stats is not None
    assert stats.count == (count - 1) % 70


def test_a_look_does_not_touch_the_window() -> None:
    rollup = Rollup(kept=True)
    rollup.add(5.0)
    rollup.seen()
    rollup.add(7.0)
    stats = rollup.take()
    assert stats is not None
    assert (stats.count, stats.total) == (2, 12.0)
    assert Rollup().seen() is None


def read(port: int | None) -> Mapping[str, Seen]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/distributions", timeout=PATIENCE_S) as answer:
        assert answer.headers["Content-Type"] == "application/json"
        told: dict[str, Mapping[str, Seen]] = json.loads(answer.read())
    return told["distributions"]


@pytest.mark.servers
def test_the_endpoint_tells_timers_and_gauged_waits_by_all_their_labels(kpi: Kpi) -> None:
    child = Histogram("app_db_statement_seconds", "x", ["pool", "op"], registry=kpi.registry)
    for op, seconds in (("commit", 0.002), ("select", 0.1)):
        kpi.gauged_seconds("persist_sql_ms", child.labels("main", op), pool="main", op=op).observe(seconds)
    kpi.record_phase("llm_invoke", 3.01)
    kpi.gauge("ws_connections", level=True).set(3)
    kpi.timer("never_observed")
    server = MetricsServer(kpi.registry, "127.0.0.1", 0, kpi.distributions)
    server.start()
    told = read(server.port)
    kpi.record_phase("llm_invoke", 3.3)
    later = read(server.port)
    server.close()
    assert set(told) == {
        "app.phase_latency_ms|phase=llm_invoke",
        "persist_sql_ms|pool=main|op=commit",
        "persist_sql_ms|pool=main|op=select",
    }
    assert values_of(told["persist_sql_ms|pool=main|op=commit"]) == [pytest.approx(2.0, rel=0.004)]
    assert kpi.gauges["persist_sql_ms"].value == 100.0
    both = values_of(later["app.phase_latency_ms|phase=llm_invoke"])
    assert both == pytest.approx([3010, 3300], rel=0.004)


def test_nearest_rank_over_a_distribution_is_that_over_its_values() -> None:
    distribution = Distribution()
    values = [3000.0 + number for number in range(100)]
    distribution.count(array("d", values))
    assert nearest_rank(values_of(distribution.seen()), 0.95) == pytest.approx(nearest_rank(values, 0.95), rel=0.004)
