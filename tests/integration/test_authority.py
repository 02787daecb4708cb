"""Each route and frame for callers without a token, and for callers who name what is another user's."""

import asyncio
import json
import re

import psycopg
import pytest
from starlette.routing import Mount, WebSocketRoute
from websockets.exceptions import ConnectionClosed

from tests.support.people import SECURITY, headers_of, token_of
from tests.support.service import BASE, hear, hear_until, say

PUBLIC = {
    f"{BASE}/healthz",
    f"{BASE}/ready",
    f"{BASE}/config/frontend_settings",
    "/",
    "/documents/{uid}",
    "/web/index.html",
    "/openapi.json",
    "/docs",
    "/docs/oauth2-redirect",
    "/redoc",
}
"""What anybody may have: how the service is, how to sign in, and the page, which shows nothing without a token."""

UNKNOWN = "AAAAAAAAAAA"
BODIES = {
    "/chatbot/session/{session_id}/preferences": {"preferences": {}},
    "/chatbot/feedback": {"rating": 1, "messageId": "1", "sessionId": "{session_id}", "agentName": "Georges"},
}
"""Bodies that a route takes; `{session_id}` stands for the one that is asked with."""
IN_BODY = {"POST /chatbot/feedback": {"session_id"}}
"""Routes that are told in their body whose they speak of."""
REFUSALS = {"session_id": 403, "feedback_id": 404, "attachment_id": 404}
"""What an unknown id of each kind is answered with, where it names something of a user's."""
NOBODYS = {"uid", "chunk_uid", "agent_id"}
"""Parameters that name nothing of a user's in this service: documents are knowledge flow's, agents everybody's."""


def routes(app):
    """(method, path) of each route; a socket's method is WS."""
    found = []
    for route in app.routes:
        included = getattr(route, "original_router", None)
        for one in [route] if included is None else included.routes:
            path = one.path if included is None else BASE + one.path
            if isinstance(one, WebSocketRoute):
                found.append(("WS", path))
            elif isinstance(one, Mount):
                found.append(("GET", f"{path}/index.html"))
            else:
                found += [(method, path) for method in sorted(one.methods - {"HEAD"})]
    return found


def filled(path, ids):
    return re.sub(r"\{(\w+)\}", lambda match: ids.get(match[1], "0"), path)


@pytest.fixture
async def guarded(start_service, database):
    """A service with authentication, and what ann has there: her ids."""
    async with start_service(security=SECURITY) as service:
        post, ann = service.http.post, headers_of("ann")
        async with post(f"{BASE}/chatbot/session", json={"agent_id": "Georges"}, headers=ann) as response:
            session_id = (await response.json())["id"]
        async with service.native(token_of("ann")) as socket:
            ask = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": "Secret"}
            await say(socket, **ask, client_exchange_id="e1")
            await hear_until(socket, "final")
        await service.service.running.persistence.flush(10)
        body = {"rating": 5, "messageId": "1", "sessionId": session_id, "agentName": "Georges", "comment": "Secret"}
        async with post(f"{BASE}/chatbot/feedback", json=body, headers=ann) as response:
            assert response.status == 204
        async with service.http.get(f"{BASE}/chatbot/feedback", headers=ann) as response:
            feedback_id = (await response.json())[0]["id"]
        await asyncio.to_thread(attach, database, session_id)
        yield service, {"session_id": session_id, "feedback_id": feedback_id, "attachment_id": "ann-attachment"}


def attach(database, session_id):
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO session_attachments (attachment_id, session_id, user_id, name, size_bytes)"
            " VALUES ('ann-attachment', %s, 'ann', 'Secret.txt', 1)",
            (session_id,),
        )


async def ask_rest(service, method, path, ids, headers):
    body = BODIES.get(path.removeprefix(BASE))
    sent = {} if body is None or method == "GET" else {"data": filled(json.dumps(body), ids)}
    headers = {**headers, "Content-Type": "application/json"}
    async with service.http.request(method, filled(path, ids), headers=headers, **sent) as response:
        return response.status, await response.read()


async def test_each_route_wants_a_token_or_is_on_the_list(guarded):
    service, ids = guarded
    every = routes(service.service.app)
    assert len(every) > 25
    assert {path for _, path in every} >= PUBLIC
    for method, path in every:
        if method == "WS":
            async with service.compatible(path.removeprefix(f"{BASE}/chatbot/query/ws"), token="nonsense") as socket:
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
                assert socket.close_code == 4401, path
            continue
        for bad in ({"Authorization": ""}, {"Authorization": "Bearer nonsense"}):
            status, body = await ask_rest(service, method, path, ids, bad)
            assert (status == 401) == (path not in PUBLIC), (method, path, status)
            assert b"Secret" not in body


