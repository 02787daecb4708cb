"""Admission of requests: known before their body, in turn by user, paced, and gone where their client is."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from prometheus_client import CollectorRegistry

from backend_kit.auth import ANY, PUBLIC, AuthError, Identity, NoAuth, RouteScopes, Verifier
from backend_kit.auth.grant import Needs
from backend_kit.http import (
    Cost,
    RequestId,
    RequestLimits,
    RouteAdmission,
    admit_routes,
    bearer,
    install_error_handlers,
)
from backend_kit.http.admission import KEPT_S
from tests.agentic_backend.records import until
from tests.support.clock import Clock

TIGHT = RequestLimits(per_s=0.0, burst=1, at_once=2, waiting=3)


class Names:
    """Whoever a token names, but nobody is called `stranger`."""

    async def verify(self, token: str | None) -> Identity:
        if token is None or token == "stranger":
            raise AuthError("Invalid token")
        return Identity(token, token)


@dataclass
class House:
    """A service with a route of each kind, whose work lasts until the test lets it go."""

    limits: RequestLimits = TIGHT
    verifier: Verifier = field(default_factory=Names)
    kept_s: Mapping[Cost, float] = field(default_factory=lambda: KEPT_S)
    clock: Clock = field(default_factory=Clock)
    begun: list[str] = field(default_factory=list)
    bodies: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.registry = CollectorRegistry()
        self.go_on = asyncio.Event()
        self.admission = RouteAdmission(
            self.verifier,
            self.limits,
            self.registry,
            pause=self.clock.sleep,
            clock=self.clock,
            kept_s=self.kept_s,
        )
        self.app = FastAPI()
        install_error_handlers(self.app)
        self._add_routes(Annotated[Identity, Depends(bearer(self.verifier))])
        rows: dict[str, Needs] = {f"{method} /{cost}": ANY for cost in Cost for method in ("GET", "POST")}
        rows["GET /page"] = PUBLIC
        costs = {row: Cost(row.partition("/")[2]) for row in rows if row != "GET /page"}
        admit_routes(self.app, self.admission, costs, RouteScopes(rows), "")
        self.app.add_middleware(RequestId)

    def _add_routes(self, caller: Any) -> None:
        @self.app.get("/read")
        async def read(identity: caller) -> str:
            self.begun.append(identity.uid)
            await self.go_on.wait()
            return identity.uid

        @self.app.post("/turn")
        async def turn(identity: caller, request: Request) -> str:
            self.bodies.append(len(await request.body()))
            self.begun.append(identity.uid)
            await self.go_on.wait()
            return identity.uid

        @self.app.post("/upload")
        async def upload(identity: caller, request: Request) -> str:
            self.bodies.append(len(await request.body()))
            return identity.uid

        @self.app.post("/search")
        async def search(identity: caller, body: dict[str, str]) -> str:  # FastAPI reads it before it asks who calls
            self.bodies.append(len(body))
            return identity.uid

        @self.app.get("/page")
        async def page() -> str:
            return "for everybody"

    def refused(self, cost: str, bound: str) -> float:
        labels = {"cost": cost, "bound": bound}
        return self.registry.get_sample_value("app_requests_refused_total", labels) or 0.0

    def waiting(self, cost: str) -> float:
        return self.registry.get_sample_value("app_requests_waiting", {"cost": cost}) or 0.0


@asynccontextmanager
async def clients(house: House, address: str = "127.0.0.1") -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(house.app, client=(address, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


def as_user(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


async def test_one_users_reads_wait_for_each_other_and_nobody_elses_do() -> None:
    house = House()
    async with clients(house) as client, asyncio.TaskGroup() as group:
        mine = [group.create_task(client.get("/read", headers=as_user("ann"))) for _ in range(5)]
        await until(lambda: house.waiting("read") == 3)
        other = group.create_task(client.get("/read", headers=as_user("bob")))
        await until(lambda: "bob" in house.begun)
        assert house.begun == ["ann", "ann", "bob"]
        house.go_on.set()
        assert [(await task).json() for task in [*mine, other]] == ["ann"] * 5 + ["bob"]
    assert all(gate.running == gate.waiting == 0 for gate in house.admission.gates.values())


async def test_more_than_may_wait_are_refused_a_second_later() -> None:
    house = House()
    async with clients(house) as client, asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(client.get("/read", headers=as_user("ann")))
        await until(lambda: house.waiting("read") == 3)
        refused = await client.get("/read", headers=as_user("ann"))
        house.go_on.set()
    assert (refused.status_code, refused.json()["detail"]["code"]) == (429, "rate_limited")
    assert refused.headers["retry-after"] == "1"
    assert house.clock.slept == [1.0]
    assert house.refused("read", "per_user") == 1


async def test_who_comes_too_fast_waits() -> None:
    house = House(RequestLimits(per_s=2.0, burst=2))
    house.go_on.set()
    async with clients(house) as client:
        answers = [(await client.get("/read", headers=as_user("ann"))).status_code for _ in range(4)]
    assert answers == [200] * 4
    assert house.clock.slept == pytest.approx([0.5, 0.5])


async def test_a_turn_holds_its_place_for_a_moment() -> None:
    house = House(RequestLimits(at_once=1, waiting=20))
    many = 12
    async with clients(house) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.post("/turn", content=b"ask", headers=as_user("ann"))) for _ in range(many)]
        await until(lambda: len(house.begun) == many)
        house.go_on.set()
        assert {(await task).status_code for task in tasks} == {200}


async def call(house: House, path: str, token: str, messages: "asyncio.Queue[Any]") -> list[Any]:
    """A request whose messages the test puts into a queue; what was sent."""
    scope = {
        "type": "http",
        "method": "POST" if path in ("/turn", "/upload", "/search") else "GET",
        "path": path,
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {token}".encode())],
        "client": ("192.0.2.1", 1),
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 1),
    }
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    receive: Callable[[], Awaitable[Any]] = messages.get
    await house.app(scope, receive, send)
    return sent


@pytest.mark.parametrize("path", ["/upload", "/search"])
async def test_a_stranger_is_refused_before_a_byte_of_the_body_is_read(path: str) -> None:
    house = House()
    messages: asyncio.Queue[Any] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": b"{}", "more_body": False})
    sent = await call(house, path, "stranger", messages)

    assert sent[0]["status"] == 401
    assert messages.qsize() == 1


async def test_what_waits_goes_with_its_client() -> None:
    house = House(RequestLimits(at_once=1, waiting=10))
    async with asyncio.TaskGroup() as group:
        first, gone, last = (asyncio.Queue[Any]() for _ in range(3))
        group.create_task(call(house, "/read", "ann", first))
        await until(lambda: house.begun == ["ann"])
        left = group.create_task(call(house, "/read", "ann", gone))
        stays = group.create_task(call(house, "/read", "ann", last))
        await until(lambda: house.waiting("read") == 2)
        gone.put_nowait({"type": "http.disconnect"})
        assert await left == []
        assert house.waiting("read") == 1
        house.go_on.set()
        assert (await stays)[0]["status"] == 200
    assert house.begun == ["ann", "ann"]


async def test_a_body_that_came_while_it_waited_is_not_lost() -> None:
    house = House(RequestLimits(at_once=1, waiting=10))
    async with asyncio.TaskGroup() as group:
        slow, more, early = (asyncio.Queue[Any]() for _ in range(3))
        other = group.create_task(call(house, "/upload", "ann", more))
        held = group.create_task(call(house, "/upload", "ann", slow))
        waits = group.create_task(call(house, "/upload", "ann", early))
        await until(lambda: house.waiting("upload") == 1)
        early.put_nowait({"type": "http.request", "body": b"12", "more_body": True})
        early.put_nowait({"type": "http.request", "body": b"345", "more_body": False})
        await until(lambda: early.qsize() == 1)
        slow.put_nowait({"type": "http.request", "body": b"1", "more_body": False})
        assert (await held)[0]["status"] == (await waits)[0]["status"] == 200
        more.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        await other
    assert house.bodies == [1, 5, 0]


async def test_the_page_is_for_everybody_and_what_is_not_there_is_not() -> None:
    house = House()
    async with clients(house) as client:
        assert (await client.get("/page")).text == '"for everybody"'
        assert (await client.get("/nothing")).status_code == 404


async def test_what_is_for_everybody_is_answered_at_a_rate_and_in_turn_by_address() -> None:
    house = House(kept_s={Cost.PAGE: 1.0})  # no answer takes so long, however busy the machine
    async with clients(house) as flood, clients(house, "127.0.0.2") as other, asyncio.TaskGroup() as group:
        pages = [group.create_task(flood.get("/page")) for _ in range(60)]
        await until(lambda: sum(page.done() for page in pages) == 16)
        assert house.waiting("page") == 44  # the first 16 have their answers, and their places rest
        assert (await other.get("/page")).status_code == 200
        assert house.waiting("page") > 0
        assert {(await page).status_code for page in pages} == {200}
    gate = house.admission.gates[Cost.PAGE]
    await until(lambda: gate.running == 0)


async def test_without_authentication_nobody_is_one_user_of_many() -> None:
    house = House(RequestLimits(per_s=1.0, burst=1, at_once=1, waiting=1), NoAuth())
    house.go_on.set()
    async with clients(house) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.get("/read")) for _ in range(16)]
        assert {(await task).status_code for task in tasks} == {200}
    assert house.clock.slept == []
