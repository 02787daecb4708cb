"""Builds the parts of the service from its settings: clients, rules and limits."""

import contextlib
import logging
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.routing import BaseRoute

from agentic_backend.agent import AgentKit, Catalog, Hosting, TaskWriter, TitleWriter
from agentic_backend.agent.created import CreatedAgents
from agentic_backend.agent.hosted import GraphState
from agentic_backend.agent.hosted.check import load_handlers, prepare_imports
from agentic_backend.agent.interrupts import Checkpoints
from agentic_backend.agent.kit import NamedModel
from agentic_backend.agent.policy import AgentPolicy, PolicyRoles
from agentic_backend.agent.toolbox import Toolbox
from agentic_backend.chat.hub import SocketHub, SocketRules
from agentic_backend.fleet.fleet import Fleet
from agentic_backend.knowledge import (
    AttachmentClient,
    AttachmentEndpoint,
    KnowledgeClient,
    KnowledgeEndpoint,
    LibraryClient,
    LibraryEndpoint,
)
from agentic_backend.llm.endpoint import connections_of
from agentic_backend.llm.group import ModelGroups
from agentic_backend.llm.observer import Metered
from agentic_backend.llm.providers import Models
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.adoption import Adoption
from agentic_backend.persist.persistence import Persistence
from agentic_backend.persist.replication import Replication
from agentic_backend.persist.retention import Pruner, Retention, RetentionRules
from agentic_backend.persist.shares import SharedRate
from agentic_backend.rest.agents import AgentServices
from agentic_backend.rest.attachments import ATTACHED_FILES, AttachmentServices
from agentic_backend.rest.configuration import PublicSettings
from agentic_backend.rest.keys import KeyServices, KeyStore
from agentic_backend.rest.shares import ShareServices
from agentic_backend.session.admission import Admission, Overall, TurnLimits
from agentic_backend.session.attachments import Leftovers
from agentic_backend.session.links import LinkStore
from agentic_backend.session.opening import Sessions
from agentic_backend.session.registry import TurnRegistry
from agentic_backend.session.turn import TurnRules
from agentic_backend.settings import DEFAULT_MODEL, AgenticSettings, DefaultChatModel, OfferedModel, pairs_of
from agentic_backend.surfaces.services import DoorServices, Entrance
from backend_kit.aio import FairGate, GateRules, TaskRegistry
from backend_kit.auth import ApiKeys, Lately, NoteEvent
from backend_kit.client.connections import Connections
from backend_kit.client.json_client import JsonClient
from backend_kit.kpi import Kpi

if TYPE_CHECKING:
    from agentic_backend.agent.mcp import McpToolbox
    from agentic_backend.tracing.tracer import Tracer

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024


def make_models(settings: AgenticSettings, metrics: AgenticMetrics) -> Models:
    """The HTTP session to the model endpoints, with the limits of the configuration."""
    connections = connections_of(settings.ai.default_chat_model)
    return Models(connections, Metered(metrics, settings.ai.prices), pool_wait=metrics.http_pool_wait("llm").observe)


def make_groups(settings: AgenticSettings, models: Models, metrics: AgenticMetrics) -> ModelGroups:
    """The models with their endpoints and with those that stand in for them."""
    return ModelGroups(models, settings.deadlines, lambda model, cause: metrics.llm_fallbacks(model, cause).inc())


def make_title_writer(settings: AgenticSettings, groups: ModelGroups, kpi: Kpi) -> TitleWriter | None:
    """The writer of titles if its model is configured, else None: then first questions serve as titles."""
    called = settings.ai.default_language_model
    return None if called is None else TitleWriter(groups.of(called), kpi)


def make_task_writer(settings: AgenticSettings, groups: ModelGroups, kit: AgentKit, kpi: Kpi) -> TaskWriter:
    """What answers the small tasks of front ends: the model of titles, else that of agents."""
    called = settings.ai.default_language_model
    own = NamedModel(kit.chat_model, kit.model_name)
    return TaskWriter(own if called is None else NamedModel(groups.of(called), called.name), kpi)


def task_admission(
    settings: AgenticSettings, limit_hit: Callable[[str], None], fleet: Fleet | None
) -> Callable[[str], Awaitable[None]]:
    """Counts a user's tasks: as many as their asks, and beside them, so that titles take no answers away."""
    admission = Admission(replace(turn_limits(settings), turns_per_user=0), limit_hit)
    if fleet is not None:
        per_user = settings.limits.per_user
        admission.overall = Overall(SharedRate(fleet.limits, "tasks", per_user.asks_per_min, per_user.burst))

    async def admit(user_id: str) -> None:
        admission.check(user_id)
        await admission.check_overall(user_id)

    return admit


