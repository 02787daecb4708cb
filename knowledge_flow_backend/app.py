"""Builds the knowledge-flow service in its lifespan, wires the ports, and ends it in order."""

import asyncio
import gc
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from backend_kit.aio import TaskRegistry
from backend_kit.aio.retry import Backoff, QuietLog, keep_trying
from backend_kit.auth import HmacVerifier, IssuerKeys, IssuerVerifier, NoAuth, Verifier
from backend_kit.build import git_sha
from backend_kit.client import Connections
from backend_kit.db.pool import PoolReport
from backend_kit.http import (
    BodyLimit,
    HttpMetrics,
    RequestId,
    RequestMetrics,
    ServeSettings,
    add_api_docs,
    bearer,
    health_router,
    install_error_handlers,
    refusals,
    serve,
)
from backend_kit.kpi import Kpi
from backend_kit.kpi.runtime import KpiOptions, KpiRuntime
from backend_kit.settings import config_hash
from knowledge_flow_backend.embed import Embedder
from knowledge_flow_backend.embed.batcher import BatchRules
from knowledge_flow_backend.embed.handover import QuestionVectors
from knowledge_flow_backend.embed.local import DOCUMENTS_A_BATCH, LocalEmbedder, default_home
from knowledge_flow_backend.embed.model_server import ModelServer
from knowledge_flow_backend.embed.openai import DEFAULT_BASE_URL, EmbeddingRules, OpenAiEmbedder
from knowledge_flow_backend.engines.engine import Engine, make_engine
from knowledge_flow_backend.errors import DocumentsUnavailable, IndexUnavailable, SchemaMismatch
from knowledge_flow_backend.index import ChunkIndex, IndexWriter
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.ingest.fast import FastIngest
from knowledge_flow_backend.ingest.fast_router import FastServices
from knowledge_flow_backend.ingest.fast_router import build_router as build_fast_router
from knowledge_flow_backend.ingest.pool import ParserPool, PoolRules
from knowledge_flow_backend.ingest.receive import UploadLimits
from knowledge_flow_backend.ingest.router import IngestServices
from knowledge_flow_backend.ingest.router import build_router as build_ingest_router
from knowledge_flow_backend.ingest.service import IngestRules, IngestService
from knowledge_flow_backend.ingest.staging import Staging
from knowledge_flow_backend.library.attachments import Attachments
from knowledge_flow_backend.library.intake import Intake
from knowledge_flow_backend.library.router import LibraryServices
from knowledge_flow_backend.library.router import build_router as build_library_router
from knowledge_flow_backend.library.store import Library, Statements
from knowledge_flow_backend.metrics import PHASES, KnowledgeFlowMetrics
from knowledge_flow_backend.rerank import Reranker, RerankService
from knowledge_flow_backend.rerank.http import HttpReranker, HttpRerankRules, default_batch
from knowledge_flow_backend.rerank.local import LocalReranker
from knowledge_flow_backend.search.router import build_router as build_search_router
from knowledge_flow_backend.search.service import SearchRules, SearchService
from knowledge_flow_backend.settings import CrossencoderSettings, EmbeddingSettings, KnowledgeFlowSettings

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024
_FORM_BYTES = 64 * 1024
"""What a form with one file may have beside the file."""
_LAG_NOT_READY_S = 1.0
_POOL_TICK_S = 1.0
_LAG_NOT_READY_FOR_S = 10.0


@dataclass(slots=True)
class State:
    """What the lifespan built, each with its one owner."""

    tasks: TaskRegistry
    runtime: KpiRuntime
    database: IndexDatabase
    embedder: Embedder
    engine: Engine
    search: SearchService
    ingest: IngestServices
    fast: FastServices
    library: LibraryServices
    mismatch: str | None = field(default=None)
    """Why the index does not fit the embedder, in words; None where it does, or is not known yet."""


