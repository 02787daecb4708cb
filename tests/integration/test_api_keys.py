"""API keys through the whole service: what each scope opens, how a key ends, and that none is told to anybody."""

import asyncio
import json
import logging
import re
from typing import Any

import psycopg
import pytest
from prometheus_client import generate_latest
from psycopg import sql
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from agentic_backend.rest.scopes import SCOPES
from backend_kit.auth import PUBLIC, ActingHeaders, ActingUser, KeyScope
from tests.agentic_backend.records import history_of
from tests.support.api_keys import ALL, revoke_key, stored_key
from tests.support.patience import PATIENCE_S
from tests.support.people import SECRET, SECURITY, headers_of, token_of
from tests.support.postgres import Database
from tests.support.service import BASE, RunningService, StartService, hear, hear_until, say

ASK = {"agent_id": "Georges", "message": "Hello"}
ACTING = {"X-OpenWebUI-User-Id": "bob", "X-OpenWebUI-User-Name": "Bob"}


@pytest.fixture
async def secured(start_service: StartService) -> Any:
    """A service that authenticates."""
    async with start_service(security=SECURITY) as service:
        yield service


async def answer(
    service: RunningService, key: str, method: str, path: str, *, header: str = "x-api-key", **options: Any
) -> tuple[int, str, dict[str, str]]:
    """Status, body and headers of one request by a key, below the base path or, with two slashes, at the root."""
    own = {"Authorization": f"Bearer {key}"} if header == "Authorization" else {header: key, "Authorization": ""}
    headers = {**own, **options.pop("headers", {})}
    place = path[1:] if path.startswith("//") else BASE + path
    async with service.http.request(method, place, headers=headers, **options) as response:
        return response.status, await response.text(), dict(response.headers)


async def made_session(service: RunningService, key: str, **headers: str) -> str:
    status, body, _ = await answer(service, key, "POST", "/chatbot/session", json={}, headers=headers)
    assert status == 200, body
    return str(json.loads(body)["id"])


async def asked(service: RunningService, key: str, *, native: bool = True) -> tuple[str, dict[str, Any]]:
    """A whole turn by a key over a socket: its session, and its end."""
    session_id = await made_session(service, key)
    async with service.native(key) if native else service.compatible(token=key) as socket:
        await say(socket, type="ask", session_id=session_id, **ASK)
        return session_id, (await hear_until(socket, "final"))[-1]


@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
async def test_a_key_opens_every_door_in_either_header(
    secured: RunningService, database: Database, header: str
) -> None:
    key = stored_key(database)
    status, body, _ = await answer(secured, key, "GET", "/agents", header=header)
    assert (status, [agent["id"] for agent in json.loads(body)]) == (200, ["Georges"])
    for native in (True, False):
        await asked(secured, key, native=native)
    session_id = await made_session(secured, key)
    ask = {"type": "ask", "session_id": session_id, **ASK}
    status, body, _ = await answer(secured, key, "POST", "/chatbot/query/stream", header=header, json=ask)
    assert (status, "event: final" in body) == (200, True)
    assert await secured.instances[0].running.persistence.store.get(session_id, "ann") is not None


async def test_a_socket_takes_a_key_in_its_own_header(secured: RunningService, database: Database) -> None:
    async with connect(secured.ws_url, additional_headers={"x-api-key": stored_key(database)}) as socket:
        await socket.send(json.dumps({"session_id": "none", **ASK}))
        assert json.loads(await socket.recv())["type"] == "error"


