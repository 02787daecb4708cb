"""Nobody learns anything of what is another's: every operation of the OpenAPI document and every frame, with the real
stores, for a stranger and for somebody of the same group. Not yours is answered exactly as what is not there."""

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import get_args, get_type_hints

import aiohttp
import jwt
import psycopg
import pytest
from starlette.routing import WebSocketRoute
from websockets.exceptions import ConnectionClosed

from agentic_backend.chat import frames
from agentic_backend.chat.sse import read_body
from agentic_backend.surfaces.langgraph.names import checkpoint_id_of
from agentic_backend.surfaces.langgraph.states import ROOT_RANK
from tests.support.patience import PATIENCE_S
from tests.support.people import SECRET, SECURITY
from tests.support.service import BASE, hear, hear_until, say

OTHERS = ("bob", "cleo")
GROUPS = {"ann": ["/staff"], "bob": [], "cleo": ["/staff"]}
SECRET_WORD = "Melusine"


class Kind(Enum):
    """How an operation knows whose it speaks of, where it names nothing of a user's."""

    PUBLIC = "anybody may ask"
    OPERATOR = "of an operator alone, by a role"
    SHARED = "the same for every caller: agents, documents that knowledge flow guards"
    OWN = "of the caller alone"


@dataclass(frozen=True)
class Named:
    """An operation that names what may be another's: the requests to try, with `{id}` where an id of ann's goes."""

    refused: tuple[int, ...]
    requests: tuple[dict, ...] = field(default=({},))


SESSION = Named((403,))
THREAD = Named((404, 422))
FEEDBACK = {"rating": 1, "messageId": "1", "sessionId": "{session_id}", "agentName": "Georges"}
ASK = {"type": "ask", "session_id": "{session_id}", "agent_id": "Georges", "message": "Hello"}
RESUME = {"type": "resume", "session_id": "{session_id}", "exchange_id": "{exchange_id}", "after_seq": 0}
HUMAN = {
    "type": "human_resume",
    "session_id": "{session_id}",
    "exchange_id": "{exchange_id}",
    "agent_id": "Georges",
    "payload": {"choice_id": "allow"},
}
AGUI_ANSWER = {
    "threadId": "{session_id}",
    "runId": "r",
    "messages": [],
    "resume": [{"interruptId": "k:1/words////1/{exchange_id}", "status": "resolved", "payload": "yes"}],
}
"""An answer to a question of another's exchange; a question of one's own is in a session of one's own."""
OWN_SESSION = {"session_id": "{own_session_id}"}
"""What makes the caller's own session the place where another's exchange or attachment is looked for."""

RUNS = Named((404, 422), ({"json": {"assistant_id": "Georges", "input": {"messages": "x"}}},))
ROOTS = ("/agui/", "/v1/", "/ok", "/info", "/threads", "/runs", "/assistants", "/store")
RESPOND = {"id": 1, "method": "input.respond", "params": {}}
NOT_READ = ("GET /threads/{thread_id}/stream", "GET /runs/{run_id}/stream", "GET /runs/{run_id}/join")
"""What ann does not read to see what is hers: a stream without an end, and runs that are in no thread."""

