"""Builds the agentic service in its lifespan, connects its parts, and ends it in an order that loses nothing."""

import asyncio
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from agentic_backend.agent import AGENT_PHASES, AgentKit, Catalog, DirectAnswer, TitleWriter, TurnAgents
from agentic_backend.agent.hosted.memory import UserMemory
from agentic_backend.chat.hub import SocketHub
from agentic_backend.errors import HistoryUnavailable, LlmTimeout, TurnDeadline
from agentic_backend.fleet.fleet import Fleet
from agentic_backend.knowledge import KnowledgeClient
from agentic_backend.llm.group import ModelGroups
from agentic_backend.llm.providers import Models
from agentic_backend.memory_release import MemoryRelease, release_memory
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.peers.forward import Forwarder
from agentic_backend.peers.relay import TurnRelay, relay_routes
from agentic_backend.peers.siblings import Siblings
from agentic_backend.persist.persistence import Persistence
from agentic_backend.rest.answers import ANSWER_PARTS, Answers
from agentic_backend.rest.attachments import PATH as UPLOAD_PATH
from agentic_backend.rest.compression import Compression
from agentic_backend.rest.keys import KeyServices
from agentic_backend.rest.kpi_routes import KpiViews, view_for_peer
from agentic_backend.rest.libraries import UPLOAD_PATH as LIBRARY_UPLOAD_PATH
from agentic_backend.rest.page import ChatPage
from agentic_backend.rest.router import ChatServices, build_routes
from agentic_backend.rest.scopes import ROUTE_COSTS, SCOPES
from agentic_backend.session.admission import Admission
from agentic_backend.session.models import Session
from agentic_backend.session.past_exchanges import SessionMemory
from agentic_backend.session.registry import RegistryRules, TurnRegistry
from agentic_backend.session.stream import Turn
from agentic_backend.session.titles import Titles
from agentic_backend.session.turn import TurnRunner
from agentic_backend.session.turn_report import TURN_PHASES, TurnReports
from agentic_backend.session.unkept import unkept_turns
from agentic_backend.settings import AgenticSettings
from agentic_backend.spool.claim import Possessions
from agentic_backend.surfaces.services import AnswerTask, DoorServices, McpSessions
from agentic_backend.ticker import Ticker, TickerSources
from agentic_backend.verdict import TurnQuantiles, Windows
from agentic_backend.wiring import (
    by_user,
    door_routes,
    entrance,
    look_again_for_missing,
    make_adoption,
    make_agents,
    make_attachments,
    make_catalog,
    make_groups,
    make_keys,
    make_kit,
    make_knowledge,
    make_libraries,
    make_models,
    make_replication,
    make_retention,
    make_sessions,
    make_shares,
    make_task_writer,
    make_title_writer,
    make_toolbox,
    make_tracer,
    operator_roles,
    public_settings,
    share_limits,
    sign_in_at,
    socket_rules,
    task_admission,
    turn_limits,
    turn_rules,
    until_known,
)
from backend_kit.aio import TaskRegistry
from backend_kit.auth import IssuerVerifier, KeyWaits, TokenVerifier
from backend_kit.db.audit import AuditLog
from backend_kit.http import Cost, ServeSettings, health_paths, serve
from backend_kit.kpi import Kpi, KpiRuntime
from backend_kit.service import Identify, Service

if TYPE_CHECKING:
    from agentic_backend.tracing.tracer import Tracer

logger = logging.getLogger(__name__)

_MAX_BODY_BYTES = 1024 * 1024
_SOCKETS_LEAVE_S = 5.0
_FLUSH_S = 5.0


@dataclass(frozen=True, slots=True)
class Parts:
    """Factories of some parts, and bounds that are not settings. The defaults are production's."""

    persistence: Callable[..., Persistence] = Persistence
    direct: Callable[[AgentKit], DirectAnswer] = DirectAnswer
    turns: RegistryRules = field(default_factory=RegistryRules)
    knowledge_s: float = 5.0
    """The deadline of a whole call to knowledge flow, in seconds."""
    clock: Callable[[], float] = time.monotonic
    """Measures how long a session has been unused here; in seconds."""
    keys: KeyWaits | None = None
    """How long to wait for the issuer's keys."""


