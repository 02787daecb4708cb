"""Differences between two readings of a service's /metrics: pure functions over texts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
    "app_db_ack_seconds",
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
"""The families that a run uses. Others are not parsed: a scrape may have thousands of lines."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was observed between two readings, in milliseconds; percentiles are None if the service has none."""

    count: int
    avg: float
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    def shown(self, which: str) -> str:
        """A percentile as text, a dash for None."""
        value: float | None = getattr(self, which)
        return "-" if value is None else f"{value:.2f}"

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "Figures":
        """Figures from a result file. Percentiles that older files took from buckets are dropped: they were guesses."""
        if "low" in given:
            return cls(given["count"], given["avg"])
        return cls(**given)


def read_samples(text: str) -> Samples:
    """The samples of the families that a run uses. Raises ValueError if the text is not an exposition."""
    kept = "\n".join(line for line in text.splitlines() if _wanted(line))
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(kept + "\n")
        for sample in family.samples
    }


def difference(before: Samples, after: Samples, name: str, **labels: str) -> float:
    """The increase of a counter, summed over the children with these labels; after a reset its whole value counts."""
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
    """Count and mean of a histogram between two readings, pooled over processes; None if nothing was observed."""
    total = count = 0.0
    for before, after in reads:
        total += difference(before, after, f"{family}_sum", **labels)
        count += difference(before, after, f"{family}_count", **labels)
    return Figures(round(count), total / count * 1e3) if count > 0 else None


def gauge(samples: Samples, name: str, **labels: str) -> float | None:
    """The highest value among the children with these labels, None if there is none."""
    wanted = set(labels.items())
    values = [value for key, value in samples.items() if key[0] == name and wanted <= set(key[1])]
    return max(values, default=None)


def build_of(samples: Samples) -> Mapping[str, str] | None:
    """Version, git sha and configuration hash of the service, None if it does not export them."""
    return next((dict(key[1]) for key in samples if key[0] == "app_build_info"), None)


def _wanted(line: str) -> bool:
    name = line.removeprefix("# TYPE ")
    return name.startswith(_FAMILIES) and "_bucket{" not in name
