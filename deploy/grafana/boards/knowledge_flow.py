"""Search, rerank, embedding and ingestion."""

from deploy.grafana.model import Dashboard, Panel, Row, Target
from deploy.grafana.parts import percentiles, tail
from deploy.grafana.promql import level, mean, quantile, rate, select


def knowledge_flow() -> Dashboard:
    """The other service."""
    return Dashboard(
        uid="turnwise-knowledge-flow",
        title="Turnwise / Knowledge flow",
        rows=[_searches(), _embedding(), _index(), _ingestion()],
        description="Search, rerank, embedding, ingestion; each worker is an instance.",
        known_by="app_kf_searches_in_progress",
    )


def _searches() -> Row:
    return Row(
        "Searches",
        [
            Panel(
                title="Requests a second",
                description="By route and outcome.",
                unit="reqps",
                stacked=True,
                targets=[Target(rate("app_kf_request_seconds_count", by="route, status"), "{{route}} {{status}}")],
            ),
            Panel(
                title="Requests p95",
                description="By route, all workers together.",
                unit="s",
                bound=1,
                targets=tail("app_kf_request_seconds", "route"),
            ),
            Panel(
                title="Phases p95",
                description="lexical_query runs beside embed_query; vector_query holds the fusion.",
                unit="s",
                targets=tail("app_phase_latency_seconds", "phase"),
            ),
            Panel(
                title="As the agents see it p95",
                description="The same calls from the other side: well above, the way there or the loop here is slow.",
                unit="s",
                targets=[
                    Target(
                        "histogram_quantile(0.95, sum by (phase, le) (rate(app_phase_latency_seconds_bucket"
                        '{phase=~"kf_vector_search|kf_vector_rerank"}[$__rate_interval])))',
                        "{{phase}}",
                    )
                ],
            ),
            Panel(
                title="Searches in progress",
                description="By worker.",
                unit="short",
                targets=[Target(select("app_kf_searches_in_progress"), "{{instance}}")],
            ),
            Panel(
                title="Empty answers a second",
                description="Searches without a hit.",
                unit="ops",
                targets=[Target(rate("app_kf_search_empty_total"), "empty")],
            ),
        ],
    )


def _embedding() -> Row:
    return Row(
        "Models",
        [
            Panel(
                title="Embedding",
                description="Wait for the model, and one batch at it.",
                unit="s",
                targets=[
                    Target(quantile(0.95, "app_embed_queue_seconds"), "wait p95"),
                    Target(quantile(0.95, "app_embed_seconds"), "batch p95"),
                ],
            ),
            Panel(
                title="Texts a batch",
                description="The mean: it grows when the model is the bottleneck.",
                unit="short",
                targets=[Target(mean("app_embed_batch_size"), "texts")],
            ),
            Panel(
                title="Wait for a thread that reranks",
                description="High: crossencoder_model.settings.threads.",
                unit="s",
                targets=percentiles("app_rerank_queue_seconds"),
            ),
            Panel(
                title="Reranks that were skipped, a second",
                description="By cause.",
                unit="ops",
                targets=[Target(rate("app_rerank_skipped_total", by="cause"), "{{cause}}")],
                quiet="none is skipped",
            ),
        ],
    )


def _index() -> Row:
    return Row(
        "Index and process",
        [
            Panel(
                title="Wait for a connection p95",
                description="By pool.",
                unit="s",
                bound=0.1,
                targets=tail("app_db_pool_wait_seconds", "pool"),
            ),
            Panel(
                title="Statements p95",
                description="By statement.",
                unit="s",
                targets=tail("app_db_statement_seconds", "pool", "op"),
            ),
            Panel(
                title="Connections",
                description="By pool and state, all workers together.",
                unit="short",
                stacked=True,
                targets=[
                    Target(
                        level("app_db_pool_connections", 'state!="overflow"', by="pool, state"), "{{pool}} {{state}}"
                    )
                ],
            ),
            Panel(
                title="Connections opened a second",
                description="More than now and then: the pool is too small, or connections break.",
                unit="ops",
                targets=[Target(rate("app_db_connections_opened_total", by="pool"), "{{pool}}")],
            ),
            Panel(
                title="Loop lag p99",
                description="By worker.",
                unit="s",
                bound=0.1,
                targets=tail("app_event_loop_lag_seconds", "instance", q=0.99),
            ),
            Panel(
                title="Loop busy",
                description="By worker: near 1 on all, more app.workers.",
                unit="percentunit",
                bound=0.9,
                targets=[Target(select("app_event_loop_busy_ratio"), "{{instance}}")],
            ),
        ],
    )


def _ingestion() -> Row:
    return Row(
        "Ingestion",
        [
            Panel(
                title="Files a minute",
                description="By outcome.",
                unit="short",
                targets=[Target(f"60 * {rate('app_ingest_documents_total', by='status')}", "{{status}}")],
                quiet="nothing is ingested",
            ),
            Panel(
                title="Passages a minute",
                description="Written to the index.",
                unit="short",
                targets=[Target(f"60 * {rate('app_ingest_chunks_total')}", "passages")],
            ),
            Panel(
                title="Stages p95",
                description="parse, embed and index of one file.",
                unit="s",
                targets=tail("app_ingest_stage_seconds", "stage"),
                quiet="nothing is ingested",
            ),
            Panel(
                title="Files in work",
                description="By worker.",
                unit="short",
                targets=[Target(select("app_ingest_in_progress"), "{{instance}}")],
            ),
        ],
    )