class KnowledgeFlowService:
    """One knowledge-flow service: `app` is the ASGI application, `drain` its orderly end. It keeps nothing that
    another process would need: two may live side by side, in one process or in several."""

    def __init__(self, settings: KnowledgeFlowSettings, *, freeze_gc: bool = False) -> None:
        """`freeze_gc` is for a process that does nothing else."""
        self._settings = settings
        self._freeze_gc = freeze_gc
        self._verifier = make_verifier(settings)
        self._registry = CollectorRegistry()
        self._state: State | None = None
        self._draining = False
        self._late_since: float | None = None
        self.app = self._build_app()

    @property
    def metrics_port(self) -> int | None:
        """Where /metrics listens, once started."""
        return None if self._state is None else self._state.runtime.metrics_port

    @property
    def running(self) -> State:
        """What the lifespan built. Raises RuntimeError before the start and after the end."""
        if self._state is None:
            raise RuntimeError("the service has not started")
        return self._state

    def state(self) -> tuple[bool, str, dict[str, Any]]:
        """Readiness: not a question of Postgres, or one outage would take every instance out at once."""
        state = self._state
        if state is None:
            return False, "starting", {}
        dependencies: dict[str, Any] = {
            "postgres": state.database.state.status,
            **state.engine.dependencies(),
            "embedder": state.embedder.state,
        }
        if isinstance(self._verifier, IssuerVerifier):
            dependencies["identity_provider"] = "up" if self._verifier.keys.reachable else "down"
        if self._draining:
            return False, "draining", dependencies
        if state.mismatch is not None or state.database.state.status == "refused":
            return False, "schema_mismatch", dependencies
        if down := state.tasks.vigil.down:
            return False, "task_down", dependencies | {"tasks": f"down: {', '.join(down)}"}
        if state.embedder.state == "failed":
            return False, "embedder_failed", dependencies
        if not state.database.ready or not state.engine.ready or state.embedder.state != "ready":
            fetching = state.database.ready and state.engine.ready and state.embedder.state == "fetching"
            return False, "fetching_model" if fetching else "starting", dependencies
        if self._loop_is_late(state):
            return False, "loop_late", dependencies
        return True, "ready", dependencies

    async def drain(self) -> None:
        """End uploads. Searches are short: the server lets those that run end when it closes."""
        self._draining = True
        logger.info("drain 1/2: not ready any more; new uploads are refused")
        left = await self.running.ingest.ingest.drain(self._settings.deadlines.drain_s)
        logger.info("drain 2/2: uploads have ended, %d of them cut short at the deadline", left)

    def _loop_is_late(self, state: State) -> bool:
        now = asyncio.get_running_loop().time()
        if state.runtime.loop.lag_s < _LAG_NOT_READY_S:
            self._late_since = None
            return False
        if self._late_since is None:
            self._late_since = now
        return now - self._late_since >= _LAG_NOT_READY_FOR_S

    def _build_app(self) -> FastAPI:
        app = FastAPI(
            title="Turnwise knowledge flow",
            version=version("turnwise"),
            lifespan=self._lifespan,
            responses=refusals(),
            openapi_url=None,  # nor its pages, which load scripts from elsewhere: `add_api_docs` has ours
        )
        base = self._settings.app.base_url
        identify = bearer(self._verifier)
        install_error_handlers(app)
        # Not `include_router`: what is included is made once more, on the loop, in the first request.
        app.router.routes += health_router(self, base).routes
        app.router.routes += build_search_router(lambda: self.running.search, identify, base).routes
        app.router.routes += build_ingest_router(lambda: self.running.ingest, identify, base).routes
        app.router.routes += build_fast_router(lambda: self.running.fast, identify, base).routes
        app.router.routes += build_library_router(lambda: self.running.library, identify, base).routes
        if self._settings.app.api_docs:
            add_api_docs(app, identify, chat_page=False)
        app.add_middleware(RequestMetrics, metrics=HttpMetrics(self._registry))
        uploads = tuple(f"{base}{path}" for path in ("/upload-process-documents", "/fast/text", "/fast/ingest"))
        app.add_middleware(BodyLimit, limit_bytes=self._settings.limits.max_request_bytes, file_paths=uploads)
        app.add_middleware(RequestId)
        return app

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            self._state = await self._build(stack)
            if self._freeze_gc:
                freeze_gc()
                stack.callback(gc.unfreeze)
            yield
            self._state = None

    async def _build(self, stack: AsyncExitStack) -> State:
        """Build in order; the stack closes in reverse."""
        settings = self._settings
        kpi = Kpi(
            self._registry,
            service=settings.app.name,
            legacy_ms_names=settings.metrics.legacy_ms_names,
            phases=PHASES,
        )
        metrics = KnowledgeFlowMetrics(self._registry, kpi)
        runtime = KpiRuntime(kpi, kpi_options(settings)).start()
        stack.callback(runtime.close)
        tasks = TaskRegistry(kpi.vigil)
        storage = settings.storage
        writers = _files_at_once(settings)
        database = IndexDatabase(storage.postgres, storage.vector_store.index, metrics, writers=writers)
        stack.push_async_callback(database.aclose)
        embedder = make_embedder(settings, metrics, tasks)
        stack.push_async_callback(embedder.aclose)
        engine = make_engine(settings, database, metrics, model=embedder.model, kpi=kpi)
        stack.push_async_callback(engine.aclose)
        search = _make_search(settings, stack, index=engine.index, embedder=embedder, metrics=metrics, kpi=kpi)
        ingest, fast = await _make_ingest(
            settings, stack, database, writer=engine.writer, embedder=embedder, metrics=metrics, kpi=kpi, tasks=tasks
        )
        library = LibraryServices(Library(Statements(database), engine.writer), metrics)
        state = State(tasks, runtime, database, embedder, engine, search, ingest, fast, library)
        stack.push_async_callback(tasks.aclose)
        if isinstance(self._verifier, IssuerVerifier):
            tasks.spawn("issuer-keys", self._verifier.keys.run, restart=True, essential=True)
        tasks.spawn("index-schema", lambda: _open_index(state), restart=True)
        engine.spawn(tasks)
        tasks.spawn("ingest-leases", ingest.ingest.keep_leases, restart=True, essential=True)
        tasks.spawn("ingest-take-up", ingest.ingest.take_up, restart=True)
        pools = PoolReport((database.main, database.writes), metrics)
        tasks.spawn("pool-clock", lambda: _watch_pools(pools), restart=True)
        if isinstance(embedder, LocalEmbedder):
            embedder.start()
        kpi.add_lines(pools.lines)
        return state


