"""Who gets through a route, and when: known before their body is read, in turn by user, at a rate that leaves the loop
to others.

What comes too fast waits; it is refused only where too much waits already, and then not at once: a refusal costs the
loop as much as many an answer, and a client in a loop comes back for each as fast as it gets them.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Gauge
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend_kit.aio import Crowded, FairGate, GateRules, Pace
from backend_kit.auth import PUBLIC, RouteScopes, Verifier, know_caller, takes_any_token, token_of
from backend_kit.auth.grant import below
from backend_kit.http.context import request_id
from backend_kit.wire import Code, ServiceError


class Cost(StrEnum):
    """What a request costs those beside it."""

    FREE = "free"
    """Bounded elsewhere: sockets, what instances say to each other."""
    HEALTH = "health"
    """Health routes, for probes and everybody else: in turn by address."""
    PAGE = "page"
    """A file or a short answer for everybody: in turn by address, which a whole office may share."""
    CHEAP = "cheap"
    """A moment of the loop."""
    READ = "read"
    """A statement or two, and the bytes of their answer."""
    EXPORT = "export"
    """A read of everything there is, for as long as the client takes to receive it."""
    SEARCH = "search"
    """A model, and an index."""
    TURN = "turn"
    """A turn, which has an admission of its own: here only until its answer begins, for a tenth of a second at most."""
    RESUME = "resume"
    """A turn that is replayed from history, through any door."""
    UPLOAD = "upload"
    """A body that may be large, and what becomes of it."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Of one user: `per_s` requests a second after `burst` at once, `at_once` of a kind at work, `waiting` of a kind
    that wait. 0 = no limit."""

    per_s: float = 0.0
    burst: int = 1
    at_once: int = 0
    waiting: int = 0


class RequestsTooMany(ServiceError):
    """Too many requests of this user wait already."""

    code: ClassVar[Code] = Code.RATE_LIMITED


class RequestsCrowded(ServiceError):
    """Too many requests of all users wait already."""

    code: ClassVar[Code] = Code.OVERLOADED


_SHARES: Final[Mapping[Cost, tuple[int, int, bool]]] = {
    Cost.HEALTH: (16, 0, False),
    Cost.PAGE: (16, 0, False),
    Cost.CHEAP: (32, 2, False),
    Cost.READ: (16, 1, True),
    Cost.EXPORT: (8, 1, True),
    Cost.SEARCH: (64, 8, True),
    Cost.TURN: (64, 2, True),
    Cost.RESUME: (8, 1, True),
    Cost.UPLOAD: (16, 2, True),
}
"""Of each kind: how many are at work in all, how many times `at_once` of one user (0: all of them), and whether a
quarter is kept for users who have nothing at work."""
KEPT_S: Final[Mapping[Cost, float]] = {Cost.HEALTH: 0.04, Cost.PAGE: 0.08}
"""How long a place is kept of an answer to anybody, who has no pace: 400 and 200 answers a second from all addresses at
most, a sixth of what the loop could give. The first 16 wait for nothing, as the files of a page. It is not kept for
longer, since who reads slowly would keep it from others."""
_WAITING: Final = 2_000
"""Requests of one kind that wait, of all users: some 10 KB each."""
_LONGEST_PAUSE_S: Final = 5.0
_REFUSED_AFTER_S: Final = 1.0
_BEGINS_S: Final = 0.1
"""How long an ask holds a place at most. An answer that comes in one piece begins at its end."""
_STRANGERS_PER_S: Final = 20.0
_STRANGERS_BURST: Final = 100
"""Refused requests of one address; behind it may be a whole team whose tokens have run out."""


class AdmissionMetrics:
    """What waits for admission, and what was turned away: by the cost of the request, and the bound."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.waiting = Gauge("app_requests_waiting", "Requests that wait for admission.", ["cost"], registry=registry)
        self.refused = Counter(
            "app_requests_refused_total",
            "Requests that were not admitted: per_user, overall: too many waited; rate: too many came.",
            ["cost", "bound"],
            registry=registry,
        )

    def watch(self, cost: Cost, gate: FairGate) -> None:
        """Tell how many wait at a gate, whenever it is read."""
        self.waiting.labels(cost.value).set_function(lambda: gate.waiting)