@dataclass(frozen=True, slots=True)
class Registries:
    """What runs turns, and what they share: admission, and the windows over their figures. Of those of `unkept` and
    `baseline` nothing is stored."""

    admission: Admission
    windows: Windows
    registry: TurnRegistry
    unkept: TurnRegistry
    baseline: TurnRegistry
    tracer: "Tracer | None" = None
    """What makes traces of turns that have ended."""

    @property
    def registries(self) -> tuple[TurnRegistry, ...]:
        """All that run turns."""
        return self.registry, self.unkept, self.baseline


@dataclass(frozen=True, slots=True)
class State:
    """What the lifespan built, each with its one owner."""

    tasks: TaskRegistry
    runtime: KpiRuntime
    metrics: AgenticMetrics
    models: Models
    knowledge: KnowledgeClient
    catalog: Catalog
    persistence: Persistence
    turns: Registries
    hub: SocketHub
    chat: ChatServices
    doors: DoorServices
    audit: AuditLog
    fleet: Fleet | None

    @property
    def admission(self) -> Admission:
        """How many turns may run."""
        return self.turns.admission

    @property
    def registry(self) -> TurnRegistry:
        """The turns that are kept."""
        return self.turns.registry

    @property
    def baseline(self) -> TurnRegistry:
        """The turns of one direct model call, of which nothing is kept."""
        return self.turns.baseline


