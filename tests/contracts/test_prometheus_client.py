"""What a registry of prometheus_client does with a collector of ours."""

from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class Counting(Collector):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.collected = 0

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return [GaugeMetricFamily("ours_seconds", "Ours.", labels=["q"])]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        self.collected += 1
        family = GaugeMetricFamily("ours_seconds", "Ours.", labels=["q"])
        family.add_metric(["0.5"], 2.0)
        return [family]


def test_a_collector_that_describes_itself_is_not_collected_when_it_is_registered() -> None:
    """backend_kit/kpi/exposition.py and agentic_backend/verdict/window.py have a `describe`, which the library asks
    for where there is one: what they compute is not there yet."""
    registry = CollectorRegistry(auto_describe=True)
    collector = Counting()
    registry.register(collector)
    assert collector.collected == 0
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(Counting())
    assert b'ours_seconds{q="0.5"} 2.0' in generate_latest(registry)
    assert collector.collected == 1


def test_a_histogram_is_made_of_its_cumulated_buckets() -> None:
    """backend_kit/kpi/exposition.py makes families of `metrics_core` by pairs of bound and count, `+Inf` last, whose
    count is that of the whole."""
    family = HistogramMetricFamily("ours", "Ours.", labels=["phase"])
    family.add_metric(["p"], [("1.0", 1), ("+Inf", 3)], 5.0)
    samples = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert samples == {
        ("ours_bucket", "1.0"): 1,
        ("ours_bucket", "+Inf"): 3,
        ("ours_count", None): 3,
        ("ours_sum", None): 5.0,
    }
