"""The frame of a service: one application whose lifespan builds everything, and what all services have in common.

A service is a subclass of `Service`. It defines which parts it builds and in which order, its routes, and when it
cannot take new work.
"""

import asyncio
import gc
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any, Final, Generic, Protocol, TypeVar

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from sqlalchemy import TextClause

from backend_kit.aio import TaskRegistry
from backend_kit.auth import (
    ActingHeaders,
    ApiKeys,
    AuditAction,
    AuditEvent,
    Callers,
    HmacVerifier,
    Identity,
    IssuerKeys,
    IssuerVerifier,
    KeyWaits,
    Lately,
    Needs,
    NoAuth,
    NotOperator,
    RouteScopes,
    Verifier,
)
from backend_kit.db.api_keys import PostgresKeys, key_pool
from backend_kit.db.audit import ADD_EVENTS, AuditLog, AuditRules
from backend_kit.db.database import Database
from backend_kit.db.pool import PoolMetrics
from backend_kit.http import (
    BodyLimit,
    ConnectionMetrics,
    Cors,
    Cost,
    HttpMetrics,
    RequestId,
    RequestLimits,
    RequestMetrics,
    RouteAdmission,
    add_api_docs,
    admit_routes,
    audit_router,
    bearer,
    health_router,
    install_error_handlers,
    refusals,
)
from backend_kit.kpi import Activity, Kpi, KpiOptions, KpiRuntime, ServiceMetrics, StartTimes
from backend_kit.process import git_sha
from backend_kit.settings import Postgres, Requests, Security, ServiceSettings, config_hash
from backend_kit.wire import ServiceError

logger = logging.getLogger(__name__)

Identify = Callable[..., Awaitable[Identity]]
"""The dependency that gives a route its caller."""

_THRESHOLDS: Final = (50_000, 20, 100)
"""With the freeze a saturated turn costs 1.05 times what it does without a collector, and 1.37 times as Python comes;
10,000,10,10 costs the same and stops it more often (`python -m tests.bench.collector`; perf log of 2026-11-25)."""
_START_S: Final = 60.0
"""After which measuring begins even where the service is not ready: what it waits for then is no part of its start."""
_LOOK_S: Final = 0.02
_LATE_S: Final = 1.0
_LATE_FOR_S: Final = 10.0


class Built(Protocol):
    """What the lifespan of every service builds. Each service extends it with its own dataclass."""

    @property
    def tasks(self) -> TaskRegistry:
        """The background work."""
        ...

    @property
    def runtime(self) -> KpiRuntime:
        """What observes the process."""
        ...

    @property
    def audit(self) -> AuditLog:
        """Who did what."""
        ...


Config = TypeVar("Config", bound=ServiceSettings)
State = TypeVar("State", bound=Built)


