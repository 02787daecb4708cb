"""What a bench reads of the garbage collector from a service's metrics."""

import gc

import pytest
from prometheus_client import CollectorRegistry, GCCollector, generate_latest

from backend_kit.kpi.exposition import GcPauses
from tests.bench.pauses import Pauses

BEFORE = Pauses((5, 1, 0), 0.25, {0.05: 4, 0.1: 5, 0.25: 6, float("inf"): 6})
AFTER = Pauses((9, 1, 1), 1.0, {0.05: 4, 0.1: 7, 0.25: 10, float("inf"): 11})


def test_what_the_metrics_of_a_service_say_is_read() -> None:
    registry = CollectorRegistry()
    GCCollector(registry)
    pauses = GcPauses(registry)
    pauses.start()
    try:
        before = Pauses.read(generate_latest(registry).decode())
        gc.collect()
        seen = Pauses.read(generate_latest(registry).decode()).since(before)
    finally:
        pauses.close()
    assert seen.collections[2] >= 1
    assert seen.within[float("inf")] >= 1
    assert seen.seconds > 0


def test_an_exposition_without_them_is_an_error() -> None:
    with pytest.raises(KeyError):
        Pauses.read("")


def test_what_came_since_is_told_by_generation_and_length() -> None:
    since = AFTER.since(BEFORE)
    assert since == Pauses((4, 0, 1), 0.75, {0.05: 0, 0.1: 2, 0.25: 4, float("inf"): 5})
    assert str(since) == (
        "4 + 0 + 1 collections (youngest first), 750 ms in all; "
        "5 above 50 ms, 3 above 100 ms, 1 above 250 ms; longest at most inf ms"
    )


def test_the_longest_is_the_least_bound_above_all() -> None:
    assert BEFORE.longest_s == 0.25
    assert BEFORE.since(BEFORE).longest_s == 0.0
