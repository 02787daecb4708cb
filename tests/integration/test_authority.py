"""Each route for callers without a token. What is another user's: test_isolation."""

import asyncio
import json
import re

import psycopg
import pytest
from starlette.routing import Mount, WebSocketRoute
from websockets.exceptions import ConnectionClosed

from tests.support.people import SECURITY, headers_of, token_of
from tests.support.service import BASE, hear_until, say

PUBLIC = {
    f"{BASE}/healthz",
    f"{BASE}/ready",
    f"{BASE}/config/frontend_settings",
    f"{BASE}/chatbot/public/{{token}}",
    "/",
    "/documents/{uid}",
    "/web/index.html",
    "/docs",
    "/docs/{name}",
    "/.well-known/oauth-protected-resource/mcp",
    "/v1/{path:path}",
    "/ok",
    "/info",
}
"""What anybody may have: how the service is, how to sign in, and the pages, which show nothing without a token; what
was shared with anybody, where that is allowed. Below `/v1`: that there is nothing."""

BODIES = {
    "/chatbot/session/{session_id}": {"title": "Named"},
    "/chatbot/session/{session_id}/preferences": {"preferences": {}},
    "/chatbot/feedback": {"rating": 1, "messageId": "1", "sessionId": "{session_id}", "agentName": "Georges"},
}
"""Bodies that a route takes; `{session_id}` stands for the one that is asked with."""


def routes(app):
    """(method, path) of each route; a socket's method is WS."""
    found = []
    for one in app.routes:
        if isinstance(one, WebSocketRoute):
            found.append(("WS", one.path))
        elif isinstance(one, Mount):
            found.append(("GET", f"{one.path}/index.html"))
        else:
            found += [(method, one.path) for method in sorted((one.methods or {"POST"}) - {"HEAD"})]
    return found


def filled(path, ids):
    return re.sub(r"\{(\w+)(?::path)?\}", lambda match: ids.get(match[1], "0"), path)


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
        await service.flush()
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


@pytest.mark.one_instance("several instances have a route more")
async def test_each_route_wants_a_token_or_is_on_the_list(guarded):
    service, ids = guarded
    every = routes(service.instances[0].app)
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