OPERATIONS: dict[str, Kind | Named] = {
    "GET /healthz": Kind.PUBLIC,
    "GET /ready": Kind.PUBLIC,
    "GET /config/frontend_settings": Kind.PUBLIC,
    "GET /config/permissions": Kind.SHARED,
    "GET /agents": Kind.SHARED,
    "GET /agents/editable": Kind.SHARED,
    "POST /agents/create": Kind.SHARED,
    "PUT /agents/update": Kind.SHARED,
    "DELETE /agents/{agent_id}": Kind.SHARED,
    "GET /agents/{agent_id}/access": Kind.SHARED,
    "GET /agents/{agent_id}/pace": Kind.SHARED,
    "PUT /agents/{agent_id}/access": Kind.SHARED,
    "GET /kpi/verdict": Kind.OPERATOR,
    "GET /kpi/live": Kind.OPERATOR,
    "GET /kpi/day": Kind.OPERATOR,
    "GET /kpi/turns/{exchange_id}": Kind.OPERATOR,
    "GET /kpi/stalls": Kind.OPERATOR,
    "GET /kpi/instances": Kind.OPERATOR,
    "GET /kpi/usage": Kind.OPERATOR,
    "GET /kpi/feedback": Kind.OPERATOR,
    "GET /audit/events": Kind.OPERATOR,
    "GET /documents/{uid}/markdown": Kind.SHARED,
    "GET /documents/{uid}/linked": Kind.SHARED,
    "GET /documents/{uid}/chunks/{chunk_uid}": Kind.SHARED,
    "GET /knowledge/tags": Kind.SHARED,
    "POST /knowledge/tags": Kind.SHARED,
    "PUT /knowledge/tags/{uid}": Kind.SHARED,
    "DELETE /knowledge/tags/{uid}": Kind.SHARED,
    "GET /knowledge/tags/{uid}/access": Kind.SHARED,
    "PUT /knowledge/tags/{uid}/access": Kind.SHARED,
    "PUT /knowledge/documents/{uid}/tags": Kind.SHARED,
    "POST /knowledge/documents/{uid}/ingest": Kind.SHARED,
    "POST /knowledge/documents/browse": Kind.SHARED,
    "GET /knowledge/documents/metadata/{uid}": Kind.SHARED,
    "DELETE /knowledge/documents/{uid}": Kind.SHARED,
    "GET /knowledge/raw_content/{uid}": Kind.SHARED,
    "POST /knowledge/upload-process-documents": Kind.SHARED,
    "POST /knowledge/vector/search": Kind.SHARED,
    "POST /chatbot/keys": Kind.OWN,
    "GET /chatbot/keys": Kind.OWN,
    "DELETE /chatbot/keys/{key_id}": Named((404,)),
    "POST /chatbot/session": Kind.OWN,
    "GET /chatbot/sessions": Kind.OWN,
    "GET /chatbot/feedback": Kind.OWN,
    "GET /chatbot/me/export": Kind.OWN,
    "DELETE /chatbot/me": Kind.OWN,
    "GET /metrics/chatbot/summary": Kind.OWN,
    "GET /metrics/chatbot/numerical": Kind.OWN,
    "GET /metrics/chatbot/usage": Kind.OWN,
    "GET /chatbot/session/{session_id}": SESSION,
    "PATCH /chatbot/session/{session_id}": Named((403,), ({"json": {"title": "Mine"}}, {"json": {"pinned": True}})),
    "DELETE /chatbot/session/{session_id}": SESSION,
    "GET /chatbot/session/{session_id}/history": Named((403,), ({}, {"params": {"limit": "1", "text_limit": "5"}})),
    "GET /chatbot/session/{session_id}/message/{rank}": SESSION,
    "GET /chatbot/session/{session_id}/export": Named((403,), ({}, {"params": {"format": "json"}})),
    "GET /chatbot/session/{session_id}/preferences": SESSION,
    "PUT /chatbot/session/{session_id}/preferences": Named((403,), ({"json": {"preferences": {"a": 1}}},)),
    "POST /chatbot/session/{session_id}/share": SESSION,
    "GET /chatbot/session/{session_id}/shares": SESSION,
    "DELETE /chatbot/session/{session_id}/share/{share_id}": SESSION,
    "GET /chatbot/shared/{token}": Kind.SHARED,
    "GET /chatbot/public/{token}": Kind.PUBLIC,
    "POST /chatbot/feedback": Named((403,), ({"json": FEEDBACK},)),
    "DELETE /chatbot/feedback/{feedback_id}": Named((404,)),
    "POST /chatbot/upload": Named((403,), ({"form": {"session_id": "{session_id}"}},)),
    "GET /chatbot/upload/{attachment_id}/summary": Named(
        (404,), ({}, {"params": {"session_id": "{session_id}"}}, {"params": OWN_SESSION})
    ),
    "GET /chatbot/upload/{attachment_id}/image": Named(
        (404,), ({}, {"params": {"session_id": "{session_id}"}}, {"params": OWN_SESSION})
    ),
    "DELETE /chatbot/upload/{attachment_id}": Named(
        (404,), ({}, {"params": {"session_id": "{session_id}"}}, {"params": OWN_SESSION})
    ),
    "POST /chatbot/query/stream": Named(
        (403, 404),
        (
            {"json": ASK},
            {"json": RESUME},
            {"json": RESUME | OWN_SESSION},
            {"json": HUMAN},
            {"json": HUMAN | OWN_SESSION},
        ),
    ),
    "GET /v1/models": Kind.SHARED,
    "GET /v1/models/{model}": Kind.SHARED,
    "POST /v1/chat/completions": Kind.OWN,
    "POST /v1/responses": Named(
        (404,), ({"json": {"model": "Georges", "input": "x", "previous_response_id": "{response_id}"}},)
    ),
    "GET /v1/responses/{response_id}": Named((404,), ({}, {"params": {"stream": "true"}})),
    "GET /v1/responses/{response_id}/input_items": Named((404,)),
    "POST /v1/responses/{response_id}/cancel": Named((404,)),
    "DELETE /v1/responses/{response_id}": Named((404,)),
    "POST /agui/{agent_id}": Named((403,), ({"json": AGUI_ANSWER}, {"json": AGUI_ANSWER | {"runId": "{exchange_id}"}})),
    "DELETE /agui/{agent_id}/runs/{exchange_id}": Named((404,)),
    "GET /ok": Kind.PUBLIC,
    "GET /info": Kind.PUBLIC,
    "POST /assistants/search": Kind.SHARED,
    "POST /assistants/count": Kind.SHARED,
    "GET /assistants/{assistant_id}": Kind.SHARED,
    "GET /assistants/{assistant_id}/graph": Kind.SHARED,
    "GET /assistants/{assistant_id}/schemas": Kind.SHARED,
    "GET /assistants/{assistant_id}/subgraphs": Kind.SHARED,
    "GET /assistants/{assistant_id}/subgraphs/{namespace}": Kind.SHARED,
    "POST /assistants/{assistant_id}/versions": Kind.SHARED,
    "POST /assistants": Kind.SHARED,
    "PATCH /assistants/{assistant_id}": Kind.SHARED,
    "DELETE /assistants/{assistant_id}": Kind.SHARED,
    "POST /assistants/{assistant_id}/latest": Kind.SHARED,
    "PUT /store/items": Kind.OWN,
    "GET /store/items": Named((200,), ({"params": {"namespace": "a", "key": "k"}},)),
    "DELETE /store/items": Kind.OWN,
    "POST /store/items/search": Kind.OWN,
    "POST /store/namespaces": Kind.OWN,
    "POST /threads": Kind.OWN,
    "POST /threads/search": Kind.OWN,
    "POST /threads/count": Kind.OWN,
    "GET /threads/{thread_id}": THREAD,
    "PATCH /threads/{thread_id}": Named((404, 422), ({"json": {"metadata": {"a": 1}}},)),
    "DELETE /threads/{thread_id}": THREAD,
    "POST /threads/{thread_id}/copy": THREAD,
    "GET /threads/{thread_id}/state": THREAD,
    "GET /threads/{thread_id}/state/{checkpoint_id}": THREAD,
    "POST /threads/{thread_id}/state": Named((404, 422), ({"json": {"values": {"a": 1}}},)),
    "POST /threads/{thread_id}/state/checkpoint": Named((404, 422), ({"json": {}},)),
    "POST /threads/{thread_id}/history": Named((404, 422), ({"json": {}},)),
    "POST /threads/{thread_id}/commands": Named((200,), ({"json": RESPOND},)),
    "POST /threads/{thread_id}/stream/events": Named((404, 422), ({"json": {"channels": ["values"], "since": 0}},)),
    "GET /threads/{thread_id}/stream": THREAD,
    "POST /threads/{thread_id}/runs": RUNS,
    "POST /threads/{thread_id}/runs/stream": RUNS,
    "POST /threads/{thread_id}/runs/wait": RUNS,
    "GET /threads/{thread_id}/runs": THREAD,
    "GET /threads/{thread_id}/runs/{run_id}": THREAD,
    "DELETE /threads/{thread_id}/runs/{run_id}": THREAD,
    "GET /threads/{thread_id}/runs/{run_id}/join": THREAD,
    "GET /threads/{thread_id}/runs/{run_id}/stream": THREAD,
    "POST /threads/{thread_id}/runs/{run_id}/cancel": THREAD,
    "POST /runs": Kind.OWN,
    "POST /runs/stream": Kind.OWN,
    "POST /runs/wait": Kind.OWN,
    "GET /runs/{run_id}/stream": Named((404,)),
    "GET /runs/{run_id}/join": Named((404,)),
}
SOCKETS = {"/chatbot/query/ws", "/chatbot/query/ws-baseline"}
"""The frames below are tried on the first; the second keeps nothing that could be anybody's."""

