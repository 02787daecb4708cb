"""What stands on /metrics, and the endpoint that serves it."""

import asyncio
import gc
import io
import socket
import sys
import urllib.request
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from backend_kit.kpi import Kpi, KpiOptions, KpiRuntime
from backend_kit.kpi.exposition import SHORT_BUCKETS, GcPauses, MetricsPortTaken, MetricsServer
from tests.backend_kit.kpi.conftest import TellingStream
from tests.support.patience import PATIENCE_S
from tests.support.threads import no_more_threads

Value = Callable[..., float | None]
LEGACY_BUCKETS = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 120000]


def scrape(port: int | None) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        body: bytes = answer.read()
    return body.decode()


def test_the_compatible_histogram_is_the_other_in_milliseconds_over_all_statuses(kpi: Kpi, value: Value) -> None:
    kpi.record_phase("llm_invoke", 0.004)
    kpi.record_phase("llm_invoke", 3.0)
    kpi.record_phase("llm_invoke", 300.0, "timeout")
    labels = {"phase": "llm_invoke", "service": "agentic"}
    assert value("app_phase_latency_ms_count", **labels) == 3
    assert value("app_phase_latency_ms_sum", **labels) == pytest.approx(303_004.0)
    counts = [value("app_phase_latency_ms_bucket", le=f"{bound}.0", **labels) for bound in LEGACY_BUCKETS]
    assert counts == [1] * 9 + [2] * 5
    assert value("app_phase_latency_ms_bucket", le="+Inf", **labels) == 3


def test_what_became_a_trace_leads_to_it_from_its_bucket(kpi: Kpi) -> None:
    histogram = Histogram("app_turn_seconds", "Turns.", ["agent"], buckets=(1.0, 5.0), registry=kpi.registry)
    seconds = kpi.seconds("app.turn_latency_ms", histogram.labels("Georges"))
    seconds.observe(0.5)
    seconds.observe_traced(3.0, "4bf92f3577b34da6a3ce929d0e0e4736")
    text = openmetrics.generate_latest(kpi.registry).decode()
    (line,) = [line for line in text.splitlines() if "trace_id" in line]
    assert line.startswith('app_turn_seconds_bucket{agent="Georges",le="5.0"} 2.0 # ')
    assert '{trace_id="4bf92f3577b34da6a3ce929d0e0e4736"} 3.0' in line
    assert kpi.timers["app.turn_latency_ms"].rollup.seen() is not None


def test_without_compatible_names_only_the_standard_ones_stand() -> None:
    kpi = Kpi(CollectorRegistry(), service="agentic", legacy_ms_names=False)
    kpi.record_phase("llm_invoke", 0.004)
    kpi.gauge("persist_sql_ms").set(1.0)
    text = generate_latest(kpi.registry).decode()
    standard = {"app_phase_latency_seconds", "app_task_failures", "app_thread_up"}
    assert {family.name for family in text_string_to_metric_families(text)} == standard


def test_no_created_series(kpi: Kpi) -> None:
    kpi.record_phase("llm_invoke", 0.004)
    assert "_created" not in generate_latest(kpi.registry).decode()


def test_garbage_collections_are_counted_until_closed() -> None:
    registry = CollectorRegistry()
    pauses = GcPauses(registry)
    pauses.close()
    pauses.start()
    gc.collect()
    gc.collect()
    pauses.close()
    seen = registry.get_sample_value("app_gc_pause_seconds_count")
    gc.collect()
    assert seen is not None
    assert seen >= 2
    assert registry.get_sample_value("app_gc_pause_seconds_count") == seen
    assert registry.get_sample_value("app_gc_pause_seconds_bucket", {"le": "+Inf"}) == seen
    assert (registry.get_sample_value("app_gc_pause_seconds_sum") or 0) > 0
    assert len(next(iter(pauses.collect())).samples) == len(SHORT_BUCKETS) + 3


@pytest.mark.servers
def test_a_taken_port_is_said_with_its_key(kpi: Kpi) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        server = MetricsServer(kpi.registry, "127.0.0.1", port)
        with pytest.raises(MetricsPortTaken, match=f"app.metrics_port: cannot listen on 127.0.0.1:{port}"):
            server.start()
        server.close()


@pytest.mark.servers
async def test_metrics_answer_while_the_loop_is_blocked(kpi: Kpi) -> None:
    server = MetricsServer(kpi.registry, "127.0.0.1", 0)
    server.start()
    kpi.record_phase("llm_invoke", 0.004)
    assert "app_phase_latency_seconds_count" in scrape(server.port)  # blocks this loop, and is answered
    server.close()
    assert server.port is None


@pytest.mark.servers
def test_a_client_that_says_nothing_does_not_keep_others_from_the_metrics(kpi: Kpi) -> None:
    server = MetricsServer(kpi.registry, "127.0.0.1", 0)
    server.start()
    port = server.port
    assert port is not None
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
    assert "app_phase_latency_seconds" in scrape(port)
    for client in silent:
        client.close()
    server.close()


@pytest.mark.servers
def test_more_clients_than_slots_are_turned_away(kpi: Kpi) -> None:
    server = MetricsServer(kpi.registry, "127.0.0.1", 0)
    server.start()
    port = server.port
    assert port is not None
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(16)]
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as late:
        assert late.recv(1) == b""
    for client in silent:
        client.close()
    server.close()


@pytest.mark.servers
def test_a_scrape_that_gets_no_thread_keeps_no_place(kpi: Kpi) -> None:
    server = MetricsServer(kpi.registry, "127.0.0.1", 0)
    server.start()
    with no_more_threads():
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port or 0), timeout=PATIENCE_S) as client:
                assert client.recv(1) == b""
    assert "app_phase_latency_seconds" in scrape(server.port)
    server.close()


@pytest.mark.servers
async def test_the_runtime_shows_process_build_and_loop_and_closes_without_a_rest(kpi: Kpi) -> None:
    before = sys.getswitchinterval()
    stream = io.StringIO()
    options = KpiOptions(log_level="warning", version="1.2.3", git_sha="abc", config_hash="def")
    runtime = KpiRuntime(kpi, options, stream=stream).start()
    port = runtime.metrics_port
    assert sys.getswitchinterval() == pytest.approx(0.0005)
    text = await asyncio.to_thread(scrape, port)
    runtime.close()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {
        "process_cpu_seconds",
        "process_resident_memory_bytes",
        "process_open_fds",
        "python_info",
        "python_gc_collections",
        "app_build_info",
        "app_gc_pause_seconds",
        "app_event_loop_lag_seconds",
        "app_event_loop_busy_ratio",
        "app_event_loop_stalls",
        "event_loop_lag_ms",
    } <= names
    assert 'app_build_info{config_hash="def",git_sha="abc",version="1.2.3"} 1.0' in text
    assert "open_fds=" in stream.getvalue()
    assert runtime.metrics_port is None
    assert sys.getswitchinterval() == before
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port or 0))


async def test_the_runtime_without_an_endpoint(kpi: Kpi) -> None:
    stream = TellingStream("[KPI][STALL]")
    runtime = KpiRuntime(kpi, KpiOptions(metrics_enabled=False, summary_interval_s=0), stream=stream).start()
    runtime.begin("[KPI][START] status=ready")
    assert runtime.metrics_port is None
    # It is said while the loop is blocked, though summaries are off.
    assert stream.seen.wait(PATIENCE_S)
    runtime.close()
    assert "[KPI][SUMMARY]" not in stream.getvalue()