@pytest.mark.parametrize("scope", sorted(KeyScope))
async def test_a_key_opens_the_routes_of_its_scope_and_no_other(
    secured: RunningService, database: Database, scope: KeyScope
) -> None:
    key = stored_key(database, scopes=frozenset({scope}), roles=frozenset({"admin"}))
    wrong = []
    # Last what deletes the key with all that is its owner's.
    for row, needs in sorted(SCOPES.items(), key=lambda item: item[0] == "DELETE /chatbot/me"):
        method, path = row.split()
        if method == "WS" or needs is PUBLIC:
            continue
        url = re.sub(r"\{\w+(:path)?\}", "1", path)
        status, body, _ = await answer(secured, key, method, url, json={})
        refused = status == 403 and ('"field":"scope' in body or '"param":"scope' in body)
        assert isinstance(needs, frozenset)
        if refused == (scope in needs):
            wrong.append((row, status, body))
    assert wrong == []
    async with secured.native(key) as socket:
        if scope is KeyScope.ASK:
            await say(socket, type="ping")
            assert (await hear(socket))["type"] == "pong"
        else:
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4401


async def sessions_of(service: RunningService, token: str) -> list[str]:
    async with service.http.get(
        f"{BASE}/chatbot/sessions", headers={"x-api-key": token, "Authorization": ""}
    ) as response:
        return [session["id"] for session in await response.json()]


async def test_a_session_of_a_key_begins_with_an_agent_of_its_own_that_is_enabled(
    start_service: StartService, database: Database
) -> None:
    plain = {"class_path": "agentic_backend.agent.plain"}
    agents = [{"name": "Georges", **plain}, {"name": "Gus", "enabled": False, **plain}, {"name": "Gina", **plain}]
    async with start_service(security=SECURITY, ai={"agents": agents}) as service:
        key = stored_key(database, agents=frozenset({"Gus", "Gina"}))
        status, body, _ = await answer(service, key, "POST", "/chatbot/session", json={})
        assert (status, json.loads(body)["agent_id"]) == (200, "Gina")


async def test_a_key_asks_its_own_agents_alone(start_service: StartService, database: Database) -> None:
    agents = [{"name": name, "class_path": "agentic_backend.agent.plain"} for name in ("Georges", "Gina")]
    async with start_service(security=SECURITY, ai={"agents": agents}) as service:
        key = stored_key(database, agents=frozenset({"Gina"}))
        _, body, _ = await answer(service, key, "GET", "/agents")
        assert [agent["id"] for agent in json.loads(body)] == ["Gina"]
        session_id = await made_session(service, key)
        refused, _, _ = await answer(service, key, "POST", "/chatbot/session", json={"agent_id": "Georges"})
        assert refused == 404
        async with service.native(key) as socket:
            for agent, end in (("Georges", "error"), ("Gina", "final")):
                await say(socket, type="ask", session_id=session_id, agent_id=agent, message="Hello")
                while (heard := await hear(socket))["type"] not in ("error", "final"):
                    pass
                assert heard["type"] == end
        ask = {"type": "ask", "session_id": session_id, **ASK}
        status, body, _ = await answer(service, key, "POST", "/chatbot/query/stream", json=ask)
        assert (status, json.loads(body)["detail"]["code"]) == (404, "agent_not_found")
        # What its owner asks that agent is not told to it either, and what is refused leaves no session.
        whole = stored_key(database)
        ask |= {"client_exchange_id": "e9"}
        run = {"threadId": "t1", "runId": "r1", "messages": [{"id": "m1", "role": "user", "content": "Hello"}]}
        for path, sent in ((f"{BASE}/chatbot/query/stream", ask), ("/agui/Georges", run)):
            for token, wanted in ((key, 404), (whole, 200), (key, 404)):
                before = await sessions_of(service, whole)
                async with service.http.post(
                    path, json=sent, headers={"x-api-key": token, "Authorization": ""}
                ) as response:
                    assert (response.status, path) == (wanted, path)
                    await response.read()
                assert wanted == 200 or await sessions_of(service, whole) == before


