"""The metrics of the knowledge-flow service, built once in the lifespan with the registry and the Kpi they feed."""

from prometheus_client import CollectorRegistry, Gauge, Histogram

from backend_kit.kpi import (
    COUNT_BUCKETS,
    SHORT_BUCKETS,
    TURN_BUCKETS,
    Amounts,
    Counter,
    GaugedSeconds,
    Kpi,
    Labelled,
    Seconds,
    ServiceMetrics,
)
from backend_kit.kpi import Gauge as KpiGauge

PHASES = (
    "embed_query", "search_turn", "lexical_query", "vector_query", "os_query", "rerank", "ingest_parse", "ingest_embed",
    "ingest_write",
)  # fmt: skip
"""Phases of this service beyond those that every process knows, such as `vector_search` and `vector_rerank`."""


class KnowledgeFlowMetrics(ServiceMetrics):
    """Every metric of the service, as bound objects: `.observe(seconds)`, `.inc()`, `.set(value)`.

    One call feeds the summary log and Prometheus. Labelled ones are called with their values, in the order of the
    label names. Values: route search|rerank|ingest|documents|tags; status ok|error|cancelled|timeout|rejected;
    cause late|failed|busy|off; class search|upload|parse; state running|waiting;
    bound per_user|overall|late; pool main|ingest; op the statement's name or commit; stage store|parse|embed|index.
    Never a user, session, document or library.
    """

    def __init__(self, registry: CollectorRegistry, kpi: Kpi) -> None:
        super().__init__(registry, kpi)
        self._requests()
        self._models()
        self._http_pools()
        self._ingestion()

    def _requests(self) -> None:
        # A search takes from 10 ms to its deadline (4.5 s); an upload takes minutes.
        self.request: Labelled[Seconds] = self._timers(
            "app_kf_request_seconds",
            "One call of a route, refused ones included.",
            ["route", "status"],
            "kf.requests",
            TURN_BUCKETS,
        )
        self.searches_running: KpiGauge = self._level(
            "app_kf_searches_in_progress", "Searches that run now.", "kf.searches_running"
        )
        self.places: Labelled[Gauge] = self._states(
            "app_kf_places", "Calls and files at a gate that users share, read each second.", ["class", "state"]
        )
        self.refused: Labelled[Counter] = self._counters(
            "app_kf_refused_total", "Calls that were refused at such a gate.", ["class", "bound"], "kf.refused"
        )
        self.empty_searches: Counter = self._counter(
            "app_kf_search_empty_total", "Searches without a hit.", "kf.search_empty"
        )
        self.rerank_skipped: Labelled[Counter] = self._counters(
            "app_rerank_skipped_total", "Answers in the order of retrieval, by cause.", ["cause"], "rerank_skipped"
        )

    def _models(self) -> None:
        # A query takes 2 to 20 ms where it is computed, up to a second over a network.
        self.embed: Seconds = self._timer(
            "app_embed_seconds", "One batch of texts at the embedder.", "embed", SHORT_BUCKETS
        )
        self.embed_queue: Seconds = self._timer(
            "app_embed_queue_seconds", "From a text's arrival to the start of its batch.", "embed_queue", SHORT_BUCKETS
        )
        self.embed_batch_size: Amounts = self._kpi.amounts(
            "embed_texts",
            Histogram(
                "app_embed_batch_size", "Texts of one batch.", buckets=COUNT_BUCKETS[:5], registry=self._registry
            ),
        )
        self.rerank_queue: Seconds = self._timer(
            "app_rerank_queue_seconds", "Wait for a thread that reranks.", "rerank_queue", SHORT_BUCKETS
        )

    def _http_pools(self) -> None:
        http_wait = Histogram(
            "app_http_pool_wait_seconds",
            "Wait for a free connection, by those calls that had to wait.",
            ["pool"],
            buckets=SHORT_BUCKETS,
            registry=self._registry,
        )
        self.embed_pool_wait: GaugedSeconds = self._kpi.gauged_seconds("embed.pool_wait_ms", http_wait.labels("embed"))
        self.rerank_pool_wait: GaugedSeconds = self._kpi.gauged_seconds(
            "rerank.pool_wait_ms", http_wait.labels("rerank")
        )

    def _ingestion(self) -> None:
        self.ingest_stage: Labelled[Seconds] = self._timers(
            "app_ingest_stage_seconds", "One stage of one file.", ["stage", "status"], "ingest.stage", TURN_BUCKETS
        )
        self.ingested_documents: Labelled[Counter] = self._counters(
            "app_ingest_documents_total", "Files that were ingested, or not.", ["status"], "ingest.documents"
        )
        self.ingested_chunks: Counter = self._counter(
            "app_ingest_chunks_total", "Chunks written to the index.", "ingest.chunks"
        )
        self.index_pending: KpiGauge = self._level(
            "app_index_pending", "Changes that OpenSearch has not followed yet.", "index_pending"
        )
        self.ingest_running: KpiGauge = self._level(
            "app_ingest_in_progress", "Files that are being ingested now.", "ingest.running"
        )