NATIVE: dict[type, tuple[dict, ...]] = {
    frames.NativeAsk: (ASK, ASK | {"client_exchange_id": "{exchange_id}", "if_busy": "replace"}),
    frames.HumanResume: (HUMAN, HUMAN | OWN_SESSION),
    frames.Cancel: ({"type": "cancel", "exchange_id": "{exchange_id}"},),
    frames.Resume: (RESUME, RESUME | OWN_SESSION),
    frames.Auth: (),
    frames.Ping: (),
}
COMPATIBLE: dict[type, tuple[dict, ...]] = {
    frames.CompatibleAsk: (ASK, {"runtime_context": {"user_id": "ann", "user_groups": ["/staff"]}} | ASK),
    frames.CompatibleHumanResume: (HUMAN, HUMAN | OWN_SESSION),
}


def headers_of(user):
    now = int(time.time())
    claims = {"sub": user, "iat": now, "exp": now + 600, "groups": GROUPS[user]}
    return {"Authorization": f"Bearer {jwt.encode(claims, SECRET, 'HS256')}"}


def bearer(user):
    return headers_of(user)["Authorization"].removeprefix("Bearer ")


def filled(value, ids):
    """`value` with each `{id}` in place."""
    text = json.dumps(value) if not isinstance(value, str) else value
    text = re.sub(r"\{(\w+_id|rank)\}", lambda found: ids.get(found[1], found[0]), text)
    return text if isinstance(value, str) else json.loads(text)