class RouteAdmission:
    """The admission of one service: all its routes share the gates of their costs, and a user's pace."""

    def __init__(
        self,
        verifier: Verifier,
        limits: RequestLimits,
        registry: CollectorRegistry,
        *,
        pause: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        kept_s: Mapping[Cost, float] = KEPT_S,
    ) -> None:
        """`pause` waits a number of seconds of `clock`; `kept_s` as `KEPT_S`. If `verifier` accepts any token, all
        callers are one user, and only the total bounds hold."""
        self.verifier = verifier
        self.kept_s = kept_s
        self.metrics = AdmissionMetrics(registry)
        chosen = RequestLimits() if takes_any_token(verifier) else limits
        self._pause = pause
        self._users = Pace(chosen.per_s, chosen.burst, clock=clock) if chosen.per_s else None
        self._strangers = Pace(_STRANGERS_PER_S, _STRANGERS_BURST, clock=clock)
        self.gates = {cost: FairGate(_rules(cost, chosen)) for cost in _SHARES}
        for cost, gate in self.gates.items():
            self.metrics.watch(cost, gate)

    async def pace(self, user_id: str, cost: Cost) -> None:
        """Count one request of the user, and wait where they come too fast. Raises `RequestsTooMany`."""
        if self._users is not None:
            await self._slow_down(self._users, user_id, cost)

    def enter_now(self, key: str, cost: Cost, *, paced: bool) -> FairGate | None:
        """A place of this cost, to be left again, where neither it nor a paced user has to wait; else None, and
        nothing is counted."""
        gate = self.gates[cost]
        if not gate.enter_now(key):
            return None
        if not paced or self._users is None or self._users.take(key, 0.0) is not None:
            return gate
        gate.leave(key)
        return None

    async def pace_stranger(self, address: str) -> None:
        """Count one request of an address that is going to be refused, and wait where they come too fast."""
        with suppress(RequestsTooMany):
            await self._slow_down(self._strangers, address, Cost.CHEAP)

    async def enter(self, key: str, cost: Cost, *, paced: bool) -> FairGate:
        """The same, however long it waits. Raises `RequestsTooMany`, `RequestsCrowded`."""
        if paced:
            await self.pace(key, cost)
        gate = self.gates[cost]
        try:
            await gate.enter(key)
        except Crowded as crowded:
            await self._refuse(cost, crowded.bound)
            if crowded.bound == "overall":
                raise RequestsCrowded(retry_after_s=_REFUSED_AFTER_S) from None
            raise RequestsTooMany(retry_after_s=_REFUSED_AFTER_S) from None
        return gate

    @asynccontextmanager
    async def place(self, key: str, cost: Cost) -> AsyncIterator[None]:
        """Hold a place for the block, for work that is no route's. Raises as `enter`."""
        gate = await self.enter(key, cost, paced=False)
        try:
            yield
        finally:
            gate.leave(key)

    async def _slow_down(self, pace: Pace, key: str, cost: Cost) -> None:
        pause_s = pace.take(key, _LONGEST_PAUSE_S)
        if pause_s is None:
            await self._refuse(cost, "rate")
            raise RequestsTooMany(retry_after_s=_LONGEST_PAUSE_S)
        if pause_s:
            await self._pause(pause_s)

    async def _refuse(self, cost: Cost, bound: str) -> None:
        self.metrics.refused.labels(cost.value, bound).inc()
        await self._pause(_REFUSED_AFTER_S)


def _rules(cost: Cost, limits: RequestLimits) -> GateRules:
    places, times, keeps = _SHARES[cost]
    rules = GateRules(
        places=places,
        per_user=min(places, limits.at_once * times),
        reserve=places // 4 if keeps else 0,
        waiting=_WAITING,
        waiting_per_user=limits.waiting or _WAITING,
    )
    return rules if rules.per_user else rules.of_one_user()


