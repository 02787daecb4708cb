"""Search, rerank, embedding and ingestion."""

from deploy.grafana.model import AUDIT, CONNECTIONS_OPENED, Dashboard, Panel, Row, Target, percentiles, tail
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
                "Requests a second",
                "By route and outcome.",
                "reqps",
                [Target(rate("app_kf_request_seconds_count", by="route, status"), "{{route}} {{status}}")],
                stacked=True,
            ),
            Panel(
                "Requests p95", "By route, all workers together.", "s", tail("app_kf_request_seconds", "route"), bound=1
            ),
            Panel(
                "Phases p95",
                "lexical_query runs beside embed_query; vector_query holds the fusion.",
                "s",
                tail("app_phase_latency_seconds", "phase"),
            ),
            Panel(
                "Searches in progress",
                "By worker.",
                "short",
                [Target(select("app_kf_searches_in_progress"), "{{instance}}")],
            ),
            Panel(
                "Waiting for a place",
                "Searches, uploads, files for a parsing child. Users take turns: much of one waits for itself.",
                "short",
                [Target(level("app_kf_places", by="class, state"), "{{class}} {{state}}")],
            ),
            Panel(
                "Refused for want of a place",
                "Too many waited, of one user or of all, or a search waited to its deadline.",
                "ops",
                [Target(rate("app_kf_refused_total", by="class, bound"), "{{class}} {{bound}}")],
                quiet="everything got its turn",
            ),
            Panel(
                "Empty answers a second",
                "Searches without a hit.",
                "ops",
                [Target(rate("app_kf_search_empty_total"), "empty")],
            ),
        ],
    )


def _embedding() -> Row:
    return Row(
        "Models",
        [
            Panel(
                "Embedding",
                "Wait for the model, and one batch at it.",
                "s",
                [
                    Target(quantile(0.95, "app_embed_queue_seconds"), "wait p95"),
                    Target(quantile(0.95, "app_embed_seconds"), "batch p95"),
                ],
            ),
            Panel(
                "Texts a batch",
                "The mean: it grows when the model is the bottleneck.",
                "short",
                [Target(mean("app_embed_batch_size"), "texts")],
            ),
            Panel(
                "Wait for a thread that reranks",
                "High: crossencoder_model.settings.threads.",
                "s",
                percentiles("app_rerank_queue_seconds"),
            ),
            Panel(
                "Reranks that were skipped, a second",
                "By cause.",
                "ops",
                [Target(rate("app_rerank_skipped_total", by="cause"), "{{cause}}")],
                quiet="none is skipped",
            ),
        ],
    )


def _index() -> Row:
    return Row(
        "Index and process",
        [
            Panel("Wait for a connection p95", "By pool.", "s", tail("app_db_pool_wait_seconds", "pool"), bound=0.1),
            Panel("Statements p95", "By statement.", "s", tail("app_db_statement_seconds", "pool", "op")),
            Panel(
                "Connections",
                "By pool and state, all workers together.",
                "short",
                [Target(level("app_db_pool_connections", 'state!="overflow"', by="pool, state"), "{{pool}} {{state}}")],
                stacked=True,
            ),
            CONNECTIONS_OPENED,
            AUDIT,
            Panel("Loop lag p99", "By worker.", "s", tail("app_event_loop_lag_seconds", "instance", q=0.99), bound=0.1),
            Panel(
                "Loop busy",
                "By worker: near 1 on all, more app.workers.",
                "percentunit",
                [Target(select("app_event_loop_busy_ratio"), "{{instance}}")],
                bound=0.9,
            ),
        ],
    )


def _ingestion() -> Row:
    return Row(
        "Ingestion",
        [
            Panel(
                "Files a minute",
                "By outcome.",
                "short",
                [Target(f"60 * {rate('app_ingest_documents_total', by='status')}", "{{status}}")],
                quiet="nothing is ingested",
            ),
            Panel(
                "Passages a minute",
                "Written to the index.",
                "short",
                [Target(f"60 * {rate('app_ingest_chunks_total')}", "passages")],
            ),
            Panel(
                "Stages p95",
                "parse, embed and index of one file.",
                "s",
                tail("app_ingest_stage_seconds", "stage"),
                quiet="nothing is ingested",
            ),
            Panel("Files in work", "By worker.", "short", [Target(select("app_ingest_in_progress"), "{{instance}}")]),
        ],
    )