@pytest.fixture
async def belongings(start_service, database):
    """A service with three users: ann, who has one of each thing and a turn that runs, and two who look for it."""
    # Turns last until somebody stops them.
    async with start_service("mock;gap=50;tokens=5000", security=SECURITY, deadlines={"drain_s": 0.1}) as service:
        yield await Belongings.made(service, database)


@dataclass(frozen=True)
class Belongings:
    service: object
    ids: dict
    """Of ann's things."""
    running: dict
    """The same, with the session and the exchange of her turn that runs."""
    own: dict
    """Of each other user: the session that is theirs."""

    @classmethod
    async def made(cls, service, database):
        http, ann = service.http, headers_of("ann")
        sessions = [await cls.session(http, user) for user in ("ann", "ann", *OTHERS)]
        async with service.native(bearer("ann")) as socket:
            for session_id, exchange_id in zip(sessions, ("ann-exchange", "ann-runs"), strict=False):
                ask = {"session_id": session_id, "agent_id": "Georges", "message": SECRET_WORD}
                await say(socket, type="ask", **ask, client_exchange_id=exchange_id)
                await hear_until(socket, "delta")
            await say(socket, type="cancel", exchange_id="ann-exchange")
            while (await hear(socket))["type"] != "cancelled":
                pass
        response_id = await cls.response(http)
        await service.flush()
        await asyncio.to_thread(attach, database, sessions[0])
        body = {"rating": 5, "messageId": "1", "sessionId": sessions[0], "agentName": "Georges", "comment": SECRET_WORD}
        async with http.post(f"{BASE}/chatbot/feedback", json=body, headers=ann) as response:
            assert response.status == 204
        async with http.get(f"{BASE}/chatbot/feedback", headers=ann) as response:
            feedback_id = (await response.json())[0]["id"]
        async with http.post(f"{BASE}/chatbot/session/{sessions[0]}/share", headers=ann) as response:
            share_id = (await response.json())["id"]
        async with http.post(f"{BASE}/chatbot/keys", json={"name": SECRET_WORD}, headers=ann) as response:
            key_id = (await response.json())["id"]
        ids = {
            "session_id": sessions[0],
            "thread_id": sessions[0],
            "key_id": key_id,
            "response_id": response_id,
            "exchange_id": "ann-exchange",
            "run_id": "ann-exchange",
            "checkpoint_id": checkpoint_id_of(sessions[0], ROOT_RANK),
            "feedback_id": feedback_id,
            "share_id": share_id,
            "attachment_id": "ann-attachment",
            "rank": "1",
        }
        running = ids | {"session_id": sessions[1], "thread_id": sessions[1]}
        running |= {"exchange_id": "ann-runs", "run_id": "ann-runs"}
        return cls(service, ids, running, dict(zip(OTHERS, sessions[2:], strict=True)))

    @staticmethod
    async def session(http, user):
        async with http.post(f"{BASE}/chatbot/session", json={"title": SECRET_WORD}, headers=headers_of(user)) as made:
            return (await made.json())["id"]

    @staticmethod
    async def response(http):
        """A response of ann's that has ended."""
        ask = {"model": "Georges", "input": SECRET_WORD, "background": True}
        async with http.post("/v1/responses", json=ask, headers=headers_of("ann")) as made:
            url = f"/v1/responses/{(await made.json())['id']}"
        async with http.post(f"{url}/cancel", headers=headers_of("ann")) as cancelled:
            assert cancelled.status == 200
        async with http.get(url, params={"stream": "true"}, headers=headers_of("ann")) as told:
            await told.read()
        return url.rpartition("/")[2]

    def unknown(self, user):
        """Ids of nothing, of the same shape."""
        made = {name: re.sub(r"[A-Za-z]", "x", value) for name, value in self.ids.items()}
        return made | {"own_session_id": self.own[user]}

    def anns(self, user):
        """What another user may have learnt of ann's, running and ended."""
        return [ids | {"own_session_id": self.own[user]} for ids in (self.ids, self.running)]

    async def seen_by_ann(self):
        """What ann sees of what is hers."""
        asked = [operation for operation in OPERATIONS if operation.startswith("GET") and "{" in operation]
        named = [one for one in asked if isinstance(OPERATIONS[one], Named) and one not in NOT_READ]
        own = ["GET /chatbot/sessions", "GET /chatbot/feedback", "GET /chatbot/keys"]
        answers = [await self.answer("ann", operation, {}, self.ids) for operation in (*named, *own)]
        assert [status for status, *_ in answers] == [200] * len(answers), answers
        return answers

    def ann_is_answered(self):
        """Whether her turn goes on."""
        turn = self.service.turn("ann-runs", "ann")
        return turn is not None and not turn.ended

    async def answer(self, user, operation, request, ids):
        """Status, headers and body of one request, without what differs between any two answers."""
        method, path = operation.split()
        request = filled(request, ids)
        if "form" in request:
            form = aiohttp.FormData(request.pop("form"))
            form.add_field("file", b"text", filename="notes.txt", content_type="text/plain")
            request["data"] = form
        below = "" if path.startswith(ROOTS) else BASE
        url = below + filled(path.replace("{agent_id}", "Georges"), ids)
        async with self.service.http.request(method, url, headers=headers_of(user), **request) as response:
            headers = sorted((name.lower(), value) for name, value in response.headers.items())
            unlike = ("date", "x-request-id")
            body = unsigned(await response.read(), ids)
            return response.status, [header for header in headers if header[0] not in unlike], body

    async def heard(self, user, frame, ids, *, native):
        """What a socket hears of one frame, and whether it was closed for it."""
        connect = self.service.native(bearer(user)) if native else self.service.compatible(token=bearer(user))
        heard = []
        async with connect as socket:
            await socket.send(json.dumps(filled(frame, ids)))
            try:
                async with asyncio.timeout(PATIENCE_S):
                    heard.append(unsigned((await socket.recv()).encode(), ids))
                    if native:
                        await say(socket, type="ping")
                    heard.append(unsigned((await socket.recv()).encode(), ids))
            except ConnectionClosed as closed:
                heard.append(closed.rcvd and closed.rcvd.code)
        return heard