def share_limits(settings: AgenticSettings, fleet: Fleet, admission: Admission, hub: SocketHub) -> None:
    """Have the limits of users hold over all instances."""
    per_user, limits = settings.limits.per_user, fleet.limits
    asks = SharedRate(limits, "asks", per_user.asks_per_min, per_user.burst)
    admission.overall = Overall(asks, limits.count("turns", per_user.turns, admission))
    hub.overall = limits.count("sockets", per_user.sockets, hub, hub.keep_newest)


def entrance(settings: AgenticSettings) -> Entrance:
    """Who may come in at the doors."""
    security = settings.security
    issuer = security.user.realm_url if security.user.enabled else None
    return Entrance(security.authorized_origins, security.user.enabled, issuer)


def door_routes(
    settings: AgenticSettings, services: Callable[[], DoorServices], identify: Callable[..., Any]
) -> list[BaseRoute]:
    """The routes of the doors that are switched on. The packages of the others are not imported."""
    doors = settings.doors
    routes: list[BaseRoute] = []
    for name, on in (
        ("openai", doors.openai),
        ("agui", doors.agui),
        ("langgraph", doors.langgraph),
        ("mcp", doors.mcp),
    ):
        if on:
            routes += import_module(f"agentic_backend.surfaces.{name}").add_routes(services, identify)
    return routes


def make_sessions(
    settings: AgenticSettings, persistence: Persistence, turns: TurnRegistry, kpi: Kpi, metrics: AgenticMetrics
) -> Sessions:
    """What makes sessions, opens those whose id a client has chosen, and deletes them."""
    most = settings.ai.max_concurrent_sessions_per_user
    return Sessions(persistence.store, turns, kpi, most=most, limit_hit=metrics.limit_hit)


def make_knowledge(settings: AgenticSettings, metrics: AgenticMetrics, deadline_s: float) -> KnowledgeClient:
    """The client of knowledge flow; `ai.timeout` bounds the parts of a call, `deadline_s` the whole."""
    url, timeout = settings.ai.knowledge_flow_url, settings.ai.timeout
    endpoint = KnowledgeEndpoint(
        url, deadline_s, connect_s=timeout.connect, read_s=timeout.read, one_user=not settings.security.user.enabled
    )
    return KnowledgeClient(endpoint, metrics)


def make_libraries(settings: AgenticSettings, deadline_s: float, stack: AsyncExitStack) -> LibraryClient:
    """The client of knowledge flow's libraries; a call may take three times `deadline_s`, as the page waits. `stack`
    closes it."""
    ai = settings.ai
    client = LibraryClient(LibraryEndpoint(ai.knowledge_flow_url, call_s=3 * deadline_s, connect_s=ai.timeout.connect))
    stack.push_async_callback(client.aclose)
    return client


def make_tracer(settings: AgenticSettings, metrics: AgenticMetrics, stack: AsyncExitStack) -> "Tracer | None":
    """What makes traces of turns, None without an endpoint: then nothing of it is imported. On the running loop;
    `stack` ends it."""
    tracing = settings.tracing
    if tracing.url is None:
        return None
    from agentic_backend.tracing.exporter import ExportRules, TraceExporter
    from agentic_backend.tracing.spans import SpanEncoder
    from agentic_backend.tracing.tracer import Sampling, Tracer

    logger.info("traces go to %s by %s", urlsplit(tracing.url).netloc, tracing.protocol)
    timeout_s = tracing.timeout_ms / 1e3
    rules = ExportRules(
        tracing.url,
        {} if tracing.headers is None else pairs_of(tracing.headers.get_secret_value()),
        tracing.compression == "gzip",
        timeout_s,
        tracing.max_queue_size,
        min(tracing.max_export_batch_size, tracing.max_queue_size),
        tracing.schedule_delay_ms / 1e3,
    )
    client = JsonClient(Connections(max_connections=1, connect_s=min(timeout_s, 5.0), read_s=timeout_s))
    resource = {
        "service.version": version("turnwise"),
        "service.instance.id": str(uuid4()),
        **pairs_of(tracing.resource_attributes),
    }
    if "service_name" in tracing.model_fields_set or "service.name" not in resource:
        resource["service.name"] = tracing.service_name
    encoder = SpanEncoder(resource, content=tracing.content, user_ids=tracing.user_id)
    exporter = TraceExporter(rules, client, metrics, wrap=encoder.request)
    stack.push_async_callback(exporter.aclose)
    return Tracer(
        Sampling(tracing.sampler, tracing.sampler_arg, tracing.errors, tracing.slow_ms),
        encoder,
        exporter,
    )


def by_user(settings: AgenticSettings, rules: GateRules) -> FairGate:
    """A gate that users share; without authentication they are one."""
    return FairGate(rules if settings.security.user.enabled else rules.of_one_user())


