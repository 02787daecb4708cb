"""Builds the parts of the service from the configuration: the embedder, the search and the ingestion."""

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from backend_kit.aio import FairGate, GateRules, TaskRegistry
from backend_kit.client.connections import Connections
from backend_kit.kpi import Kpi
from knowledge_flow_backend.embed import Embedder, Passages
from knowledge_flow_backend.embed.batcher import BatchRules
from knowledge_flow_backend.embed.local import DOCUMENTS_A_BATCH, LocalEmbedder
from knowledge_flow_backend.embed.model_server import ModelServer
from knowledge_flow_backend.embed.openai import DEFAULT_BASE_URL, EmbeddingRules, OpenAiEmbedder
from knowledge_flow_backend.index import ChunkIndex, IndexWriter
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.index.reads import SharedReads
from knowledge_flow_backend.ingest.fast import FastIngest
from knowledge_flow_backend.ingest.fast_router import ATTACHMENT_FILES, FastServices
from knowledge_flow_backend.ingest.pool import ParserPool, ParserPoolRules
from knowledge_flow_backend.ingest.receive import UploadLimits
from knowledge_flow_backend.ingest.router import IngestServices
from knowledge_flow_backend.ingest.service import IngestService
from knowledge_flow_backend.ingest.staging import Staging
from knowledge_flow_backend.ingest.steps import IngestRules, IngestSteps
from knowledge_flow_backend.ingest.work import MAX_IMAGE_BYTES
from knowledge_flow_backend.library.intake import Intake
from knowledge_flow_backend.library.store import Attachments
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics
from knowledge_flow_backend.rerank import Reranker, RerankService
from knowledge_flow_backend.rerank.http import HttpReranker, HttpRerankRules, default_batch
from knowledge_flow_backend.rerank.local import LocalReranker, QuestionVectors
from knowledge_flow_backend.search.service import SearchRules, SearchService
from knowledge_flow_backend.settings import (
    CrossencoderSettings,
    EmbeddingModel,
    EmbeddingSettings,
    KnowledgeFlowSettings,
    default_home,
)

_MIB = 1024 * 1024
_RESERVED: Final = 8
"""One of this many slots is for users who hold none."""
_FORM_BYTES = 64 * 1024
"""What a form with one file may have beside the file."""


def make_embedder(
    settings: KnowledgeFlowSettings, metrics: KnowledgeFlowMetrics, tasks: TaskRegistry
) -> LocalEmbedder | OpenAiEmbedder:
    """The configured embedder; the local one still has to be started."""
    model = settings.embedding_model
    chosen = model.settings
    local = model.provider == "local"
    rules = _batches(model)
    if local:
        home = Path(settings.storage.home) if settings.storage.home else default_home(os.environ)
        weights = Path(chosen.weights) if chosen.weights else None
        return LocalEmbedder(home, threads=chosen.threads, rules=rules, metrics=metrics, tasks=tasks, weights=weights)
    endpoint = model_server_of(chosen, f"{chosen.base_url or DEFAULT_BASE_URL}/embeddings")
    embedding = EmbeddingRules(
        model=model.name,
        dimensions=chosen.dimensions,
        requests_per_minute=chosen.requests_per_minute,
        tokens_per_minute=chosen.tokens_per_minute,
    )
    return OpenAiEmbedder(endpoint, embedding, rules, metrics=metrics, tasks=tasks)


def make_passages(settings: KnowledgeFlowSettings, embedder: Embedder) -> Passages:
    """The one way to embed passages; as many at a time as the embedder computes at once."""
    rules = _batches(settings.embedding_model)
    return Passages(embedder, step=rules.documents * rules.slots)


def _batches(model: EmbeddingModel) -> BatchRules:
    chosen = model.settings
    local = model.provider == "local"
    return BatchRules(
        slots=chosen.threads if local else chosen.requests_at_once,
        queries=chosen.batch_max_texts,
        documents=min(chosen.batch_max_texts, DOCUMENTS_A_BATCH) if local else chosen.batch_max_texts,
        waiting=chosen.queue_max_texts,
    )


def make_search(
    settings: KnowledgeFlowSettings,
    stack: AsyncExitStack,
    *,
    index: ChunkIndex,
    embedder: Embedder,
    passages: Passages,
    reads: SharedReads,
    metrics: KnowledgeFlowMetrics,
    kpi: Kpi,
) -> SearchService:
    """Search as it is configured, with its reranker; `stack` closes what the reranker holds."""
    vectors = QuestionVectors()
    reranker: Reranker | None = None
    if settings.crossencoder_model.provider == "http":
        reranker = _make_http_reranker(settings, stack, metrics)
    elif settings.crossencoder_model.provider == "local":
        local = LocalReranker(
            embedder,
            index,
            vectors,
            passages=passages,
            threads=settings.crossencoder_model.settings.threads,
            deadline_s=settings.deadlines.rerank_s,
            metrics=metrics,
            kpi=kpi,
        )
        stack.callback(local.close)
        reranker = local
    reranking = RerankService(reranker, metrics=metrics, kpi=kpi)
    rules = SearchRules(
        candidates=settings.search.candidates,
        admission=_shared(settings, settings.limits.max_searches, settings.limits.max_searches_per_user),
        max_question_chars=settings.limits.max_question_chars,
        deadline_s=settings.deadlines.search_s,
        index_name=settings.storage.vector_store.index,
    )
    return SearchService(
        index=index,
        embedder=embedder,
        vectors=vectors,
        reranking=reranking,
        reads=reads,
        rules=rules,
        metrics=metrics,
        kpi=kpi,
    )