def make_verifier(settings: KnowledgeFlowSettings) -> Verifier:
    """Who checks tokens: nobody where authentication is off (said aloud), else a shared secret or the issuer's keys."""
    security, user = settings.security, settings.security.user
    if not user.enabled:
        logger.warning("authentication is OFF: every caller is the user 'admin'")
        return NoAuth()
    if security.hs256_secret is not None:
        secret = security.hs256_secret.get_secret_value()
        return HmacVerifier(secret, client_id=user.client_id or "", issuer=user.realm_url, audience=user.client_id)
    if user.realm_url is None or user.client_id is None:
        raise RuntimeError("security.user.enabled without a key")
    keys = IssuerKeys(user.realm_url, algorithm=user.algorithm, jwks_url=user.jwks_url)
    return IssuerVerifier(keys, client_id=user.client_id)


def make_embedder(
    settings: KnowledgeFlowSettings, metrics: KnowledgeFlowMetrics, tasks: TaskRegistry
) -> LocalEmbedder | OpenAiEmbedder:
    """The configured embedder; the local one still has to be started."""
    model = settings.embedding_model
    chosen = model.settings
    local = model.provider == "local"
    rules = BatchRules(
        slots=chosen.threads if local else chosen.requests_at_once,
        queries=chosen.batch_max_texts,
        documents=min(chosen.batch_max_texts, DOCUMENTS_A_BATCH) if local else chosen.batch_max_texts,
        waiting=chosen.queue_max_texts,
    )
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


def kpi_options(settings: KnowledgeFlowSettings) -> KpiOptions:
    """The measurement switches of the configuration."""
    app = settings.app
    return KpiOptions(
        log_level=app.log_level,
        summary_interval_s=app.kpi_log_summary_interval_sec,
        summary_top_n=app.kpi_log_summary_top_n,
        process_interval_s=app.kpi_process_metrics_interval_sec,
        metrics_enabled=app.metrics_enabled,
        metrics_address=app.metrics_address,
        metrics_port=app.metrics_port,
        version=version("turnwise"),
        git_sha=git_sha(),
        config_hash=config_hash(settings),
    )