def make_attachments(
    settings: AgenticSettings, persistence: Persistence, metrics: AgenticMetrics, kpi: Kpi, stack: AsyncExitStack
) -> AttachmentServices:
    """What the routes of attachments need; `stack` closes their connections to knowledge flow."""
    ai = settings.ai
    endpoint = AttachmentEndpoint(ai.knowledge_flow_url, connect_s=ai.timeout.connect)
    client = AttachmentClient(endpoint)
    stack.push_async_callback(client.aclose)
    directory = None if ai.attachments_dir is None else Path(ai.attachments_dir)
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    if ai.max_attached_files_per_user:
        with contextlib.suppress(OSError):  # where no file can be written, there is no directory for it either
            warn_if_beside_the_spool(directory or Path(tempfile.gettempdir()), Path(settings.persistence.spool_dir))
    return AttachmentServices(
        store=persistence.attachments,
        sessions=persistence.store,
        documents=client,
        leftovers=Leftovers(persistence.attachments, client, kpi),
        most=ai.max_attached_files_per_user,
        max_bytes=ai.max_attached_file_size_mb * _MIB,
        limit_hit=metrics.limit_hit,
        gate=by_user(settings, ATTACHED_FILES),
        directory=directory,
    )


def warn_if_beside_the_spool(directory: Path, spool: Path) -> None:
    """Tell the log where uploads write to the disk that turns wait for. Neither directory need exist yet."""
    if _device(directory) == _device(spool):
        logger.info("attachments are received on the disk of the spool: see ai.attachments_dir")


def _device(directory: Path) -> int:
    where = directory.absolute()
    while not where.exists():
        where = where.parent
    return where.stat().st_dev


def make_toolbox(settings: AgenticSettings, tasks: TaskRegistry, metrics: AgenticMetrics) -> "McpToolbox | None":
    """The tools of the configured MCP servers, None without servers. Takes a second, so call it in a thread."""
    if not any(server.enabled for server in settings.mcp.servers):
        return None
    # The SDK takes a second and 30 MB to import, so it is loaded only if it is used.
    from agentic_backend.agent.mcp import McpToolbox

    return McpToolbox(settings.mcp, tasks, metrics)


def make_kit(
    settings: AgenticSettings, groups: ModelGroups, knowledge: KnowledgeClient, toolbox: Toolbox | None = None
) -> AgentKit:
    """What graphs are built from: the configured chat models, the documents, and the tools.

    Loads the packages of providers, which takes seconds: call it in a thread. Raises `ModelUnusable`.
    """
    ai = settings.ai
    groups.prepare(ai.called_models)
    own: dict[str, DefaultChatModel | OfferedModel] = {DEFAULT_MODEL: ai.default_chat_model}
    own |= {model.id: model for model in ai.chat_models}
    called = {name: model.called_as(ai.default_chat_model) for name, model in own.items()}
    named = {
        name: NamedModel(
            groups.of(*(called[one] for one in (name, *model.fallbacks))),
            model.name,
            *model.shown,
            vision=model.vision,
        )
        for name, model in own.items()
    }
    default = named[DEFAULT_MODEL]
    return AgentKit(default.chat_model, default.name, knowledge, toolbox, named)


def make_catalog(
    settings: AgenticSettings,
    kit: AgentKit,
    metrics: AgenticMetrics,
    checkpoints: Checkpoints | None = None,
    state: GraphState | None = None,
) -> Catalog:
    """The configured agents. Their modules and graphs are imported."""
    prepare_imports(settings.ai)
    return Catalog(
        settings.ai.agents,
        kit,
        recursion_limit=settings.ai.recursion.recursion_limit,
        max_graphs=settings.ai.max_concurrent_agents,
        on_lookup=lambda hit: metrics.cache_request("graph", hit=hit),
        checkpoints=checkpoints,
        hosting=Hosting(state, Metered(metrics, settings.ai.prices), load_handlers(settings.tracing.callbacks)),
    )


def make_agents(settings: AgenticSettings, catalog: Catalog, persistence: Persistence) -> AgentServices:
    """What the routes of agents need: who may change agents, and those that were created over REST."""
    ai = settings.ai
    policy = AgentPolicy(persistence.grants, PolicyRoles(operator_roles(settings), editor_roles(settings)))
    if ai.use_static_config_only:
        return AgentServices(catalog, None, policy)
    servers = frozenset(server.id for server in settings.mcp.servers)
    made = CreatedAgents(catalog, persistence.agents, most=ai.max_made_agents, mcp_servers=servers)
    return AgentServices(catalog, made, policy)


