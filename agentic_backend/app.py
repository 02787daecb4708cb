"""Builds the agentic service in its lifespan, wires the ports, and ends it in the order that loses nothing."""

import asyncio
import gc
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from agentic_backend.agent import AGENT_PHASES, AgentKit, Catalog, DirectAnswer, TitleWriter
from agentic_backend.agent.interrupts import Checkpoints
from agentic_backend.agent.kit import NamedModel
from agentic_backend.agent.made import MadeAgents
from agentic_backend.agent.toolbox import Toolbox
from agentic_backend.chat.hub import SocketHub, SocketRules
from agentic_backend.errors import LlmTimeout, TurnDeadline
from agentic_backend.knowledge import AttachmentClient, AttachmentEndpoint, KnowledgeClient, KnowledgeEndpoint
from agentic_backend.llm import ModelPool
from agentic_backend.llm.configured import connections_of, endpoint_of
from agentic_backend.llm.observer import Metered
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.persistence import Persistence
from agentic_backend.persist.retention import Pruner, Retention, RetentionRules
from agentic_backend.rest.agents import AgentServices
from agentic_backend.rest.attachments import PATH as UPLOAD_PATH
from agentic_backend.rest.attachments import AttachmentServices
from agentic_backend.rest.compression import Compression
from agentic_backend.rest.configuration import PublicSettings
from agentic_backend.rest.kpi_routes import KpiViews
from agentic_backend.rest.page import ChatPage
from agentic_backend.rest.router import ChatServices, build_routes
from agentic_backend.session.account import TURN_PHASES, TurnAccounts
from agentic_backend.session.admission import Admission, TurnLimits
from agentic_backend.session.attachments import Leftovers
from agentic_backend.session.baseline import BaselineTurns
from agentic_backend.session.models import Session
from agentic_backend.session.recall import Memory
from agentic_backend.session.registry import RegistryRules, TurnRegistry
from agentic_backend.session.titles import Titles
from agentic_backend.session.turn import TurnRules, TurnRunner
from agentic_backend.settings import DEFAULT_MODEL, AgenticSettings
from agentic_backend.spool.claim import EXIT_TAKEN, Possessions
from agentic_backend.upkeep import Upkeep, release_memory
from agentic_backend.verdict import TurnQuantiles, Windows
from agentic_backend.watch import Watch, Watched
from backend_kit.aio import TaskRegistry
from backend_kit.auth import HmacVerifier, IssuerKeys, IssuerVerifier, KeyWaits, NoAuth, TokenVerifier, Verifier
from backend_kit.build import git_sha
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

if TYPE_CHECKING:
    from agentic_backend.agent.mcp import McpToolbox

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024
_MAX_BODY_BYTES = _MIB
_SOCKETS_LEAVE_S = 5.0
_FLUSH_S = 5.0
_LAG_NOT_READY_S = 1.0
_LAG_NOT_READY_FOR_S = 10.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service makes some of its parts with, and bounds that are no settings. The defaults are production's."""

    persistence: Callable[..., Persistence] = Persistence
    direct: Callable[[AgentKit], DirectAnswer] = DirectAnswer
    turns: RegistryRules = field(default_factory=RegistryRules)
    knowledge_s: float = 5.0
    """The deadline of a whole call to knowledge flow."""
    clock: Callable[[], float] = time.monotonic
    """Says how long a session has not been used here; in seconds."""
    keys: KeyWaits | None = None
    """How long the issuer's keys are waited for."""


@dataclass(frozen=True, slots=True)
class State:
    """What the lifespan built, each with its one owner."""

    tasks: TaskRegistry
    runtime: KpiRuntime
    metrics: AgenticMetrics
    models: ModelPool
    knowledge: KnowledgeClient
    catalog: Catalog
    persistence: Persistence
    admission: Admission
    registry: TurnRegistry
    baseline: BaselineTurns
    hub: SocketHub
    chat: ChatServices


