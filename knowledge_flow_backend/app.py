"""Builds the knowledge-flow service in its lifespan, wires the ports, and ends it in order."""

import asyncio
import logging
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from backend_kit.aio import FairGate, TaskRegistry
from backend_kit.aio.retry import Backoff, QuietLog, keep_trying
from backend_kit.auth import Lately
from backend_kit.db.audit import AuditLog
from backend_kit.db.pool import PoolReport
from backend_kit.http import ServeSettings, health_paths, serve
from backend_kit.kpi import KpiRuntime
from backend_kit.service import Identify, Service
from knowledge_flow_backend.embed import Embedder
from knowledge_flow_backend.embed.local import LocalEmbedder
from knowledge_flow_backend.embed.openai import OpenAiEmbedder
from knowledge_flow_backend.engines.engine import Engine, make_engine
from knowledge_flow_backend.errors import DocumentsUnavailable, IndexUnavailable, SchemaMismatch
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.index.reads import ADD_EVENTS, SharedReads
from knowledge_flow_backend.ingest.fast_router import FastServices
from knowledge_flow_backend.ingest.fast_router import build_router as build_fast_router
from knowledge_flow_backend.ingest.router import IngestServices
from knowledge_flow_backend.ingest.router import build_router as build_ingest_router
from knowledge_flow_backend.library.router import LibraryServices
from knowledge_flow_backend.library.router import build_router as build_library_router
from knowledge_flow_backend.library.store import Library, Statements
from knowledge_flow_backend.metrics import PHASES, KnowledgeFlowMetrics
from knowledge_flow_backend.scopes import ROUTE_COSTS, SCOPES
from knowledge_flow_backend.search.router import build_router as build_search_router
from knowledge_flow_backend.search.service import SearchService
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from knowledge_flow_backend.wiring import make_embedder, make_ingest, make_passages, make_search

if TYPE_CHECKING:
    from backend_kit.mcp import McpDoor

logger = logging.getLogger(__name__)

_MAX_BODY_BYTES = 1024 * 1024
_FILE_PATHS = ("/upload-process-documents", "/fast/text", "/fast/image", "/fast/ingest")
_POOL_TICK_S = 1.0


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
    audit: AuditLog
    mcp: "McpDoor | None" = field(default=None)
    """The endpoint for clients that speak MCP; None while it is switched off."""
    mismatch: str | None = field(default=None)
    """Why the index does not fit the embedder, as a sentence; None while it fits or this is not known yet."""