async def test_what_is_anothers_is_answered_as_what_is_not_there(guarded):
    service, ids = guarded
    unknown = dict.fromkeys(ids, UNKNOWN)
    before = [await ask_rest(service, "GET", f"{BASE}{path}", ids, headers_of("ann")) for path in OWN]
    seen = set()
    for method, path in routes(service.service.app):
        named = set(re.findall(r"\{(\w+)\}", path)) | IN_BODY.get(f"{method} {path.removeprefix(BASE)}", set())
        assert named <= {*REFUSALS, *NOBODYS, "rank"}, f"{path}: say of whom its parameters speak"
        if not named & REFUSALS.keys():
            continue
        foreign = await ask_rest(service, method, path, ids, headers_of("bob"))
        assert foreign == await ask_rest(service, method, path, unknown, headers_of("bob")), (method, path)
        assert foreign[0] == next(REFUSALS[name] for name in REFUSALS if name in named), (method, path, foreign)
        seen.add(f"{method} {path.removeprefix(BASE)}")
    assert seen >= ASKED
    after = [await ask_rest(service, "GET", f"{BASE}{path}", ids, headers_of("ann")) for path in OWN]
    assert after == before
    assert all(status == 200 and b"Secret" in body for status, body in after)


OWN = (
    "/chatbot/session/{session_id}/history",
    "/chatbot/session/{session_id}/export?format=json",
    "/chatbot/sessions",
    "/chatbot/feedback",
    "/chatbot/upload/{attachment_id}/summary",
)
ASKED = {
    "DELETE /chatbot/session/{session_id}",
    "GET /chatbot/session/{session_id}/history",
    "GET /chatbot/session/{session_id}/message/{rank}",
    "GET /chatbot/session/{session_id}/preferences",
    "PUT /chatbot/session/{session_id}/preferences",
    "GET /chatbot/session/{session_id}/export",
    "POST /chatbot/feedback",
    "DELETE /chatbot/feedback/{feedback_id}",
    "GET /chatbot/upload/{attachment_id}/summary",
    "DELETE /chatbot/upload/{attachment_id}",
}


@pytest.mark.parametrize("path", ["/chatbot/sessions", "/chatbot/sessions?q=secret", "/chatbot/feedback"])
async def test_lists_hold_nothing_of_anothers(guarded, path):
    service, ids = guarded
    async with service.http.get(BASE + path, headers=headers_of("ann")) as response:
        assert len(await response.json()) == 1
    async with service.http.get(BASE + path, headers=headers_of("bob")) as response:
        assert await response.json() == []
    of_one = f"{BASE}/chatbot/feedback?session_id={ids['session_id']}"
    async with service.http.get(of_one, headers=headers_of("bob")) as response:
        assert await response.json() == []


async def test_figures_count_nothing_of_anothers(guarded):
    service, _ = guarded
    numerical = "/metrics/chatbot/numerical?start=2025-06-01T00:00:00Z&end=2030-06-01T00:00:00Z&precision=day"
    for user, sessions in (("ann", 1), ("bob", 0)):
        async with service.http.get(f"{BASE}/metrics/chatbot/summary", headers=headers_of(user)) as response:
            assert (await response.json())["sessions_total"] == sessions
        async with service.http.get(BASE + numerical, headers=headers_of(user)) as response:
            assert len((await response.json())["buckets"]) == sessions


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "ask", "session_id": "{session_id}", "agent_id": "Georges", "message": "Hello"},
        {"type": "cancel", "exchange_id": "e1"},
        {"type": "resume", "session_id": "{session_id}", "exchange_id": "e1", "after_seq": 0},
    ],
    ids=lambda frame: frame["type"],
)
async def test_a_frame_that_names_anothers_is_answered_as_one_that_names_nothing(guarded, frame):
    service, ids = guarded
    answers = []
    for exchange_id, named in (("e1", ids), ("e2", dict.fromkeys(ids, UNKNOWN))):
        async with service.native(token_of("bob")) as socket:
            text = filled(json.dumps(frame).replace('"e1"', f'"{exchange_id}"'), named)
            await socket.send(text)
            answer = await hear(socket)
        answers.append({key: value for key, value in answer.items() if key in ("type", "code", "message", "seq")})
    assert answers[0] == answers[1]
    assert answers[0]["code"] in ("session_not_found", "exchange_not_found")
