"""What stands on /metrics beside the metrics themselves: compatible names, process, build, and the endpoint."""

from collections.abc import Iterable
from math import isinf

from prometheus_client import Histogram
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector


class LegacyPhaseHistogram(Collector):
    """`app_phase_latency_ms{phase,service}`, derived from the histogram in seconds when it is scraped.

    Statuses are summed, as the original knew none. Nothing is paid per observation.
    """

    def __init__(self, seconds: Histogram, service: str) -> None:
        self._seconds = seconds
        self._service = service

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """The empty family, so that registering does not collect."""
        return [self._family()]

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """The family with a sample set per phase."""
        buckets: dict[str, dict[float, float]] = {}
        sums: dict[str, float] = {}
        for metric in self._seconds.collect():
            for sample in metric.samples:
                phase = sample.labels["phase"]
                if sample.name.endswith("_bucket"):
                    bound = float(sample.labels["le"])
                    of_phase = buckets.setdefault(phase, {})
                    of_phase[bound] = of_phase.get(bound, 0.0) + sample.value
                elif sample.name.endswith("_sum"):
                    sums[phase] = sums.get(phase, 0.0) + sample.value
        family = self._family()
        for phase, of_phase in buckets.items():
            rows = [(_le(bound), of_phase[bound]) for bound in sorted(of_phase)]
            family.add_metric([phase, self._service], rows, sums.get(phase, 0.0) * 1e3)
        return [family]

    @staticmethod
    def _family() -> HistogramMetricFamily:
        return HistogramMetricFamily(
            "app_phase_latency_ms",
            "Compatible name of app_phase_latency_seconds, milliseconds, all statuses.",
            labels=["phase", "service"],
        )


def _le(seconds: float) -> str:
    # Rounded: 0.035 s is 35 ms to a reader, not the 35.00000000000001 that binary fractions make of it.
    return "+Inf" if isinf(seconds) else str(round(seconds * 1e3, 6))
