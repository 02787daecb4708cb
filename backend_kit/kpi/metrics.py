"""The common part of the services' metrics: the creation of families, and children limited in number per label."""

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as PrometheusCounter
from prometheus_client import Gauge as PrometheusGauge

from backend_kit.kpi.core import Counter, Gauge, GaugedSeconds, Kpi, Seconds
from backend_kit.kpi.exposition import SHORT_BUCKETS

Bound = TypeVar("Bound")
MAX_VALUES: Final = 20
OTHER: Final = "other"
_OK: Final = ("status", "ok")


class Labelled(Generic[Bound]):
    """`labelled("georges", "ok")` returns the object bound to these label values, created at the first call.

    Each label takes its first 20 values; later ones count as `other`, so what a client or a configuration names
    cannot grow the exposition without bound.
    """

    __slots__ = ("_bind", "_bound", "_seen")

    def __init__(self, labels: int, bind: Callable[[tuple[str, ...]], Bound]) -> None:
        """`bind` makes the object of a tuple of `labels` values."""
        self._bind = bind
        self._bound: dict[tuple[str, ...], Bound] = {}
        self._seen: list[set[str]] = [set() for _ in range(labels)]

    def __call__(self, *values: str) -> Bound:
        """The object of these label values, given in the metric's order."""
        found = self._bound.get(values)
        return self._bind_new(values) if found is None else found

    def _bind_new(self, values: tuple[str, ...]) -> Bound:
        admitted = tuple(self._admit(seen, value) for seen, value in zip(self._seen, values, strict=True))
        found = self._bound.get(admitted)
        if found is None:
            found = self._bound[admitted] = self._bind(admitted)
        return found

    @staticmethod
    def _admit(seen: set[str], value: str) -> str:
        if value not in seen:
            if len(seen) >= MAX_VALUES:
                return OTHER
            seen.add(value)
        return value


class ServiceMetrics:
    """Metrics as bound objects: `.observe(seconds)`, `.inc()`, `.set(value)`. One call feeds summary and Prometheus.

    Labelled ones are called with their values, in the order of the label names.
    """

    def __init__(self, registry: CollectorRegistry, kpi: Kpi) -> None:
        self._registry = registry
        self._kpi = kpi
        self.statements = kpi.statements
        self._pools()
        self._audit()

    def _pools(self) -> None:
        self.db_connections: Labelled[PrometheusGauge] = self._states(
            "app_db_pool_connections", "Connections of a pool: in_use, idle, overflow.", ["pool", "state"]
        )
        self.db_waiting: Labelled[PrometheusGauge] = self._states(
            "app_db_pool_waiting", "Callers that wait for a connection now.", ["pool"]
        )
        self.db_opened: Labelled[Counter] = self._counters(
            "app_db_connections_opened_total", "Connections that were opened.", ["pool"], "db_connections_opened"
        )
        self.db_pool_wait: Labelled[GaugedSeconds] = self._waits(
            "app_db_pool_wait_seconds",
            "Wait for a database connection, the making of an overflow one included.",
            ["pool"],
            "persist_pool_wait_ms",
        )
        self.db_statement: Labelled[GaugedSeconds] = self._waits(
            "app_db_statement_seconds",
            "One statement; COMMIT is one of its own (op=commit).",
            ["pool", "op"],
            "persist_sql_ms",
        )

    def _audit(self) -> None:
        self.audit_pending: Gauge = self._level(
            "app_audit_pending", "Audit events that wait to be written.", "audit_pending"
        )
        self.audit_lost: Counter = self._counter(
            "app_audit_lost_total", "Audit events that were dropped.", "audit_lost"
        )

    def _timer(self, name: str, text: str, key: str, bounds: Sequence[float]) -> Seconds:
        return self._kpi.seconds(key, Histogram(name, text, buckets=bounds, registry=self._registry))

    def _timers(self, name: str, text: str, labels: list[str], key: str, bounds: Sequence[float]) -> Labelled[Seconds]:
        family = Histogram(name, text, labels, buckets=bounds, registry=self._registry)
        return Labelled(
            len(labels), lambda values: self._kpi.seconds(_key(key, labels, values), family.labels(*values))
        )

    def _waits(self, name: str, text: str, labels: list[str], key: str) -> Labelled[GaugedSeconds]:
        """Waits in seconds whose compatible name, one gauge for all labels, is in milliseconds."""
        family = Histogram(name, text, labels, buckets=SHORT_BUCKETS, registry=self._registry)
        return Labelled(
            len(labels),
            lambda values: self._kpi.gauged_seconds(
                key, family.labels(*values), **dict(zip(labels, values, strict=True))
            ),
        )

    def _counter(self, name: str, text: str, key: str) -> Counter:
        return self._kpi.counter(key, PrometheusCounter(name, text, registry=self._registry))

    def _counters(self, name: str, text: str, labels: list[str], key: str) -> Labelled[Counter]:
        family = PrometheusCounter(name, text, labels, registry=self._registry)
        return Labelled(
            len(labels), lambda values: self._kpi.counter(_key(key, labels, values), family.labels(*values))
        )

    def _states(self, name: str, text: str, labels: list[str]) -> Labelled[PrometheusGauge]:
        # In Prometheus only: the summary has other lines for these.
        family = PrometheusGauge(name, text, labels, registry=self._registry)
        return Labelled(len(labels), lambda values: family.labels(*values))

    def _level(self, name: str, text: str, key: str) -> Gauge:
        return self._kpi.gauge(key, PrometheusGauge(name, text, registry=self._registry), level=True)


def _key(name: str, labels: list[str], values: tuple[str, ...]) -> str:
    # `status=ok` is left out, as in the lines that dashboards and greps know.
    pairs = [f"|{label}={value}" for label, value in zip(labels, values, strict=True) if (label, value) != _OK]
    return name + "".join(pairs)