class AgenticService:
    """One agentic service: `app` is the ASGI application, `drain` its orderly end. Two may live in one process."""

    def __init__(
        self,
        settings: AgenticSettings,
        possessions: Possessions | None = None,
        end: Callable[[], None] = lambda: None,
        parts: Parts | None = None,
    ) -> None:
        """`possessions` is what the process took at its start; `end` begins the drain, as a signal does."""
        self.disowned = False
        self._parts = parts or Parts()
        self._possessions = possessions
        self._end = end
        self._settings = settings
        self._verifier = make_verifier(settings, self._parts.keys)
        self._registry = CollectorRegistry()
        self._state: State | None = None
        self._draining = False
        self._late_since: float | None = None
        self.app = self._build_app()

    @property
    def metrics_port(self) -> int | None:
        """Where /metrics listens, once started."""
        return None if self._state is None else self._state.runtime.metrics_port

    def state(self) -> tuple[bool, str, dict[str, Any]]:
        """Readiness: not a question of Postgres, or one outage would take every instance out at once."""
        state = self._state
        if state is None:
            return False, "starting", {}
        dependencies = state.persistence.dependencies() | {
            "knowledge_flow": {"status": "up" if state.knowledge.reachable else "down"}
        }
        if isinstance(self._verifier, IssuerVerifier):
            dependencies["identity_provider"] = {"status": "up" if self._verifier.keys.reachable else "down"}
        if self._draining:
            return False, "draining", dependencies
        if state.persistence.state.status == "refused" or state.persistence.misfit:
            return False, "schema_mismatch", dependencies
        if state.tasks.vigil.down:
            return False, "task_down", dependencies | {"tasks": {"status": "down", "down": state.tasks.vigil.down}}
        if not state.persistence.log.has_room():
            return False, "storage_full", dependencies
        made = state.chat.agents.made
        if not state.persistence.schema_known or (made is not None and not made.loaded):
            return False, "starting", dependencies
        if self._loop_is_late(state):
            return False, "loop_late", dependencies
        return True, "ready", dependencies

    async def drain(self) -> None:
        """Steps 1 to 5 of TRUST 4.3; the server closes afterwards."""
        state = self.running
        self._draining = state.baseline.draining = True
        logger.info("drain 1/5: not ready any more; new sockets and asks are refused")
        leaving = state.hub.begin_drain()
        logger.info("drain 2/5: %d idle sockets closed with 1012", leaving)
        cancelled = await state.registry.drain(self._settings.deadlines.drain_s)
        logger.info("drain 3/5: running turns have ended, %d of them cancelled at the deadline", cancelled)
        cut = await state.hub.wait_empty(_SOCKETS_LEAVE_S)
        logger.info("drain 4/5: all sockets closed, %d of them cut", cut)
        left = await state.persistence.flush(_FLUSH_S)
        logger.info("drain 5/5: history flushed, %d records left", left)

    def _give_way(self) -> None:
        """Another process has the database: end in order, and say by the exit code why."""
        self.disowned = True
        self._end()

    def _loop_is_late(self, state: State) -> bool:
        now = asyncio.get_running_loop().time()
        if state.runtime.loop.lag_s < _LAG_NOT_READY_S:
            self._late_since = None
            return False
        if self._late_since is None:
            self._late_since = now
        return now - self._late_since >= _LAG_NOT_READY_FOR_S

    @property
    def running(self) -> State:
        """What the lifespan built. RuntimeError before it has begun and after its end."""
        if self._state is None:
            raise RuntimeError("the service has not started")
        return self._state

    def _build_app(self) -> FastAPI:
        app = FastAPI(
            title="Turnwise agentic service",
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
        app.router.routes += build_routes(lambda: self.running.chat, identify, base)
        ChatPage(sign_in_at(self._settings)).add_to(app)
        if self._settings.app.api_docs:
            add_api_docs(app, identify, chat_page=sign_in_at(self._settings) is not None)
        app.add_middleware(Compression, mode=self._settings.server.http_compression)
        app.add_middleware(RequestMetrics, metrics=HttpMetrics(self._registry))
        app.add_middleware(BodyLimit, limit_bytes=_MAX_BODY_BYTES, file_paths=(base + UPLOAD_PATH,))
        app.add_middleware(RequestId)
        return app

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            self._state = await self._build(stack)
            if self._settings.server.gc_freeze:
                freeze_gc()
                stack.callback(gc.unfreeze)
            yield
            self._state = None

    async def _build(self, stack: AsyncExitStack) -> State:
        """Build in order; the stack closes in reverse."""
        settings, parts = self._settings, self._parts
        kpi = make_kpi(settings, self._registry)
        metrics = AgenticMetrics(self._registry, kpi, currency=settings.ai.currency)
        runtime = KpiRuntime(kpi, kpi_options(settings)).start()
        stack.callback(runtime.close)
        tasks = TaskRegistry(kpi.vigil)
        persistence = self._make_persistence(kpi, metrics, tasks)
        stack.push_async_callback(persistence.aclose)
        models = make_models(settings, metrics)
        stack.push_async_callback(models.aclose)
        knowledge = make_knowledge(settings, metrics, parts.knowledge_s)
        stack.push_async_callback(knowledge.aclose)
        toolbox = await asyncio.to_thread(make_toolbox, settings, tasks, metrics)  # it would hold the loop
        if toolbox is not None:
            stack.push_async_callback(toolbox.aclose)
        kit = make_kit(settings, models, knowledge, toolbox)
        catalog = make_catalog(settings, kit, metrics, persistence.checkpoints)
        stack.push_async_callback(catalog.aclose)
        admission = Admission(turn_limits(settings), metrics.limit_hit)
        windows = make_windows(self._registry)
        runner = TurnRunner(
            store=persistence.store,
            log=persistence.log,
            catalog=catalog,
            admission=admission,
            metrics=metrics,
            kpi=kpi,
            accounts=TurnAccounts(kpi, metrics, windows, acked_by_database=settings.persistence.ack == "db"),
            rules=TurnRules(settings.deadlines.turn_s, settings.ai.restore_max_exchanges),
            leases=persistence.leases,
            titles=self._make_titles(models, persistence, tasks, kpi),
            memory=Memory(clock=parts.clock),
        )
        registry = TurnRegistry(runner=runner, admission=admission, log=persistence.log, tasks=tasks, rules=parts.turns)
        baseline = BaselineTurns(parts.direct(kit), admission, tasks, turn_s=settings.deadlines.turn_s)
        hub = self._make_hub(metrics, windows)
        chat = ChatServices(
            hub=hub,
            registry=registry,
            baseline=baseline,
            store=persistence.store,
            catalog=catalog,
            agents=make_agents(settings, catalog, persistence),
            documents=knowledge,
            kpi=kpi,
            attachments=make_attachments(settings, persistence, metrics, stack),
            feedback=persistence.feedback,
            figures=persistence.figures,
            public=public_settings(settings),
            views=KpiViews(windows, runtime.loop.culprits, lambda: runtime.loop.lag_s, operator_roles(settings)),
            max_sessions_per_user=settings.ai.max_concurrent_sessions_per_user,
            limit_hit=metrics.limit_hit,
        )
        state = State(
            tasks, runtime, metrics, models, knowledge, catalog, persistence, admission, registry, baseline, hub, chat
        )
        self._start(state, windows, stack)
        return state

    def _start(self, state: State, windows: Windows, stack: AsyncExitStack) -> None:
        """Begin the work that goes on in the background until the stack closes."""
        tasks, persistence = state.tasks, state.persistence
        stack.push_async_callback(tasks.aclose)
        if isinstance(self._verifier, IssuerVerifier):
            tasks.spawn("issuer-keys", self._verifier.keys.run, restart=True, essential=True)
        persistence.start()
        make_retention(self._settings, state).start(tasks)
        if state.chat.agents.made is not None:
            tasks.spawn("made-agents", state.chat.agents.made.watch, restart=True)
        tasks.spawn("attachment-leftovers", state.chat.attachments.leftovers.run, restart=True)
        tasks.spawn("socket-clock", state.hub.watch, restart=True, essential=True)
        watch = self._make_watch(state, windows)
        state.chat.kpi.add_lines(watch.pools.lines)
        state.chat.kpi.add_last_words(watch.last_words)
        tasks.spawn("turn-clock", lambda: watch.run(lambda: _publish_turns(state)), restart=True, essential=True)
        if self._settings.server.gc_freeze:
            upkeep = Upkeep(lambda: state.admission.running, release_memory)
            tasks.spawn("upkeep", upkeep.run, restart=True)

    def _make_hub(self, metrics: AgenticMetrics, windows: Windows) -> SocketHub:
        hub = SocketHub(
            verifier=self._verifier,
            rules=socket_rules(self._settings),
            metrics=metrics,
            delivered=_to_both(metrics.delivery.observe, windows.delivered),
        )
        windows.undelivered = hub.behind_s
        return hub

    def _make_persistence(self, kpi: Kpi, metrics: AgenticMetrics, tasks: TaskRegistry) -> Persistence:
        return self._parts.persistence(
            self._settings,
            kpi=kpi,
            metrics=metrics,
            tasks=tasks,
            on_taken=self._give_way,
            possessions=self._possessions,
            clock=self._parts.clock,
        )

    def _make_titles(self, models: ModelPool, persistence: Persistence, tasks: TaskRegistry, kpi: Kpi) -> Titles | None:
        """Titles by the model that is configured for what is not an answer; without one, first questions do."""
        settings = self._settings
        model = settings.ai.default_language_model
        if model is None:
            return None
        writer = TitleWriter(models.chat_model(endpoint_of(model, settings.deadlines)), kpi)
        return Titles(writer, persistence.store, tasks, self._renamed)

    def _renamed(self, session: Session) -> None:
        if (state := self._state) is not None:
            state.registry.rename(session.id, session.user_id, session.title)
            state.hub.say_renamed(session)

    def _make_watch(self, state: State, windows: Windows) -> Watch:
        database = state.persistence.database
        tokens = self._verifier if isinstance(self._verifier, TokenVerifier) else None
        return Watch(Watched(state.runtime.loop, database.main, database.writes, tokens), windows, state.metrics)


def make_verifier(settings: AgenticSettings, waits: KeyWaits | None = None) -> Verifier:
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
    keys = IssuerKeys(user.realm_url, algorithm=user.algorithm, jwks_url=user.jwks_url, waits=waits)
    return IssuerVerifier(keys, client_id=user.client_id)


def make_models(settings: AgenticSettings, metrics: AgenticMetrics) -> ModelPool:
    """The HTTP session to the model endpoints, with the limits of the configuration."""
    connections = connections_of(settings.ai.default_chat_model)
    return ModelPool(connections, Metered(metrics, settings.ai.prices), pool_wait=metrics.http_pool_wait("llm").observe)


def make_knowledge(settings: AgenticSettings, metrics: AgenticMetrics, deadline_s: float) -> KnowledgeClient:
    """The client of knowledge flow; `ai.timeout` bounds the parts of a call, `deadline_s` the whole."""
    url, timeout = settings.ai.knowledge_flow_url, settings.ai.timeout
    endpoint = KnowledgeEndpoint(url, deadline_s, connect_s=timeout.connect, read_s=timeout.read)
    return KnowledgeClient(endpoint, metrics)


def make_attachments(
    settings: AgenticSettings, persistence: Persistence, metrics: AgenticMetrics, stack: AsyncExitStack
) -> AttachmentServices:
    """What the routes of attachments need; `stack` closes their connections to knowledge flow."""
    ai = settings.ai
    endpoint = AttachmentEndpoint(ai.knowledge_flow_url, connect_s=ai.timeout.connect)
    client = AttachmentClient(endpoint)
    stack.push_async_callback(client.aclose)
    return AttachmentServices(
        store=persistence.attachments,
        sessions=persistence.store,
        documents=client,
        leftovers=Leftovers(persistence.attachments, client),
        most=ai.max_attached_files_per_user,
        max_bytes=ai.max_attached_file_size_mb * _MIB,
        limit_hit=metrics.limit_hit,
    )


def make_toolbox(settings: AgenticSettings, tasks: TaskRegistry, metrics: AgenticMetrics) -> "McpToolbox | None":
    """The tools of the configured MCP servers, None where there is none. Takes a second: not on the loop."""
    if not any(server.enabled for server in settings.mcp.servers):
        return None
    # The SDK takes a second and 30 MB to import: only who uses it pays.
    from agentic_backend.agent.mcp import McpToolbox

    return McpToolbox(settings.mcp, tasks, metrics)


def make_kit(
    settings: AgenticSettings, models: ModelPool, knowledge: KnowledgeClient, toolbox: Toolbox | None = None
) -> AgentKit:
    """What graphs are built from: the configured chat models, the documents, and the tools."""
    ai = settings.ai
    configured = {DEFAULT_MODEL: (ai.default_chat_model, ai.default_chat_model.name)} | {
        model.id: (model.called_as(ai.default_chat_model), model.title or model.id) for model in ai.chat_models
    }
    named = {
        model_id: NamedModel(models.chat_model(endpoint_of(model, settings.deadlines)), model.name, title)
        for model_id, (model, title) in configured.items()
    }
    default = named[DEFAULT_MODEL]
    return AgentKit(default.chat_model, default.name, knowledge, toolbox, named)


def make_catalog(
    settings: AgenticSettings, kit: AgentKit, metrics: AgenticMetrics, checkpoints: Checkpoints | None = None
) -> Catalog:
    """The configured agents."""
    return Catalog(
        settings.ai.agents,
        kit,
        recursion_limit=settings.ai.recursion.recursion_limit,
        max_graphs=settings.ai.max_concurrent_agents,
        on_lookup=lambda hit: metrics.cache_request("graph", hit=hit),
        checkpoints=checkpoints,
    )


def make_agents(settings: AgenticSettings, catalog: Catalog, persistence: Persistence) -> AgentServices:
    """What the routes of agents need: who may change them, and those that were made over REST."""
    ai = settings.ai
    roles = frozenset(ai.agent_editor_roles) if settings.security.user.enabled else None
    if ai.use_static_config_only:
        return AgentServices(catalog, None, roles)
    servers = frozenset(server.id for server in settings.mcp.servers)
    made = MadeAgents(catalog, persistence.agents, most=ai.max_made_agents, mcp_servers=servers)
    return AgentServices(catalog, made, roles)


def make_retention(settings: AgenticSettings, state: State) -> Retention:
    """What deletes old sessions: those that this process knows to be in use stay, and it forgets those that went."""
    persistence, registry = state.persistence, state.registry
    days = settings.history.retention_days

    async def forget(key: tuple[str, str]) -> None:
        persistence.forget(key)
        await registry.forget(*key)

    def in_use(keys: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        # By the monotonic clock: that of Postgres calls them old, or nobody would ask.
        followed, kept_s = state.hub.followed(), days * 86_400.0
        return {
            key
            for key in keys
            if key in followed or registry.knows(*key, kept_s) or persistence.has_in_use(key, kept_s)
        }

    pruner = Pruner(persistence.database.main, in_use=in_use, forget=forget)
    return Retention(persistence.database, pruner, RetentionRules(days), state.metrics)


def make_kpi(settings: AgenticSettings, registry: CollectorRegistry) -> Kpi:
    """The observations of this service."""
    return Kpi(
        registry,
        service=settings.app.name,
        legacy_ms_names=settings.metrics.legacy_ms_names,
        phases=(*AGENT_PHASES, *TURN_PHASES),
        timeouts=(LlmTimeout, TurnDeadline),
    )


def make_windows(registry: CollectorRegistry) -> Windows:
    """Where the time of turns goes, second by second, with their percentiles on /metrics."""
    windows = Windows()
    TurnQuantiles(windows, registry)
    return windows


def kpi_options(settings: AgenticSettings) -> KpiOptions:
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


def turn_limits(settings: AgenticSettings) -> TurnLimits:
    """Admission of turns, from `limits:`."""
    limits = settings.limits
    return TurnLimits(
        max_turns=limits.max_turns,
        queue_length=limits.queue_length,
        queue_deadline_s=limits.queue_deadline_s,
        turns_per_user=limits.per_user.turns,
        asks_per_min=limits.per_user.asks_per_min,
        burst=limits.per_user.burst,
    )


def sign_in_at(settings: AgenticSettings) -> str | None:
    """The issuer that people sign in at, None where there is no such place: authentication off, or a shared secret."""
    security = settings.security
    return security.user.realm_url if security.user.enabled and security.hs256_secret is None else None


def public_settings(settings: AgenticSettings) -> PublicSettings:
    """What anybody may read of the configuration."""
    user, ai = settings.security.user, settings.ai
    return PublicSettings(
        auth_enabled=user.enabled,
        realm_url=sign_in_at(settings),
        client_id=user.client_id,
        max_message_chars=settings.limits.max_message_chars,
        max_attached_files_per_user=ai.max_attached_files_per_user,
        max_attached_file_size_mb=ai.max_attached_file_size_mb,
        static_agents_only=ai.use_static_config_only,
    )


def operator_roles(settings: AgenticSettings) -> frozenset[str] | None:
    """The roles of operators; None where there is no authentication, which is on one machine: its user is one."""
    security = settings.security
    return frozenset(security.operator_roles) if security.user.enabled else None


def socket_rules(settings: AgenticSettings) -> SocketRules:
    """Admission and deadlines of sockets, from `limits:`, `deadlines:` and `security:`."""
    limits, deadlines, security = settings.limits, settings.deadlines, settings.security
    return SocketRules(
        authorized_origins=security.authorized_origins,
        allow_query_token=security.allow_query_token,
        max_sockets=limits.max_sockets,
        sockets_per_user=limits.per_user.sockets,
        sockets_per_address=limits.per_address.sockets,
        max_message_chars=limits.max_message_chars,
        send_s=deadlines.send_s,
        idle_s=deadlines.idle_s,
        heartbeat_s=deadlines.heartbeat_s,
    )


def freeze_gc() -> None:
    """Take what start-up made out of garbage collection: full collections over it cost 100-180 ms each (COSTS §7)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def serve_app(settings: AgenticSettings, sock: socket.socket, possessions: Possessions) -> int:
    """Run the service on a listening socket until a signal ends it; returns the exit code (see `__main__`)."""
    service = AgenticService(settings, possessions, lambda: signal.raise_signal(signal.SIGTERM))
    server = settings.server
    code = serve(
        service.app,
        sock,
        drain=service.drain,
        settings=ServeSettings(
            ws_max_size=settings.limits.max_frame_bytes,
            ws_ping_interval_s=server.ping_interval_s,
            ws_ping_timeout_s=server.ping_timeout_s,
            ws_deflate=server.ws_per_message_deflate,
            drain_limit_s=settings.deadlines.drain_s + 15.0,
        ),
    )
    return EXIT_TAKEN if service.disowned else code


def _publish_turns(state: State) -> None:
    """Drop what is kept too long, and publish the levels that are counted elsewhere."""
    metrics = state.metrics
    state.registry.expire()
    metrics.turns_in_progress.set(state.admission.running)
    metrics.turns_queued.set(state.admission.waiting)
    metrics.replay_events.set(state.registry.replay_events)
    metrics.replay_bytes.set(state.registry.replay_bytes)


def _to_both(one: Callable[[float], None], other: Callable[[float], None]) -> Callable[[float], None]:
    def tell(value: float) -> None:
        one(value)
        other(value)

    return tell