class AgenticService(Service[AgenticSettings, State]):
    """One agentic service: `app` is the ASGI application, `drain` its orderly shutdown. A process may have several."""

    def __init__(
        self,
        settings: AgenticSettings,
        possessions: Possessions | None = None,
        end: Callable[[], None] = lambda: None,
        parts: Parts | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        """`possessions` is what the process took at its start; `end` begins the drain, as a signal does; `siblings` are
        the workers that share its port, if it is one of several."""
        self._parts = parts or Parts()
        self._siblings = siblings
        super().__init__(settings, freeze_gc=settings.server.gc_freeze, waits=self._parts.keys)
        self.given_up: int | None = None
        self._possessions = possessions
        self._end = end
        self.relay = TurnRelay(secrets.token_urlsafe(32), self._runs)
        self.app = self._make_app(
            "Turnwise agentic service",
            max_body_bytes=_MAX_BODY_BYTES,
            file_paths=tuple(settings.app.base_url + path for path in (UPLOAD_PATH, LIBRARY_UPLOAD_PATH)),
            own_errors=("/v1/",),
            scopes=SCOPES,
            costs=ROUTE_COSTS,
            chat_page=sign_in_at(settings) is not None,
        )

    async def drain(self) -> None:
        """Steps 1 to 5 of docs/operations.md#stopping-without-loss; the server closes afterwards."""
        state = self.running
        if state.fleet is not None:
            state.fleet.begin_drain()
        self._draining = state.turns.baseline.draining = state.turns.unkept.draining = True
        logger.info("drain 1/5: not ready any more; new sockets and asks are refused")
        begun_at, drain_s = time.monotonic(), self._settings.deadlines.drain_s
        leaving = state.hub.begin_drain()
        logger.info("drain 2/5: %d idle sockets closed with 1012", leaving)
        async with asyncio.TaskGroup() as group:
            drains = [group.create_task(turns.drain(drain_s)) for turns in state.turns.registries]
        cancelled = sum(drain.result() for drain in drains)
        logger.info("drain 3/5: running turns have ended, %d of them cancelled at the deadline", cancelled)
        for end in state.doors.at_drain:
            await end()
        # Streams of doors that cannot be taken up elsewhere have the rest of a turn that has moved from here.
        moved = any(turns.mirrors for turns in state.turns.registries)
        left_s = drain_s - (time.monotonic() - begun_at) if moved else 0.0
        cut = await state.hub.wait_empty(max(left_s, _SOCKETS_LEAVE_S))
        logger.info("drain 4/5: all sockets closed, %d of them cut", cut)
        left = await state.persistence.flush(_FLUSH_S)
        logger.info("drain 5/5: history flushed, %d records left", left)

    def _runs(self, exchange_id: str, user_id: str) -> Turn | None:
        turn = self.running.registry.runs(exchange_id, user_id)
        return None if turn is not None and turn.let_go and not turn.ended else turn

    def _by_sibling(self, request: Request) -> Response | None:
        """The answer to a peer that means another worker."""
        state = self._state
        if self._siblings is None or state is None or state.fleet is None:
            return None
        return Forwarder(self._siblings, state.fleet.peers).answer(request)

    async def _view(self, name: str, query: Mapping[str, str]) -> bytes | None:
        """What another instance asks this one of itself."""
        return None if self._state is None else await view_for_peer(self._state.chat.views, name, query)

    def _give_up(self, exit_code: int) -> None:
        """Drain because the database is not to be had, and set the exit code for that."""
        self.given_up = exit_code
        self._end()

    def _hindrance(self, state: State) -> str | None:
        persistence, made = state.persistence, state.chat.agents.created
        if persistence.state.status == "refused" or persistence.misfit:
            return "schema_mismatch"
        if state.tasks.vigil.down:
            return "task_down"
        if not persistence.log.has_room():
            return "storage_full"
        fleet = state.fleet
        joined = fleet is None or fleet.leases.ready.is_set()
        known = persistence.schema_known and state.chat.agents.policy.loaded
        if not known or not joined or (made is not None and not made.loaded):
            return "starting"
        return "cut_off" if fleet is not None and not fleet.membership.valid else None

    def _measuring(self, state: State) -> None:
        state.turns.windows.restart()

    def _dependencies(self, state: State, status: str) -> dict[str, Any]:
        dependencies = state.persistence.dependencies()
        if state.fleet is not None:
            dependencies["fleet"] = state.fleet.dependency()
            if (bus := state.fleet.bus_dependency()) is not None:
                dependencies["bus"] = bus
        dependencies["knowledge_flow"] = {"status": state.knowledge.health}
        if (issuer := self._identity_provider()) is not None:
            dependencies["identity_provider"] = {"status": issuer}
        if status == "task_down":
            dependencies["tasks"] = {"status": "down", "down": state.tasks.vigil.down}
        return dependencies

    def _add_routes(self, app: FastAPI, identify: Identify, base: str) -> None:
        # Doors first: each of their turns is a request, which looks for its route among all of them in this order.
        app.router.routes += door_routes(self._settings, lambda: self.running.doors, identify)
        app.router.routes += build_routes(lambda: self.running.chat, identify, base)
        if self._settings.persistence.replicas == "many":
            app.router.routes += relay_routes(
                self.relay, base, self.admission.pace_stranger, self._by_sibling, self._view
            )
        ChatPage(sign_in_at(self._settings), self._settings.branding).add_to(app)
        app.add_middleware(Compression, mode=self._settings.server.http_compression)

    async def _build(self, stack: AsyncExitStack) -> State:
        settings, parts = self._settings, self._parts
        kpi = self._make_kpi((*AGENT_PHASES, *TURN_PHASES), timeouts=(LlmTimeout, TurnDeadline))
        metrics = AgenticMetrics(self._registry, kpi, currency=settings.ai.currency)
        runtime = self._observe(kpi, stack)
        tasks = TaskRegistry(kpi.vigil)
        persistence = self._make_persistence(kpi, metrics, tasks)
        fleet = self._make_fleet(persistence, metrics, tasks, stack)
        audit = self._open_audit(persistence.database, metrics, HistoryUnavailable, stack)
        models = make_models(settings, metrics)
        stack.push_async_callback(models.aclose)
        knowledge = make_knowledge(settings, metrics, parts.knowledge_s)
        stack.push_async_callback(knowledge.aclose)
        groups = make_groups(settings, models, metrics)
        kit = await self._make_kit(groups, knowledge, tasks, metrics, stack)
        catalog = await self._make_catalog(kit, metrics, persistence, stack)
        turns = self._make_turns(groups, kit, catalog, persistence, fleet, tasks, kpi, metrics, audit, stack)
        hub = self._make_hub(metrics, turns, fleet)
        sessions = make_sessions(settings, persistence, turns.registry, kpi, metrics)
        chat = ChatServices(
            hub=hub,
            registry=turns.registry,
            baseline=turns.baseline,
            store=persistence.store,
            sessions=sessions,
            catalog=catalog,
            agents=make_agents(settings, catalog, persistence),
            documents=knowledge,
            libraries=make_libraries(settings, parts.knowledge_s, stack),
            kpi=kpi,
            attachments=make_attachments(settings, persistence, metrics, kpi, stack),
            keys=self._make_keys(metrics, stack),
            shares=make_shares(settings, persistence.links, audit.note),
            feedback=persistence.feedback,
            figures=persistence.figures,
            public=public_settings(settings),
            answers=Answers(kpi, settings.deadlines.send_s, metrics.limit_hit, by_user(settings, ANSWER_PARTS)),
            views=KpiViews(
                turns.windows,
                runtime.loop.culprits,
                lambda: runtime.loop.lag_s,
                operator_roles(settings),
                settings.app.worker,
                None if fleet is None else fleet.views,
            ),
        )
        persistence.threads.running = turns.registry.running_in
        doors = self._make_doors(
            chat, turns, persistence, make_task_writer(settings, groups, kit, kpi).answer, metrics, fleet, tasks
        )
        state = State(
            tasks, runtime, metrics, models, knowledge, catalog, persistence, turns, hub, chat, doors, audit, fleet
        )
        self._start(state, stack)
        return state

    def _make_doors(
        self,
        chat: ChatServices,
        turns: Registries,
        persistence: Persistence,
        answer_task: AnswerTask,
        metrics: AgenticMetrics,
        fleet: Fleet | None,
        tasks: TaskRegistry,
    ) -> DoorServices:
        settings = self._settings
        return DoorServices(
            registry=chat.registry,
            unkept=turns.unkept,
            store=chat.store,
            threads=persistence.threads,
            leftovers=chat.attachments.leftovers,
            sessions=chat.sessions,
            catalog=chat.catalog,
            made=chat.agents.created,
            policy=chat.agents.policy,
            memory=UserMemory(persistence.graph_state),
            hub=chat.hub,
            kpi=chat.kpi,
            answer_task=answer_task,
            admit_task=task_admission(settings, metrics.limit_hit, fleet),
            limit_hit=metrics.limit_hit,
            base_url=settings.app.base_url,
            max_message_chars=settings.limits.max_message_chars,
            background_s=settings.doors.background_s,
            public_url=settings.doors.public_url,
            title=settings.app.name,
            tasks=tasks,
            entrance=entrance(settings),
            mcp_sessions=McpSessions(settings.doors.mcp_sessions_per_user, settings.doors.mcp_session_idle_s),
        )

    def _make_turns(
        self,
        groups: ModelGroups,
        kit: AgentKit,
        catalog: Catalog,
        persistence: Persistence,
        fleet: Fleet | None,
        tasks: TaskRegistry,
        kpi: Kpi,
        metrics: AgenticMetrics,
        audit: AuditLog,
        stack: AsyncExitStack,
    ) -> Registries:
        """What runs turns: one registry for those that are kept, and two for those that leave nothing."""
        settings, parts = self._settings, self._parts
        admission = Admission(turn_limits(settings), metrics.limit_hit)
        windows = Windows()
        tracer = make_tracer(settings, metrics, stack)
        TurnQuantiles(windows, self._registry)
        reports = TurnReports(kpi, metrics, windows, tracer=tracer)
        runner = TurnRunner(
            store=persistence.store,
            images=persistence.attachments,
            log=persistence.log,
            catalog=catalog,
            admission=admission,
            metrics=metrics,
            kpi=kpi,
            reports=reports,
            rules=turn_rules(settings),
            leases=None if fleet is None else fleet.leases,
            elsewhere=None if fleet is None else fleet.turns,
            titles=self._make_titles(make_title_writer(settings, groups, kpi), persistence, tasks),
            memory=SessionMemory(clock=parts.clock),
            replays=lambda user_id: self.admission.place(user_id, Cost.RESUME),
            note=audit.note,
        )
        registry = TurnRegistry(runner=runner, admission=admission, log=persistence.log, tasks=tasks, rules=parts.turns)

        def unkept(agents: TurnAgents, name: str) -> TurnRegistry:
            turn_s = settings.deadlines.turn_s
            return unkept_turns(agents, admission, metrics, kpi, reports, tasks, turn_s, name=name)

        return Registries(
            admission, windows, registry, unkept(catalog, "unkept"), unkept(parts.direct(kit), "baseline"), tracer
        )

    def _start(self, state: State, stack: AsyncExitStack) -> None:
        """Start the background work, which runs until the stack closes."""
        tasks, persistence, windows = state.tasks, state.persistence, state.turns.windows
        self._start_tasks(tasks, stack)
        state.audit.start(tasks)
        if state.turns.tracer is not None:
            state.turns.tracer.exporter.start(tasks)
        look_again_for_missing(persistence, state.registry)
        persistence.start()
        cut_off = persistence.log if state.fleet is None else state.fleet.takeover
        state.registry.begin_again(cut_off, until_known(persistence, state.chat.agents.created))
        if state.fleet is not None:
            state.fleet.start(state.registry)
            tasks.spawn("watched-sessions", state.registry.watch_elsewhere, restart=True)
        make_retention(self._settings, persistence, state.registry, state.hub, state.metrics).start(tasks)
        make_replication(persistence, state.metrics).start(tasks)
        adoption = make_adoption(self._settings, persistence, state.fleet)
        if adoption is not None:
            tasks.spawn("spool-adoption", adoption.adopt_spools, restart=True)
        self._verifier.agents_of = state.chat.agents.policy.agents_of
        tasks.spawn("agent-grants", state.chat.agents.policy.follow_changes, restart=True, essential=True)
        if state.chat.agents.created is not None:
            tasks.spawn("made-agents", state.chat.agents.created.follow_changes, restart=True)
        tasks.spawn("attachment-leftovers", state.chat.attachments.leftovers.delete_leftovers, restart=True)
        tasks.spawn("socket-clock", state.hub.check_peers, restart=True, essential=True)
        ticker = self._make_ticker(state, windows)
        state.chat.kpi.add_lines(ticker.pools.lines)
        state.chat.kpi.add_closing_lines(ticker.verdict_lines)
        tasks.spawn(
            "turn-clock",
            lambda: ticker.tick_each_second(lambda: _publish_turns(state, self.relay)),
            restart=True,
            essential=True,
        )
        if self._settings.server.gc_freeze:
            admission = state.admission
            release = MemoryRelease(lambda: admission.running, lambda: admission.left, release_memory)
            tasks.spawn("memory-release", release.release_when_idle, restart=True)

    def _make_hub(self, metrics: AgenticMetrics, turns: Registries, fleet: Fleet | None) -> SocketHub:
        hub = SocketHub(
            admission=self.admission,
            rules=socket_rules(self._settings),
            metrics=metrics,
            delivered=_to_both(metrics.delivery.observe, turns.windows.delivered),
        )
        turns.windows.undelivered = hub.behind_s
        if fleet is not None:
            fleet.turns.on_changed = hub.send_renamed
            share_limits(self._settings, fleet, turns.admission, hub)
        return hub

    def _make_keys(self, metrics: AgenticMetrics, stack: AsyncExitStack) -> KeyServices:
        store = self._open_keys(self._settings.storage.postgres, metrics, HistoryUnavailable, stack)
        return make_keys(self._settings, store, self._verifier.keys)

    def _make_persistence(self, kpi: Kpi, metrics: AgenticMetrics, tasks: TaskRegistry) -> Persistence:
        return self._parts.persistence(
            self._settings,
            kpi=kpi,
            metrics=metrics,
            tasks=tasks,
            give_up=self._give_up,
            possessions=self._possessions,
            clock=self._parts.clock,
        )

    def _make_fleet(
        self, persistence: Persistence, metrics: AgenticMetrics, tasks: TaskRegistry, stack: AsyncExitStack
    ) -> Fleet | None:
        """None for the only instance. It is left after persistence has written the last turn, and closed."""
        fleet = None
        if self._settings.persistence.replicas == "many":
            fleet = Fleet(self._settings, persistence, metrics, tasks, token=self.relay.token, siblings=self._siblings)
            stack.push_async_callback(fleet.leave)
        stack.push_async_callback(persistence.aclose)
        return fleet

    async def _make_kit(
        self,
        groups: ModelGroups,
        knowledge: KnowledgeClient,
        tasks: TaskRegistry,
        metrics: AgenticMetrics,
        stack: AsyncExitStack,
    ) -> AgentKit:
        """In threads: the SDK of tools and the packages of providers take seconds to import."""
        toolbox = await asyncio.to_thread(make_toolbox, self._settings, tasks, metrics)
        if toolbox is not None:
            stack.push_async_callback(toolbox.aclose)
        return await asyncio.to_thread(make_kit, self._settings, groups, knowledge, toolbox)

    async def _make_catalog(
        self, kit: AgentKit, metrics: AgenticMetrics, persistence: Persistence, stack: AsyncExitStack
    ) -> Catalog:
        catalog = make_catalog(self._settings, kit, metrics, persistence.checkpoints, persistence.graph_state)
        stack.push_async_callback(catalog.aclose)
        await catalog.start()
        return catalog

    def _make_titles(self, writer: TitleWriter | None, persistence: Persistence, tasks: TaskRegistry) -> Titles | None:
        return None if writer is None else Titles(writer, persistence.store, tasks, self._renamed)

    async def _renamed(self, session: Session) -> None:
        if (state := self._state) is not None:
            await state.registry.rename(session.id, session.user_id, session.title)
            state.hub.send_renamed(session)

    def _make_ticker(self, state: State, windows: Windows) -> Ticker:
        database = state.persistence.database
        tokens = self._tokens if isinstance(self._tokens, TokenVerifier) else None
        keys = self._tokens.keys if isinstance(self._tokens, IssuerVerifier) else None
        sources = TickerSources(state.runtime.loop, database.main, database.writes, state.admission, tokens, keys)
        return Ticker(sources, windows, state.metrics)


def serve_app(
    settings: AgenticSettings, sock: socket.socket, possessions: Possessions, directory: Path | None = None
) -> int:
    """Run the service on a listening socket until a signal ends it; returns the exit code (see `__main__`).

    `directory` has the sockets of the workers that share its port. Where its own cannot be made there, that is 2.
    """
    siblings = None if directory is None else Siblings(directory)
    service = AgenticService(settings, possessions, lambda: signal.raise_signal(signal.SIGTERM), siblings=siblings)
    server = settings.server
    try:
        own = () if siblings is None else (siblings.listen(service.relay.token),)
    except OSError as error:
        logger.critical("no socket can be made in %s: %s", directory, os.strerror(error.errno or 0))
        return 2
    code = serve(
        service.app,
        sock,
        *own,
        drain=service.drain,
        settings=ServeSettings(
            ws_max_size=settings.limits.max_frame_bytes,
            ws_ping_interval_s=server.ping_interval_s,
            ws_ping_timeout_s=server.ping_timeout_s,
            ws_deflate=server.ws_per_message_deflate,
            connections=settings.connections,
            health_paths=health_paths(settings.app.base_url),
            drain_limit_s=settings.deadlines.drain_s + 15.0,
        ),
        metrics=service.connection_metrics,
    )
    return code if service.given_up is None else service.given_up


def _publish_turns(state: State, relay: TurnRelay) -> None:
    """Drop expired turns, and publish the levels that are counted elsewhere."""
    metrics = state.metrics
    state.registry.expire()
    metrics.turns_in_progress.set(state.admission.running)
    metrics.turns_queued.set(state.admission.waiting)
    metrics.replay_events.set(state.registry.replay_events)
    metrics.replay_bytes.set(state.registry.replay_bytes)
    metrics.stream_hold_ms.set(state.models.hold_s * 1e3)
    metrics.fleet_relayed_turns.set(relay.following)


def _to_both(one: Callable[[float], None], other: Callable[[float], None]) -> Callable[[float], None]:
    def tell(value: float) -> None:
        one(value)
        other(value)

    return tell