class Admitted:
    """A route's application behind admission.

    It runs where the caller is known and has a place, which it holds until its answer is handed to the connection.
    Where they are not, it runs with an empty body: what asks for the caller (`bearer`) then raises the reason, which
    each door says in its own form. A route for everybody raises it here.
    """

    def __init__(
        self,
        app: ASGIApp,
        admission: RouteAdmission,
        template: str = "",
        costs: Mapping[str, Cost] | None = None,
        scopes: RouteScopes | None = None,
    ) -> None:
        """`template` is the route's path, `costs` what it costs by method, `CHEAP` or `PAGE` without. `scopes` None: it
        is for everybody."""
        self._app = app
        self._admission = admission
        self._template = template
        self._costs = costs or {}
        self._scopes = scopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        public = self._scopes is None
        cost = Cost.FREE
        if scope["type"] == "http":
            cost = self._costs.get(scope["method"], Cost.PAGE if public else Cost.CHEAP)
        if cost is Cost.FREE:
            await self._app(scope, receive, send)
            return
        try:
            key = _address(scope) if public else await self._know(scope)
            gate = self._admission.enter_now(key, cost, paced=not public)
            if gate is None:
                waiting = _Waiting(receive)
                gate = await waiting.unless_gone(self._admission.enter(key, cost, paced=not public))
                receive = waiting.receive
        except ServiceError as refusal:
            if public:
                raise
            scope["state"]["caller"] = refusal
            await self._app(scope, _no_body, send)
            return
        if gate is None:
            return
        if cost is Cost.TURN:
            await self._until_it_begins(gate, key, scope, receive, send)
            return
        if (kept_s := self._admission.kept_s.get(cost)) is not None:
            asyncio.get_running_loop().call_later(kept_s, gate.leave, key)
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            gate.leave(key)

    async def _know(self, scope: Scope) -> str:
        """Leave the caller in the scope, for `bearer`. Returns their id."""
        try:
            headers = scope["headers"]
            caller, credentials = await know_caller(
                self._admission.verifier, token_of(headers), headers, request_id(scope)
            )
            if caller.grant is not None and self._scopes is not None:
                caller.grant.spend()
                self._scopes.check(caller.grant, scope["method"], self._template)
        except ServiceError:
            await self._admission.pace_stranger(_address(scope))
            raise  # also where too many came: they have waited for it
        state = scope["state"]
        state["caller"], state["credentials"] = caller, credentials
        return caller.uid

    async def _until_it_begins(self, gate: FairGate, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Run it with a place until its answer begins: what is refused does so in a moment."""
        held = True

        def leave() -> None:
            nonlocal held
            if held:
                held = False
                gate.leave(key)

        async def begin(message: Message) -> None:
            leave()
            await send(message)

        timer = asyncio.get_running_loop().call_later(_BEGINS_S, leave)
        try:
            await self._app(scope, receive, begin)
        finally:
            timer.cancel()
            leave()


class _Waiting:
    """A request that waits for admission, and goes where its client does: what has been asked and left waits for
    nobody, or a flood would go on long after its end."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._early: deque[Message] = deque()

    async def receive(self) -> Message:
        """What the connection gave meanwhile, then what it gives."""
        return self._early.popleft() if self._early else await self._receive()

    async def unless_gone(self, entering: Coroutine[Any, Any, FairGate]) -> FairGate | None:
        """The place; None where the client has gone before. Raises as `RouteAdmission.enter`."""
        async with asyncio.TaskGroup() as group:
            gone = group.create_task(self._gone())
            entered = group.create_task(_outcome(entering))
            await asyncio.wait((gone, entered), return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            entered.cancel()
        if entered.cancelled():
            return None
        outcome = entered.result()
        if isinstance(outcome, ServiceError):
            raise outcome
        return outcome

    async def _gone(self) -> None:
        """Return when the client has gone. A body is read no further than its first piece."""
        while not self._early or not self._early[-1].get("more_body"):
            message = await self._receive()
            self._early.append(message)
            if message["type"] == "http.disconnect":
                return
        await asyncio.Event().wait()


async def _outcome(entering: Coroutine[Any, Any, FairGate]) -> FairGate | ServiceError:
    """As a value: a group of tasks would wrap what is raised."""
    try:
        return await entering
    except ServiceError as refusal:
        return refusal


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def _address(scope: Scope) -> str:
    """The key of an address: no id of a user begins like this."""
    client = scope.get("client")
    return f"\0{client[0]}" if client else "\0"


class NotThere(BaseRoute):
    """A route of everybody's whose application is `app`, as that of a `Mount` is: it says what is not there."""

    app: ASGIApp

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        await self.app(scope, receive, send)


def admit_routes(
    app: FastAPI, admission: RouteAdmission, costs: Mapping[str, Cost], scopes: RouteScopes, base: str
) -> None:
    """Put each route of the application behind admission; called once it has all of them.

    `costs` has a row for each, as `scopes`; a route without one counts as `CHEAP`.
    """
    whole = {below(base, row): cost for row, cost in costs.items()}
    for route in app.router.routes:
        _admit(route, admission, whole, scopes)
    app.router.default = Admitted(app.router.default, admission)


def _admit(route: BaseRoute, admission: RouteAdmission, costs: Mapping[str, Cost], scopes: RouteScopes) -> None:
    if isinstance(route, Route):
        methods = route.methods or set()
        public = any(scopes.needs(method, route.path) is PUBLIC for method in methods)
        of_route = {method: costs[row] for method in methods if (row := f"{method} {route.path}") in costs}
        route.app = Admitted(route.app, admission, route.path, of_route, None if public else scopes)
    elif isinstance(route, Mount | NotThere):
        route.app = Admitted(route.app, admission)
