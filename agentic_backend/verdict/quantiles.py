"""Percentiles of turns for Prometheus, computed from every turn instead of from buckets."""

import time
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agentic_backend.verdict.window import Windows
from backend_kit.kpi.rollup import nearest_rank

QUANTILES: Final = (0.5, 0.95, 0.99)
QUANTILE_WINDOW_S: Final = 60.0
_TURN = ("app_turn_quantile_seconds", "Ask to final, by nearest rank over all turns that ended in the last minute.")
_FIRST_TOKEN = (
    "app_time_to_first_token_quantile_seconds",
    "Ask to the first text of the answer, by nearest rank over all turns that ended in the last minute.",
)


class TurnQuantiles(Collector):
    """Computed at each scrape from the slices of the verdict. Without a turn in the last minute there is no sample.

    Percentiles cannot be aggregated: each process has its own.
    """

    def __init__(self, windows: Windows, registry: CollectorRegistry) -> None:
        self._windows = windows
        registry.register(self)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The empty families, so that registering does not collect."""
        return [GaugeMetricFamily(name, text, labels=["q"]) for name, text in (_TURN, _FIRST_TOKEN)]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """A gauge for each of the two."""
        horizon = time.monotonic() - QUANTILE_WINDOW_S
        recent = [slice_ for slice_ in self._windows.kept() if slice_.ended_at > horizon]
        return [
            _family(*_TURN, sorted(chain.from_iterable(slice_.turn_ms for slice_ in recent))),
            _family(*_FIRST_TOKEN, sorted(chain.from_iterable(slice_.first_token_ms for slice_ in recent))),
        ]


def _family(name: str, text: str, ordered_ms: Sequence[float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["q"])
    if ordered_ms:
        for q in QUANTILES:
            family.add_metric([str(q)], nearest_rank(list(ordered_ms), q) / 1e3)
    return family
