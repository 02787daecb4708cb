"""The exposition of the knowledge-flow service against its golden table: names, types, labels."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from backend_kit.kpi import Kpi
from knowledge_flow_backend.metrics import PHASES, KnowledgeFlowMetrics

GOLDEN = """
app_audit_lost counter -
app_audit_pending gauge -
app_db_connections_opened counter pool
app_db_pool_connections gauge pool,state
app_db_pool_wait_seconds histogram pool
app_db_pool_waiting gauge pool
app_db_statement_seconds histogram op,pool
app_embed_batch_size histogram -
app_embed_queue_seconds histogram -
app_embed_seconds histogram -
app_http_pool_wait_seconds histogram pool
app_index_pending gauge -
app_ingest_chunks counter -
app_ingest_documents counter status
app_ingest_in_progress gauge -
app_ingest_stage_seconds histogram stage,status
app_kf_places gauge class,state
app_kf_refused counter bound,class
app_kf_request_seconds histogram route,status
app_kf_search_empty counter -
app_kf_searches_in_progress gauge -
app_phase_latency_ms histogram phase,service
app_phase_latency_seconds histogram phase,status
app_rerank_queue_seconds histogram -
app_rerank_skipped counter cause
app_task_failures counter task
app_thread_up gauge thread
event_loop_lag_ms gauge -
persist_pool_wait_ms gauge -
persist_sql_ms gauge -
"""


def built(*, legacy_ms_names: bool = True) -> tuple[Kpi, KnowledgeFlowMetrics]:
    kpi = Kpi(CollectorRegistry(), service="knowledge flow", phases=PHASES, legacy_ms_names=legacy_ms_names)
    return kpi, KnowledgeFlowMetrics(kpi.registry, kpi)


def feed(kpi: Kpi, metrics: KnowledgeFlowMetrics) -> None:
    """One observation of everything."""
    for phase in ("embed_query", *PHASES):
        with kpi.phase(phase):
            pass
    kpi.vigil.watch("ingest")
    kpi.vigil.threads.labels("kpi-summary").set(1)
    metrics.request("search", "ok").observe(0.02)
    metrics.searches_running.set(1)
    metrics.empty_searches.inc()
    metrics.rerank_skipped("late").inc()
    metrics.places("search", "waiting").set(2)
    metrics.refused("search", "per_user").inc()
    for seconds in (metrics.embed, metrics.embed_queue, metrics.rerank_queue):
        seconds.observe(0.002)
    metrics.embed_batch_size.observe(3)
    metrics.db_pool_wait("main").observe(0.001)
    metrics.db_statement("main", "hybrid").observe(0.004)
    metrics.db_connections("main", "idle").set(1)
    metrics.db_waiting("main").set(0)
    metrics.audit_pending.set(2)
    metrics.audit_lost.inc()
    metrics.db_opened("main").inc()
    metrics.embed_pool_wait.observe(0.001)
    metrics.ingest_stage("parse", "error").observe(0.5)
    metrics.ingested_documents("ok").inc()
    metrics.ingested_chunks.inc(40)
    metrics.ingest_running.set(1)
    kpi.gauge("event_loop_lag_ms").set(0.1)


def test_the_exposition_is_the_golden_one() -> None:
    kpi, metrics = built()
    feed(kpi, metrics)
    text = generate_latest(kpi.registry).decode()
    rows = []
    for family in text_string_to_metric_families(text):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        rows.append(f"{family.name} {family.type} {','.join(sorted(labels)) or '-'}")
    assert sorted(rows) == GOLDEN.split("\n")[1:-1]
    assert 'phase="other"' not in text
    keys = {*kpi.timers, *kpi.gauges, *kpi.counters}
    assert {"kf.requests|route=search", "app.phase_latency_ms|phase=vector_query", "rerank_skipped|cause=late"} <= keys