class KnowledgeFlowService(Service[KnowledgeFlowSettings, State]):
    """One knowledge-flow service: `app` is the ASGI application, `drain` its orderly shutdown. It holds no state that
    another process would need: several may run side by side, in one process or in several."""

    def __init__(self, settings: KnowledgeFlowSettings, *, freeze_gc: bool = False) -> None:
        """`freeze_gc` is for a process that does nothing else."""
        super().__init__(settings, freeze_gc=freeze_gc)
        base = settings.app.base_url
        self.app = self._make_app(
            "Turnwise knowledge flow",
            max_body_bytes=min(_MAX_BODY_BYTES, settings.limits.max_request_bytes),
            larger_bodies={f"{base}/vector/rerank": settings.limits.max_request_bytes},
            file_paths=tuple(base + path for path in _FILE_PATHS),
            scopes=SCOPES,
            costs=ROUTE_COSTS,
        )

    async def drain(self) -> None:
        """End uploads. Searches are short: the server lets the running ones finish when it closes."""
        self._draining = True
        logger.info("drain 1/2: not ready any more; new uploads are refused")
        left = await self.running.ingest.ingest.drain(self._settings.deadlines.drain_s)
        logger.info("drain 2/2: uploads have ended, %d of them cut short at the deadline", left)

    def _hindrance(self, state: State) -> str | None:
        database, engine, embedder = state.database, state.engine, state.embedder
        if state.mismatch is not None or database.state.status == "refused":
            return "schema_mismatch"
        if state.tasks.vigil.down:
            return "task_down"
        if embedder.state == "failed":
            return "embedder_failed"
        if not database.ready or not engine.ready:
            return "starting"
        if embedder.state == "fetching":
            return "fetching_model"
        return "starting" if embedder.state in ("loading", "building") else None

    def _dependencies(self, state: State, status: str) -> dict[str, Any]:
        dependencies: dict[str, Any] = {
            "postgres": state.database.state.status,
            **state.engine.dependencies(),
            "embedder": state.embedder.state,
        }
        if (issuer := self._identity_provider()) is not None:
            dependencies["identity_provider"] = issuer
        if status == "task_down":
            dependencies["tasks"] = f"down: {', '.join(state.tasks.vigil.down)}"
        return dependencies

    def _add_routes(self, app: FastAPI, identify: Identify, base: str) -> None:
        app.router.routes += build_search_router(lambda: self.running.search, identify, base).routes
        app.router.routes += build_ingest_router(lambda: self.running.ingest, identify, base).routes
        app.router.routes += build_fast_router(lambda: self.running.fast, identify, base).routes
        app.router.routes += build_library_router(lambda: self.running.library, identify, base).routes
        if self._settings.doors.mcp:
            # It takes a second to load.
            from knowledge_flow_backend.surfaces.mcp import add_routes

            app.router.routes += add_routes(lambda: self.running.mcp, identify)

    async def _build(self, stack: AsyncExitStack) -> State:
        settings = self._settings
        kpi = self._make_kpi(PHASES)
        metrics = KnowledgeFlowMetrics(self._registry, kpi)
        runtime = self._observe(kpi, stack)
        tasks = TaskRegistry(kpi.vigil)
        storage = settings.storage
        writers = settings.processing.files_at_once
        database = IndexDatabase(storage.postgres, storage.vector_store.index, metrics, writers=writers)
        stack.push_async_callback(database.aclose)
        self._open_keys(storage.postgres, metrics, _keys_away, stack)
        audit = self._open_audit(database, metrics, _audit_away, stack, ADD_EVENTS)
        reads = SharedReads(audit.note, Lately(settings.audit.repeat_min * 60.0))
        embedder = make_embedder(settings, metrics, tasks)
        stack.push_async_callback(embedder.aclose)
        engine = make_engine(settings, database, metrics, model=embedder.model, kpi=kpi)
        stack.push_async_callback(engine.aclose)
        passages = make_passages(settings, embedder)
        search = make_search(
            settings,
            stack,
            index=engine.index,
            embedder=embedder,
            passages=passages,
            reads=reads,
            metrics=metrics,
            kpi=kpi,
        )
        ingest, fast = await make_ingest(
            settings,
            stack,
            database,
            writer=engine.writer,
            embedder=embedder,
            passages=passages,
            metrics=metrics,
            kpi=kpi,
            tasks=tasks,
        )
        library = LibraryServices(
            Library(Statements(database), engine.writer, reads, max_libraries=settings.limits.max_libraries_per_user),
            metrics,
        )
        state = State(tasks, runtime, database, embedder, engine, search, ingest, fast, library, audit)
        if settings.doors.mcp:
            from knowledge_flow_backend.surfaces.mcp import make_mcp

            state.mcp = make_mcp(search, library, tasks, settings)
        self._start(state, stack)
        pools = PoolReport((database.main, database.writes), metrics)
        gates = {"search": search.gate, "upload": ingest.ingest.gate, "parse": ingest.ingest.parsing}
        tasks.spawn("pool-clock", lambda: _watch(pools, gates, metrics), restart=True)
        kpi.add_lines(pools.lines)
        return state

    def _start(self, state: State, stack: AsyncExitStack) -> None:
        """Start the background work of what was built."""
        tasks, ingest = state.tasks, state.ingest
        self._start_tasks(tasks, stack)
        state.audit.start(tasks)
        tasks.spawn("index-schema", lambda: _open_index(state), restart=True)
        state.engine.spawn(tasks)
        tasks.spawn("ingest-leases", ingest.ingest.keep_leases, restart=True, essential=True)
        tasks.spawn("ingest-take-up", ingest.ingest.take_up, restart=True)
        if isinstance(state.embedder, LocalEmbedder):
            state.embedder.start()


def serve_app(settings: KnowledgeFlowSettings, sock: socket.socket) -> int:
    """Run the service on a listening socket until a signal ends it; returns the exit code."""
    service = KnowledgeFlowService(settings, freeze_gc=True)
    return serve(
        service.app,
        sock,
        drain=service.drain,
        settings=ServeSettings(
            connections=settings.connections,
            health_paths=health_paths(settings.app.base_url),
            drain_limit_s=settings.deadlines.drain_s + 5.0,
        ),
        metrics=service.connection_metrics,
    )


def _keys_away() -> IndexUnavailable:
    return IndexUnavailable("the database of API keys does not answer")


def _audit_away() -> IndexUnavailable:
    return IndexUnavailable("the database of the audit log does not answer")


async def _open_index(state: State) -> None:
    """Contact the servers of the index for the first time, and check that this embedder wrote what they hold."""
    await state.database.connect_until_ready()
    if not state.database.ready:
        return
    try:
        await _reach(state.engine)
        if isinstance(state.embedder, OpenAiEmbedder):
            # The model's name does not tell the length of its vectors: embed a text to find out.
            await state.engine.check(await state.embedder.dimension())
    except SchemaMismatch as mismatch:
        state.mismatch = str(mismatch)
        logger.critical("%s", mismatch)
    except DocumentsUnavailable as failure:
        # Each search compares the lengths again.
        logger.warning("the length of the index's vectors could not be checked: %s", failure)


async def _reach(engine: Engine) -> None:
    """Check the index, retrying while its server is away. Raises `SchemaMismatch`."""
    quiet = QuietLog(logger)

    def away(failure: IndexUnavailable) -> None:
        quiet.warning("away", "the index cannot be checked: %s; trying on", failure)

    await keep_trying(engine.check, IndexUnavailable, Backoff(), on_failure=away)


async def _watch(pools: PoolReport, gates: Mapping[str, FairGate], metrics: KnowledgeFlowMetrics) -> None:
    while True:
        pools.publish()
        for name, gate in gates.items():
            metrics.places(name, "running").set(gate.running)
            metrics.places(name, "waiting").set(gate.waiting)
        await asyncio.sleep(_POOL_TICK_S)
