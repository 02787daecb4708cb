"""The exposition of the agentic service against its golden table: names, types, labels."""

import itertools

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agentic_backend.metrics import FINE, AgenticMetrics
from backend_kit.kpi import TURN_BUCKETS, Kpi

GOLDEN = """
agent_cache_hit counter -
agent_cache_miss counter -
app_admission_wait_seconds histogram -
app_audit_lost counter -
app_audit_pending gauge -
app_bound_by gauge cause
app_cache_requests counter cache,result
app_clock_difference_seconds gauge -
app_db_connections_opened counter pool
app_db_pool_connections gauge pool,state
app_db_pool_wait_seconds histogram pool
app_db_pool_waiting gauge pool
app_db_statement_seconds histogram op,pool
app_http_pool_wait_seconds histogram pool
app_limit_hits counter limit
app_llm_cost counter model
app_llm_fallbacks counter cause,model
app_llm_request_seconds histogram model,status
app_llm_time_to_first_chunk_seconds histogram model,status
app_llm_tokens counter model,type
app_outbox_bytes gauge -
app_fleet_bus_seconds histogram -
app_fleet_bus_up gauge -
app_fleet_instances gauge -
app_fleet_messages counter bus
app_fleet_mirrored_turns gauge -
app_fleet_relayed_turns gauge -
app_fleet_takeover_seconds histogram -
app_fleet_takeovers counter -
app_history_bytes gauge table
app_history_rows gauge table
app_postgres_standby_lag_seconds gauge -
app_postgres_standbys gauge -
app_postgres_synchronous gauge -
app_postgres_unreplicated_records gauge -
app_persist_batch_records histogram -
app_persist_turns counter -
app_persist_dead_letters counter -
app_persist_failures counter reason
app_persist_fill_ratio gauge -
app_persist_lag_seconds histogram -
app_persist_oldest_seconds gauge -
app_persist_queue_depth gauge -
app_persist_replayed counter -
app_persist_retries counter cause
app_phase_latency_ms histogram phase,service
app_phase_latency_seconds histogram phase,status
app_pruned_sessions counter -
app_rank_conflicts counter -
app_replay_bytes gauge -
app_replay_events gauge -
app_spool_ack_seconds histogram -
app_db_ack_seconds histogram -
app_spool_bytes gauge -
app_spool_commit_seconds histogram -
app_spool_damaged_frames counter -
app_spool_dead_letters gauge -
app_spool_records gauge -
app_sse_streams gauge -
app_stream_gap_seconds histogram -
app_stream_hold_seconds gauge -
app_time_to_first_token_seconds histogram agent
app_trace_spans_dropped counter reason
app_trace_spans_sent counter -
app_tool_call_seconds histogram server,status,tool
app_task_failures counter task
app_thread_up gauge thread
app_turn_delivery_seconds histogram -
app_turn_deltas histogram -
app_turn_overhead_seconds histogram -
app_turn_seconds histogram agent,status
app_turn_unattributed_seconds histogram -
app_turn_wait_seconds counter cause
app_turns counter agent,status
app_turns_capacity_ratio gauge -
app_turns_in_progress gauge -
app_turns_queued gauge -
app_turns_restarted counter -
app_ws_connections gauge -
app_ws_send_seconds histogram -
chat_exchange_error counter -
chat_user_message counter -
event_loop_lag_ms gauge -
persist_pool_wait_ms gauge -
persist_sql_ms gauge -
rag_search counter -
rag_search_empty counter -
"""
COMPATIBLE = {
    "agent_cache_hit",
    "agent_cache_miss",
    "app_phase_latency_ms",
    "chat_exchange_error",
    "chat_user_message",
    "event_loop_lag_ms",
    "persist_pool_wait_ms",
    "persist_sql_ms",
    "rag_search",
    "rag_search_empty",
}


def built(*, legacy_ms_names: bool = True) -> tuple[Kpi, AgenticMetrics]:
    kpi = Kpi(CollectorRegistry(), service="agentic", legacy_ms_names=legacy_ms_names)
    return kpi, AgenticMetrics(kpi.registry, kpi)