def make_retention(
    settings: AgenticSettings,
    persistence: Persistence,
    registry: TurnRegistry,
    hub: SocketHub,
    metrics: AgenticMetrics,
) -> Retention:
    """The deletion of old sessions, which keeps those in use by this process and clears its state of deleted ones."""
    days = settings.history.retention_days

    async def forget(key: tuple[str, str]) -> None:
        persistence.forget(key)
        await registry.forget(*key)

    def in_use(keys: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        # By the monotonic clock: by that of Postgres they are old, or this would not be called.
        followed, kept_s = hub.followed(), days * 86_400.0
        return {
            key
            for key in keys
            if key in followed or registry.knows(*key, kept_s) or persistence.has_in_use(key, kept_s)
        }

    pruner = Pruner(persistence.database.main, in_use=in_use, forget=forget)
    return Retention(persistence.database, pruner, RetentionRules(days), metrics)


def make_replication(persistence: Persistence, metrics: AgenticMetrics) -> Replication:
    """What publishes how much a failover of Postgres would lose."""
    return Replication(persistence.database, lambda: persistence.batcher.written, metrics)


def make_adoption(settings: AgenticSettings, persistence: Persistence, fleet: Fleet | None) -> Adoption | None:
    """What empties the spools of workers that do not come back; None without a spool."""
    if persistence.spool is None:
        return None
    own = Path(settings.persistence.spool_dir)

    async def gone(directory: Path) -> None:
        if fleet is not None:
            await fleet.forget_spool(directory)

    base = own.parent if settings.app.worker else own
    return Adoption(base, own, settings.app.workers, persistence.write_out, gone)


def look_again_for_missing(persistence: Persistence, registry: TurnRegistry) -> None:
    """Have the next ask of a session that Postgres turns out not to have look for it, as after a failover to a standby
    that was behind: else its turns would go on from memory, and all of them become dead letters."""

    def look_again(key: tuple[str, str]) -> None:
        persistence.cache.forget(key)
        registry.look_again(*key)

    persistence.batcher.on_missing = look_again


def until_known(persistence: Persistence, created: CreatedAgents | None) -> Callable[[], Awaitable[None]]:
    """Waits until Postgres has said which schema and which created agents there are."""

    async def wait() -> None:
        await persistence.database.wait_ready()
        if created is not None:
            await created.wait_loaded()

    return wait


def turn_rules(settings: AgenticSettings) -> TurnRules:
    """The bounds of a turn."""
    return TurnRules(
        settings.deadlines.turn_s,
        settings.ai.restore_max_exchanges,
        keep_thoughts=settings.history.keep_thoughts,
        authenticated=settings.security.user.enabled,
        ack=settings.persistence.ack,
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
        turns_per_model=_turns_per_model(settings),
    )


def _turns_per_model(settings: AgenticSettings) -> int:
    """The most turns of one model at once; 0 = no bound, since one is needed only for several models."""
    limits = settings.limits
    if limits.model_share == 1 or len(settings.ai.models_in_use) < 2:
        return 0
    return max(1, int(limits.max_turns * limits.model_share)) if limits.max_turns else 0


def sign_in_at(settings: AgenticSettings) -> str | None:
    """The issuer where people sign in; None if authentication is off or uses a shared secret."""
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
        asks_per_min=settings.limits.per_user.asks_per_min,
        turns_per_user=settings.limits.per_user.turns,
        turn_s=settings.deadlines.turn_s,
        max_attached_files_per_user=ai.max_attached_files_per_user,
        max_attached_file_size_mb=ai.max_attached_file_size_mb,
        static_agents_only=ai.use_static_config_only,
        public_links=settings.security.public_links,
        currency=ai.currency if ai.prices else None,
        branding=settings.branding,
        feature_flags=settings.frontend_settings.feature_flags,
        properties=settings.frontend_settings.properties,
    )


def operator_roles(settings: AgenticSettings) -> frozenset[str] | None:
    """The roles of operators; None without authentication, which is for one machine, whose user is the operator."""
    security = settings.security
    return frozenset(security.operator_roles) if security.user.enabled else None


def editor_roles(settings: AgenticSettings) -> frozenset[str] | None:
    """The roles of those who edit all agents that are made over REST; None without authentication, likewise."""
    return frozenset(settings.ai.agent_editor_roles) if settings.security.user.enabled else None


def make_keys(settings: AgenticSettings, store: KeyStore | None, keys: ApiKeys | None) -> KeyServices:
    """What the routes of API keys need."""
    return KeyServices(
        store, keys, operator_roles(settings), editor_roles(settings), settings.security.api_keys.provider_users
    )


def make_shares(settings: AgenticSettings, links: LinkStore, note: NoteEvent) -> ShareServices:
    """What the routes of links to conversations need."""
    return ShareServices(links, note, Lately(settings.audit.repeat_min * 60.0), settings.security.public_links)


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
