"""What two reads of a service's /metrics say about the time between them: pure functions over texts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]

_FAMILIES = (
    "app_phase_latency_seconds",
    "app_turn_seconds",
    "app_time_to_first_token_seconds",
    "app_turn_overhead_seconds",
    "app_turn_unattributed_seconds",
    "app_admission_wait_seconds",
    "app_spool_ack_seconds",
    "app_persist_lag_seconds",
    "app_ws_send_seconds",
    "app_event_loop_lag_seconds",
    "app_event_loop_busy_ratio",
    "app_event_loop_stalls_total",
    "app_db_pool_wait_seconds",
    "app_db_pool_connections",
    "app_db_pool_waiting",
    "app_db_statement_seconds",
    "app_http_pool_wait_seconds",
    "app_gc_pause_seconds",
    "app_kf_request_seconds",
    "app_embed_seconds",
    "app_turns_total",
    "app_persist_failures_total",
    "app_build_info",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
)
"""The families that a run reads. Others are not even parsed: a scrape may have thousands of lines."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A histogram's observations between two reads, in milliseconds; percentiles are interpolated in their bucket.

    Below `low`, the lowest bound, nothing can be told apart. `top` says that p99 lies above the highest bound, so that
    it is at least what is shown.
    """

    count: int
    avg: float
    p50: float
    p95: float
    p99: float
    low: float = 0.0
    top: bool = False

    def shown(self, which: str) -> str:
        """A percentile as far as the buckets tell it."""
        value: float = getattr(self, which)
        if value <= self.low:
            return f"<{self.low:g}"
        return f"{'>' if self.top and which == 'p99' else ''}{value:.2f}"


def read_samples(text: str) -> Samples:
    """The samples of the families that a run reads. Raises ValueError where the text is not an exposition."""
    kept = "\n".join(line for line in text.splitlines() if _wanted(line))
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(kept + "\n")
        for sample in family.samples
    }


def difference(before: Samples, after: Samples, name: str, **labels: str) -> float:
    """How much a counter grew, summed over the children that have these labels; one that began anew counts whole."""
    wanted = set(labels.items())
    grown = 0.0
    for key, value in after.items():
        if key[0] == name and wanted <= set(key[1]):
            earlier = before.get(key, 0.0)
            grown += value - earlier if value >= earlier else value
    return grown


def label_values(samples: Samples, name: str, label: str) -> list[str]:
    """The values that a label has among a metric's children, sorted."""
    return sorted({value for key in samples if key[0] == name for found, value in key[1] if found == label})


def figures_of(reads: Iterable[tuple[Samples, Samples]], family: str, **labels: str) -> Figures | None:
    """A histogram between two reads, pooled over several processes; None where nothing was observed."""
    buckets: dict[float, float] = {}
    total = count = 0.0
    for before, after in reads:
        for bound in label_values(after, f"{family}_bucket", "le"):
            edge = float(bound)
            grown = difference(before, after, f"{family}_bucket", le=bound, **labels)
            buckets[edge] = buckets.get(edge, 0.0) + grown
        total += difference(before, after, f"{family}_sum", **labels)
        count += difference(before, after, f"{family}_count", **labels)
    if count <= 0:
        return None
    bounds = sorted(buckets.items())
    p50, p95, p99 = (quantile(bounds, share) for share in (0.50, 0.95, 0.99))
    finite = max((edge for edge, _ in bounds if math.isfinite(edge)), default=0.0)
    return Figures(
        count=round(count),
        avg=total / count * 1e3,
        p50=p50 * 1e3,
        p95=p95 * 1e3,
        p99=p99 * 1e3,
        low=bounds[0][0] * 1e3,
        top=p99 >= finite > 0 and bounds[-1][1] > dict(bounds).get(finite, 0.0),
    )


def quantile(buckets: Sequence[tuple[float, float]], share: float) -> float:
    """The value below which `share` of cumulative buckets lies, interpolated as Prometheus does."""
    total = buckets[-1][1] if buckets else 0.0
    if total <= 0:
        return 0.0
    rank, low, below = share * total, 0.0, 0.0
    for edge, upto in buckets:
        if upto >= rank:
            if math.isinf(edge):
                return low
            return low + (edge - low) * ((rank - below) / (upto - below) if upto > below else 1.0)
        low, below = edge, upto
    return low


def gauge(samples: Samples, name: str, **labels: str) -> float | None:
    """The highest value among the children with these labels, None where there is none."""
    wanted = set(labels.items())
    values = [value for key, value in samples.items() if key[0] == name and wanted <= set(key[1])]
    return max(values, default=None)


def build_of(samples: Samples) -> Mapping[str, str] | None:
    """Version, git sha and configuration hash of what answers, None where it does not say."""
    return next((dict(key[1]) for key in samples if key[0] == "app_build_info"), None)


def _wanted(line: str) -> bool:
    name = line.removeprefix("# TYPE ")
    return name.startswith(_FAMILIES)