def feed(kpi: Kpi, metrics: AgenticMetrics) -> None:
    """One observation of everything."""
    with kpi.phase("llm_invoke"):
        pass
    kpi.vigil.watch("turn:1")
    kpi.vigil.threads.labels("kpi-summary").set(1)
    kpi.gauge("event_loop_lag_ms").set(1.5)
    metrics.turn("Georges", "ok").observe(3.05)
    metrics.turns("Georges", "ok").inc()
    metrics.first_token("Georges").observe(0.4)
    for seconds in (metrics.stream_gap, metrics.overhead, metrics.unattributed, metrics.admission_wait):
        seconds.observe(0.02)
    metrics.delivery.observe(0.002)
    metrics.turn_wait("llm_floor").inc(3.0)
    metrics.bound_by("llm_floor").set(1)
    metrics.turns_capacity.set(0.7)
    metrics.llm_cost("mock").inc(0.25)
    metrics.db_connections("main", "in_use").set(2)
    metrics.db_waiting("main").set(1)
    metrics.audit_pending.set(2)
    metrics.audit_lost.inc()
    metrics.db_opened("main").inc(2)
    for level in (metrics.turns_in_progress, metrics.turns_queued, metrics.replay_events, metrics.replay_bytes):
        level.set(2)
    for level in (metrics.ws_connections, metrics.outbox_bytes, metrics.persist_queue_depth):
        level.inc(3)
    metrics.persist_oldest_ms.set(250.0)
    metrics.stream_hold_ms.set(20.0)
    metrics.llm_first_chunk("mock", "ok").observe(0.3)
    metrics.llm_request("mock", "timeout").observe(60.0)
    metrics.llm_tokens("mock", "output").inc(50)
    metrics.llm_fallbacks("mock", "llm_timeout").inc()
    metrics.http_pool_wait("llm").observe(0.002)
    metrics.tool_called("notes", "add", "ok", 0.02)
    metrics.tools_looked_up(hit=True)
    metrics.ws_send.observe(0.001)
    metrics.limit_hits("max_turns").inc()
    metrics.db_pool_wait("main").observe(0.004)
    metrics.db_statement("batch", "commit").observe(0.0175)
    metrics.persist_lag.observe(0.03)
    metrics.persist_failures("shutdown").inc()
    metrics.persist_retries("connection").inc()
    metrics.persist_batch_records.observe(64)
    metrics.persist_turns.inc()
    metrics.db_ack.observe(0.004)
    metrics.turn_deltas.observe(50)
    metrics.history_bytes("session").set(1)
    metrics.history_rows("session").set(1)
    for level in (metrics.fleet_instances, metrics.fleet_relayed_turns, metrics.fleet_mirrored_turns):
        level.set(3)
    metrics.fleet_takeovers.inc()
    metrics.fleet_takeover_s.observe(10.5)
    metrics.fleet_bus_up.set(1)
    metrics.fleet_bus_s.observe(0.001)
    metrics.fleet_messages("redis").inc()
    metrics.trace_spans_sent.inc(12)
    metrics.trace_spans_dropped("queue_full").inc(12)
    metrics.cache_request("graph", hit=True)
    metrics.cache_request("history", hit=False)
    for counter in (metrics.user_messages, metrics.exchange_errors, metrics.rag_searches, metrics.rag_empty_searches):
        counter.inc()


def table(registry: CollectorRegistry) -> list[str]:
    rows = []
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        rows.append(f"{family.name} {family.type} {','.join(sorted(labels)) or '-'}")
    return sorted(rows)


def test_the_exposition_is_the_golden_one() -> None:
    kpi, metrics = built()
    feed(kpi, metrics)
    assert table(kpi.registry) == sorted(GOLDEN.split("\n")[1:-1])


def test_without_compatible_names_the_rest_stands_and_everything_may_still_be_fed() -> None:
    kpi, metrics = built(legacy_ms_names=False)
    feed(kpi, metrics)
    rest = [row for row in GOLDEN.split("\n")[1:-1] if row.split()[0] not in COMPATIBLE]
    assert table(kpi.registry) == sorted(rest)