class Service(ABC, Generic[Config, State]):
    """A service: `app` is the ASGI application, `drain` its orderly shutdown. A process may have several.

    A subclass sets `app` to the result of `_make_app`, once everything that its routes need exists.
    """

    app: FastAPI

    def __init__(
        self,
        settings: Config,
        *,
        freeze_gc: bool,
        waits: KeyWaits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`freeze_gc` excludes objects of the start from garbage collection; only for a process that does nothing else.

        `waits` bounds the wait for the issuer's keys; `clock`, in seconds, measures how long the loop is late.
        """
        self._settings = settings
        self._freeze_gc = freeze_gc
        self._clock = clock
        self._tokens = make_verifier(settings.security, waits)
        self._verifier = Callers(self._tokens)
        self._registry = CollectorRegistry()
        self.admission = RouteAdmission(self._verifier, request_limits(settings.requests), self._registry)
        self.connection_metrics = ConnectionMetrics(self._registry)
        self._activity = Activity()
        self._state: State | None = None
        self._times: StartTimes | None = None
        self._draining = False
        self._late_since: float | None = None

    @property
    def metrics_port(self) -> int | None:
        """Where /metrics listens, None before the start and after the end, or where it is off."""
        return None if self._state is None else self._state.runtime.metrics_port

    @property
    def running(self) -> State:
        """What the lifespan built. Raises RuntimeError before the start and after the end."""
        if self._state is None:
            raise RuntimeError("the service is not running")
        return self._state

    def state(self) -> tuple[bool, str, dict[str, Any]]:
        """Readiness, asked on the loop. It does not depend on Postgres, or one outage would take out all instances."""
        state = self._state
        if state is None:
            return False, "starting", {}
        status = "draining" if self._draining else self._hindrance(state)
        if status is None:
            status = "loop_late" if self._loop_is_late(state) else "ready"
        if status == "ready":
            self._begin_measuring(state, status)
        return status == "ready", status, self._dependencies(state, status)

    @abstractmethod
    async def drain(self) -> None:
        """End the work in an order that loses nothing; the server closes afterwards. Sets `_draining` first."""

    @abstractmethod
    async def _build(self, stack: AsyncExitStack) -> State:
        """Build the parts in order; `stack` closes them in reverse."""

    @abstractmethod
    def _add_routes(self, app: FastAPI, identify: Identify, base: str) -> None:
        """Add the routes below the path `base`, and the middleware that runs inside the frame's."""

    @abstractmethod
    def _hindrance(self, state: State) -> str | None:
        """Why this instance should get no new work, as the one word of `/ready`; None if it is ready."""

    @abstractmethod
    def _dependencies(self, state: State, status: str) -> dict[str, Any]:
        """The state of each dependency, for the body of `/ready` with this status."""

    def _identity_provider(self) -> str | None:
        """Whether the issuer of tokens answers: `unknown` before it was asked, then `up` or `down`; None without an
        issuer."""
        if not isinstance(self._tokens, IssuerVerifier):
            return None
        reachable = self._tokens.keys.reachable
        return "unknown" if reachable is None else "up" if reachable else "down"

    def _loop_is_late(self, state: State) -> bool:
        now = self._clock()
        if state.runtime.loop.lag_s < _LATE_S:
            self._late_since = None
            return False
        if self._late_since is None:
            self._late_since = now
        return now - self._late_since >= _LATE_FOR_S

    def _make_app(
        self,
        title: str,
        *,
        max_body_bytes: int,
        file_paths: Collection[str],
        own_errors: Collection[str] = (),
        larger_bodies: Mapping[str, int] | None = None,
        scopes: Mapping[str, Needs],
        costs: Mapping[str, Cost],
        chat_page: bool = False,
    ) -> FastAPI:
        """The application. Bodies have at most `max_body_bytes`, on the paths of `larger_bodies` what that says, and
        none where files are sent to `file_paths`; routes below `own_errors` render the refusal of a larger one
        themselves. `scopes` says which API keys each route takes, `costs` what it costs. `chat_page`: people can sign
        in at `/`."""
        app = FastAPI(
            title=title,
            version=version("turnwise"),
            lifespan=self._lifespan,
            responses=refusals(),
            openapi_url=None,  # and no pages, which load scripts from elsewhere: `add_api_docs` adds ours
        )
        base = self._settings.app.base_url
        identify = bearer(self._verifier)
        cors = Cors(self._settings.security.authorized_origins)
        install_error_handlers(app, cors.headers)
        # Not `include_router`: it would rebuild the included routes, on the loop, in the first request.
        app.router.routes += health_router(self, base).routes
        app.router.routes += audit_router(lambda: self.running.audit, identify, self._expect_operator, base).routes
        self._add_routes(app, identify, base)
        if self._settings.app.api_docs:
            add_api_docs(app, identify, chat_page=chat_page)
        admit_routes(app, self.admission, costs, RouteScopes(scopes, base), base)
        app.add_middleware(RequestMetrics, metrics=HttpMetrics(self._registry), activity=self._activity)
        app.add_middleware(
            BodyLimit,
            limit_bytes=max_body_bytes,
            file_paths=file_paths,
            own_errors=own_errors,
            larger=larger_bodies or {},
        )
        app.add_middleware(RequestId)
        cors.add_to(app)
        return app

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        self._times = StartTimes()
        async with AsyncExitStack() as stack:
            state = self._state = await self._build(stack)
            if self._freeze_gc:
                _freeze_gc()
                stack.callback(gc.unfreeze)
            self._times.mark("build")
            state.tasks.spawn("kpi-start", lambda: self._measure_once_ready(state))
            yield
            self._state = None

    async def _measure_once_ready(self, state: State) -> None:
        """Look whether the service is ready, and so begin to measure, though nobody asks."""
        status = "starting"
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                while (status := self.state()[1]) != "ready":  # noqa: ASYNC110 - it depends on many parts
                    await asyncio.sleep(_LOOK_S)
        self._begin_measuring(state, status)

    def _begin_measuring(self, state: State, status: str) -> None:
        """Begin to measure, if that is not done: what the start costs itself would be in the first windows.

        Called before the service reports that it is ready: what happens after that is measured.
        """
        times, self._times = self._times, None
        if times is not None:
            times.mark("connect")
            state.runtime.begin(times.line(status))
            self._measuring(state)

    def _measuring(self, state: State) -> None:
        """Measuring begins: a subclass drops what its own windows have of the start."""

    def _make_kpi(self, phases: tuple[str, ...], timeouts: tuple[type[Exception], ...] = ()) -> Kpi:
        """The observations of this service; `timeouts` are the errors that count as one."""
        return Kpi(
            self._registry,
            service=self._settings.app.name,
            legacy_ms_names=self._settings.metrics.legacy_ms_names,
            phases=phases,
            timeouts=timeouts,
            activity=self._activity,
        )

    def _observe(self, kpi: Kpi, stack: AsyncExitStack) -> KpiRuntime:
        """Start what observes the process, until the stack closes. Raises MetricsPortTaken."""
        runtime = KpiRuntime(kpi, kpi_options(self._settings)).start()
        stack.callback(runtime.close)
        return runtime

    def _start_tasks(self, tasks: TaskRegistry, stack: AsyncExitStack) -> None:
        """Start the background work of every service. All background work ends before the present parts of `stack`."""
        stack.push_async_callback(tasks.aclose)
        if isinstance(self._tokens, IssuerVerifier):
            tasks.spawn("issuer-keys", self._tokens.keys.refresh_keys, restart=True, essential=True)
        if self._verifier.keys is not None:
            tasks.spawn("api-keys", self._verifier.keys.follow, restart=True, essential=True)

    def _open_keys(
        self, postgres: Postgres, metrics: PoolMetrics, unavailable: Callable[[], ServiceError], stack: AsyncExitStack
    ) -> PostgresKeys | None:
        """Where the API keys are, from now on until the stack closes; None where the configuration has none.

        `postgres`: the service's own database. `unavailable` makes the error where that of the keys is away.
        """
        chosen = self._settings.security.api_keys
        if not chosen.enabled:
            return None
        pool = key_pool(chosen.postgres or postgres, metrics)
        stack.push_async_callback(pool.aclose)
        source = PostgresKeys(pool, unavailable)
        secret = chosen.act_as_secret
        acting = ActingHeaders(None if secret is None else secret.get_secret_value())
        self._verifier.keys = ApiKeys(source, unavailable, acting, provider_users=chosen.provider_users)
        return source

    def _open_audit(
        self,
        database: Database,
        metrics: ServiceMetrics,
        unavailable: Callable[[], ServiceError],
        stack: AsyncExitStack,
        statement: TextClause = ADD_EVENTS,
    ) -> AuditLog:
        """The audit log until the stack closes, before the database does; from now on it has who comes."""
        chosen = self._settings.audit
        log = AuditLog(database, AuditRules(chosen.retention_days), metrics, unavailable, statement)
        stack.push_async_callback(log.aclose)
        lately = Lately(chosen.repeat_min * 60.0)
        nobody_signs_in = isinstance(self._tokens, NoAuth)

        def note_sign_in(caller: Identity) -> None:
            signed_in = caller.grant is not None or not nobody_signs_in
            if signed_in and lately.is_new((caller.uid, caller.key_id)):
                log.note(AuditEvent.by(caller, AuditAction.SIGNED_IN, "user", caller.uid))

        self._verifier.on_known = note_sign_in
        return log

    def _expect_operator(self, caller: Identity) -> None:
        security = self._settings.security
        if security.user.enabled and caller.roles.isdisjoint(security.operator_roles):
            raise NotOperator


def make_verifier(security: Security, waits: KeyWaits | None = None) -> Verifier:
    """The verifier of tokens: none if authentication is off (logged as a warning), else by secret or issuer's keys.

    Raises RuntimeError if authentication is on without a key, which the settings refuse.
    """
    user = security.user
    if not user.enabled:
        logger.warning("authentication is OFF: every caller is the user 'admin'")
        return NoAuth()
    if security.hs256_secret is not None:
        secret = security.hs256_secret.get_secret_value()
        return HmacVerifier(
            secret,
            client_id=user.client_id or "",
            issuer=user.realm_url,
            audience=user.client_id,
            mark=user.access_token_mark,
        )
    if user.realm_url is None or user.client_id is None:
        raise RuntimeError("security.user.enabled without a key")
    if user.access_token_mark == "none":  # noqa: S105 - the name of a mark
        logger.warning("security.user.access_token_mark is none: an ID token may pass for an access token")
    keys = IssuerKeys(user.realm_url, algorithm=user.algorithm, jwks_url=user.jwks_url, waits=waits)
    return IssuerVerifier(keys, client_id=user.client_id, mark=user.access_token_mark)


def request_limits(chosen: Requests) -> RequestLimits:
    """What one user may ask of a service, as configured."""
    return RequestLimits(chosen.per_s, max(1, chosen.burst), chosen.at_once, chosen.waiting)


def kpi_options(settings: ServiceSettings) -> KpiOptions:
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
        supervisor=os.getppid() if app.worker == 0 else None,
    )


def _freeze_gc() -> None:
    """Exclude objects of the start-up from garbage collection (docs/libraries.md#garbage-collection)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