async def closed_for_an_ask(socket: ClientConnection, session_id: str) -> int | None:
    """The code with which a socket is closed that asks; at most it is told `unauthenticated` before."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            await say(socket, type="ask", session_id=session_id, **ASK)
            while True:
                assert json.loads(await socket.recv())["code"] == "unauthenticated"
    except ConnectionClosed as closed:
        return closed.rcvd and closed.rcvd.code


async def look_at_keys(service: RunningService) -> None:
    """What the background does every 2 s."""
    for each in service.instances:
        assert each._verifier.keys is not None
        await each._verifier.keys.look()


async def test_a_revoked_key_ends_everywhere_and_on_an_open_socket(secured: RunningService, database: Database) -> None:
    key = stored_key(database)
    session_id, _ = await asked(secured, key)
    async with secured.native(key) as native, secured.compatible(token=key) as compatible:
        await say(native, type="ask", session_id=session_id, **ASK)
        await hear_until(native, "final")
        revoke_key(database, key)
        await look_at_keys(secured)
        status, body, headers = await answer(secured, key, "GET", "/chatbot/sessions")
        assert (status, json.loads(body)) == (401, {"detail": "Invalid token"})
        assert headers["WWW-Authenticate"] == "Bearer"
        for socket in (native, compatible):
            assert await closed_for_an_ask(socket, session_id) == 4401
    turns = await history_of(secured.instances[0].running.persistence.store, session_id, "ann")
    assert len(turns) == 4


@pytest.mark.one_instance("the rate of a key is of one process")
async def test_a_key_has_its_rate_over_rest_and_sockets(secured: RunningService, database: Database) -> None:
    key = stored_key(database, rate_per_min=2)
    session_id = await made_session(secured, key)
    async with secured.native(key) as socket:
        await say(socket, type="ask", session_id=session_id, **ASK)
        await hear_until(socket, "final")
        await say(socket, type="ask", session_id=session_id, **ASK)
        error = await hear(socket)
        assert (error["type"], error["code"]) == ("error", "rate_limited")
        assert error["retry_after_ms"] > 0
    status, body, headers = await answer(secured, key, "GET", "/agents")
    assert (status, json.loads(body)["detail"]["code"]) == (429, "rate_limited")
    assert int(headers["Retry-After"]) > 0


async def test_a_front_ends_user_is_nobody_elses_and_reaches_nobodys_sessions(
    secured: RunningService, database: Database
) -> None:
    front = stored_key(database, "bob", ALL | {KeyScope.ACT_AS}, roles=frozenset({"admin"}))
    own = await made_session(secured, front)
    acting = await made_session(secured, front, **ACTING)
    other = {"X-OpenWebUI-User-Id": "carl"}
    path = f"/chatbot/session/{acting}/history"
    assert (await answer(secured, front, "GET", path, headers=ACTING))[0] == 200
    assert (await answer(secured, front, "GET", path))[0] == 403
    assert (await answer(secured, front, "GET", path, headers=other))[0] == 403
    async with secured.http.get(BASE + path, headers=headers_of("bob")) as response:
        assert response.status == 403, "the provider's bob is another"
    foreign = f"/chatbot/session/{own}/history"
    assert (await answer(secured, front, "GET", foreign, headers=ACTING))[0] == 403
    assert (await answer(secured, front, "GET", "/kpi/verdict", headers=ACTING))[0] == 403, "no role is theirs"
    assert (await answer(secured, front, "POST", "/chatbot/keys", json={"name": "x"}, headers=ACTING))[0] == 403
    plain = stored_key(database, "bob")
    status, body, _ = await answer(secured, plain, "GET", "/agents", headers=ACTING)
    assert (status, json.loads(body)["detail"]["field"]) == (403, "scope:act_as")
    async with secured.http.get(f"{BASE}/chatbot/sessions", headers=headers_of("dora") | ACTING) as response:
        assert (response.status, await response.json()) == (200, [])


async def test_a_signed_name_is_required_where_there_is_a_secret(
    start_service: StartService, database: Database
) -> None:
    security = {**SECURITY, "api_keys": {"act_as_secret": "another secret of thirty-two bytes"}}
    front = stored_key(database, "bob", ALL | {KeyScope.ACT_AS})
    async with start_service(security=security) as service:
        right = ActingHeaders("another secret of thirty-two bytes").write(ActingUser("u-1", name="Ada"))
        wrong = ActingHeaders(SECRET).write(ActingUser("u-1"))
        assert (await answer(service, front, "GET", "/agents", headers=right))[0] == 200
        assert (await answer(service, front, "GET", "/agents", headers=wrong))[0] == 401
        assert (await answer(service, front, "GET", "/agents", headers=ACTING))[0] == 401
        await made_session(service, front, **right)
    with psycopg.connect(database.dsn) as connection:
        assert connection.execute("SELECT DISTINCT user_id FROM session").fetchall() == [("via:openwebui:u-1",)]


async def call(service: RunningService, user: str, method: str, path: str, **options: Any) -> tuple[int, Any]:
    """One request by a token."""
    async with service.http.request(method, BASE + path, headers=headers_of(user), **options) as response:
        text = await response.text()
        return response.status, json.loads(text) if text else None


@pytest.mark.one_instance("a revoked key ends at other instances within seconds")
async def test_a_key_is_made_shown_once_listed_and_revoked(secured: RunningService) -> None:
    status, made = await call(secured, "ann", "POST", "/chatbot/keys", json={"name": "a script", "rate_per_min": 60})
    assert (status, made["owner"], made["scopes"]) == (201, "ann", ["ask", "read", "search"])
    key = made.pop("key")
    assert key.startswith(f"tw_{made['id']}_")
    assert (await answer(secured, key, "GET", "/chatbot/sessions"))[0] == 200
    listed = await call(secured, "ann", "GET", "/chatbot/keys")
    assert listed[1][0] | {"last_used_at": None} == made
    assert key.split("_")[2] not in json.dumps(listed)
    assert await call(secured, "bob", "GET", "/chatbot/keys") == (200, [])
    assert (await call(secured, "bob", "GET", "/chatbot/keys?all=true"))[0] == 403
    assert (await call(secured, "bob", "DELETE", f"/chatbot/keys/{made['id']}"))[0] == 404
    assert await call(secured, "ann", "DELETE", f"/chatbot/keys/{made['id']}") == (204, None)
    assert (await answer(secured, key, "GET", "/chatbot/sessions"))[0] == 401, "here it ends at once"
    assert (await call(secured, "ann", "GET", "/chatbot/keys"))[1][0]["revoked_at"] is not None


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"scopes": ["admin"]}, "scope:admin"),
        ({"scopes": ["act_as", "ask"]}, "scope:act_as"),
        ({"groups": ["/staff"]}, "groups"),
        ({"namespace": ""}, "namespace"),
    ],
)
async def test_nobody_grants_what_they_may_not_do(secured: RunningService, wanted: dict[str, Any], field: str) -> None:
    status, body = await call(secured, "ann", "POST", "/chatbot/keys", json={"name": "x", **wanted})
    assert (status, body["detail"]["field"]) == (403, field)


@pytest.mark.parametrize("wanted", [{}, {"name": ""}, {"name": "x", "scopes": []}, {"name": "x", "scopes": ["root"]}])
async def test_what_describes_no_key_is_refused(secured: RunningService, wanted: dict[str, Any]) -> None:
    assert (await call(secured, "ann", "POST", "/chatbot/keys", json=wanted))[0] == 422


async def test_a_limit_that_is_misspelled_makes_no_key_without_it(secured: RunningService) -> None:
    status, body = await call(secured, "ann", "POST", "/chatbot/keys", json={"name": "x", "library": ["lib"]})
    assert (status, body["detail"]["code"]) == (422, "bad_request")
    assert await call(secured, "ann", "GET", "/chatbot/keys") == (200, [])


async def test_a_key_makes_no_key_that_may_do_more(secured: RunningService, database: Database) -> None:
    limited = {"agents": frozenset({"Georges"}), "libraries": frozenset({"lib"}), "expires_at": 4_000_000_000.0}
    scopes = frozenset({KeyScope.ADMIN, KeyScope.ASK})
    admin = stored_key(database, scopes=scopes, roles=frozenset({"admin"}), **limited)
    for more in (
        {"scopes": ["read"]},
        {"scopes": ["ask"], "agents": ["Gina"]},
        {"scopes": ["ask"], "libraries": ["x"]},
    ):
        status, body, _ = await answer(secured, admin, "POST", "/chatbot/keys", json={"name": "x", **more})
        assert (status, json.loads(body)["detail"]["code"]) == (403, "forbidden"), more
    wanted = {"name": "x", "scopes": ["ask"], "days": 0}
    status, body, _ = await answer(secured, admin, "POST", "/chatbot/keys", json=wanted)
    made = json.loads(body)
    assert (status, made["agents"], made["libraries"]) == (201, ["Georges"], ["lib"])
    assert made["expires_at"].startswith("2096-")
    assert (await answer(secured, made["key"], "POST", "/chatbot/keys", json=wanted))[0] == 403


async def test_an_operator_sees_and_revokes_everybodys(start_service: StartService, database: Database) -> None:
    async with start_service() as service:  # without authentication the user of the machine is one
        key = stored_key(database, "ann")
        listed = await service.get("/chatbot/keys?all=true")
        assert [one["owner"] for one in listed] == ["ann"]
        assert (await answer(service, key, "GET", "/chatbot/sessions"))[0] == 200
        async with service.http.delete(f"{BASE}/chatbot/keys/{listed[0]['id']}") as response:
            assert response.status == 204
        assert (await answer(service, key, "GET", "/chatbot/sessions"))[0] == 401


async def test_where_keys_are_off_none_is_taken_and_none_is_made(
    start_service: StartService, database: Database
) -> None:
    async with start_service(security={"user": {"enabled": False}, "api_keys": {"enabled": False}}) as service:
        assert (await answer(service, stored_key(database), "GET", "/agents"))[0] == 401
        async with service.http.post(f"{BASE}/chatbot/keys", json={"name": "x"}) as response:
            assert response.status == 403


async def test_a_key_is_told_to_nobody(
    start_service: StartService, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in a log line of any level, an error, an answer, a row of the database, or a metric."""
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    async with start_service(security=SECURITY) as service:
        status, made = await call(service, "ann", "POST", "/chatbot/keys", json={"name": "x", "rate_per_min": 40})
        assert status == 201
        key = made["key"]
        secret = key.split("_")[2]
        session_id, final = await asked(service, key)
        told.append(json.dumps(final))
        for path in ("/agents", f"/chatbot/session/{session_id}/history", "/chatbot/sessions", "/nothing"):
            told += map(str, (await answer(service, key, "GET", path))[1:])
        told += map(str, (await answer(service, f"{key}x", "GET", "/agents"))[1:])
        told += map(str, (await answer(service, key, "POST", "/chatbot/session", data=f"{{{key}"))[1:])
        told += map(str, (await answer(service, key, "POST", "/agents/create", json={"name": key}))[1:])
        async with service.compatible(path=f"?token={key}", token=None) as socket:
            await socket.send("no JSON")
            told.append(str(await socket.recv()))
        while (await answer(service, key, "GET", "/agents"))[0] != 429:
            pass
        revoke_key(database, key)
        await look_at_keys(service)
        told += map(str, (await answer(service, key, "GET", "/agents"))[1:])
        told.append(json.dumps(await call(service, "ann", "GET", "/chatbot/keys")))
        told += (generate_latest(each._registry).decode() for each in service.instances)
    ours = [record for record in caplog.records if record.name != "websockets.client"]  # that is the test's own
    told += [record.getMessage() + (record.exc_text or "") for record in ours]
    assert "websockets.server" in {record.name for record in ours}
    with psycopg.connect(database.dsn) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in tables:
            rows = sql.SQL("SELECT row_to_json(t)::text FROM {} t").format(sql.Identifier(table))
            told += map(str, connection.execute(rows).fetchall())
    assert any('"api_key"' in text or "owner_name" in text for text in told)
    assert [text[:200] for text in told if secret in text] == []


async def test_whoever_signs_in_needs_no_key(secured: RunningService) -> None:
    async with secured.native(token_of("ann")) as socket:
        await say(socket, type="ping")
        assert (await hear(socket))["type"] == "pong"