@pytest.mark.parametrize(
    ("key", "histogram", "labels"),
    [
        ("app.turn_latency_ms|agent=Georges", "app_turn_seconds", {"agent": "Georges", "status": "ok"}),
        ("app.ttft_ms|agent=Georges", "app_time_to_first_token_seconds", {"agent": "Georges"}),
        ("app.stream_gap_ms", "app_stream_gap_seconds", {}),
        ("app.ws_send_ms", "app_ws_send_seconds", {}),
        ("app.overhead_ms", "app_turn_overhead_seconds", {}),
        (
            "llm.request_latency_ms|model=mock|status=timeout",
            "app_llm_request_seconds",
            {"model": "mock", "status": "timeout"},
        ),
        ("llm.ttft_ms|model=mock", "app_llm_time_to_first_chunk_seconds", {"model": "mock", "status": "ok"}),
        ("llm.pool_wait_ms", "app_http_pool_wait_seconds", {"pool": "llm"}),
        ("persist_lag_ms", "app_persist_lag_seconds", {}),
        ("turn_unattributed_ms", "app_turn_unattributed_seconds", {}),
        ("admission_wait_ms", "app_admission_wait_seconds", {}),
        ("persist_pool_wait_ms", "app_db_pool_wait_seconds", {"pool": "main"}),
        ("persist_sql_ms", "app_db_statement_seconds", {"pool": "batch", "op": "commit"}),
    ],
)
def test_the_summary_in_ms_and_the_histogram_in_seconds_agree(key: str, histogram: str, labels: dict[str, str]) -> None:
    kpi, metrics = built()
    feed(kpi, metrics)
    timers = {name: timer.rollup for name, timer in kpi.timers.items()}
    gauges = {name: gauge.rollup for name, gauge in kpi.gauges.items()}
    stats = (timers | gauges)[key].take()
    assert stats is not None
    assert kpi.registry.get_sample_value(f"{histogram}_count", labels) == stats.count
    assert kpi.registry.get_sample_value(f"{histogram}_sum", labels) == pytest.approx(stats.total / 1e3)


@pytest.mark.parametrize(
    ("key", "counter", "labels"),
    [
        ("turns|agent=Georges", "app_turns_total", {"agent": "Georges", "status": "ok"}),
        ("tokens|model=mock|type=output", "app_llm_tokens_total", {"model": "mock", "type": "output"}),
        ("persist_lost|reason=shutdown", "app_persist_failures_total", {"reason": "shutdown"}),
        ("persist_retries|cause=connection", "app_persist_retries_total", {"cause": "connection"}),
        ("persist_batch", "app_persist_batch_records_sum", {}),
        ("turn_deltas", "app_turn_deltas_sum", {}),
        ("cache|cache=graph|result=hit", "app_cache_requests_total", {"cache": "graph", "result": "hit"}),
        ("chat_user_message_total", "chat_user_message_total", {}),
        ("agent_cache_hit_total", "agent_cache_hit_total", {}),
    ],
)
def test_the_summary_and_prometheus_count_the_same(key: str, counter: str, labels: dict[str, str]) -> None:
    kpi, metrics = built()
    feed(kpi, metrics)
    feed(kpi, metrics)
    stats = kpi.counters[key].rollup.take()
    assert stats is not None
    assert kpi.registry.get_sample_value(counter, labels) == stats.total > 1


def test_only_look_ups_of_compiled_graphs_count_as_agent_cache() -> None:
    kpi, metrics = built()
    metrics.cache_request("graph", hit=True)
    metrics.cache_request("history", hit=True)
    metrics.cache_request("graph", hit=False)
    assert kpi.registry.get_sample_value("agent_cache_hit_total") == 1
    assert kpi.registry.get_sample_value("agent_cache_miss_total") == 1


def test_states_are_gauges_in_base_units() -> None:
    kpi, metrics = built()
    feed(kpi, metrics)
    metrics.ws_connections.dec()
    assert kpi.registry.get_sample_value("app_ws_connections") == 2
    assert kpi.registry.get_sample_value("app_persist_oldest_seconds") == 0.25
    assert kpi.registry.get_sample_value("app_stream_hold_seconds") == pytest.approx(0.02)
    assert kpi.registry.get_sample_value("persist_sql_ms") == pytest.approx(17.5)


def test_agents_named_without_bound_do_not_grow_the_exposition() -> None:
    kpi, metrics = built()
    for number in range(100):
        metrics.turns(f"agent-{number}", "ok").inc()
    assert kpi.registry.get_sample_value("app_turns_total", {"agent": "other", "status": "ok"}) == 80


def test_two_apps_in_one_process_count_for_themselves() -> None:
    (one, first), (two, _) = built(), built()
    feed(one, first)
    assert one.registry.get_sample_value("chat_user_message_total") == 1
    assert two.registry.get_sample_value("chat_user_message_total") == 0


def test_percentiles_of_what_users_wait_for_are_a_tenth_apart_at_most() -> None:
    fine = [bound for bound in FINE if 0.05 <= bound <= 60]
    assert (fine[0], fine[-1]) == (0.05, 60.0)
    assert max(high / low for low, high in itertools.pairwise(fine)) <= 1.1 + 1e-9
    assert list(FINE) == sorted(set(FINE))
    assert set(TURN_BUCKETS) <= set(FINE)