def _make_http_reranker(
    settings: KnowledgeFlowSettings, stack: AsyncExitStack, metrics: KnowledgeFlowMetrics
) -> HttpReranker:
    model = settings.crossencoder_model
    chosen = model.settings
    rules = HttpRerankRules(
        shape=chosen.shape,
        model=model.name,
        batch_texts=chosen.batch_max_texts or default_batch(chosen.shape),
        text_chars=chosen.max_text_chars,
        deadline_s=settings.deadlines.rerank_s,
    )
    reranker = HttpReranker(model_server_of(chosen, f"{chosen.base_url}/rerank"), rules, metrics=metrics)
    stack.push_async_callback(reranker.aclose)
    return reranker


def model_server_of(chosen: CrossencoderSettings | EmbeddingSettings, url: str) -> ModelServer:
    """The model server at `url` with the configured key, timeouts and limits."""
    limits = chosen.http_client_limits
    connections = Connections(
        max_connections=limits.max_connections,
        max_idle=limits.max_keepalive_connections,
        keepalive_s=limits.keepalive_expiry_seconds,
        connect_s=chosen.timeout.connect,
        pool_s=chosen.timeout.pool,
        read_s=chosen.timeout.read,
        write_s=chosen.timeout.write,
    )
    return ModelServer(url, chosen.api_key, connections, chosen.max_retries)


async def make_ingest(
    settings: KnowledgeFlowSettings,
    stack: AsyncExitStack,
    database: IndexDatabase,
    *,
    writer: IndexWriter,
    embedder: Embedder,
    passages: Passages,
    metrics: KnowledgeFlowMetrics,
    kpi: Kpi,
    tasks: TaskRegistry,
) -> tuple[IngestServices, FastServices]:
    """What the routes of documents and of attachments need; `stack` closes its staging directory and its parsers."""
    processing, limits = settings.processing, settings.limits
    staging = Staging()
    await staging.open()
    stack.push_async_callback(staging.aclose)
    pool = ParserPool(
        ParserPoolRules(
            processing.workers,
            processing.worker_memory_mb,
            processing.worker_timeout_s,
            processing.worker_base_s,
            processing.worker_s_per_mb,
            processing.cpu_budget_s,
            reserve=_reserve(settings),
        )
    )
    stack.push_async_callback(pool.aclose)
    intake = Intake(database, lease_s=processing.lease_s)
    files = processing.files_at_once
    rules = IngestRules(
        processing.chunk_size_chars, processing.chunk_overlap_chars, files=files, reserve=_reserve(settings)
    )
    steps = IngestSteps(
        pool=pool, writer=writer, embedder=embedder, passages=passages, rules=rules, metrics=metrics, kpi=kpi
    )
    service = IngestService(
        steps, staging, intake, tasks, _shared(settings, limits.max_uploads, limits.max_uploads_per_user)
    )
    fast = FastIngest(steps, max_chars=processing.max_attachment_chars)
    max_file = processing.max_file_mb * _MIB
    bounds = UploadLimits(max_file, limits.max_upload_files, limits.max_upload_mb * _MIB)
    one_file = UploadLimits(max_file, 1, max_file + _FORM_BYTES)
    max_image = min(max_file, MAX_IMAGE_BYTES)
    one_image = UploadLimits(max_image, 1, max_image + _FORM_BYTES)
    return (
        IngestServices(service, intake, staging, bounds),
        FastServices(
            fast,
            service,
            Attachments(database),
            staging,
            one_file,
            one_image,
            limits.max_attachments_per_user,
            FairGate(_by_user(settings, ATTACHMENT_FILES)),
        ),
    )


def _shared(settings: KnowledgeFlowSettings, places: int, per_user: int) -> GateRules:
    """Places that users share; those of who has none are kept. Without authentication there is one user."""
    return _by_user(settings, GateRules(places, per_user=per_user, reserve=places // _RESERVED))


def _by_user(settings: KnowledgeFlowSettings, rules: GateRules) -> GateRules:
    return rules if settings.security.user.enabled else rules.of_one_user()


def _reserve(settings: KnowledgeFlowSettings) -> int:
    """Children, and files in work, that are kept for users who have none."""
    return 1 if settings.processing.workers > 1 and settings.security.user.enabled else 0
