"""What two reads of /metrics say: against the real client library's own exposition."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from ws_bench.record.exposition import build_of, difference, figures_of, gauge, label_values, read_samples


class Service:
    """Metrics as a service has them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.phase = Histogram(
            "app_phase_latency_seconds", "x", ["phase", "status"], buckets=(0.1, 0.2, 0.4), registry=self.registry
        )
        self.turns = Counter("app_turns", "x", ["agent"], registry=self.registry)
        self.waiting = Gauge("app_db_pool_waiting", "x", ["pool"], registry=self.registry)
        self.noise = Histogram("another_seconds", "x", registry=self.registry)
        Info("app_build", "x", registry=self.registry).info({"git_sha": "abc", "config_hash": "def"})

    def read(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        return read_samples(generate_latest(self.registry).decode())


def test_only_what_happened_between_two_reads_counts() -> None:
    service = Service()
    service.phase.labels("llm_invoke", "ok").observe(0.35)
    service.turns.labels("Rico").inc(5)
    before = service.read()
    for seconds in (0.05, 0.15, 0.15, 0.15):
        service.phase.labels("llm_invoke", "ok").observe(seconds)
    service.turns.labels("Rico").inc(3)
    service.turns.labels("Georges").inc(1)
    after = service.read()
    figures = figures_of([(before, after)], "app_phase_latency_seconds", phase="llm_invoke")
    assert figures is not None
    assert (figures.count, figures.avg) == (4, pytest.approx(125))
    # Buckets tell no percentile: of ours 2.5 to 5 s was one, and a model of 3 s had a p95 of 4.9 s.
    assert (figures.p50, figures.shown("p95")) == (None, "-")
    assert difference(before, after, "app_turns_total") == 4
    assert difference(before, after, "app_turns_total", agent="Rico") == 3
    assert label_values(after, "app_turns_total", "agent") == ["Georges", "Rico"]
    assert figures_of([(after, after)], "app_phase_latency_seconds") is None


def test_a_process_that_began_anew_counts_from_zero() -> None:
    service, anew = Service(), Service()
    service.turns.labels("Rico").inc(50)
    anew.turns.labels("Rico").inc(2)
    assert difference(service.read(), anew.read(), "app_turns_total") == 2


def test_several_processes_are_pooled() -> None:
    reads = []
    for seconds in (0.05, 0.3):
        service = Service()
        before = service.read()
        service.phase.labels("embed", "ok").observe(seconds)
        reads.append((before, service.read()))
    figures = figures_of(reads, "app_phase_latency_seconds", phase="embed")
    assert figures is not None
    assert (figures.count, figures.avg) == (2, pytest.approx(175))


def test_gauges_and_build_are_read_and_the_rest_is_left() -> None:
    service = Service()
    service.waiting.labels("main").set(2)
    service.waiting.labels("batch").set(1)
    samples = service.read()
    assert (gauge(samples, "app_db_pool_waiting"), gauge(samples, "app_db_pool_waiting", pool="batch")) == (2, 1)
    assert build_of(samples) == {"git_sha": "abc", "config_hash": "def"}
    assert not any(name.startswith("another") for name, _ in samples)
    assert gauge(samples, "app_event_loop_busy_ratio") is None