def unsigned(body, ids):
    """An answer without what the server numbers anew each time, and with what was asked for told by its kind alone."""
    text = re.sub(r'"request_id":"[0-9a-f]{16,32}"', '"request_id":"…"', body.decode())
    text = re.sub(r'"exchange_id":"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"', '"exchange_id":"…"', text)
    for name, value in ids.items():
        if name != "rank":
            text = text.replace(value, f"<{name}>")
    return text


def attach(database, session_id):
    """An attachment, as knowledge flow would have made it possible."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO session_attachments (attachment_id, session_id, user_id, name, size_bytes, mime)"
            " VALUES ('ann-attachment', %s, 'ann', %s, 8, 'image/png')",
            (session_id, f"{SECRET_WORD}.png"),
        )
        connection.execute("INSERT INTO attachment_image VALUES ('ann-attachment', 1, 1, %s)", (SECRET_WORD.encode(),))


def test_every_operation_route_and_frame_has_its_place_here():
    """A new one fails here until somebody has said whose it speaks of."""
    assert set(get_args(frames.NativeFrame)) == set(NATIVE)
    assert set(get_args(frames.CompatibleFrame)) == set(COMPATIBLE)
    kinds = get_args(get_type_hints(read_body)["return"])
    streamed = {get_args(kind.model_fields["type"].annotation)[0] for kind in kinds}
    assert streamed == {request["json"]["type"] for request in OPERATIONS["POST /chatbot/query/stream"].requests}


@pytest.mark.one_instance("several instances have a route more")
async def test_every_operation_of_the_document_and_every_socket_is_in_the_table(belongings):
    app = belongings.service.instances[0].app
    document = {
        f"{method.upper()} {path.removeprefix(BASE)}"
        for path, operations in app.openapi()["paths"].items()
        for method in operations
    }
    assert document == set(OPERATIONS), "say of a new operation whose it speaks of"
    below = [(route.path.removeprefix(BASE), route) for route in app.routes if route.path.startswith(f"{BASE}/")]
    sockets = {path for path, route in below if isinstance(route, WebSocketRoute)}
    undocumented = {f"{method} {path}" for path, route in below for method in getattr(route, "methods", None) or ()}
    assert sockets == SOCKETS
    assert undocumented <= document, "a route below the base path that the document leaves out"
    for operation, kind in OPERATIONS.items():
        named = set(re.findall(r"\{(\w+)\}", operation)) - {
            "uid",
            "chunk_uid",
            "agent_id",
            "model",
            "assistant_id",
            "namespace",
            "token",
        }
        assert not named or isinstance(kind, Named) or kind is Kind.OPERATOR, operation


@pytest.mark.parametrize("user", OTHERS)
async def test_what_is_anothers_is_answered_as_what_is_not_there(belongings, user):
    before = await belongings.seen_by_ann()
    for operation, kind in OPERATIONS.items():
        for request in kind.requests if isinstance(kind, Named) else ():
            unknown = await belongings.answer(user, operation, request, belongings.unknown(user))
            assert unknown[0] in kind.refused, (operation, request, unknown)
            for ids in belongings.anns(user):
                assert await belongings.answer(user, operation, request, ids) == unknown, (operation, request)
    assert await belongings.seen_by_ann() == before
    assert belongings.ann_is_answered()


@pytest.mark.parametrize("user", OTHERS)
async def test_a_frame_that_names_anothers_is_answered_as_one_that_names_nothing(belongings, user):
    before = await belongings.seen_by_ann()
    for table, native in ((NATIVE, True), (COMPATIBLE, False)):
        for frame in (frame for of_type in table.values() for frame in of_type):
            unknown = await belongings.heard(user, frame, belongings.unknown(user), native=native)
            assert "not_found" in unknown[0], (frame, unknown)
            assert unknown[1] == ('{"type":"pong"}' if native else 1011)
            for ids in belongings.anns(user):
                assert await belongings.heard(user, frame, ids, native=native) == unknown, frame
    assert await belongings.seen_by_ann() == before
    assert belongings.ann_is_answered()


async def test_lists_and_figures_are_of_the_caller_alone(belongings):
    figures = {"params": {"start": "2025-06-01T00:00:00Z", "end": "2030-06-01T00:00:00Z", "precision": "day"}}
    for operation in (operation for operation, kind in OPERATIONS.items() if kind is Kind.OWN and "GET" in operation):
        request = figures if "numerical" in operation else {}
        mine, *others = [await belongings.answer(user, operation, request, {}) for user in ("ann", *OTHERS)]
        assert [status for status, *_ in (mine, *others)] == [200] * 3, operation
        assert mine[2] not in [body for *_, body in others], operation
        told = [value for name, value in belongings.ids.items() if name != "rank" and value in str(others)]
        assert told == [], operation
    for user in OTHERS:
        _, _, body = await belongings.answer(user, "GET /chatbot/sessions", {"params": {"q": SECRET_WORD}}, {})
        assert [session["id"] for session in json.loads(body)] == [belongings.own[user]]


async def test_what_is_for_operators_is_refused_before_anything_is_read(belongings):
    for operation in (operation for operation, kind in OPERATIONS.items() if kind is Kind.OPERATOR):
        for user in ("ann", *OTHERS):
            for request in ({}, {"params": {"window_s": "nonsense"}}):
                status, _, body = await belongings.answer(user, operation, request, {})
                assert (status, json.loads(body)["detail"]["code"]) == (403, "forbidden"), operation


async def test_the_name_of_anothers_exchange_is_free_for_a_turn_of_ones_own(belongings):
    async with belongings.service.native(bearer("bob")) as socket:
        await say(socket, **ASK | {"session_id": belongings.own["bob"], "client_exchange_id": "ann-runs"})
        first = await hear(socket)
        assert (first["type"], first["seq"], first["session_id"]) == ("accepted", 1, belongings.own["bob"])
        await say(socket, type="cancel", exchange_id="ann-runs")
        while (await hear(socket))["type"] != "cancelled":
            pass
    assert belongings.ann_is_answered()