def freeze_gc() -> None:
    """Take what start-up made out of garbage collection: full collections over it cost 100-180 ms each (COSTS §7)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def serve_app(settings: KnowledgeFlowSettings, sock: socket.socket) -> int:
    """Run the service on a listening socket until a signal ends it; returns the exit code."""
    service = KnowledgeFlowService(settings, freeze_gc=True)
    return serve(
        service.app,
        sock,
        drain=service.drain,
        settings=ServeSettings(drain_limit_s=settings.deadlines.drain_s + 5.0),
    )


def _make_search(
    settings: KnowledgeFlowSettings,
    stack: AsyncExitStack,
    *,
    index: ChunkIndex,
    embedder: Embedder,
    metrics: KnowledgeFlowMetrics,
    kpi: Kpi,
) -> SearchService:
    vectors = QuestionVectors()
    reranker: Reranker | None = None
    if settings.crossencoder_model.provider == "http":
        reranker = _make_http_reranker(settings, stack, metrics)
    elif settings.crossencoder_model.provider == "local":
        local = LocalReranker(
            embedder,
            index,
            vectors,
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
        max_running=settings.limits.max_searches,
        max_question_chars=settings.limits.max_question_chars,
        deadline_s=settings.deadlines.search_s,
        index_name=settings.storage.vector_store.index,
    )
    return SearchService(
        index=index,
        embedder=embedder,
        vectors=vectors,
        reranking=reranking,
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
    """The model server at `url` as the configuration wants it called."""
    limits = chosen.http_client_limits
    connections = Connections(
        max_connections=limits.max_connections,
        keepalive=limits.max_keepalive_connections > 0,
        keepalive_s=limits.keepalive_expiry_seconds,
        connect_s=chosen.timeout.connect,
        pool_s=chosen.timeout.pool,
        read_s=chosen.timeout.read,
    )
    return ModelServer(url, chosen.api_key, connections, chosen.max_retries)


async def _make_ingest(
    settings: KnowledgeFlowSettings,
    stack: AsyncExitStack,
    database: IndexDatabase,
    *,
    writer: IndexWriter,
    embedder: Embedder,
    metrics: KnowledgeFlowMetrics,
    kpi: Kpi,
    tasks: TaskRegistry,
) -> tuple[IngestServices, FastServices]:
    processing, limits = settings.processing, settings.limits
    staging = Staging()
    await staging.open()
    stack.push_async_callback(staging.aclose)
    pool = ParserPool(PoolRules(processing.workers, processing.worker_memory_mb, processing.worker_timeout_s))
    stack.push_async_callback(pool.aclose)
    intake = Intake(database, lease_s=processing.lease_s)
    files = _files_at_once(settings)
    rules = IngestRules(processing.chunk_size_chars, processing.chunk_overlap_chars, files=files)
    service = IngestService(
        pool=pool,
        staging=staging,
        intake=intake,
        writer=writer,
        embedder=embedder,
        rules=rules,
        metrics=metrics,
        kpi=kpi,
        tasks=tasks,
    )
    fast = FastIngest(
        pool=pool,
        writer=writer,
        embedder=embedder,
        rules=rules,
        max_chars=processing.max_attachment_chars,
        metrics=metrics,
        kpi=kpi,
    )
    max_file = processing.max_file_mb * _MIB
    bounds = UploadLimits(max_file, limits.max_upload_files, limits.max_upload_mb * _MIB)
    one_file = UploadLimits(max_file, 1, max_file + _FORM_BYTES)
    return (
        IngestServices(service, intake, staging, bounds),
        FastServices(fast, service, Attachments(database), staging, one_file),
    )


def _files_at_once(settings: KnowledgeFlowSettings) -> int:
    """One file more than parsers: while one is being embedded, another one is read."""
    return settings.processing.workers + 1


async def _open_index(state: State) -> None:
    """First contact with the servers of the index, and whether what they hold was made by this embedder."""
    await state.database.connect_until_ready()
    if not state.database.ready:
        return
    try:
        await _reach(state.engine)
        if isinstance(state.embedder, OpenAiEmbedder):
            # Its name does not say the length of its vectors: one is made.
            await state.engine.check(await state.embedder.dimension())
    except SchemaMismatch as mismatch:
        state.mismatch = str(mismatch)
        logger.critical("%s", mismatch)
    except DocumentsUnavailable as failure:
        # Each search compares too: what is not known now is known then.
        logger.warning("the length of the index's vectors could not be checked: %s", failure)


async def _reach(engine: Engine) -> None:
    """Check the index, trying again for as long as its server is away. Raises `SchemaMismatch`."""
    quiet = QuietLog(logger)

    def away(failure: IndexUnavailable) -> None:
        quiet.warning("away", "the index cannot be checked: %s; trying on", failure)

    await keep_trying(engine.check, IndexUnavailable, Backoff(), on_failure=away)


async def _watch_pools(pools: PoolReport) -> None:
    while True:
        pools.publish()
        await asyncio.sleep(_POOL_TICK_S)
